//! Selects the files of a tree: git's ignore rules below the search root, globs and file types.

use std::collections::HashMap;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::types::{Types, TypesBuilder};

use super::glob::last_part;
use super::{InvalidGlob, Search};
use crate::paths;

/// A file with ignore rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IgnoreFile {
    /// Relative to the root; empty for the root itself.
    pub(crate) directory: String,
    pub(crate) rules: String,
}

/// The ignore rules of a tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    rules: HashMap<String, Gitignore>,
    /// Cached decisions for directories.
    known: HashMap<String, bool>,
}

impl Tree {
    pub(crate) fn new(files: &[IgnoreFile]) -> Self {
        let mut lines: HashMap<&str, Vec<&str>> = HashMap::new();
        for file in files {
            lines.entry(&file.directory).or_default().extend(file.rules.lines());
        }
        let rules = lines.into_iter().filter_map(|(directory, lines)| {
            let mut builder = GitignoreBuilder::new("");
            for line in lines {
                // An invalid rule is skipped, as git does.
                let _ = builder.add_line(None, line);
            }
            Some((directory.to_owned(), builder.build().ok()?))
        });
        Self { rules: rules.collect(), known: HashMap::new() }
    }

    /// Whether the rules exclude a file.
    pub(crate) fn ignores(&mut self, path: &str) -> bool {
        self.ignores_directory(parent(path)) || self.decides(path, false)
    }

    fn ignores_directory(&mut self, path: &str) -> bool {
        if path.is_empty() || self.rules.is_empty() {
            return false;
        }
        if let Some(known) = self.known.get(path) {
            return *known;
        }
        let ignored = self.ignores_directory(parent(path)) || self.decides(path, true);
        self.known.insert(path.to_owned(), ignored);
        ignored
    }

    /// The nearest rule decides.
    fn decides(&self, path: &str, is_directory: bool) -> bool {
        let mut directory = parent(path);
        loop {
            if let Some(rules) = self.rules.get(directory) {
                let relative = path.strip_prefix(directory).unwrap_or(path).trim_start_matches('/');
                let matched = rules.matched(relative, is_directory);
                if !matched.is_none() {
                    return matched.is_ignore();
                }
            }
            if directory.is_empty() {
                return false;
            }
            directory = parent(directory);
        }
    }
}

/// The directory of a relative path; empty at the root.
fn parent(path: &str) -> &str {
    path.rfind('/').map_or("", |at| &path[..at])
}

/// Globs, file type, and what is never searched.
#[derive(Debug)]
pub(crate) struct Selector {
    globs: Option<Override>,
    types: Option<Types>,
    /// The session's own files, relative to the root.
    hidden: Option<String>,
    skip_git: bool,
}

impl Selector {
    /// `own` is the directory of the session's own files.
    pub(crate) fn new(search: &Search, own: &str) -> Result<Self, InvalidGlob> {
        let globs = if search.globs.is_empty() {
            None
        } else {
            let mut builder = OverrideBuilder::new("");
            for glob in &search.globs {
                builder.add(glob).map_err(|error| InvalidGlob(format!("{glob:?} is not a valid glob: {error}.")))?;
            }
            Some(builder.build().map_err(|error| InvalidGlob(error.to_string()))?)
        };
        let types = match &search.file_type {
            None => None,
            Some(name) => {
                let mut builder = TypesBuilder::new();
                builder.add_defaults().select(name);
                let known = builder.build();
                Some(known.map_err(|_| InvalidGlob(unknown_type(name)))?)
            }
        };
        Ok(Self { globs, types, ..Self::plain(&search.root, own) })
    }

    /// Without globs and type.
    pub(crate) fn plain(root: &str, own: &str) -> Self {
        Self {
            globs: None,
            types: None,
            hidden: paths::below(root, own).map(str::to_owned),
            skip_git: !root.split('/').any(|part| part == ".git"),
        }
    }

    /// Whether a file is selected, ignore rules aside.
    pub(crate) fn takes(&self, path: &str) -> bool {
        if self.skip_git && path.split('/').rev().skip(1).any(|part| part == ".git") {
            return false;
        }
        if self.hidden.as_ref().is_some_and(|own| path == own || path.starts_with(&format!("{own}/"))) {
            return false;
        }
        if let Some(globs) = &self.globs {
            let mut directory = parent(path);
            while !directory.is_empty() {
                if globs.matched(directory, true).is_ignore() {
                    return false;
                }
                directory = parent(directory);
            }
            if globs.matched(path, false).is_ignore() {
                return false;
            }
        }
        self.types.as_ref().is_none_or(|types| types.matched(path, false).is_whitelist())
    }
}

fn unknown_type(name: &str) -> String {
    let extension = format!("*.{}", name.trim_start_matches('.'));
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    let known = builder.definitions();
    // A name that is an extension means the type that has it.
    let by_extension = known.iter().filter(|known| known.globs().contains(&extension));
    let by_name = known.iter().filter(|known| known.name().starts_with(name));
    let near: Vec<&str> = by_extension.chain(by_name).map(|known| known.name()).take(3).collect();
    if near.is_empty() {
        return format!("{name:?} is not a known file type. Use glob instead, e.g. \"*.ext\".");
    }
    format!("{name:?} is not a known file type. Did you mean {}?", near.join(" or "))
}

/// The name parts of which every file that the globs select matches one; [`None`] if there are
/// none.
pub(crate) fn common_name_parts(globs: &[String]) -> Option<Vec<&str>> {
    let positive: Vec<&String> = globs.iter().filter(|glob| !glob.starts_with('!')).collect();
    if positive.is_empty() {
        return None;
    }
    positive.into_iter().map(|glob| last_part(glob)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rules(directory: &str, rules: &str) -> IgnoreFile {
        IgnoreFile { directory: directory.into(), rules: rules.into() }
    }

    #[test]
    fn ignore_rules_follow_git() {
        let mut tree =
            Tree::new(&[rules("", "node_modules/\n*.log\n!keep.log\n/build"), rules("sub", "!x.log\nlocal")]);
        for (path, ignored) in [
            ("node_modules/a/b.js", true),
            ("sub/node_modules/a.js", true),
            ("a.log", true),
            ("keep.log", false),
            ("sub/x.log", false),
            ("sub/y.log", true),
            ("sub/local", true),
            ("local", false),
            ("build/out", true),
            ("sub/build/out", false),
        ] {
            assert_eq!(tree.ignores(path), ignored, "{path}");
        }
    }

    fn search(globs: &[&str], file_type: Option<&str>) -> Search {
        Search {
            root: "/w".into(),
            root_is_file: false,
            pattern: "x".into(),
            literal: false,
            ignore_case: false,
            multiline: false,
            globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
            file_type: file_type.map(str::to_owned),
            before: 0,
            after: 0,
            include_ignored: false,
            limit: Duration::from_secs(1),
        }
    }

    #[test]
    fn globs_and_types_select_files() {
        let takes = |globs: &[&str], kind, path: &str| {
            Selector::new(&search(globs, kind), "/w/.own").expect("valid").takes(path)
        };
        assert!(takes(&[], None, "a/b.c"));
        assert!(!takes(&[], None, ".git/config"));
        assert!(takes(&[], None, ".github/x.yml"));
        assert!(!takes(&[], None, ".own/out/c1.log"));
        assert!(takes(&["*.ts"], None, "deep/a.ts"));
        assert!(!takes(&["*.ts"], None, "deep/a.js"));
        assert!(takes(&["src/**/*.{c,h}"], None, "src/x/a.h"));
        assert!(!takes(&["!**/test/**"], None, "a/test/b.rs"));
        assert!(takes(&["!**/test/**"], None, "a/b.rs"));
        assert!(!takes(&["!vendor"], None, "vendor/a.rs"));
        assert!(takes(&[], Some("rust"), "a.rs"));
        assert!(!takes(&[], Some("rust"), "a.py"));
        let unknown = Selector::new(&search(&[], Some("rs")), "/x").expect_err("no such type");
        assert!(unknown.0.contains("Did you mean rust"), "{}", unknown.0);
    }
}
