# Runs one command of a model and says how it ended. POSIX sh; started by the daemon without a terminal.
#
# The command's shell gets a process group of its own, so that all of it can be killed, and this script stays outside to
# tell the end: the shell may `exec`, may be killed, and its children may hold the pipes for hours.
#
# `timeout` makes the group and is the last resort for the day the reader dies: nothing else would ever end the command.
# Every program that is started here is waited for by every call, so there are no others.
#
# stdout carries, besides the command's output:
#   RS MARK + PID SP STATUS NUL DIRECTORY NUL     the shell runs (written by the inner script, on descriptor 8)
#   RS MARK = CODE NUL CWD NUL SURVIVORS NUL TASKS NUL RS        the shell has ended
# stderr gets RS MARK at the end, so that a reader knows when it has all of both.
#
# $1 state directory  $2 mark  $3 call  $4 root  $5 hard limit, s  $6 directory for this call or ''  $7 inner.sh
# $8 merge.sh  $9… command. `tasks.sh` stands before this.
s=$1 m=$2 c=$3 h=$5 i=$7 x=$8
# What this shell itself has to say (`Killed`) is nobody's output.
exec 7>&2 2>/dev/null
[ -d "$s/run" ] || mkdir -p "$s/bg" "$s/out" "$s/seen" "$s/run" || exit 125
# Named by this process, so that commands of separate programs do not meet; numbers come again, so there are never many.
: >"$s/run/$$"
a=$4 b=$6 l=-l
shift 8
# What a profile sets is carried over like all else; only functions would have to be read again, and then there is no mark.
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
    # The last resort was needed: those who left the group go too.
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
