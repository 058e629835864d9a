# Runs cells of bash for the guest, one after the other, in one shell.
#
# A cell comes on descriptor 3 as texts that end with NUL: its code, NAME=VALUE of its own variables, and an empty one.
# To descriptor 4 goes `{"type": "done", "status": N}`.
#
# SIGURG ends a cell, and SIGINT does. The trap must not leave the cell by itself: `return` there leaves bash in the middle of waiting
# for a command, with SIGCHLD blocked and a handler that only notes SIGINT, so that the next cell could not be interrupted. So it has
# bash ask before it begins another command; the answer 2 leaves the function or the cell that the command is in. A DEBUG trap of the
# cell's own is lost by that.
#
# SIGURG, because SIGINT must not reach a bash that is about to wait for a command: between taking the signal over and noting whose it
# was, it would send it to itself for ever.
__sandbar_stop() {
  # Not the commands below: they are in no file that is read.
  [[ ${#FUNCNAME[@]} -lt 2 ]] || return 2
}
__sandbar_stopped=
trap '__sandbar_stopped=1; shopt -s extdebug; trap __sandbar_stop DEBUG' INT URG
while true; do
  IFS= read -r -d '' -u 3 __sandbar_code || {
    # An interruption that came too late for its cell.
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
