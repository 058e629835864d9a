# Commits everything in a directory.
#
# Arguments: the directory; then the names of generated folders, whose new files are not added.
# $SANDBAR_MESSAGE: the message. It is not an argument, since arguments are limited in size and
# visible to all processes.
#
# Prints `initialised` if there was no repository, then `commit ID FILES` or `nothing ID`.
root=$1
shift
set -o pipefail
cd "$root" || exit 1
export LC_ALL=C GIT_TERMINAL_PROMPT=0 GIT_EDITOR=true
git_dir=$(git rev-parse --absolute-git-dir 2>/dev/null)
if [[ -z $git_dir ]]; then
  git init -q . && git symbolic-ref HEAD refs/heads/main || exit 1
  git_dir=$PWD/.git
  echo initialised
fi

# A killed git left it, perhaps in the sandbox that these files come from. A running git removes its
# own lock.
for (( tries = 0; tries < 100; tries++ )); do
  [[ -e $git_dir/index.lock ]] || break
  if ! grep -qsx git /proc/[0-9]*/comm; then
    rm -f -- "$git_dir/index.lock"
    break
  fi
  sleep 0.1
done

# Changes of tracked files are always added, new files in generated folders never.
excluded=()
for name; do excluded+=(":(exclude,glob)**/$name/**"); done
git add --update -- . || exit 1
git add --all -- . "${excluded[@]}" || exit 1
head=$(git rev-parse --verify --quiet HEAD)
if git diff --cached --quiet --ignore-submodules=dirty; then
  echo "nothing $head"
  exit 0
fi

identity=()
if ! git -c user.useConfigOnly=true var GIT_COMMITTER_IDENT >/dev/null 2>&1; then
  # For this commit only: an identity that the user configures later takes effect.
  identity=(-c user.name=Sandbar -c user.email=sandbar@localhost)
fi
# Hooks and signing may prompt, and no user is there to answer.
printf %s "$SANDBAR_MESSAGE" |
  git "${identity[@]}" -c commit.gpgSign=false -c gc.autoDetach=false commit --quiet --no-verify --cleanup=whitespace --file=- || exit 1
id=$(git rev-parse HEAD) || exit 1
files=$(git show --format= --name-only --no-renames -z "$id" | tr -dc '\0' | wc -c)
echo "commit $id $files"
