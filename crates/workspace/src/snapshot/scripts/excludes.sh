# Decides which generated folders of a directory a snapshot leaves out, and lists them.
#
#   excludes.sh ROOT NAMED… -- CERTAIN… -- LIKELY… [-- FILE…]
#
# The list goes to standard error: a NUL after each path, and one more NUL at its end. Needs bash;
# git is asked where it is installed.
#
# The name makes a folder a candidate; it is left out only for a reason:
#   NAMED    the configuration names it.
#   CERTAIN  (node_modules, .venv, …) a manifest beside it names what generates it, the program that
#            made it marked it, or git ignores it.
#   LIKELY   (dist, build, target: people write into these by hand) in a repository, git ignores all
#            files in it; outside of any, a manifest beside it names what generates it. In a
#            repository that cannot be asked it is kept.
# Always kept: folders in which git tracks something, repositories, links, files, whatever is inside
# .git or a bare repository, where folders have the names of branches.
set -u
root=$1
shift
declare -A candidate=() kept=()
kinds=(named certain likely file)
tracked=() written=() files=()
for name in "$@"; do
  if [[ $name == -- ]]; then kinds=("${kinds[@]:1}"); continue; fi
  if [[ ${kinds[0]} == file ]]; then files+=("./$name"); continue; fi
  candidate["/$name"]=${kinds[0]}
  if [[ ${kinds[0]} == likely ]]; then written+=(":(glob)**/$name/**"); else tracked+=(":(glob)**/$name/**"); fi
done

cd -- "$root" || exit 10
shopt -s nullglob dotglob
# A swap that was interrupted: what is here now is neither the old tree nor the new one.
for half in ./.sandbar-restore.*/old; do exit 11; done

git_in() { git --no-optional-locks -c safe.directory='*' -c core.fsmonitor=false -C "$@" 2>/dev/null; }

# Lists the files of a repository that keep their folders: tracked ones and, in LIKELY folders,
# untracked ones that git does not ignore.
list_kept() {
  if ((${#tracked[@]})); then git_in "$1" ls-files -z --cached -- "${tracked[@]}" || return 1; fi
  if ((${#written[@]})); then
    git_in "$1" ls-files -z --cached --others --exclude-standard -- "${written[@]}" || return 1
  fi
}

# Marks every folder of a repository that has such a file in it. Fails when git cannot say.
ask_git() {
  local directory=$1 path prefix rest found
  ((${#candidate[@]})) || return 0
  command -v git >/dev/null || return 1
  mapfile -d '' -t found < <(list_kept "$directory" || printf '/failed\0')
  for path in "${found[@]}"; do
    [[ $path != /failed ]] || return 1
    prefix=$directory rest=$path
    while [[ $rest == */* ]]; do
      prefix+=/${rest%%/*}
      rest=${rest#*/}
      kept["$prefix"]=1
    done
  done
}

holds_repository() {
  local found
  [[ -e $1/.git ]] && return 0
  [[ $2 == likely ]] || return 1
  for found in "$1"/*/.git; do return 0; done
  return 1
}

any() {
  local file
  for file in "$@"; do [[ -f $file ]] && return 0; done
  return 1
}

# Whether the start of a file matches an expression.
says() {
  local text=
  [[ -f $1 ]] || return 1
  { text=$(head -c 1000000 -- "$1"); } 2>/dev/null
  [[ $text =~ $2 ]]
}

is_cache() { says "$1/CACHEDIR.TAG" '^Signature: 8a477f597d28d172789f06886806bc55'; }
builds_by_script() { says "$1/package.json" '"scripts"[[:space:]]*:[[:space:]]*\{[^}]*"build(:[^"]*)?"[[:space:]]*:'; }
builds_python() { any "$1/setup.py" || says "$1/pyproject.toml" '(^|'$'\n'')\[build-system\]'; }

has_only_bytecode() {
  local file
  for file in "$1"/*; do [[ -f $file && ($file == *.py[co] || $file == *.py[co].*) ]] || return 1; done
}

# Whether a manifest beside a folder, or a mark inside it, names the program that makes the folder.
is_generated() {
  local beside=${1%/*}
  case ${1##*/} in
    node_modules | .next | .nuxt | .svelte-kit | .turbo | .parcel-cache) any "$beside/package.json" ;;
    .venv)
      any "$1/pyvenv.cfg" &&
        any "$beside"/requirements*.txt "$beside"/{pyproject.toml,setup.py,setup.cfg,Pipfile,environment.yml}
      ;;
    __pycache__) has_only_bytecode "$1" ;;
    .tox) any "$beside"/{tox.ini,setup.cfg,pyproject.toml} ;;
    target) is_cache "$1" || any "$beside"/{Cargo.toml,pom.xml,build.sbt} ;;
    dist) builds_by_script "$beside" || builds_python "$beside" ;;
    build)
      builds_by_script "$beside" || builds_python "$beside" ||
        any "$beside"/{build.gradle,build.gradle.kts,CMakeLists.txt,meson.build,pubspec.yaml}
      ;;
    *) is_cache "$1" ;;
  esac
}

# Whether git ignores a path of a repository by itself or by a folder above it.
is_ignored() { git_in "$1" check-ignore -q -- "${2#"$1"/}"; }

# Whether there is a reason to leave a candidate out. REPOSITORY is empty outside of any, and "?"
# where git cannot be asked.
is_left_out() {
  local folder=$1 kind=$2 repository=$3
  case $kind:$repository in
    named:*) true ;;
    certain: | certain:\?) is_generated "$folder" ;;
    certain:*) is_generated "$folder" || is_ignored "$repository" "$folder" ;;
    likely:\?) false ;;
    likely:) is_generated "$folder" ;;
    # git has named no file of it, so that it has none, or ignores them all. What lies in an ignored
    # folder is not ignored for being generated.
    likely:*)
      [[ -n $(find "$folder" ! -type d -print -quit 2>/dev/null) ]] || return 1
      [[ ${folder%/*} == "$repository" ]] || ! is_ignored "$repository" "${folder%/*}" || is_generated "$folder"
      ;;
  esac
}

left=()
walk() {
  local directory=$1 repository=$2 child kind
  if [[ -e $directory/.git ]]; then
    repository=$directory
    ask_git "$directory" || repository=\?
  elif [[ -f $directory/HEAD && -d $directory/refs && -d $directory/objects ]]; then
    return
  fi
  for child in "$directory"/*/; do
    child=${child%/}
    [[ ! -L $child && ${child##*/} != .git ]] || continue
    kind=${candidate["/${child##*/}"]-}
    # tar reads the names from lines, so that one with a line break cannot be left out.
    if [[ -n $kind && -z ${kept["$child"]-} && $child != *$'\n'* ]] && ! holds_repository "$child" "$kind" &&
      is_left_out "$child" "$kind" "$repository"; then
      left+=("$child")
    else
      walk "$child" "$repository"
    fi
  done
}
walk . ''

((${#left[@]})) && printf '%s\0' "${left[@]}" >&2
printf '\0' >&2
