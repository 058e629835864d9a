//! Shell scripts that the server runs in the sandbox of a build. Names and paths are passed as
//! environment variables, never as part of a script.

/// Where an archive is unpacked, within the sandbox that its files are copied to.
pub(super) const BUILD_DIR: &str = "/tmp/.sandbar-build";
pub(super) const ARCHIVE: &str = "/tmp/.sandbar-build/archive";

/// Creates directory `$1` and its missing parents, owned by `$owner`.
const MAKE_DIRECTORY: &str = r#"
make() {
  if [ ! -d "$1" ]; then
    make "$(dirname -- "$1")"
    mkdir -- "$1"
    chown -- "$owner" "$1"
  fi
}
"#;

/// Expects the variables `path` and `owner`.
pub(super) fn make_directory() -> String {
    format!("set -eu\n{MAKE_DIRECTORY}\nmake \"$path\"\n")
}

/// Expects the variable `name`. Minimal systems have `adduser` instead of `useradd`.
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

/// Expects the variables `source`, `target`, `owner`, `mode` and `unpack`, and the archive at
/// [`ARCHIVE`]. The archive is unpacked inside the sandbox, so a path or a link that leads out of
/// the context reaches nothing outside of it. All options are ones that busybox has, too.
pub(super) fn copy() -> String {
    format!(
        r#"
set -eu
umask 022
context={BUILD_DIR}/context
trap 'rm -rf {BUILD_DIR}' EXIT
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
  mkdir {BUILD_DIR}/unpacked
  tar -x -C {BUILD_DIR}/unpacked -f "$from"
  from={BUILD_DIR}/unpacked/
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

/// Writes the paths that `pattern` matches below the root to the standard output, as an archive.
/// With an empty `IFS` the shell expands the pattern and does not split it into words.
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
