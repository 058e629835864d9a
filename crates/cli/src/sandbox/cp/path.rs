//! Paths of a copy, on this machine and in a sandbox.

use anyhow::bail;
use sdk::FileError;
use std::path::{Component, Path};

/// The directory and the name of an absolute path in a sandbox; the directory of `/a` is empty.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Whether a path means the content of a directory instead of the directory: `dir/.` and `.`.
pub(super) fn means_content(path: &Path) -> bool {
    // On the bytes, because `Path` ignores a dot at the end.
    let text = path.as_os_str().as_encoded_bytes();
    text == b"." || text.ends_with(b"/.") || text.ends_with(b"..")
}

/// The absolute form of a sandbox's path, without a slash or a dot at its end. Needed because
/// commands, unlike file calls, do not expand `~`.
pub(super) async fn absolute(files: &sdk::Files<'_>, path: &str) -> Result<String, FileError> {
    let below_home = match path {
        path if path.starts_with('/') => None,
        "" | "~" | "." => Some(""),
        path => Some(path.strip_prefix("~/").unwrap_or(path)),
    };
    let whole = match below_home {
        None => path.to_owned(),
        Some(rest) => format!("{}/{rest}", files.stat("~").await?.path),
    };
    let mut kept = whole.as_str();
    loop {
        let shorter = kept.trim_end_matches('/');
        let shorter = if shorter.ends_with("/.") { &shorter[..shorter.len() - 1] } else { shorter };
        if shorter == kept {
            break;
        }
        kept = shorter;
    }
    Ok(if kept.is_empty() { "/".to_owned() } else { kept.to_owned() })
}

/// The path of `name` in `directory`.
pub(super) fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// The path of an entry relative to the copied directory. The sandbox's listing is not trusted: a
/// path that leaves the directory is refused.
pub(super) fn below<'a>(root: &str, path: &'a str) -> anyhow::Result<&'a str> {
    let rest = path.strip_prefix(root.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    let plain = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains('\0');
    match rest {
        Some(rest) if rest.split('/').all(plain) => Ok(rest),
        _ => bail!("the sandbox lists {path:?} as a part of {root:?}; nothing of it is copied"),
    }
}

/// The relative path from the directory of `link` to `target`, both below the copied directory.
pub(super) fn from_to(link: &str, target: &str) -> String {
    let (directory, _) = split(link);
    let mut from: Vec<&str> = directory.split('/').filter(|name| !name.is_empty()).collect();
    let mut to: Vec<&str> = target.split('/').filter(|name| !name.is_empty()).collect();
    let same = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    from.drain(..same);
    to.drain(..same);
    let steps: Vec<&str> = from.iter().map(|_| "..").chain(to).collect();
    if steps.is_empty() { ".".to_owned() } else { steps.join("/") }
}

/// The last component of a local path; [`None`] for `..` and `/`.
pub(super) fn local_name(path: &Path) -> Option<&str> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => name.to_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_the_copied_directory_is_believed() {
        assert_eq!(below("/a", "/a/b/c").ok(), Some("b/c"));
        assert_eq!(below("/", "/b").ok(), Some("b"));
        for path in ["/a", "/a/", "/ab", "/a/../b", "/a/./b", "/a//b", "/b", "", "/a/b\0"] {
            assert!(below("/a", path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn links_lead_from_where_they_are() {
        for (link, target, expected) in [
            ("l", "t", "t"),
            ("a/l", "t", "../t"),
            ("a/b/l", "a/c/t", "../c/t"),
            ("a/l", "a/t", "t"),
            ("a/l", "a", "."),
            ("l", "", "."),
        ] {
            assert_eq!(from_to(link, target), expected, "{link} -> {target}");
        }
    }

    #[test]
    fn a_dot_at_the_end_means_the_content() {
        assert!([".", "a/.", "..", "a/.."].iter().all(|path| means_content(Path::new(path))));
        assert!(["a", "a/", ".a", "a."].iter().all(|path| !means_content(Path::new(path))));
    }
}
