# Replaces everything in ROOT by ROOT/STAGE/new, or leaves ROOT unchanged.
#
# Usage: swap.sh ROOT STAGE
#
# Only renames, so it is quick; it completes even when its caller is gone. ROOT itself stays, since
# it may be the working directory of a process. Mount points directly in ROOT stay too; deeper ones
# are rejected, since they would move along.
set -u
root=$1 stage=./$2
cd -- "$root" && [[ -d $stage/new ]] || exit 10
shopt -s nullglob dotglob
here=$(pwd -P)
declare -A stays=()
while read -r _ _ _ _ point _; do
  printf -v point '%b' "${point//\\/\\0}"
  [[ $point == "${here%/}"/* ]] || continue
  rest=${point#"${here%/}"/}
  if [[ $rest == */* ]]; then
    printf '%s\n' "$point" >&2
    exit 12
  fi
  stays["/$rest"]=1
done </proc/self/mountinfo

# Moves all entries of a directory into another, except mount points.
move_all() {
  local from=$1 to=$2 entry entries=() at
  for entry in "$from"/*; do
    [[ $entry != "$stage" && -z ${stays["/${entry##*/}"]-} ]] && entries+=("$entry")
  done
  for ((at = 0; at < ${#entries[@]}; at += 500)); do
    mv -t "$to" -- "${entries[@]:at:500}" || return 1
  done
}

modified=$(stat --printf=%y -- "$stage/new")
mkdir -- "$stage/old" || exit 10
if ! move_all . "$stage/old"; then
  move_all "$stage/old" . && rmdir -- "$stage/old"
  exit 13
fi
if ! move_all "$stage/new" .; then
  move_all . "$stage/new" && move_all "$stage/old" . && rmdir -- "$stage/old"
  exit 13
fi
chown --reference="$stage/new" . 2>/dev/null
chmod --reference="$stage/new" .
# Removes the mark of an interrupted swap first.
mv -- "$stage/old" "$stage/gone" && rm -rf --one-file-system -- "$stage"
touch --no-create --date="$modified" .
exit 0
