//! The page of a search's result: matching lines with context, file names, or counts.

use std::collections::BTreeMap;

use super::Request;
use crate::paths;
use crate::port::Machine;
use crate::result::Failure;
use crate::search::{CountedFile, MatchedFile, Row, Search};
use crate::structured::{GrepMatch, GrepMode};
use crate::tools::broken;

/// Maximum width of a line; longer ones are cut around the match.
const WIDTH: usize = 500;

/// The page of the result that is shown.
pub(super) struct ResultPage {
    pub(super) body: String,
    /// Number of rows in total, and on this page.
    pub(super) units: usize,
    pub(super) shown: usize,
    /// Rows of this page that were counted and then not found.
    pub(super) missing: usize,
    pub(super) details: Details,
}

/// The page for programs.
pub(super) enum Details {
    Matches(Vec<GrepMatch>),
    Files(Vec<String>),
    Counts(BTreeMap<String, u64>),
}

pub(super) fn names(request: &Request, files: &[CountedFile], line: impl Fn(&CountedFile) -> String) -> ResultPage {
    let page: Vec<&CountedFile> = files.iter().skip(request.offset).take(request.limit).collect();
    let body = page.iter().map(|file| line(file)).collect::<Vec<_>>().join("\n");
    let details = match request.mode {
        GrepMode::Count => Details::Counts(page.iter().map(|file| (file.path.clone(), file.lines)).collect()),
        _ => Details::Files(page.iter().map(|file| file.path.clone()).collect()),
    };
    ResultPage { body, units: files.len(), shown: page.len(), missing: 0, details }
}

pub(super) async fn content(
    machine: &dyn Machine,
    request: &Request,
    files: &[CountedFile],
) -> Result<ResultPage, Failure> {
    // Only the files of this page are read again.
    let (mut at, end) = (0, request.offset.saturating_add(request.limit));
    let mut wanted = Vec::new();
    for file in files {
        let next = at + usize::try_from(file.lines).unwrap_or(usize::MAX);
        if next > request.offset && at < end {
            wanted.push((file, at));
        }
        at = next;
    }
    let files: Vec<String> = wanted.iter().map(|(file, _)| file.path.clone()).collect();
    let matched = if files.is_empty() {
        Vec::new()
    } else {
        machine.lines(&request.search, &files).await.map_err(|error| broken("search", &error))?
    };
    let (mut blocks, mut details, mut found_rows) = (Vec::new(), Vec::new(), 0);
    for (file, start) in wanted {
        let Some(found) = matched.iter().find(|matched| matched.path == file.path) else { continue };
        let skip = request.offset.saturating_sub(start);
        let take = end.saturating_sub(start.max(request.offset));
        let rows = select_page(&found.rows, skip, take, &request.search);
        found_rows += rows.iter().filter(|row| row.matched.is_some()).count();
        blocks.extend(render(found, &rows, request.numbers));
        details.extend(structured_rows(found, &rows));
    }
    let separator = if request.search.before + request.search.after > 0 { "\n--\n" } else { "\n" };
    // Pages follow the counts, so that a vanished row does not shift the next page.
    let shown = end.min(at).saturating_sub(request.offset);
    let missing = shown.saturating_sub(found_rows);
    Ok(ResultPage { body: blocks.join(separator), units: at, shown, missing, details: Details::Matches(details) })
}

/// Some of the matching rows, with context.
fn select_page<'a>(rows: &'a [Row], skip: usize, take: usize, search: &Search) -> Vec<&'a Row> {
    let places = rows.iter().enumerate().filter(|(_, row)| row.matched.is_some()).map(|(at, _)| at);
    let chosen: Vec<usize> = places.skip(skip).take(take).collect();
    let near = |row: &Row, at: usize| {
        let line = rows[at].line;
        row.line + search.before as u64 >= line && row.line <= line + search.after as u64
    };
    let keeps = |(at, row): (usize, &'a Row)| {
        let keep =
            if row.matched.is_some() { chosen.contains(&at) } else { chosen.iter().any(|chosen| near(row, *chosen)) };
        keep.then_some(row)
    };
    rows.iter().enumerate().filter_map(keeps).collect()
}

/// One block per run of consecutive lines.
fn render(file: &MatchedFile, rows: &[&Row], numbers: bool) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut last = None;
    let path = paths::display(&file.path);
    for row in rows {
        let mark = if row.matched.is_some() { ':' } else { '-' };
        let text = cut_around_match(row);
        let line =
            if numbers { format!("{path}{mark}{}{mark}{text}", row.line) } else { format!("{path}{mark}{text}") };
        match blocks.last_mut() {
            Some(block) if last.is_some_and(|last: u64| row.line <= last + 1) => {
                block.push('\n');
                block.push_str(&line);
            }
            _ => blocks.push(line),
        }
        last = Some(row.line);
    }
    blocks
}

/// Cuts a long line around its match.
fn cut_around_match(row: &Row) -> String {
    let letters = row.text.chars().count();
    if letters <= WIDTH {
        return row.text.clone();
    }
    let (start, _) = row.matched.unwrap_or((0, 0));
    let start = row.text.char_indices().take_while(|(at, _)| *at < start).count();
    let from = start.saturating_sub(WIDTH / 4).min(letters - WIDTH);
    let part: String = row.text.chars().skip(from).take(WIDTH).collect();
    let before = if from > 0 { format!("[{from} chars] …") } else { String::new() };
    let left = letters - from - WIDTH;
    let after = if left > 0 { format!("… [{left} chars]") } else { String::new() };
    format!("{before}{part}{after}")
}

fn structured_rows(file: &MatchedFile, rows: &[&Row]) -> Vec<GrepMatch> {
    let around = |from: usize, step: isize| {
        let mut lines = Vec::new();
        let mut at = from.checked_add_signed(step);
        while let Some(row) = at.and_then(|at| rows.get(at)).filter(|row| row.matched.is_none()) {
            lines.push(cut_around_match(row));
            at = at.and_then(|at| at.checked_add_signed(step));
        }
        if step < 0 {
            lines.reverse();
        }
        lines
    };
    let matching = rows.iter().enumerate().filter_map(|(at, row)| Some((at, row, row.matched?)));
    matching
        .map(|(at, row, (start, _))| {
            let column = row.text.char_indices().take_while(|(at, _)| *at < start).count() + 1;
            GrepMatch {
                path: file.path.clone(),
                line: row.line,
                col: column,
                text: cut_around_match(row),
                before: around(at, -1),
                after: around(at, 1),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_is_cut_around_its_match() {
        let text = format!("{}needle{}", "a".repeat(5000), "b".repeat(5000));
        let row = Row { line: 1, matched: Some((5000, 5006)), text };
        let shown = cut_around_match(&row);
        assert!(shown.contains("needle"));
        assert!(shown.starts_with("[4875 chars] …") && shown.ends_with("… [4631 chars]"), "{shown}");
    }

    #[test]
    fn consecutive_lines_form_one_block() {
        let row = |line, matched: bool| Row { line, text: format!("l{line}"), matched: matched.then_some((0, 1)) };
        let file = MatchedFile { path: "/f".into(), rows: vec![row(1, false), row(2, true), row(8, true)] };
        let rows: Vec<&Row> = file.rows.iter().collect();
        assert_eq!(render(&file, &rows, true), ["/f-1-l1\n/f:2:l2", "/f:8:l8"]);
    }
}
