//! Searches of the in-memory machine, with the rules of those in a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::{MemoryMachine, OWN};
use crate::paths;
use crate::port::{PortError, Searches};
use crate::search::{
    Counted, CountedFile, Find, Found, FoundFile, MatchedFile, Matcher, Row, Search, Selector, SkipCounts,
};

#[async_trait]
impl Searches for Arc<MemoryMachine> {
    async fn count(&self, search: &Search) -> Result<Counted, PortError> {
        let matcher = matcher(search)?;
        let mut counted = Counted::default();
        if search.root_is_file {
            let bytes = self.files.lock().read(&search.root)?;
            let lines = matching(&matcher, search, &bytes).len() as u64;
            counted.searched = 1;
            if lines > 0 {
                counted.files.push(CountedFile { path: search.root.clone(), lines, modified: 0 });
            }
            return Ok(counted);
        }
        let selector = Selector::new(search, OWN).map_err(|error| PortError::Other(error.0))?;
        let (files, _, mut rules) = self.listing(&search.root);
        let mut skipped = SkipCounts::default();
        for (path, modified, bytes) in files {
            if !selector.takes(&path) {
                continue;
            }
            if !search.include_ignored && rules.ignores(&path) {
                skipped.ignored += 1;
                continue;
            }
            counted.searched += 1;
            let lines = matching(&matcher, search, &bytes).len() as u64;
            if lines == 0 {
                continue;
            }
            if bytes.contains(&0) {
                skipped.binary += 1;
                continue;
            }
            counted.files.push(CountedFile { path: paths::join(&search.root, &path), lines, modified });
        }
        counted.skipped = skipped;
        Ok(counted)
    }

    async fn lines(&self, search: &Search, files: &[String]) -> Result<Vec<MatchedFile>, PortError> {
        let matcher = matcher(search)?;
        let mut all = Vec::new();
        for path in files {
            let bytes = self.files.lock().read(path)?;
            all.push(MatchedFile { path: path.clone(), rows: rows(&matcher, search, &bytes) });
        }
        Ok(all)
    }

    async fn find(&self, find: &Find) -> Result<Found, PortError> {
        let selector = Selector::plain(&find.root, OWN);
        let (files, directories, mut rules) = self.listing(&find.root);
        let mut found = Found::default();
        let listed: Vec<(String, i128)> = if find.pattern.directories() {
            directories.into_iter().map(|path| (path, 0)).collect()
        } else {
            files.into_iter().map(|(path, modified, _)| (path, modified)).collect()
        };
        for (path, modified) in listed {
            if !selector.takes(&path) {
                continue;
            }
            let ignored = rules.ignores(&path);
            if find.pattern.matches(&path) {
                found.files.push(FoundFile { path: paths::join(&find.root, &path), modified, ignored });
            } else if !ignored && find.pattern.matches_deeper(&path) {
                found.deeper += 1;
            }
        }
        Ok(found)
    }
}

fn matcher(search: &Search) -> Result<Matcher, PortError> {
    Matcher::new(&search.pattern, search.literal, search.ignore_case, search.multiline)
        .map_err(|error| PortError::Other(error.0))
}

/// Lines with a match: number from 0, and the range within the line.
fn matching(matcher: &Matcher, search: &Search, bytes: &[u8]) -> Vec<(usize, (usize, usize))> {
    let lines: Vec<&[u8]> = lines(bytes);
    if !search.multiline {
        let found = |(at, line): (usize, &&[u8])| Some((at, matcher.find(line)?));
        return lines.iter().enumerate().filter_map(found).collect();
    }
    let mut starts = vec![0];
    starts.extend(memchr::memchr_iter(b'\n', bytes).map(|at| at + 1));
    let line_number = |at: usize| starts.partition_point(|start| *start <= at) - 1;
    let mut found: Vec<(usize, (usize, usize))> = Vec::new();
    for (start, end) in matcher.find_all(bytes) {
        for line in line_number(start)..=line_number(end.saturating_sub(1).max(start)) {
            if found.last().is_none_or(|(last, _)| *last < line) && line < lines.len() {
                let from = start.saturating_sub(starts[line]).min(lines[line].len());
                let to = (end - starts[line]).min(lines[line].len());
                found.push((line, (from, to)));
            }
        }
    }
    found
}

fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.is_empty() { Vec::new() } else { body.split(|byte| *byte == b'\n').collect() }
}

fn rows(matcher: &Matcher, search: &Search, bytes: &[u8]) -> Vec<Row> {
    let lines = lines(bytes);
    let found: BTreeMap<usize, (usize, usize)> = matching(matcher, search, bytes).into_iter().collect();
    let near = |at: usize| found.keys().any(|line| at + search.before >= *line && at <= line + search.after);
    let row = |(at, line): (usize, &&[u8])| {
        let matched = found.get(&at).copied();
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
        (matched.is_some() || near(at)).then_some(Row { line: at as u64 + 1, text, matched })
    };
    lines.iter().enumerate().filter_map(row).collect()
}
