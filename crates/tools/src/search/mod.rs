//! Searching: what is asked for, what is found, and the rules that every engine keeps. The engines differ in where they
//! run; which files count, in what order they come and how they are shown is decided here once.

mod glob;
mod pattern;
mod select;

use std::time::Duration;

pub(crate) use glob::{GlobPattern, InvalidGlob};
pub(crate) use pattern::{InvalidPattern, Matcher};
pub(crate) use select::{IgnoreFile, Selector, Tree, common_name_parts};

/// Files that say what is ignored, later ones above earlier ones.
pub(crate) const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// What to look for inside files.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    /// An absolute path; a file is searched whatever the rules say.
    pub(crate) root: String,
    pub(crate) root_is_file: bool,
    pub(crate) pattern: String,
    pub(crate) literal: bool,
    pub(crate) ignore_case: bool,
    pub(crate) multiline: bool,
    /// As git's ignore rules; those with `!` leave files out.
    pub(crate) globs: Vec<String>,
    pub(crate) file_type: Option<String>,
    pub(crate) before: usize,
    pub(crate) after: usize,
    pub(crate) include_ignored: bool,
    pub(crate) limit: Duration,
}

/// Which files match.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    pub(crate) files: Vec<CountedFile>,
    pub(crate) searched: u64,
    pub(crate) skipped: Skipped,
    pub(crate) timed_out: bool,
    /// What is different from the usual engine.
    pub(crate) note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CountedFile {
    pub(crate) path: String,
    pub(crate) lines: u64,
    pub(crate) modified: i128,
}

/// Tells of files that no call can name; [`None`] when there are none.
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
pub(crate) struct Skipped {
    pub(crate) ignored: u64,
    /// Those among the binary ones that match.
    pub(crate) binary: u64,
    pub(crate) unreadable: u64,
    /// Those whose names are not UTF-8, so that no call can name them.
    pub(crate) unnameable: u64,
}

/// The matching lines of one file, with those around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MatchedFile {
    pub(crate) path: String,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) line: u64,
    pub(crate) text: String,
    /// Where the match is in the text, in bytes; absent in lines that only stand around one.
    pub(crate) matched: Option<(usize, usize)>,
}

/// What files to look for by name.
#[derive(Debug, Clone)]
pub(crate) struct Find {
    pub(crate) root: String,
    pub(crate) pattern: GlobPattern,
    pub(crate) limit: Duration,
}

/// Which files there are.
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
