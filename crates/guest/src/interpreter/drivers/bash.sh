# Runs cells of bash for the guest, one after the other, in one shell.
#
# A cell comes on descriptor 3 as texts that end with NUL: its code, NAME=VALUE of its own variables, and an empty one.
# To descriptor 4 goes `{"type": "done", "status": N}`.
trap 'return 130' INT
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
  . /dev/fd/5 5<<<"$__sandbar_code" </dev/null 3<&- 4>&-
  __sandbar_status=$?
  eval "$__sandbar_after"
  printf '{"type": "done", "status": %d}\n' "$__sandbar_status" >&4
done
