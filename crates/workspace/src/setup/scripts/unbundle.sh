# Makes a repository of a bundle.
#
# Arguments: the directory for it, the bundle, the branch or nothing, the reference in the bundle, the new repository's
# origin or nothing. Standard input is not read. $SANDBAR_SHALLOW: where the history was cut off, if it was.
stage=$1 bundle=$2 branch=$3 reference=$4 origin=$5
set -e
git init -q -- "$stage"
cd "$stage"
if [[ -n $branch ]]; then git symbolic-ref HEAD "refs/heads/$branch"; fi
# Without it, git would miss the commits before.
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
