//! Search requests, results, and the rules that every engine follows. The engines differ in where
//! they run; this module alone decides which files count, their order and how they are shown.

mod glob;
mod pattern;
mod select;

use std::time::Duration;

pub(crate) use glob::{GlobPattern, InvalidGlob};
pub(crate) use pattern::{InvalidRegex, Matcher};
pub(crate) use select::{IgnoreFile, Selector, Tree, common_name_parts};

/// Names of ignore files; later ones take precedence.
pub(crate) const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// A search inside files.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    /// An absolute path; a file is searched regardless of ignore rules.
    pub(crate) root: String,
    pub(crate) root_is_file: bool,
    pub(crate) pattern: String,
    pub(crate) literal: bool,
    pub(crate) ignore_case: bool,
    pub(crate) multiline: bool,
    /// In the syntax of git's ignore rules; `!` excludes files.
    pub(crate) globs: Vec<String>,
    pub(crate) file_type: Option<String>,
    pub(crate) before: usize,
    pub(crate) after: usize,
    pub(crate) include_ignored: bool,
    pub(crate) limit: Duration,
}

/// Files with matches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    pub(crate) files: Vec<CountedFile>,
    pub(crate) searched: u64,
    pub(crate) skipped: SkipCounts,
    pub(crate) timed_out: bool,
    /// How the engine differed from the usual one.
    pub(crate) note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CountedFile {
    pub(crate) path: String,
    pub(crate) lines: u64,
    pub(crate) modified: i128,
}

/// A note about files that no call can name; [`None`] if there are none.
pub(crate) fn unnameable_note(number: u64) -> Option<String> {
    let (names, them) = match number {
        0 => return None,
        1 => ("file whose name is", "it"),
        _ => ("files whose names are", "them"),
    };
    Some(format!("[Left out: {number} {names} not UTF-8; use bash for {them}.]"))
}

/// Files that were not searched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SkipCounts {
    pub(crate) ignored: u64,
    /// Binary files that match.
    pub(crate) binary: u64,
    pub(crate) unreadable: u64,
    /// Files whose names are not UTF-8, so that no call can name them.
    pub(crate) unnameable: u64,
}

/// The matching lines of one file, with context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MatchedFile {
    pub(crate) path: String,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) line: u64,
    pub(crate) text: String,
    /// Byte range of the match; absent for context lines.
    pub(crate) matched: Option<(usize, usize)>,
}

/// A search for files by name.
#[derive(Debug, Clone)]
pub(crate) struct Find {
    pub(crate) root: String,
    pub(crate) pattern: GlobPattern,
    pub(crate) limit: Duration,
}

/// Files found by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    pub(crate) files: Vec<FoundFile>,
    /// How many would match at any depth.
    pub(crate) deeper: u64,
    /// How many match whose names are not UTF-8, so that no call can name them.
    pub(crate) unnameable: u64,
    pub(crate) timed_out: bool,
    pub(crate) note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundFile {
    pub(crate) path: String,
    pub(crate) modified: i128,
    pub(crate) ignored: bool,
}
