//! The page of a text file that a result shows: numbered lines within the budget.

use std::borrow::Cow;

use super::Request;
use crate::result::{Done, ErrorCode, Failure};
use crate::structured::{FailureFacts, ReadContent, ReadFileOutput, TextPage, ToolOutput};
use crate::tools::{BUDGET, about, count};
use text::encoding::{Decoded, Encoding, LineEnding};

/// Maximum width of a line.
const WIDTH: usize = 2000;

/// The part of a text that fits a result.
pub(super) struct Page {
    /// From 1, both included.
    pub(super) first: usize,
    pub(super) last: usize,
    /// `None` if the lines of a large file were not counted.
    pub(super) total: Option<usize>,
    pub(super) shown: Vec<String>,
    pub(super) next: Option<usize>,
}

impl Page {
    pub(super) fn new(text: &str, request: &Request) -> Result<Self, Failure> {
        let total = count_lines(text);
        let first = match request.offset {
            None | Some(0 | 1) => 1,
            Some(offset) if offset > 0 => usize::try_from(offset).unwrap_or(usize::MAX),
            Some(offset) => (total + 1).saturating_sub(usize::try_from(offset.unsigned_abs()).unwrap_or(total)).max(1),
        };
        if first > total && total > 0 {
            return Err(offset_error(&request.path, total, request.offset.unwrap_or(1)));
        }
        let shown = number_lines(lines(text).skip(first - 1).take(request.limit), first);
        let last = first - 1 + shown.len();
        Ok(Self { first, last, total: Some(total), shown, next: (last < total).then_some(last + 1) })
    }

    pub(super) fn render(self, path: &str, decoded: &Decoded<'_>, size: u64, sha256: Option<&str>) -> Done {
        let Self { first, last, total, shown, next } = self;
        let mut text =
            if total == Some(0) { format!("[{path} exists and is empty ({size} bytes).]") } else { shown.join("\n") };
        if decoded.encoding == Encoding::Windows1252 {
            text.push_str(&format!(
                "\n[Shown as windows-1252: {} not UTF-8. edit_file preserves them byte for byte.]",
                if decoded.strange_bytes == 1 {
                    "1 byte is".into()
                } else {
                    format!("{} bytes are", decoded.strange_bytes)
                }
            ));
        }
        if first > 1 || next.is_some() {
            match total {
                Some(total) => text.push_str(&format!("\n[Showing lines {first}–{last} of {total}.")),
                None => text.push_str(&format!("\n[Showing lines {first}–{last} of a file of {size} bytes.")),
            }
            if let Some(next) = next {
                text.push_str(&format!(" Continue with offset={next}"));
                text.push_str(if total.is_some() { "." } else { ", or use grep to find a place in it." });
            }
            text.push(']');
        }
        let facts = TextPage {
            total_lines: total,
            start_line: if total == Some(0) { 0 } else { first },
            end_line: last,
            next_offset: next,
            line_ending: LineEnding::detect(&decoded.text),
            encoding: decoded.encoding.to_string(),
            bom: decoded.bom,
            size,
            sha256: sha256.map(str::to_owned),
        };
        let output =
            ReadFileOutput { path: path.to_owned(), truncated: next.is_some(), content: ReadContent::Text(facts) };
        Done::text(text, ToolOutput::ReadFile(output))
    }
}

pub(super) fn offset_error(path: &str, total: usize, offset: i64) -> Failure {
    Failure::new(
        ErrorCode::OffsetOutOfRange,
        format!("{path} has {}; offset {offset} is past the end.", count(total, "line")),
    )
    .with(FailureFacts { total_lines: Some(total), ..about(path) })
}

/// Lines without their ends. A file with only `\r` has lines too.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let (end, body) = match line_end(text) {
        '\r' => ('\r', text.trim_end_matches('\r')),
        end => (end, text.strip_suffix(end).unwrap_or(text)),
    };
    // An empty text has no line.
    let split = (!text.is_empty()).then(|| body.split(end));
    split.into_iter().flatten().map(|line| line.strip_suffix('\r').unwrap_or(line))
}

fn count_lines(text: &str) -> usize {
    match line_end(text) {
        '\r' => lines(text).count(),
        _ => {
            memchr::memchr_iter(b'\n', text.as_bytes()).count() + usize::from(!text.is_empty() && !text.ends_with('\n'))
        }
    }
}

fn line_end(text: &str) -> char {
    let has = |byte| memchr::memchr(byte, text.as_bytes()).is_some();
    if !has(b'\n') && has(b'\r') { '\r' } else { '\n' }
}

/// Numbered lines, as many as fit, at least one.
pub(super) fn number_lines<'a>(lines: impl Iterator<Item = &'a str>, first: usize) -> Vec<String> {
    // Reserves space for the notices after the lines.
    let mut space = BUDGET - 500;
    let mut shown = Vec::new();
    for (number, line) in (first..).zip(lines) {
        let text = format!("{number}\t{}", truncate_line(line));
        let length = text.chars().count() + 1;
        if length > space && !shown.is_empty() {
            break;
        }
        space = space.saturating_sub(length);
        shown.push(text);
    }
    shown
}

/// Cuts a line to the maximum width.
fn truncate_line(line: &str) -> Cow<'_, str> {
    let line =
        if memchr::memchr(0, line.as_bytes()).is_some() { line.replace('\0', "\\x00").into() } else { Cow::from(line) };
    // No line has more characters than bytes.
    if line.len() <= WIDTH {
        return line;
    }
    match line.char_indices().nth(WIDTH) {
        None => line,
        Some((end, _)) => format!("{}… [+{} chars on this line]", &line[..end], line[end..].chars().count()).into(),
    }
}
