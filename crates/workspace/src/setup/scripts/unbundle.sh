# Makes a repository from a bundle.
#
# Arguments: the directory for it, the bundle, the branch or nothing, the reference in the bundle,
# the origin of the new repository or nothing. Standard input is not read. $SANDBAR_SHALLOW: the
# commits at which a shallow history ends, if it is one.
stage=$1 bundle=$2 branch=$3 reference=$4 origin=$5
set -e
git init -q -- "$stage"
cd "$stage"
if [[ -n $branch ]]; then git symbolic-ref HEAD "refs/heads/$branch"; fi
# Without it, git would require the missing parents.
if [[ -n $SANDBAR_SHALLOW ]]; then printf '%s\n' "$SANDBAR_SHALLOW" >.git/shallow; fi
into=refs/heads/$branch
if [[ -z $branch ]]; then into=refs/sandbar/bundle; fi
git -c gc.auto=0 -c maintenance.auto=false fetch -q --update-head-ok -- "$bundle" "+$reference:$into" '+refs/tags/*:refs/tags/*'
if [[ -n $branch ]]; then
  git reset -q --hard
else
  git checkout -q --detach "$into"
  git update-ref -d "$into"
fi
rm -f -- .git/FETCH_HEAD "$bundle"
if [[ -n $origin ]]; then git remote add origin "$origin"; fi
