# Runs the dev server and keeps the last megabyte of what it says, half of it in LOG.1.
#
# Arguments: the log, the command.
log=$1 command=$2

# Some servers end with their input, so it never ends: whoever has both ends of a pipe waits for himself.
rm -f -- "$log.in" && mkfifo -- "$log.in" && exec 4<>"$log.in"
rm -f -- "$log.in"

# Written as it comes; a file is full after so many writes, however short.
keep() {
  local said full rest
  while said=$(dd bs=1024 count=512 of="$log" 2>&1); do
    full=${said%%+*} rest=${said#*+}
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
