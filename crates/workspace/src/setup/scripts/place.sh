# Puts a finished clone in its place, and says how many submodules it names.
#
# Arguments: the clone, the project's directory, what the clone is known by.
stage=$1 project=$2 digest=$3
set -e
printf %s "$digest" >"$stage/.git/sandbar-setup"
# Empty, or the clone of an earlier set-up: this was looked at before.
rm -rf -- "$project"
mv -T -- "$stage" "$project"
if [[ -f $project/.gitmodules ]]; then
  git config --file "$project/.gitmodules" --name-only --get-regexp '^submodule\..*\.path$' | wc -l
fi
