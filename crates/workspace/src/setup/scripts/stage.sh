# Makes room for a clone and says whether there is one already.
#
# Arguments: the directory for the new clone, the project's directory, what the wanted clone is known by.
# Exit status: 0 go on, 20 it is there already, 21 something else is there.
stage=$1 project=$2 digest=$3
state=${stage%/*}
mkdir -p -- "$state" || exit 1
# What attempts that broke off have left.
rm -rf -- "$state"/clone.* "$state/setup.bundle" || exit 1
mark=$project/.git/sandbar-setup
if [[ -f $mark ]]; then
  # Of another set-up when it differs: then it is replaced.
  [[ $(<"$mark") == "$digest" ]] && exit 20
elif [[ -e $project || -L $project ]]; then
  [[ -d $project && -z $(ls -A -- "$project" 2>/dev/null) ]] || exit 21
fi
exit 0
