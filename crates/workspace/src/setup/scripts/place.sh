# Moves a finished clone into place, and prints how many submodules it names.
#
# Arguments: the clone, the project directory, the digest of the clone.
stage=$1 project=$2 digest=$3
set -e
printf %s "$digest" >"$stage/.git/sandbar-setup"
# Empty, or the clone of an earlier setup: stage.sh has checked this.
rm -rf -- "$project"
mv -T -- "$stage" "$project"
if [[ -f $project/.gitmodules ]]; then
  git config --file "$project/.gitmodules" --name-only --get-regexp '^submodule\..*\.path$' | wc -l
fi
