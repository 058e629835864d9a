# Decides which generated folders of a directory a checkpoint excludes, and lists them.
#
# Usage: excludes.sh ROOT NAMED… -- CERTAIN… -- LIKELY… [-- FILE…]
#
# The list goes to standard error: a NUL after each path, and one more NUL at its end. Needs bash;
# git is used where it is installed.
#
# The name makes a folder a candidate; it is excluded only for a reason:
# - NAMED: the configuration names it.
# - CERTAIN (node_modules, .venv, …): a manifest next to it names its generator, the generator
#   marked it, or git ignores it.
# - LIKELY (dist, build, target, which also hold hand-written files): in a repository, git ignores
#   all its files; outside, a manifest next to it names its generator. In a repository where git
#   fails it is kept.
# Always kept: folders with tracked files, repositories, links, files, and everything inside .git or
# a bare repository, where folders have the names of branches.
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
# An interrupted swap: the tree is neither the old nor the new one.
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

# Marks every folder of a repository that contains such a file. Fails when git fails.
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

# Succeeds if the start of a file matches a regular expression.
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

# Succeeds if a manifest next to a folder, or a mark inside it, names the generator of the folder.
is_generated() {
  local parent=${1%/*}
  case ${1##*/} in
    node_modules | .next | .nuxt | .svelte-kit | .turbo | .parcel-cache) any "$parent/package.json" ;;
    .venv)
      any "$1/pyvenv.cfg" &&
        any "$parent"/requirements*.txt "$parent"/{pyproject.toml,setup.py,setup.cfg,Pipfile,environment.yml}
      ;;
    __pycache__) has_only_bytecode "$1" ;;
    .tox) any "$parent"/{tox.ini,setup.cfg,pyproject.toml} ;;
    target) is_cache "$1" || any "$parent"/{Cargo.toml,pom.xml,build.sbt} ;;
    dist) builds_by_script "$parent" || builds_python "$parent" ;;
    build)
      builds_by_script "$parent" || builds_python "$parent" ||
        any "$parent"/{build.gradle,build.gradle.kts,CMakeLists.txt,meson.build,pubspec.yaml}
      ;;
    *) is_cache "$1" ;;
  esac
}

# Succeeds if git ignores a path of a repository, by itself or by a parent folder.
is_ignored() { git_in "$1" check-ignore -q -- "${2#"$1"/}"; }

# Succeeds if there is a reason to exclude a candidate. REPOSITORY is empty outside of any, and "?"
# where git fails.
is_excluded() {
  local folder=$1 kind=$2 repository=$3
  case $kind:$repository in
    named:*) true ;;
    certain: | certain:\?) is_generated "$folder" ;;
    certain:*) is_generated "$folder" || is_ignored "$repository" "$folder" ;;
    likely:\?) false ;;
    likely:) is_generated "$folder" ;;
    # git lists no file of it, so it is empty or all its files are ignored. A folder in an ignored
    # folder is not necessarily generated.
    likely:*)
      [[ -n $(find "$folder" ! -type d -print -quit 2>/dev/null) ]] || return 1
      [[ ${folder%/*} == "$repository" ]] || ! is_ignored "$repository" "${folder%/*}" || is_generated "$folder"
      ;;
  esac
}

excluded=()
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
    # tar reads names line by line, so a name with a line break cannot be excluded.
    if [[ -n $kind && -z ${kept["$child"]-} && $child != *$'\n'* ]] && ! holds_repository "$child" "$kind" &&
      is_excluded "$child" "$kind" "$repository"; then
      excluded+=("$child")
    else
      walk "$child" "$repository"
    fi
  done
}
walk . ''

((${#excluded[@]})) && printf '%s\0' "${excluded[@]}" >&2
printf '\0' >&2
