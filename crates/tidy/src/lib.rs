//! Holds the repository to the rules of CONTRIBUTING.md by reading its files.
//!
//! Every check is a pure function from text to findings, tested here on small samples;
//! `tests/repository.rs` applies them to the repository. Nothing here touches the network.

pub mod commits;
pub mod crates;
pub mod files;
pub mod glossary;
pub mod layout;
pub mod links;
pub mod lists;
pub mod scan;
pub mod types;
pub mod words;

use std::fmt;

/// One violation, printed as `file:line: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path relative to the repository's root.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// The offending text and what to write instead.
    pub message: String,
}

impl Finding {
    /// A finding at `file:line`.
    pub fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

/// What is wrong with one file: words, and in Rust the width of comments, module docs and the names
/// of tests.
pub fn check_file(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = words::check_words(file, text);
    if file.ends_with(".rs") {
        findings.extend(layout::check_width(file, text));
        findings.extend(layout::check_rewrapped(file, text));
        findings.extend(layout::check_module_doc(file, text));
        findings.extend(layout::check_test_names(file, text));
    }
    findings
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}
