//! Resolves paths of requests. Purely textual: performs no I/O.

use std::path::{Component, Path, PathBuf};

use crate::users::User;

/// Why a path is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InvalidGuestPath {
    /// `~name`: another user's home.
    ForeignHome(String),
    /// Contains a NUL byte, which no system call accepts.
    Nul,
}

impl std::fmt::Display for InvalidGuestPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ForeignHome(path) => {
                write!(f, "cannot expand '{path}': only the own home directory can be named by ~")
            }
            Self::Nul => f.write_str("the path contains a NUL character"),
        }
    }
}

/// Resolves `path` to an absolute, normalized path for `user`. Relative paths start at the home
/// directory; an empty path is the working directory, or the home directory without one.
pub(crate) fn resolve(path: &str, user: &User, workdir: Option<&str>) -> Result<PathBuf, InvalidGuestPath> {
    if path.contains('\0') {
        return Err(InvalidGuestPath::Nul);
    }
    let home = Path::new(&user.home);
    let joined = match path {
        "" => home.join(workdir.unwrap_or_default()),
        "~" => home.to_owned(),
        _ => match path.strip_prefix('~') {
            Some(rest) => match rest.strip_prefix('/') {
                Some(below) => home.join(below.trim_start_matches('/')),
                None => return Err(InvalidGuestPath::ForeignHome(path.to_owned())),
            },
            None => home.join(path),
        },
    };
    Ok(clean(&joined))
}

/// Removes `.`, `..` and doubled slashes. `..` removes the preceding name textually.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_resolve_as_clients_expect() {
        let user = User { name: "user".into(), uid: 1000, gid: 1000, home: "/home/user".into(), groups: vec![1000] };
        let cases = [
            ("", None, Ok("/home/user")),
            ("", Some("/code"), Ok("/code")),
            ("", Some("code"), Ok("/home/user/code")),
            ("~", Some("/code"), Ok("/home/user")),
            ("~/a//b", None, Ok("/home/user/a/b")),
            ("~//a", None, Ok("/home/user/a")),
            ("a/b", Some("/code"), Ok("/home/user/a/b")),
            ("/etc/../x/./y/", None, Ok("/x/y")),
            ("../../../..", None, Ok("/")),
            ("~root/x", None, Err(InvalidGuestPath::ForeignHome("~root/x".into()))),
            ("a\0b", None, Err(InvalidGuestPath::Nul)),
        ];
        for (path, workdir, expected) in cases {
            assert_eq!(resolve(path, &user, workdir), expected.map(PathBuf::from), "{path:?}");
        }
    }
}
