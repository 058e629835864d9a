# Writes the archive of a directory to standard output.
#
#   archive.sh ROOT CERTAIN… -- LIKELY…
#
# Standard error begins with the generated folders that are left out, each followed by a NUL, and one more NUL; what tar
# says comes after that. Needs bash, tar and gzip; git is asked when it is there.
#
# A folder is left out by its name, and only if nothing speaks against it:
#   - git tracks something in it, or it is a repository itself: kept.
#   - it lies in a repository that cannot be asked: LIKELY names are kept, CERTAIN ones are never anybody's own work.
#   - it is inside .git or a bare repository, where folders have branches' names: kept.
#   - it is a link or a file: kept, whatever its name.
set -u
root=$1
shift
declare -A generated=() kept=()
certainty=certain
patterns=()
for name in "$@"; do
  if [[ $name == -- ]]; then certainty=likely; continue; fi
  generated["/$name"]=$certainty
  patterns+=(":(glob)**/$name/**")
done

cd -- "$root" || exit 10
shopt -s nullglob dotglob
# A swap that was interrupted: what is here now is neither the old tree nor the new one.
for half in ./.sandbar-restore.*/old; do exit 11; done

# Marks every folder of a repository that has something tracked in it. Fails when git cannot say.
ask_git() {
  local directory=$1 path prefix rest tracked
  ((${#patterns[@]})) || return 0
  command -v git >/dev/null || return 1
  mapfile -d '' -t tracked < <(
    git --no-optional-locks -c safe.directory='*' -c core.fsmonitor=false -C "$directory" \
      ls-files -z --cached -- "${patterns[@]}" 2>/dev/null || printf '/failed\0'
  )
  for path in "${tracked[@]}"; do
    [[ $path != /failed ]] || return 1
    prefix=$directory rest=$path
    while [[ $rest == */* ]]; do
      prefix+=/${rest%%/*}
      rest=${rest#*/}
      kept["$prefix"]=1
    done
  done
}

holds_repository() {
  local found
  [[ -e $1/.git ]] && return 0
  [[ $2 == likely ]] || return 1
  for found in "$1"/*/.git; do return 0; done
  return 1
}

left=()
walk() {
  local directory=$1 known=$2 child kind
  if [[ -e $directory/.git ]]; then
    known=yes
    ask_git "$directory" || known=no
  elif [[ -f $directory/HEAD && -d $directory/refs && -d $directory/objects ]]; then
    return
  fi
  for child in "$directory"/*/; do
    child=${child%/}
    [[ ! -L $child && ${child##*/} != .git ]] || continue
    kind=${generated["/${child##*/}"]-}
    # tar reads the names from lines, so that one with a line break cannot be left out.
    if [[ -n $kind && -z ${kept["$child"]-} && $child != *$'\n'* && ! ($known == no && $kind == likely) ]] &&
      ! holds_repository "$child" "$kind"; then
      left+=("$child")
    else
      walk "$child" "$known"
    fi
  done
}
walk . yes

((${#left[@]})) && printf '%s\0' "${left[@]}" >&2
printf '\0' >&2
own=(./.sandbar-restore.*)
# A middle way: on source code it takes half as long as gzip's own choice, for a sixth more bytes, while somebody waits at the fence.
exec tar --create --use-compress-program='gzip -3' --file=- --format=posix \
  --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
  --xattrs --xattrs-include='user.*' --one-file-system --quoting-style=escape --anchored --no-wildcards \
  --exclude-from=<(((${#left[@]} + ${#own[@]})) && printf '%s\n' "${left[@]}" "${own[@]}") .
