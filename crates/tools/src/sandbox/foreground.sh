# Runs one command and reports its end. POSIX sh; started by the daemon without a terminal.
#
# The command's shell gets its own process group, so that all of it can be killed. This script stays
# outside to report the end: the shell may `exec` or be killed, and children may hold the pipes.
#
# `timeout` creates the group and is the backstop if the reader dies. Each program started here adds
# to the latency of every call, so there are no others.
#
# stdout carries, besides the command's output:
#   RS MARK + PID SP STATUS NUL DIRECTORY NUL     the shell runs (inner.sh writes it on fd 8)
#   RS MARK = CODE NUL CWD NUL SURVIVORS NUL TASKS NUL RS     the shell has ended
# stderr gets RS MARK at the end, so that a reader knows when it has all of both.
#
# $1 state dir  $2 mark  $3 call  $4 root  $5 hard limit, s  $6 dir for this call or ''  $7 inner.sh
# $8 merge.sh  $9… command. `tasks.sh` is prepended to this script.
s=$1 m=$2 c=$3 h=$5 i=$7 x=$8
# Discards messages of this shell itself, such as `Killed`.
exec 7>&2 2>/dev/null
[ -d "$s/run" ] || mkdir -p "$s/bg" "$s/out" "$s/seen" "$s/run" || exit 125
# Named by pid, so that concurrent commands do not collide; pids recycle, so files stay few.
: >"$s/run/$$"
a=$4 b=$6 l=-l
shift 8
# `env` carries what a profile sets; only functions need the profile again, then `plain` is absent.
[ -e "$s/plain" ] && [ -e "$s/env" ] && l=
if [ -x /usr/bin/timeout ]; then
    g="/usr/bin/timeout -k 1 $h"
else
    g=setsid
fi
read -r u _ </proc/uptime
# On one line, so that bash counts the command's lines from 1.
SANDBAR_CALL=$c $g /bin/bash $l -c 'eval "$1"; eval "$__sandbar_v"; { __sandbar_v=$?; builtin set +xveu; __sandbar_save; exit "$__sandbar_v"; } 2>/dev/null' bash "$i" "$s" "$m" "$c" "$a" "$b" "$s/run/$$" "$x" "$@" 8>&1 </dev/null
r=$?
read -r v _ </proc/uptime
if [ "$((${v%.*} - ${u%.*}))" -ge "$h" ]; then
    # The backstop fired: also kill processes that left the group.
    for t in $(grep -lzsxF "SANDBAR_CALL=$c" /proc/[0-9]*/environ); do
        t=${t#/proc/}
        kill -s KILL "${t%/environ}"
    done
fi
p= d= o=
read -r p <"$s/run/$$" || :
IFS= read -r d <"$s/cwd" 2>/dev/null || :
if [ "${p:-0}" -gt 1 ] && kill -s 0 -- "-$p" 2>/dev/null; then
    for t in /proc/[0-9]*/stat; do
        { read -r l <"$t"; } 2>/dev/null || continue
        n=${t#/proc/} n=${n%/stat}
        set -- ${l##*) }
        [ "$3" = "$p" ] && [ "$1" != Z ] || continue
        o="$o$n $(tr '\000\n' '  ' <"/proc/$n/cmdline" 2>/dev/null)
"
    done
fi
tasks "$s"
printf '\036%s=%s\000%s\000%s\000%s\000\036' "$m" "$r" "$d" "$o" "$f"
printf '\036%s' "$m" >&7
