# Removes the files that a failed restore has unpacked, so that ROOT is unchanged.
#
# Usage: discard.sh ROOT STAGE
cd -- "$1" || exit 10
[[ -e ./$2 ]] || exit 0
[[ ! -e ./$2/old ]] || exit 11
modified=$(cat -- "./$2/modified")
rm -rf --one-file-system -- "./$2" || exit 13
touch --no-create --date="$modified" .
