# Finds background tasks that ended since the last report, or were lost by a pause or a rotation.
# POSIX sh. Sets f to lines of `TASK CODE` and `TASK lost`, and marks them as reported.
#
# Each task has a `keeper` file with pid and start time of its process, since pids are recycled.
#
# $1 state directory
tasks() {
    f=
    for t in "$1"/bg/*/; do
        [ -d "$t" ] && [ ! -e "${t}exited" ] && [ ! -e "${t}lost" ] || continue
        n=${t%/} n=${n##*/}
        if [ ! -e "${t}exit" ]; then
            kept "$t" && continue
            # It may have ended since the check above.
            if [ ! -e "${t}exit" ]; then
                : >"${t}lost" && f="$f$n lost
"
                continue
            fi
        fi
        mv "${t}exit" "${t}exited" 2>/dev/null && { read -r e <"${t}exited" || :; } && f="$f$n $e
"
    done
}
# Whether the keeper of a task is alive, or just starting. $1 task directory
kept() {
    { read -r k b <"$1keeper"; } 2>/dev/null || return 0
    { read -r l <"/proc/$k/stat"; } 2>/dev/null || return 1
    set -- ${l##*) }
    [ "${20}" = "$b" ]
}
# Records this shell as the keeper of a task. $1 task directory
keep() {
    read -r l <"/proc/$$/stat"
    o=$1
    set -- ${l##*) }
    printf '%s %s\n' "$$" "${20}" >"${o}keeper"
}
