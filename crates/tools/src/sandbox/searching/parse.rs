//! What the programs of a search say, understood.

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

/// `./path NUL count` lines, and after them how many files were searched.
pub(super) fn counts(output: &[u8]) -> (Vec<(String, u64)>, u64) {
    let text = String::from_utf8_lossy(output);
    let mut searched = 0;
    let mut hits = Vec::new();
    for line in text.lines() {
        match line.split_once('\0') {
            Some((path, count)) => {
                if let Ok(count) = count.parse() {
                    hits.push((path.trim_start_matches("./").to_owned(), count));
                }
            }
            None => {
                if let Some(number) = line.strip_suffix(" files searched") {
                    searched = number.trim().parse().unwrap_or(0);
                }
            }
        }
    }
    (hits, searched)
}

/// grep's counts; files without a match are in them too.
pub(super) fn pairs(output: &[u8]) -> Vec<(String, u64)> {
    let text = String::from_utf8_lossy(output);
    let pair = |line: &str| {
        let (path, count) = line.split_once('\0')?;
        Some((path.to_owned(), count.parse().ok().filter(|count| *count > 0)?))
    };
    text.lines().filter_map(pair).collect()
}

pub(super) fn names(output: &[u8]) -> Vec<String> {
    let parts = output.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    parts.map(|path| String::from_utf8_lossy(path).trim_start_matches("./").to_owned()).collect()
}

/// ripgrep's JSON lines.
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
            (text_of(&data["path"]), text_of(&data["lines"]), data["line_number"].as_u64())
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

/// Text, or bytes that are none.
fn text_of(value: &Value) -> Option<String> {
    if let Some(text) = value["text"].as_str() {
        return Some(text.to_owned());
    }
    let bytes = STANDARD.decode(value["bytes"].as_str()?).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
