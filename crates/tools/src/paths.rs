//! Paths as models write them, made absolute without asking the sandbox.

use std::borrow::Cow;

use crate::input::invalid;
use crate::result::Failure;

/// Linux's own limit.
const LONGEST: usize = 4096;

/// Where relative paths and `~` begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) current: String,
    pub(crate) home: String,
}

/// Whether the answer depends on the shell's current directory.
pub(crate) fn is_relative(path: &str) -> bool {
    let path = path.trim_start();
    !path.starts_with('/') && path != "~" && !path.starts_with("~/")
}

/// The absolute path that is meant, without `.`, `..` and doubled slashes.
pub(crate) fn resolve(places: &Places, path: &str) -> Result<String, Failure> {
    if path.is_empty() {
        return Err(invalid("`path` is empty. Name a file or directory."));
    }
    if path.contains('\0') {
        return Err(invalid("`path` contains a NUL character, which no path can."));
    }
    let absolute = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", places.home),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{}/{path}", places.current),
    };
    let path = normal(&absolute);
    if path.len() > LONGEST {
        return Err(invalid(format!("`path` has {} bytes; the longest path has {LONGEST}.", path.len())));
    }
    Ok(path)
}

/// The same path without `.`, `..` and doubled slashes; begins with a slash.
pub(crate) fn normal(path: &str) -> String {
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

/// A path for people and models: one that would break a line, or look like a quoted one, is quoted as JSON does, which is
/// also how a model sends it back.
pub(crate) fn shown(path: &str) -> Cow<'_, str> {
    let breaks = |letter: char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
    if path.starts_with('"') || path.contains(breaks) {
        Cow::Owned(serde_json::Value::from(path).to_string())
    } else {
        Cow::Borrowed(path)
    }
}

/// The directory that holds it; the root holds itself.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// Its last part.
pub(crate) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `path` as seen from `directory`, when it is below it.
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
    fn a_path_that_would_break_a_line_is_quoted() {
        assert_eq!(shown("/a b/ü:1"), "/a b/ü:1");
        for (path, quoted) in [("/a\nb", r#""/a\nb""#), ("\"x\"", r#""\"x\"""#), ("/\u{1b}[31m", r#""/\u001b[31m""#)] {
            assert_eq!(shown(path), quoted);
        }
        assert!(shown("/\u{2028}").starts_with('"'));
    }
    use proptest::prelude::*;

    fn places() -> Places {
        Places { current: "/home/user/project".into(), home: "/home/user".into() }
    }

    #[track_caller]
    fn check(path: &str, expected: &str) {
        assert_eq!(resolve(&places(), path).expect("a path"), expected);
    }

    #[test]
    fn paths_resolve_like_a_shells() {
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
    fn what_cannot_be_a_path_is_refused() {
        assert!(resolve(&places(), "").is_err());
        assert!(resolve(&places(), "a\0b").is_err());
        assert!(resolve(&places(), &"a/".repeat(4096)).is_err());
    }

    proptest! {
        #[test]
        fn every_answer_is_absolute_normal_and_stable(path in "[a-z./~ ]{1,40}") {
            let resolved = resolve(&places(), &path).expect("short and without NUL");
            prop_assert!(resolved.starts_with('/'));
            prop_assert!(resolved == "/" || !resolved.ends_with('/'));
            prop_assert!(resolved.split('/').skip(1).all(|part| resolved == "/" || !matches!(part, "" | "." | "..")));
            prop_assert_eq!(&normal(&resolved), &resolved);
            prop_assert_eq!(resolve(&places(), &resolved).expect("again"), resolved);
        }

        #[test]
        fn join_and_below_are_inverse(directory in "(/[a-z]{1,5}){0,3}", relative in "[a-z]{1,5}(/[a-z]{1,5}){0,3}") {
            let directory = normal(&directory);
            let joined = join(&directory, &relative);
            prop_assert_eq!(below(&directory, &joined), Some(relative.as_str()));
        }
    }
}
