# Merges the variables of concurrent commands. bash; `inner.sh` evaluates it on demand.
#
# Parses saved variables by name. $1 associative array  $2 text
__sandbar_parse() {
    local -n __sandbar_into=$1
    local __sandbar_line __sandbar_name=
    while IFS= read -r __sandbar_line; do
        if [[ $__sandbar_line =~ ^(declare\ -[a-zA-Z-]+|unset\ -v)\ ([A-Za-z_][A-Za-z0-9_]*)(=|$) ]]; then
            __sandbar_name=${BASH_REMATCH[2]}
            __sandbar_into[$__sandbar_name]=$__sandbar_line
        elif [[ -n $__sandbar_name && $__sandbar_line != '# end' ]]; then
            __sandbar_into[$__sandbar_name]+=$'\n'$__sandbar_line
        fi
    done <<<"$2"
}
# Applies this command's changes of variables to what others wrote meanwhile. $1 theirs
__sandbar_merge() {
    local -A __sandbar_theirs __sandbar_old __sandbar_new
    local __sandbar_name
    __sandbar_parse __sandbar_theirs "$1"
    __sandbar_parse __sandbar_old "$__sandbar_o"
    __sandbar_parse __sandbar_new "$__sandbar_n"
    for __sandbar_name in "${!__sandbar_old[@]}"; do
        [[ -n ${__sandbar_new[$__sandbar_name]+x} ]] || unset -v "__sandbar_theirs[$__sandbar_name]"
    done
    for __sandbar_name in "${!__sandbar_new[@]}"; do
        [[ ${__sandbar_new[$__sandbar_name]} == "${__sandbar_old[$__sandbar_name]-}" ]] ||
            __sandbar_theirs[$__sandbar_name]=${__sandbar_new[$__sandbar_name]}
    done
    builtin printf -v __sandbar_n '%s\n' "${__sandbar_theirs[@]}"
    __sandbar_n+='# end'
}
