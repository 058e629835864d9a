# Ends every process that was started for one purpose, and all that it has started.
#
# Arguments: the mark that such processes carry in their environment, as the beginning of `NAME=value`; an expression for
# marks of processes that are to stay all the same, or nothing. $SANDBAR_END: a text that stands in the command line of those
# that could not be given a mark, or nothing. It is no argument, since then this script would find itself.
#
# No process is known by its number: numbers come again, and a copy of a sandbox has others. Whoever carries the mark has it
# from the one that was started with it. A program may overwrite what shows its environment; it is still in the session of
# one that did not.
mark=$1 except=$2 text=$SANDBAR_END

# Session and state of a process, from what the kernel says after its name, which may be anything.
look() {
  local line
  { IFS= read -rd '' line || true; } 2>/dev/null <"/proc/$1/stat" || return 1
  line=${line##*) }
  set -- $line
  state=$1 session=$4
  [[ -n $session && $state != [ZX] ]]
}

# Sets `found` to those that are to be ended.
find_them() {
  local file pid
  local -A sessions=()
  found=()
  while IFS= read -r file; do
    pid=${file#/proc/} pid=${pid%/*}
    if [[ -n $except ]] && grep -qszE -- "^($except)" "/proc/$pid/environ"; then continue; fi
    if look "$pid"; then
      found+=("$pid")
      # Some servers start everything in the one session that they are in themselves.
      [[ $session != "$own_session" ]] && sessions[$session]=1
    fi
  done < <(
    grep -lsz -- "^$mark" /proc/[0-9]*/environ
    [[ -n $text ]] && grep -lsaF -f - /proc/[0-9]*/cmdline <<<"$text"
  )
  if (( ${#sessions[@]} )); then
    for file in /proc/[0-9]*; do
      pid=${file#/proc/}
      if look "$pid" && [[ -n ${sessions[$session]} ]]; then found+=("$pid"); fi
    done
  fi
}

look "$$" && own_session=$session
for signal in TERM KILL; do
  for (( tries = 0; tries < 50; tries++ )); do
    find_them
    (( ${#found[@]} )) || exit 0
    # One request to end is enough. A kill is repeated for what was started between the look and the signal.
    if [[ $signal == KILL ]] || (( tries == 0 )); then kill -s "$signal" "${found[@]}" 2>/dev/null; fi
    sleep 0.1
  done
done
echo "still running: ${found[*]}" >&2
exit 1
