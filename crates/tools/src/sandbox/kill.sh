# Kills a command: its process group, and processes outside of it that carry the call's mark in
# their environment. POSIX sh. Prints how many there were.
#
# Runs twice concurrently: as root, which may kill what sudo started, and as the user, whose
# environments root cannot read without the capability for it.
#
# $1 group or ''  $2 call  $3 tenths of a second between TERM and KILL  $4 mark or ''
g=$1 c=$2 t=$3 l=
# The command's shell may not run yet. It checks for the mark before it runs the command, and the
# mark is created before this script searches: one of the two finds the other.
[ -z "$4" ] || { mkdir -p "${4%/*}" && : >"$4"; }
# The group leader is our wrapper; it ends with the shell below it.
x=
[ -z "$g" ] || { read -r l <"/proc/$g/stat"; } 2>/dev/null || l=
case $l in "$g (timeout) "*) x=$g ;; esac
members() {
    k=
    for f in $(grep -lzsxF "SANDBAR_CALL=$c" /proc/[0-9]*/environ); do
        f=${f#/proc/} f=${f%/environ}
        [ "$f" = "$x" ] || k="$k $f"
    done
    for f in /proc/[0-9]*/stat; do
        { read -r l <"$f"; } 2>/dev/null || continue
        n=${f#/proc/} n=${n%/stat}
        set -- ${l##*) }
        [ "$1" != Z ] || continue
        [ -n "$g" ] && [ "$3" = "$g" ] && [ "$n" != "$x" ] || continue
        case " $k " in *" $n "*) ;; *) k="$k $n" ;; esac
    done
}
members
set -- $k
echo $#
[ $# -gt 0 ] || exit 0
[ -z "$g" ] || kill -s TERM -- "-$g" 2>/dev/null
kill -s TERM $k 2>/dev/null
while [ "$t" -gt 0 ]; do
    sleep 0.1
    t=$((t - 1))
    members
    [ -n "$k" ] || exit 0
done
# Twice: a process may fork between the search and the kill.
for r in 1 2; do
    members
    [ -n "$k" ] || exit 0
    [ -z "$g" ] || kill -s KILL -- "-$g" 2>/dev/null
    kill -s KILL $k 2>/dev/null
done
