//! What is wrong with a Dockerfile, shown where it is.

use std::fmt;
use std::ops::Range;

/// A Dockerfile that cannot be built. Displayed, it is a message, the line, and a caret beneath the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerfileError {
    /// What the file is called in messages.
    pub file: String,
    /// From 1 on.
    pub line: usize,
    /// In characters, from 1 on.
    pub column: usize,
    /// How many characters it is about, on that line.
    pub length: usize,
    pub message: String,
    /// The line as it stands in the file.
    pub text: String,
}

impl DockerfileError {
    /// Of the bytes `at` of `text`.
    pub(crate) fn new(file: &str, text: &str, at: &Range<usize>, message: String) -> Self {
        let start = at.start.min(text.len());
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[line_start..].find('\n').map_or(text.len(), |length| line_start + length);
        let shown = text[line_start..line_end].trim_end_matches('\r');
        let end = at.end.clamp(start, line_start + shown.len().max(start - line_start));
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            length: text.get(start..end).map_or(1, |part| part.chars().count()).max(1),
            message,
            text: shown.to_owned(),
        }
    }
}

impl fmt::Display for DockerfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, length, message, text } = self;
        let margin = " ".repeat(line.to_string().len());
        // What stands before keeps its tabs, so that the caret is where it should be however wide they are.
        let before: String = text.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "{file}:{line}:{column}: {message}")?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{line} | {text}")?;
        write!(f, "{margin} | {before}{}", "^".repeat(*length))
    }
}

impl std::error::Error for DockerfileError {}
