# Kills every process that was started for one purpose, with all its descendants.
#
# Arguments: the mark that such processes carry in their environment, as a prefix of `NAME=value`; a
# regular expression for marks of processes to spare, or nothing. $SANDBAR_END: a text in the
# command line of processes that could not be given a mark, or nothing. It is not an argument, since
# the script would then match itself.
#
# Processes are identified by mark and not by PID: PIDs are reused, and a copy of a sandbox has
# others. Children inherit the mark. A program may overwrite its environment; it is then found by
# the session that it shares with a process that did not.
mark=$1 except=$2 text=$SANDBAR_END

# Sets the session and state of a process, from the fields after its name, which may contain any
# character.
inspect() {
  local line
  { IFS= read -rd '' line || true; } 2>/dev/null <"/proc/$1/stat" || return 1
  line=${line##*) }
  set -- $line
  state=$1 session=$4
  [[ -n $session && $state != [ZX] ]]
}

# Sets `found` to the processes to kill.
find_them() {
  local file pid
  local -A sessions=()
  found=()
  while IFS= read -r file; do
    pid=${file#/proc/} pid=${pid%/*}
    if [[ -n $except ]] && grep -qszE -- "^($except)" "/proc/$pid/environ"; then continue; fi
    if inspect "$pid"; then
      found+=("$pid")
      # Some sandbox servers start all commands in their own session.
      [[ $session != "$own_session" ]] && sessions[$session]=1
    fi
  done < <(
    grep -lsz -- "^$mark" /proc/[0-9]*/environ
    [[ -n $text ]] && grep -lsaF -f - /proc/[0-9]*/cmdline <<<"$text"
  )
  if (( ${#sessions[@]} )); then
    for file in /proc/[0-9]*; do
      pid=${file#/proc/}
      if inspect "$pid" && [[ -n ${sessions[$session]} ]]; then found+=("$pid"); fi
    done
  fi
}

inspect "$$" && own_session=$session
for signal in TERM KILL; do
  for (( tries = 0; tries < 50; tries++ )); do
    find_them
    (( ${#found[@]} )) || exit 0
    # SIGTERM is sent once. SIGKILL is repeated for processes started since the last scan.
    if [[ $signal == KILL ]] || (( tries == 0 )); then kill -s "$signal" "${found[@]}" 2>/dev/null; fi
    sleep 0.1
  done
done
echo "still running: ${found[*]}" >&2
exit 1
