# Commits everything in a directory.
#
# Argument: the directory; then the names of folders that programs make, whose new files are not added. $SANDBAR_MESSAGE:
# the message, which is no argument, since those are limited and shown to everybody.
# Says `initialised` if there was no repository, then `commit ID FILES` or `nothing ID`.
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

# Left by a git that was killed, perhaps in the sandbox that this one has its files from. One that runs removes its own.
for (( tries = 0; tries < 100; tries++ )); do
  [[ -e $git_dir/index.lock ]] || break
  if ! grep -qsx git /proc/[0-9]*/comm; then
    rm -f -- "$git_dir/index.lock"
    break
  fi
  sleep 0.1
done

# What is tracked already is anybody's choice; what is new in a generated folder is nobody's.
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
  # For this commit alone: what somebody configures later counts then.
  identity=(-c user.name=Sandbar -c user.email=sandbar@localhost)
fi
# Nobody is there to answer a hook or to unlock a key.
printf %s "$SANDBAR_MESSAGE" |
  git "${identity[@]}" -c commit.gpgSign=false -c gc.autoDetach=false commit --quiet --no-verify --cleanup=whitespace --file=- || exit 1
id=$(git rev-parse HEAD) || exit 1
files=$(git show --format= --name-only --no-renames -z "$id" | tr -dc '\0' | wc -c)
echo "commit $id $files"
