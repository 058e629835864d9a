//! Parses the output of search programs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::search::{MatchedFile, Row};

/// `12.345` as nanoseconds.
pub(super) fn nanoseconds(text: &str) -> i128 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    whole.parse::<i128>().unwrap_or(0) * 1_000_000_000 + part.parse::<i128>().unwrap_or(0)
}

/// Parsed output of a program that counts matching lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Paths with their numbers of matching lines; files without a match are omitted.
    pub(super) files: Vec<(String, u64)>,
    /// Matching files whose names are not UTF-8: no call can name them.
    pub(super) unnameable: u64,
    /// Number of searched files, if the program reports it.
    pub(super) searched: Option<u64>,
}

/// Parses records of `path NUL count LF`, followed by statistics without a NUL. A path may contain
/// line breaks, so only a NUL ends it.
pub(super) fn counts(output: &[u8]) -> Counts {
    let mut counts = Counts::default();
    let mut rest = output;
    while let Some(nul) = memchr::memchr(0, rest) {
        let path = &rest[..nul];
        let after = &rest[nul + 1..];
        let Some(end) = memchr::memchr(b'\n', after) else { return counts };
        rest = &after[end + 1..];
        let count = std::str::from_utf8(&after[..end]).ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        if count == 0 {
            continue;
        }
        match std::str::from_utf8(path) {
            Ok(path) => counts.files.push((relative(path).to_owned(), count)),
            Err(_) => counts.unnameable += 1,
        }
    }
    let statistics = String::from_utf8_lossy(rest);
    counts.searched = statistics
        .lines()
        .find_map(|line| line.strip_suffix(" files searched"))
        .and_then(|number| number.trim().parse().ok());
    counts
}

/// A line that grep printed with `-n -Z`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GrepLine<'a> {
    pub(super) path: &'a [u8],
    pub(super) number: u64,
    pub(super) is_match: bool,
    pub(super) text: &'a [u8],
}

/// Parses records of `path NUL number (':' or '-') text LF`, with `--` on a line of its own between
/// groups. Paths are absolute and may contain line breaks.
pub(super) fn grep_lines(output: &[u8]) -> Vec<GrepLine<'_>> {
    let mut lines = Vec::new();
    let mut rest = output;
    while !rest.is_empty() {
        if rest[0] != b'/' {
            // A separator, or a message of grep.
            let Some(end) = memchr::memchr(b'\n', rest) else { break };
            rest = &rest[end + 1..];
            continue;
        }
        let Some(nul) = memchr::memchr(0, rest) else { break };
        let (path, after) = (&rest[..nul], &rest[nul + 1..]);
        let end = memchr::memchr(b'\n', after).unwrap_or(after.len());
        rest = &after[(end + 1).min(after.len())..];
        let digits = after[..end].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&after[..digits]).ok().and_then(|number| number.parse().ok());
        if let (Some(number), Some(mark)) = (number, after[..end].get(digits)) {
            lines.push(GrepLine { path, number, is_match: *mark == b':', text: &after[digits + 1..end] });
        }
    }
    lines
}

fn relative(path: &str) -> &str {
    path.strip_prefix("./").unwrap_or(path)
}

/// NUL-terminated paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) paths: Vec<String>,
    /// Converted lossily.
    pub(super) not_utf8: Vec<String>,
}

pub(super) fn names(output: &[u8]) -> Names {
    let mut names = Names::default();
    for path in output.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        match std::str::from_utf8(path) {
            Ok(path) => names.paths.push(relative(path).to_owned()),
            Err(_) => names.not_utf8.push(relative(&String::from_utf8_lossy(path)).to_owned()),
        }
    }
    names
}

/// Parses ripgrep's JSON lines.
pub(super) fn rows(output: &[u8]) -> Vec<MatchedFile> {
    let mut all: Vec<MatchedFile> = Vec::new();
    for line in output.split(|byte| *byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Value>(line) else { continue };
        let is_match = match event["type"].as_str() {
            Some("match") => true,
            Some("context") => false,
            _ => continue,
        };
        let data = &event["data"];
        let (Some(path), Some(text), Some(first)) =
            (parse_text(&data["path"]), parse_text(&data["lines"]), data["line_number"].as_u64())
        else {
            continue;
        };
        let place =
            |name: &str| data["submatches"][0][name].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
        let (mut start, mut end) = (place("start"), place("end"));
        let file = match all.iter_mut().position(|file| file.path == path) {
            Some(at) => &mut all[at],
            None => {
                all.push(MatchedFile { path, rows: Vec::new() });
                let last = all.len() - 1;
                &mut all[last]
            }
        };
        let body = text.strip_suffix('\n').unwrap_or(&text);
        for (at, line) in body.split('\n').enumerate() {
            let shown = line.strip_suffix('\r').unwrap_or(line);
            let matched = is_match.then_some((start.min(shown.len()), end.min(shown.len())));
            file.rows.push(Row { line: first + at as u64, text: shown.to_owned(), matched });
            start = start.saturating_sub(line.len() + 1);
            end = end.saturating_sub(line.len() + 1);
        }
    }
    all
}

/// Text, or bytes that are not UTF-8.
fn parse_text(value: &Value) -> Option<String> {
    if let Some(text) = value["text"].as_str() {
        return Some(text.to_owned());
    }
    let bytes = STANDARD.decode(value["bytes"].as_str()?).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nul_ends_a_path_in_counts() {
        let output = b"./a\nb.txt\x002\n./9 files searched\x001\n./none\x000\n./\xff\x003\n./x\n./y\x0012\n\n17 matches\n42 files searched\n";
        let found = [("a\nb.txt", 2), ("9 files searched", 1), ("x\n./y", 12)];
        let files = found.map(|(path, count)| (path.to_owned(), count)).into();
        assert_eq!(counts(output), Counts { files, unnameable: 1, searched: Some(42) });
        // A search that was killed leaves an incomplete record.
        for end in 0..output.len() {
            assert!(counts(&output[..end]).files.len() <= 3, "cut at {end}");
        }
        assert_eq!(counts(b""), Counts::default());
    }

    #[test]
    fn only_nul_ends_a_path_in_lines() {
        let output = b"/a\n--\n/b\x001-before\n/a\n--\n/b\x002:hit: 3-4\n--\nBinary file /x matches\n/c\x0010:\n";
        let line = |path, number, is_match, text| GrepLine { path, number, is_match, text };
        let expected = [
            line(b"/a\n--\n/b".as_slice(), 1, false, b"before".as_slice()),
            line(b"/a\n--\n/b", 2, true, b"hit: 3-4"),
            line(b"/c", 10, true, b""),
        ];
        assert_eq!(grep_lines(output), expected);
    }
}
