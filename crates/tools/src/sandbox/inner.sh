# Runs in the command's own login shell: restores the directory and variables of the previous call,
# and saves those of this one at exit. bash. The caller then evaluates the command in `__sandbar_v`.
#
# Commands of separate programs may run concurrently in one session. Each writes only what it
# changed itself, so that none undoes the other.
#
# `env` holds how exported variables differ from the daemon's, which every shell gets: their values
# (secrets of the workspace among them) must not be in a file, since files are archived.
#
# $1 this script  $2 state directory  $3 mark  $4 call  $5 root  $6 directory for this call or ''
# $7 file for the group: in `run/`, or in the directory of a background task
# $8 merge.sh, rarely needed and slow to parse  $9… command in pieces of at most 128 KiB (argv)
# Descriptor 7 is the command's stderr, 8 gets the start mark. Errors of this script are discarded.
__sandbar_s=$2 __sandbar_m=$3 __sandbar_c=$4 __sandbar_r=$5 __sandbar_w=$6 __sandbar_k=$7 __sandbar_x=$8
shift 8
if shopt -q login_shell; then
    [[ $__sandbar_k == */run/* && ! -e $__sandbar_s/plain && -z $(builtin declare -F) ]] && umask >|"$__sandbar_s/plain"
else
    read -r __sandbar_n <"$__sandbar_s/plain" && umask "$__sandbar_n"
fi
IFS= __sandbar_v=$*
IFS=$' \t\n'
set --
__sandbar_d= __sandbar_t=ok __sandbar_o=
IFS= read -r -d '' __sandbar_d <"$__sandbar_s/cwd"
__sandbar_g=$__sandbar_d
if ! builtin cd -- "${__sandbar_d:-$__sandbar_r}"; then
    [[ -n $__sandbar_d ]] && __sandbar_t=gone
    builtin cd -- "$__sandbar_r" || builtin cd || builtin cd /
fi
mapfile -t __sandbar_e <"$__sandbar_s/env"
# A missing last line means that writing was interrupted.
if [[ ${#__sandbar_e[@]} -gt 0 && ${__sandbar_e[-1]} == '# end' ]]; then
    IFS=$'\n' __sandbar_o="${__sandbar_e[*]}" IFS=$' \t\n'
    __sandbar_n=$PWD
    builtin source "$__sandbar_s/env"
    PWD=$__sandbar_n
fi
unset -v __sandbar_e
export SANDBAR_CALL=$__sandbar_c
if [[ -n $__sandbar_w ]]; then
    [[ $__sandbar_w == '~' || $__sandbar_w == '~/'* ]] && __sandbar_w=$HOME${__sandbar_w#\~}
    __sandbar_d=$__sandbar_w
    builtin cd -- "$__sandbar_w" && __sandbar_t=ok || __sandbar_t=missing
fi
# The group is ours if its leader is this shell or its parent; never take the daemon's own.
read -r __sandbar_n </proc/$$/stat
set -- ${__sandbar_n##*) }
[[ $3 == "$$" || $3 == "$PPID" ]] && __sandbar_n=$3 || __sandbar_n=0
set --
builtin printf '%s\n' "$__sandbar_n" >|"$__sandbar_k"
builtin printf '\036%s+%s %s\000%s\000' "$__sandbar_m" "$__sandbar_n" "$__sandbar_t" "$__sandbar_d" >&8
exec 8>&-
[[ $__sandbar_t == missing ]] && exit 1
# The command was killed before its group was known.
[[ -e $__sandbar_s/out/$__sandbar_c.killed ]] && exit 137
__sandbar_save() {
    [[ -n $__sandbar_s ]] || return 0
    [[ -n $__sandbar_w || $PWD == "$__sandbar_g" ]] || builtin printf %s "$PWD" >|"$__sandbar_s/cwd"
    builtin set +a
    builtin shopt -u nocasematch
    local __sandbar_name __sandbar_ref
    local -A __sandbar_given=() __sandbar_now=()
    builtin mapfile -d '' -t __sandbar_e </proc/self/environ
    for __sandbar_t in "${__sandbar_e[@]}"; do
        __sandbar_name=${__sandbar_t%%=*}
        [[ $__sandbar_name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] && __sandbar_given[$__sandbar_name]=${__sandbar_t#*=}
    done
    # Names only, through a file, since a subshell would be slower.
    builtin compgen -e >|"$__sandbar_k.names"
    builtin mapfile -t __sandbar_e <"$__sandbar_k.names"
    __sandbar_n=
    for __sandbar_name in "${__sandbar_e[@]}"; do
        __sandbar_now[$__sandbar_name]=
        case $__sandbar_name in PWD | SHLVL | _ | SANDBAR_CALL | __sandbar_*) continue ;; esac
        __sandbar_ref=$__sandbar_name
        if [[ ${!__sandbar_name@a} == *[aA]* ]]; then
            __sandbar_ref+='[@]'
        elif [[ -n ${__sandbar_given[$__sandbar_name]+x} && ${!__sandbar_name-} == "${__sandbar_given[$__sandbar_name]}" ]]; then
            continue
        fi
        __sandbar_n+=${!__sandbar_ref@A}$'\n'
    done
    for __sandbar_name in "${!__sandbar_given[@]}"; do
        case $__sandbar_name in PWD | SHLVL | _ | SANDBAR_CALL) continue ;; esac
        [[ -n ${__sandbar_now[$__sandbar_name]+x} ]] || __sandbar_n+="unset -v $__sandbar_name"$'\n'
    done
    __sandbar_n+='# end'
    local IFS=$'\n'
    if [[ $__sandbar_n != "$__sandbar_o" ]]; then
        exec 9>"$__sandbar_s/lock"
        flock -w 10 9
        __sandbar_e=()
        mapfile -t __sandbar_e <"$__sandbar_s/env"
        if [[ ${#__sandbar_e[@]} -gt 0 && ${__sandbar_e[-1]} == '# end' && "${__sandbar_e[*]}" != "$__sandbar_o" ]]; then
            eval "$__sandbar_x"
            __sandbar_merge "${__sandbar_e[*]}"
        fi
        builtin printf '%s\n' "$__sandbar_n" >|"$__sandbar_s/env"
        # Earlier versions left values there.
        for __sandbar_t in "$__sandbar_s"/run/*.env; do
            [[ ! -e $__sandbar_t ]] || : >|"$__sandbar_t"
        done
        exec 9>&-
    fi
    __sandbar_s=
}
if [[ $__sandbar_k == */run/* ]]; then
    # `exit` inside the command ends here too.
    trap '{ builtin set +xveu; __sandbar_save; } 2>/dev/null' EXIT
else
    __sandbar_s=
fi
exec 2>&7 7>&-
