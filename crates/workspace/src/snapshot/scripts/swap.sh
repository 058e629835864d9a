# Puts ROOT/STAGE/new in place of everything else in ROOT, or leaves ROOT as it was.
#
#   swap.sh ROOT STAGE
#
# Only names are moved, so it is quick, and it goes on when nobody waits for it any more. ROOT itself stays, since it may be
# somebody's working directory. Mounted directories in ROOT stay too; deeper ones are refused, since they would move along.
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

# Moves all entries of a directory into another, but for those that stay where they are.
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
# First of all the mark of a half-done swap.
mv -- "$stage/old" "$stage/gone" && rm -rf --one-file-system -- "$stage"
touch --no-create --date="$modified" .
exit 0
