# Runs cells of bash for the guest, one after the other, in one shell.
#
# Reads a cell from descriptor 3 as NUL-terminated strings: its code, NAME=VALUE pairs, and an empty
# one. Writes `{"type": "done", "status": N}` to descriptor 4.
#
# SIGURG and SIGINT interrupt a cell. The trap must not return from the cell itself: `return` there
# leaves bash in the middle of waiting for a command, with SIGCHLD blocked and a handler that only
# records SIGINT, so that the next cell could not be interrupted. Instead it sets a DEBUG trap,
# which bash runs before each command; its status 2 returns from the function or cell. A DEBUG trap
# set by the cell is lost.
#
# SIGURG exists because SIGINT must not reach a bash that is about to wait for a command: between
# installing its handler and recording the sender, bash would send the signal to itself forever.
__sandbar_stop() {
  # Skips the commands below, which are outside of any sourced file.
  [[ ${#FUNCNAME[@]} -lt 2 ]] || return 2
}
__sandbar_stopped=
trap '__sandbar_stopped=1; shopt -s extdebug; trap __sandbar_stop DEBUG' INT URG
while true; do
  IFS= read -r -d '' -u 3 __sandbar_code || {
    # An interrupt that arrived after its cell ended.
    [ $? -gt 128 ] && continue
    break
  }
  __sandbar_after=
  while IFS= read -r -d '' -u 3 __sandbar_pair && [ -n "$__sandbar_pair" ]; do
    __sandbar_name=${__sandbar_pair%%=*}
    __sandbar_after+=$(declare -p "$__sandbar_name" 2>/dev/null || printf 'unset %s' "$__sandbar_name")$'\n'
    export "$__sandbar_pair"
  done
  [ -z "$__sandbar_stopped" ] || { __sandbar_stopped= && trap - DEBUG && shopt -u extdebug; }
  . /dev/fd/5 5<<<"$__sandbar_code" </dev/null 3<&- 4>&-
  __sandbar_status=$?
  eval "$__sandbar_after"
  printf '{"type": "done", "status": %d}\n' "$__sandbar_status" >&4
done
