//! The files of the repository, without what builds and package managers leave there.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories that hold no source of ours.
const SKIPPED: &[&str] = &["target", "node_modules", ".git", ".cache", ".dev", "dist", "build", "__pycache__", "pins"];

/// The repository's root, two levels above this crate.
///
/// # Panics
/// When this crate was moved out of `crates/`.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/tidy is in the repository").to_owned()
}

/// Path relative to `root` and content of every text file, sorted by path.
///
/// # Panics
/// When a directory cannot be read.
pub fn read_all(root: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        // cargo marks its target directories, wherever they are.
        if directory.join("CACHEDIR.TAG").exists() {
            continue;
        }
        for entry in fs::read_dir(&directory).expect("a directory of the repository can be read") {
            let entry = entry.expect("a directory of the repository can be listed");
            let kind = entry.file_type().expect("the kind of a file is known");
            let name = entry.file_name().to_string_lossy().into_owned();
            // `crates/node/src/build` is source; `web/build` is what esbuild wrote.
            let is_source = directory.ends_with("src") && name == "build";
            if kind.is_dir() && (is_source || !SKIPPED.contains(&name.as_str())) {
                directories.push(entry.path());
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                let path = entry.path();
                let path = path.strip_prefix(root).expect("a file is below its root");
                files.push((path.to_string_lossy().into_owned(), text));
            }
        }
    }
    files.sort();
    files
}
