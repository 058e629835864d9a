//! Resolves the paths that models write, without asking the sandbox.

use std::borrow::Cow;

use crate::input::invalid;
use crate::result::Failure;

/// Limit of Linux.
const MAX_PATH_BYTES: usize = 4096;

/// Base directories of relative paths and of `~`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BasePaths {
    pub(crate) current: String,
    pub(crate) home: String,
}

/// Whether the result depends on the shell's current directory.
pub(crate) fn is_relative(path: &str) -> bool {
    let path = path.trim_start();
    !path.starts_with('/') && path != "~" && !path.starts_with("~/")
}

/// Resolves to an absolute path without `.`, `..` and doubled slashes.
pub(crate) fn resolve(base: &BasePaths, path: &str) -> Result<String, Failure> {
    if path.is_empty() {
        return Err(invalid("`path` is empty. Name a file or directory."));
    }
    if path.contains('\0') {
        return Err(invalid("`path` contains a NUL character, which no path can."));
    }
    let absolute = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", base.home),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{}/{path}", base.current),
    };
    let path = normalize(&absolute);
    if path.len() > MAX_PATH_BYTES {
        return Err(invalid(format!("`path` has {} bytes; the longest path has {MAX_PATH_BYTES}.", path.len())));
    }
    Ok(path)
}

/// The path without `.`, `..` and doubled slashes, beginning with a slash.
pub(crate) fn normalize(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// A path for display: one with line breaks, or that looks quoted, is quoted as JSON, which is also
/// how a model sends it back.
pub(crate) fn display(path: &str) -> Cow<'_, str> {
    let breaks = |letter: char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
    if path.starts_with('"') || path.contains(breaks) {
        Cow::Owned(serde_json::Value::from(path).to_string())
    } else {
        Cow::Borrowed(path)
    }
}

/// The parent directory; the root is its own parent.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// The last component.
pub(crate) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `path` relative to `directory`, if it is below it.
pub(crate) fn below<'a>(directory: &str, path: &'a str) -> Option<&'a str> {
    if directory == "/" {
        return path.strip_prefix('/').filter(|rest| !rest.is_empty());
    }
    path.strip_prefix(directory)?.strip_prefix('/').filter(|rest| !rest.is_empty())
}

/// A path below a directory.
pub(crate) fn join(directory: &str, relative: &str) -> String {
    if directory == "/" { format!("/{relative}") } else { format!("{directory}/{relative}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_with_line_break_is_quoted() {
        assert_eq!(display("/a b/ü:1"), "/a b/ü:1");
        for (path, quoted) in [("/a\nb", r#""/a\nb""#), ("\"x\"", r#""\"x\"""#), ("/\u{1b}[31m", r#""/\u001b[31m""#)] {
            assert_eq!(display(path), quoted);
        }
        assert!(display("/\u{2028}").starts_with('"'));
    }
    use proptest::prelude::*;

    fn base_paths() -> BasePaths {
        BasePaths { current: "/home/user/project".into(), home: "/home/user".into() }
    }

    #[track_caller]
    fn check(path: &str, expected: &str) {
        assert_eq!(resolve(&base_paths(), path).expect("a path"), expected);
    }

    #[test]
    fn paths_resolve_as_in_a_shell() {
        check("/etc//passwd", "/etc/passwd");
        check("src/./main.rs", "/home/user/project/src/main.rs");
        check("../x", "/home/user/x");
        check("~", "/home/user");
        check("~/a b", "/home/user/a b");
        check("~other", "/home/user/project/~other");
        check("/../../etc", "/etc");
        check("/a/b/", "/a/b");
    }

    #[test]
    fn invalid_paths_are_refused() {
        assert!(resolve(&base_paths(), "").is_err());
        assert!(resolve(&base_paths(), "a\0b").is_err());
        assert!(resolve(&base_paths(), &"a/".repeat(4096)).is_err());
    }

    proptest! {
        #[test]
        fn resolved_paths_are_absolute_and_normalized(path in "[a-z./~ ]{1,40}") {
            let resolved = resolve(&base_paths(), &path).expect("short and without NUL");
            prop_assert!(resolved.starts_with('/'));
            prop_assert!(resolved == "/" || !resolved.ends_with('/'));
            prop_assert!(resolved.split('/').skip(1).all(|part| resolved == "/" || !matches!(part, "" | "." | "..")));
            prop_assert_eq!(&normalize(&resolved), &resolved);
            prop_assert_eq!(resolve(&base_paths(), &resolved).expect("again"), resolved);
        }

        #[test]
        fn join_and_below_are_inverse(directory in "(/[a-z]{1,5}){0,3}", relative in "[a-z]{1,5}(/[a-z]{1,5}){0,3}") {
            let directory = normalize(&directory);
            let joined = join(&directory, &relative);
            prop_assert_eq!(below(&directory, &joined), Some(relative.as_str()));
        }
    }
}
