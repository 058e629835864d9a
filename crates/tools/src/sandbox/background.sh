# Runs one command in the background: its output goes to a log of at most 64 MiB, its exit code
# to a file for the next call. POSIX sh. Stays alive until the command has ended (see tasks.sh).
#
# $1 state dir  $2 mark  $3 call  $4 root  $5 unused  $6 dir for this call or ''  $7 inner.sh
# $8 merge.sh  $9… command. `tasks.sh` is prepended to this script.
s=$1 m=$2 c=$3 a=$4 b=$6 i=$7
shift 8
mkdir -p "$s/bg" "$s/out" "$s/seen" "$s/run" || exit 125
n=1
while ! mkdir "$s/bg/b$n" 2>/dev/null; do
    n=$((n + 1))
    [ "$n" -lt 10000 ] || exit 125
done
d=$s/bg/b$n
: >"$d.log"
keep "$d/"
printf '\036%s#b%s\000' "$m" "$n"
exec 8>&1 >/dev/null 2>&1
{
    SANDBAR_CALL=$c setsid /bin/bash -l -c 'eval "$1"; eval "$__sandbar_v"; { __sandbar_v=$?; builtin set +xveu; __sandbar_save; exit "$__sandbar_v"; } 2>/dev/null' bash "$i" "$s" "$m" "$c" "$a" "$b" "$d/pid" '' "$@" 7>&1 </dev/null
    echo $? >"$d/code"
    mv "$d/code" "$d/exit"
} | {
    exec 8>&-
    # 64 MiB, in blocks of 512 bytes. `head -c` would buffer the last lines for too long.
    (
        ulimit -c 0
        ulimit -f 131072
        exec cat >"$d.log"
    )
    # Drains excess output: a full pipe would block the command.
    cat >/dev/null
}
read -r r <"$d/exit" || read -r r <"$d/exited"
exit "$r"
