//! What the server itself runs in a sandbox for a build. Names and paths travel as variables, never as part of a script.

/// Where an archive is unpacked, within the sandbox whose files it becomes part of.
pub(super) const WORKPLACE: &str = "/tmp/.sandbar-build";
pub(super) const ARCHIVE: &str = "/tmp/.sandbar-build/archive";

/// Makes directory `$1` and those above it that are missing, owned by `$owner`.
const MAKE_DIRECTORY: &str = r#"
make() {
  if [ ! -d "$1" ]; then
    make "$(dirname -- "$1")"
    mkdir -- "$1"
    chown -- "$owner" "$1"
  fi
}
"#;

/// `path` and `owner` are set.
pub(super) fn make_directory() -> String {
    format!("set -eu\n{MAKE_DIRECTORY}\nmake \"$path\"\n")
}

/// `name` is set. Minimal systems have another program for it.
pub(super) const MAKE_USER: &str = r#"
set -eu
if ! id -u "$name" >/dev/null 2>&1; then
  if command -v useradd >/dev/null; then
    useradd --create-home --shell /bin/bash "$name"
  else
    adduser -D -s /bin/bash "$name"
  fi
fi
"#;

/// `source`, `target`, `owner`, `mode` and `unpack` are set; the archive lies in its place. Whatever the archive holds is unpacked inside
/// the sandbox, so a path or a link that leads out of the context leads nowhere else. Options are those that busybox has, too.
pub(super) fn copy() -> String {
    format!(
        r#"
set -eu
umask 022
context={WORKPLACE}/context
trap 'rm -rf {WORKPLACE}' EXIT
mkdir "$context"
tar -x -o -C "$context" -f {ARCHIVE}
rm -f {ARCHIVE}
{MAKE_DIRECTORY}
from="$context/$source"
if [ ! -e "${{from%/}}" ] && [ ! -L "${{from%/}}" ]; then
  echo "'$source' is not part of the uploaded files" >&2
  exit 1
fi
if [ -n "$unpack" ] && [ -f "$from" ] && tar -t -f "$from" >/dev/null 2>&1; then
  mkdir {WORKPLACE}/unpacked
  tar -x -C {WORKPLACE}/unpacked -f "$from"
  from={WORKPLACE}/unpacked/
  target="${{target%/}}/"
  chown -h -- "$owner" "$from"
else
  chown -R -h -- "$owner" "$context"
  if [ -n "$mode" ]; then chmod -R -- "$mode" "${{from%/}}"; fi
fi
if [ -d "${{from%/}}" ] && [ ! -L "${{from%/}}" ]; then
  make "${{target%/}}/"
  find "${{from%/}}" -mindepth 1 -maxdepth 1 -exec sh -c 'cp -a -- "$@" "$0"' "$target" {{}} +
else
  case "$target" in
    */) make "${{target%/}}/"; cp -a -- "$from" "$target" ;;
    *) make "$(dirname -- "$target")"; cp -a -- "$from" "$target" ;;
  esac
fi
"#
    )
}

/// Writes what `pattern` matches below the root to the standard output, as an archive. Without a separator of words the shell matches
/// and does not split.
pub(super) const PACK: &str = r#"
set -eu
cd /
IFS=
set -- $pattern
if [ ! -e "$1" ] && [ ! -L "$1" ]; then
  echo "'/$pattern' is not in that stage" >&2
  exit 1
fi
exec tar -c -f - -- "$@"
"#;
