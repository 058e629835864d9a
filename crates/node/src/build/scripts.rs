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

/// `name` is set.
pub(super) const MAKE_USER: &str = r#"
set -eu
if ! id -u "$name" >/dev/null 2>&1; then
  useradd --create-home --shell /bin/bash "$name"
fi
"#;

/// `source`, `target`, `owner` and `mode` are set; the archive lies in its place. Whatever the archive holds is unpacked inside
/// the sandbox, so a path or a link that leads out of the context leads nowhere else.
pub(super) fn copy() -> String {
    format!(
        r#"
set -eu
umask 022
context={WORKPLACE}/context
trap 'rm -rf {WORKPLACE}' EXIT
mkdir "$context"
tar --extract --no-same-owner --directory "$context" --file {ARCHIVE}
rm -f {ARCHIVE}
{MAKE_DIRECTORY}
from="$context/$source"
if [ ! -e "${{from%/}}" ] && [ ! -L "${{from%/}}" ]; then
  echo "'$source' is not part of the uploaded files" >&2
  exit 1
fi
chown -R -h -- "$owner" "$context"
if [ -n "$mode" ]; then chmod -R -- "$mode" "${{from%/}}"; fi
if [ -d "${{from%/}}" ] && [ ! -L "${{from%/}}" ]; then
  make "${{target%/}}/"
  find "${{from%/}}" -mindepth 1 -maxdepth 1 -exec cp -a -t "$target" -- {{}} +
else
  case "$target" in
    */) make "${{target%/}}/"; cp -a -- "$from" "$target" ;;
    *) make "$(dirname -- "$target")"; cp -a -- "$from" "$target" ;;
  esac
fi
"#
    )
}
