# Runs in the command's own login shell: takes up the directory and variables of the call before, and arranges that the
# call after finds those of this one. bash. Who evaluates it then evaluates the command, in `__sandbar_v`.
#
# $1 this script  $2 state directory  $3 mark  $4 call  $5 root  $6 directory for this call or ''
# $7 `keep`, or the directory of a background task, which leaves nothing behind  $8… command, in pieces: one argument may
# have 128 KiB at most
# Descriptor 7 is the command's stderr, 8 takes word of the start.
exec 2>&7 7>&-
__sandbar_s=$2 __sandbar_m=$3 __sandbar_c=$4 __sandbar_r=$5 __sandbar_w=$6 __sandbar_k=$7
shift 7
IFS= __sandbar_v=$*
IFS=$' \t\n'
set --
mapfile -t __sandbar_e 2>/dev/null <"$__sandbar_s/env"
# A last line that is missing means that writing was interrupted.
if [[ ${#__sandbar_e[@]} -gt 0 && ${__sandbar_e[-1]} == '# end' ]]; then
    unset -v $(compgen -e) 2>/dev/null
    builtin source "$__sandbar_s/env" 2>/dev/null
fi
unset -v __sandbar_e
export SANDBAR_CALL=$__sandbar_c
__sandbar_d= __sandbar_t=ok
IFS= read -r -d '' __sandbar_d 2>/dev/null <"$__sandbar_s/cwd"
if ! builtin cd -- "${__sandbar_d:-$__sandbar_r}" 2>/dev/null; then
    [[ -n $__sandbar_d ]] && __sandbar_t=gone
    builtin cd -- "$__sandbar_r" 2>/dev/null || builtin cd 2>/dev/null || builtin cd /
fi
if [[ -n $__sandbar_w ]]; then
    [[ $__sandbar_w == '~' || $__sandbar_w == '~/'* ]] && __sandbar_w=$HOME${__sandbar_w#\~}
    __sandbar_d=$__sandbar_w
    builtin cd -- "$__sandbar_w" 2>/dev/null && __sandbar_t=ok || __sandbar_t=missing
fi
[[ $__sandbar_k == keep ]] && builtin printf %s "$$" >|"$__sandbar_s/pid" || builtin printf %s "$$" >|"$__sandbar_k/pid"
builtin printf '\036%s+%s %s\000%s\000' "$__sandbar_m" "$$" "$__sandbar_t" "$__sandbar_d" >&8
exec 8>&-
[[ $__sandbar_t == missing ]] && exit 1
# Who was killed before there was anything to kill.
[[ -e $__sandbar_s/out/$__sandbar_c.killed ]] && exit 137
__sandbar_save() {
    [[ -n $__sandbar_s ]] || return 0
    {
        # A directory that was removed keeps its name.
        [[ $PWD -ef . ]] && builtin cd -P .
        [[ -n $__sandbar_w ]] || builtin printf %s "$PWD" >|"$__sandbar_s/cwd"
        { builtin declare -px && builtin echo '# end'; } >|"$__sandbar_s/env"
    } 2>/dev/null
    __sandbar_s=
}
if [[ $__sandbar_k == keep ]]; then
    # `exit` inside the command ends here too.
    trap '{ builtin set +xveu; __sandbar_save; } 2>/dev/null' EXIT
else
    __sandbar_s=
fi
