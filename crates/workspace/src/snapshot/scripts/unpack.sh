# Unpacks an archive of SIZE bytes from standard input into ROOT/STAGE/new, beside what is in ROOT.
#
#   unpack.sh ROOT STAGE SIZE
set -u -o pipefail
root=$1 stage=$2 size=$3
mkdir -p -- "$root" && cd -- "$root" || exit 10
shopt -s nullglob
# What an interrupted restore left. One that has "old" in it was interrupted in its swap: that is all there is of the old
# tree, so it stays until this restore has succeeded.
for left in ./.sandbar-restore.*; do
  [[ -e $left/old ]] || rm -rf --one-file-system -- "$left"
done
modified=$(stat --printf=%y .)
mkdir -m 700 -- "$stage" "$stage/new" && printf %s "$modified" >"$stage/modified" || exit 10
# The size is known, so that the end of the input need not be told: not every daemon can. Written on in large pieces, so that
# tar has something to do while the next one travels.
dd ibs=64K obs=1M iflag=fullblock,count_bytes count="$size" status=none |
  tar --extract --gzip --file=- --preserve-permissions --delay-directory-restore \
    --xattrs --xattrs-include='user.*' --quoting-style=escape --directory="$stage/new"
