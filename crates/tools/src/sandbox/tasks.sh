# Which background tasks ended since somebody was told last, and which did not survive a pause or a change of sandbox.
# POSIX sh. Sets f to lines of `TASK CODE` and `TASK lost`, and notes that they were told.
#
# Beside each task stands who keeps it: its number and when it was started, since numbers come again.
#
# $1 state directory
tasks() {
    f=
    for t in "$1"/bg/*/; do
        [ -d "$t" ] && [ ! -e "${t}exited" ] && [ ! -e "${t}lost" ] || continue
        n=${t%/} n=${n##*/}
        if [ ! -e "${t}exit" ]; then
            kept "$t" && continue
            # It may have ended while it was looked at.
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
# Whether somebody keeps a task, or is about to. $1 its directory
kept() {
    { read -r k b <"$1keeper"; } 2>/dev/null || return 0
    { read -r l <"/proc/$k/stat"; } 2>/dev/null || return 1
    set -- ${l##*) }
    [ "${20}" = "$b" ]
}
# Writes down that this shell keeps a task. $1 its directory
keep() {
    read -r l <"/proc/$$/stat"
    o=$1
    set -- ${l##*) }
    printf '%s %s\n' "$$" "${20}" >"${o}keeper"
}
