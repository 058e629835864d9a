# Prints the ports that answer HTTP, one per line.
#
# Arguments: the ports to probe first, in this order and with a long timeout. Prints `ours` first
# when a server that Sandbar started runs.
mark=SANDBAR_TASK=devserver
trap '' PIPE

asks() (
  { exec 3<>"/dev/tcp/$1/$2"; } 2>/dev/null || exit 1
  printf 'GET / HTTP/1.1\r\nHost: localhost:%s\r\nUser-Agent: sandbar\r\nAccept: */*\r\nConnection: close\r\n\r\n' "$2" >&3 2>/dev/null || exit 1
  IFS= read -r -t "$3" -n 5 beginning <&3
  [[ $beginning == HTTP/ ]]
)
answers() { asks 127.0.0.1 "$1" "$2" || asks ::1 "$1" "$2"; }

listening=$(
  while read -r _ address _ state _; do
    [[ $state == 0A ]] && echo $((16#${address##*:}))
  done < <(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null) | sort -nu
)

if grep -qsz -- "^$mark" /proc/[0-9]*/environ; then echo ours; fi
asked=" 49982 49983 49999 "
# The first page may have to be compiled.
for port in "$@"; do
  [[ $asked == *" $port "* ]] && continue
  asked+="$port "
  grep -qx "$port" <<<"$listening" && answers "$port" 20 && echo "$port"
done
# Probes at most 20 other ports.
left=20
for port in $listening; do
  (( left-- > 0 )) || break
  [[ $asked == *" $port "* ]] || { answers "$port" 2 && echo "$port"; }
done
exit 0
