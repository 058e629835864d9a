//! Dockerfile errors with their position in the text.

use std::fmt;
use std::ops::Range;

/// Characters of a message: it may quote a value that variables made long.
const MAX_MESSAGE: usize = 500;

/// A Dockerfile that cannot be built. `Display` prints the message, the line, and carets below the
/// position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerfileError {
    /// File name shown in messages.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Number of characters to underline on that line.
    pub length: usize,
    pub message: String,
    /// The line as written in the file.
    pub text: String,
}

impl DockerfileError {
    /// An error about the byte range `at` of `text`.
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
            message: shorten(message),
            text: shown.to_owned(),
        }
    }
}

fn shorten(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
    message
}

impl fmt::Display for DockerfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, length, message, text } = self;
        let margin = " ".repeat(line.to_string().len());
        // Keeps the tabs before the position, so that the carets align at any tab width.
        let before: String = text.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "{file}:{line}:{column}: {message}")?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{line} | {text}")?;
        write!(f, "{margin} | {before}{}", "^".repeat(*length))
    }
}

impl std::error::Error for DockerfileError {}
