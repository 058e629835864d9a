# Prepares the stage directory for a clone and reports whether the clone already exists.
#
# Arguments: the stage directory, the project directory, the digest of the wanted clone.
#
# Exit status: 0 continue, 20 it already exists, 21 something else is there.
stage=$1 project=$2 digest=$3
state=${stage%/*}
mkdir -p -- "$state" || exit 1
# Removes the leftovers of interrupted attempts.
rm -rf -- "$state"/clone.* "$state/setup.bundle" || exit 1
mark=$project/.git/sandbar-setup
if [[ -f $mark ]]; then
  # A clone of another setup is replaced.
  [[ $(<"$mark") == "$digest" ]] && exit 20
elif [[ -e $project || -L $project ]]; then
  [[ -d $project && -z $(ls -A -- "$project" 2>/dev/null) ]] || exit 21
fi
exit 0
