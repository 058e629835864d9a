//! The files a build copies, and the hash by which a server recognizes them. Both match the
//! official SDKs, so that their caches are shared.

mod hash;
mod ignore;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::pattern::{compile, is_pattern};
pub(super) use hash::{content_hash, hash};
use ignore::Ignore;

/// Files that cannot be copied into a template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// Absolute, or outside of the context through `..`.
    #[error("cannot copy {source_path:?}: it must be a path inside the build's context")]
    Outside { source_path: String },
    #[error("cannot copy {source_path:?}: no such files in {context}")]
    NoFiles { source_path: String, context: String },
    #[error("{pattern:?} is not a pattern: {cause}")]
    BadPattern { pattern: String, cause: String },
    #[error("cannot read {path} for the build")]
    Io { path: PathBuf, source: io::Error },
}

/// A file, directory or symlink to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    /// Path relative to the context, with `/` separators; `.` is the context itself.
    pub(super) relative: String,
}

/// The build context: a directory, without the paths that its `.dockerignore` and the caller
/// exclude.
#[derive(Debug)]
pub(super) struct Context {
    root: PathBuf,
    ignore: Ignore,
}

impl Context {
    pub(super) fn open(root: &Path, patterns: &[String]) -> Result<Self, ContextError> {
        let io = |source| ContextError::Io { path: root.to_owned(), source };
        let root = std::path::absolute(root).map_err(io)?;
        let mut all = match fs::read_to_string(root.join(".dockerignore")) {
            Ok(text) => text.trim_start_matches('\u{feff}').lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(ContextError::Io { path: root.join(".dockerignore"), source }),
        };
        all.extend(patterns.iter().cloned());
        Ok(Self { ignore: Ignore::new(&all)?, root })
    }

    /// Selects everything that `source` names: files, symlinks, and directories recursively; in the
    /// order of the hash.
    pub(super) fn select(&self, source: &str) -> Result<Vec<Entry>, ContextError> {
        let wanted = normalize(source).ok_or_else(|| ContextError::Outside { source_path: source.to_owned() })?;
        let mut found = Vec::new();
        for relative in self.match_source(&wanted)? {
            self.add(&relative, &mut found)?;
        }
        let key = |entry: &Entry| if entry.relative == "." { String::new() } else { entry.relative.clone() };
        found.sort_by_cached_key(key);
        found.dedup();
        if found.is_empty() {
            let context = self.root.display().to_string();
            return Err(ContextError::NoFiles { source_path: source.to_owned(), context });
        }
        Ok(found)
    }

    /// The paths that the source itself names.
    fn match_source(&self, wanted: &str) -> Result<Vec<String>, ContextError> {
        if !is_pattern(wanted) {
            let exists = self.path(wanted).symlink_metadata().is_ok();
            return Ok(if exists { vec![wanted.to_owned()] } else { Vec::new() });
        }
        let matches = pattern(wanted)?;
        // `d/**` also names `d`.
        let itself = wanted.strip_suffix("/**").map(pattern).transpose()?;
        let segments: Vec<&str> = wanted.split('/').collect();
        let plain = segments.iter().take_while(|segment| !is_pattern(segment)).count();
        let base = if plain == 0 { ".".to_owned() } else { segments[..plain].join("/") };
        let mut all = Vec::new();
        if plain > 0 && self.path(&base).symlink_metadata().is_ok() {
            all.push(base.clone());
        }
        if self.path(&base).is_dir() {
            self.walk(&base, &mut |relative, _| {
                all.push(relative.to_owned());
                true
            })?;
        }
        all.retain(|path| matches.is_match(path) || itself.as_ref().is_some_and(|itself| itself.is_match(path)));
        Ok(all)
    }

    /// Adds one named path and, for a directory, everything below it that is not ignored.
    fn add(&self, relative: &str, found: &mut Vec<Entry>) -> Result<(), ContextError> {
        if relative != "." && self.ignore.matches(relative) {
            return Ok(());
        }
        found.push(self.entry(relative));
        let path = self.path(relative);
        let is_directory = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        if is_directory {
            self.walk(relative, &mut |below, is_directory| {
                let ignored = self.ignore.matches(below);
                if !ignored {
                    found.push(self.entry(below));
                }
                is_directory && (!ignored || self.ignore.has_negations)
            })?;
        }
        Ok(())
    }

    /// Walks everything below a directory; `visit` returns whether to descend. Symlinks are not
    /// followed.
    fn walk(&self, below: &str, visit: &mut dyn FnMut(&str, bool) -> bool) -> Result<(), ContextError> {
        let path = self.path(below);
        let failed = |source| ContextError::Io { path: path.clone(), source };
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "its name is not UTF-8");
            let name = name.to_str().ok_or_else(|| ContextError::Io { path: entry.path(), source: unreadable() })?;
            let relative = if below == "." { name.to_owned() } else { format!("{below}/{name}") };
            let is_directory = entry.file_type().map_err(failed)?.is_dir();
            if visit(&relative, is_directory) && is_directory {
                self.walk(&relative, visit)?;
            }
        }
        Ok(())
    }

    fn path(&self, relative: &str) -> PathBuf {
        if relative == "." { self.root.clone() } else { self.root.join(relative) }
    }

    fn entry(&self, relative: &str) -> Entry {
        Entry { path: self.path(relative), relative: relative.to_owned() }
    }
}

fn pattern(text: &str) -> Result<Regex, ContextError> {
    compile(text).map_err(|error| ContextError::BadPattern { pattern: text.to_owned(), cause: error.to_string() })
}

/// Removes `.`, `..` and doubled slashes; [`None`] when the path leaves the context.
fn normalize(source: &str) -> Option<String> {
    if Path::new(source).is_absolute() || source.starts_with('/') {
        return None;
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in source.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop()?;
            }
            other => segments.push(other),
        }
    }
    Some(if segments.is_empty() { ".".to_owned() } else { segments.join("/") })
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let at = |path: &str| root.path().join(path);
        for (path, content) in [
            ("app/main.py", "print(1)\n"),
            ("app/data/t.csv", "a,b\n"),
            ("app/.env", "k"),
            ("node_modules/x/i.js", "x"),
            ("README.md", "read"),
        ] {
            fs::create_dir_all(at(path).parent().expect("a parent")).expect("directories");
            fs::write(at(path), content).expect("a file");
            fs::set_permissions(at(path), fs::Permissions::from_mode(0o644)).expect("a mode");
        }
        for (path, mode) in
            [("app/main.py", 0o755), ("app", 0o755), ("app/data", 0o755), ("node_modules", 0o755), (".", 0o755)]
        {
            fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).expect("a mode");
        }
        for (target, link) in [("main.py", "app/link"), ("/nowhere", "app/dangling"), ("data", "app/dirlink")] {
            symlink(target, at(link)).expect("a link");
        }
        root
    }

    /// The expected paths and hashes come from Python's `e2b` 2.63.0 on the same tree.
    #[test]
    fn files_and_hashes_match_the_official_sdk() {
        let root = tree();
        let app = "app app/.env app/dangling app/data app/data/t.csv app/dirlink app/link app/main.py";
        for (source, destination, ignore, follow, expected, paths) in [
            ("app", "/app", "", false, "f4522c0166ad7affb3196fa3d3c0444126d8a263801eaad7705d89cc01cb8cf2", app),
            ("app", "/app", "", true, "280b3d555282cfdf2aa529811f5fe91af4867d720de7be736345632231ab054d", app),
            (
                ".",
                "/home/user/",
                "node_modules",
                false,
                "7ac76be088483efc30f3c14c4ddec31cad42d19c70eb683817ca308b19004aae",
                &format!(". README.md {app}"),
            ),
            ("app/**", "/x", "", false, "75fd9e4f95a8df027278908e02ea3ec250256334ba968890fa9cefc1652006c5", app),
            (
                "**/*.py",
                "/x",
                "",
                false,
                "7ba755471b9dc8cedc1d5cadd647282a34511818230d90e1daa9344aa26ed39f",
                "app/main.py",
            ),
            (
                "./app/data/",
                "rel",
                "",
                false,
                "649bee813e13a85eb41961159ae78061a7cc94bb2fdb4e4c95f946b795ae55da",
                "app/data app/data/t.csv",
            ),
            (
                "*",
                ".",
                "# all but data\nnode_modules\napp/*\n!app/data\n*.md\n",
                false,
                "b66fe4b321057d86831f8d6c80e73c763f624d7586d18148900c134d4ff738dd",
                "app app/data app/data/t.csv",
            ),
            (
                "app/[md]*",
                "/x",
                "app/data/*.csv",
                false,
                "ec1702590d0e1f0c47328ecdc6d280f973298715aac883992f90ee00742c13fd",
                "app/dangling app/data app/dirlink app/main.py",
            ),
        ] {
            let patterns: Vec<String> = ignore.lines().map(str::to_owned).collect();
            let context = Context::open(root.path(), &patterns).expect("a context");
            let entries = context.select(source).expect("files");
            let found: Vec<&str> = entries.iter().map(|entry| entry.relative.as_str()).collect();
            assert_eq!(found.join(" "), paths, "{source}");
            assert_eq!(hash(source, destination, &entries, follow).expect("a hash"), expected, "{source} {follow}");
        }
    }

    #[test]
    fn dockerignore_applies_and_outside_paths_are_refused() {
        let root = tree();
        fs::write(root.path().join(".dockerignore"), "**/*.csv\n").expect("a file");
        let context = Context::open(root.path(), &[]).expect("a context");
        assert_eq!(context.select("app/data").expect("files").len(), 1);
        for source in ["/etc/passwd", "../x", "app/../../x"] {
            assert!(matches!(context.select(source), Err(ContextError::Outside { .. })), "{source}");
        }
        for source in ["nothing", "*.none", "app/data/t.csv"] {
            assert!(matches!(context.select(source), Err(ContextError::NoFiles { .. })), "{source}");
        }
    }
}
