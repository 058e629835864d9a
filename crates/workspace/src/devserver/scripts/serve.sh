# Runs the dev server and keeps the last megabyte of its output, half of it in LOG.1.
#
# Arguments: the log, the command.
log=$1 command=$2

# Some servers exit at end of input. This shell holds both ends of a FIFO, so the input never ends.
rm -f -- "$log.in" && mkfifo -- "$log.in" && exec 4<>"$log.in"
rm -f -- "$log.in"

# dd writes each chunk as it arrives and exits after 512 writes, however short; then the log
# rotates.
keep() {
  local stats full rest
  while stats=$(dd bs=1024 count=512 of="$log" 2>&1); do
    full=${stats%%+*} rest=${stats#*+}
    if (( full + ${rest%% *} < 512 )); then break; fi
    mv -f -- "$log" "$log.1"
  done
}

{
  /bin/bash -l -c "$command" <&4
  status=$?
  echo "[ended with exit status $status]"
  exit "$status"
} 2>&1 | keep
exit "${PIPESTATUS[0]}"
