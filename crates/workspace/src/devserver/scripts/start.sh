# Starts the dev server unless it runs, and waits until it answers.
#
# Arguments: the working directory, port, path, timeout in seconds, digest of this server, its log,
# its public host name, the script that runs it, its command.
#
# Exit status: 0 it answers, 30 it exited, 31 it does not answer, 32 another server or one that does
# not respond runs: stop it first. A server that was started less than the timeout ago is waited
# for. The first line of output is `started`, `already` or the exit status of the server; after 30
# and 31 the end of the log follows.
directory=$1 port=$2 path=$3 timeout=$4 digest=$5 log=$6 host=$7 serve=$8 command=$9
mark=SANDBAR_TASK=devserver
trap '' PIPE

# Succeeds if an HTTP server answers on the port. Plain bash: the sandbox may have no HTTP client.
asks() (
  { exec 3<>"/dev/tcp/$1/$port"; } 2>/dev/null || exit 1
  printf 'GET %s HTTP/1.1\r\nHost: localhost:%s\r\nUser-Agent: sandbar\r\nAccept: */*\r\nConnection: close\r\n\r\n' \
    "$path" "$port" >&3 2>/dev/null || exit 1
  # The first page may have to be compiled.
  IFS= read -r -t 20 -n 5 beginning <&3
  [[ $beginning == HTTP/ ]]
)
answers() { asks 127.0.0.1 || asks ::1; }

# Prints the seconds since this server was started; fails when it does not run.
age() {
  local environ stat fields oldest= now
  for environ in $(grep -lsz -- "^$mark:$digest" /proc/[0-9]*/environ); do
    stat=$(<"${environ%environ}stat") 2>/dev/null || continue
    # Skips the name in parentheses, which may contain any character.
    read -ra fields <<<"${stat##*) }"
    [[ -n $oldest ]] && (( oldest <= fields[19] )) || oldest=${fields[19]}
  done
  [[ -n $oldest ]] || return 1
  read -r now _ </proc/uptime
  echo $(( ${now%.*} - oldest / $(getconf CLK_TCK 2>/dev/null || echo 100) ))
}

# A server that another process started is used as it is.
if grep -qsz -- "^$mark" /proc/[0-9]*/environ; then
  while old=$(age); do
    if answers; then echo already; exit 0; fi
    (( old < timeout )) || break
    sleep 0.2
  done
  exit 32
elif answers; then
  echo already
  exit 0
fi

mkdir -p -- "${log%/*}" && rm -f -- "$log" "$log.1" || exit 1
cd "$directory" 2>/dev/null || cd || exit 1
# A session of its own: the server outlives this script and can be stopped with all its children.
# Vite accepts only known host names.
launch=(setsid)
command -v setsid >/dev/null || launch=()
env "$mark:$digest" PORT="$port" PYTHONUNBUFFERED=1 __VITE_ADDITIONAL_SERVER_ALLOWED_HOSTS="$host" \
  "${launch[@]}" /bin/bash -c "$serve" sandbar "$log" "$command" </dev/null >/dev/null 2>&1 &
pid=$!

tell() { echo "$1"; cat -- "$log.1" "$log" 2>/dev/null | tail -c 4096; }
SECONDS=0 ended=
while (( SECONDS < timeout )); do
  if answers; then echo started; exit 0; fi
  if [[ -z $ended ]] && ! kill -0 "$pid" 2>/dev/null; then
    wait "$pid"
    status=$? ended=$SECONDS
  fi
  # A command that exits with 0 may have daemonized its server, which gets 10 seconds to answer.
  if [[ -n $ended ]] && (( status != 0 || SECONDS - ended >= 10 )); then tell "$status"; exit 30; fi
  sleep 0.2
done
tell waiting
exit 31
