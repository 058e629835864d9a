//! `grep`: matching lines, newest files first. A result always says how much was searched and what
//! was skipped.

mod page;

use std::cmp::Reverse;
use std::time::Duration;

use super::{BUDGET, broken, count, failed, locate, not_found};
use crate::input::{Input, invalid};
use crate::notice::Provenance;
use crate::paths;
use crate::port::{Kind, Machine, PortError};
use crate::result::{Done, ErrorCode, Failure, Outcome};
use crate::search::{Counted, InvalidGlob, InvalidRegex, Matcher, Search, Selector, unnameable_note};
use crate::structured::{GrepMode, GrepOutput, SkippedFiles, ToolOutput};
use page::{Details, ResultPage, content, names};
use text::{ExitKind, Truncation, truncate};

const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_ROWS: u64 = 250;

struct Request {
    search: Search,
    mode: GrepMode,
    numbers: bool,
    limit: usize,
    offset: usize,
}

pub(crate) async fn run(machine: &dyn Machine, input: &mut Input) -> Outcome {
    let request = read(machine, input).await?;
    let search = &request.search;
    let counted = machine.count(search).await.map_err(|error| match error {
        PortError::Other(message) => invalid(message),
        error => broken("search", &error),
    })?;
    let mut files = counted.files.clone();
    files.sort_by(|a, b| (Reverse(a.modified), &a.path).cmp(&(Reverse(b.modified), &b.path)));
    let total_lines: u64 = files.iter().map(|file| file.lines).sum();
    if files.is_empty() {
        return Ok(no_matches(&request, &counted));
    }
    let answer = match request.mode {
        GrepMode::Content => content(machine, &request, &files).await?,
        GrepMode::FilesWithMatches => names(&request, &files, |file| paths::display(&file.path).into_owned()),
        GrepMode::Count => names(&request, &files, |file| format!("{}:{}", paths::display(&file.path), file.lines)),
    };
    let ResultPage { body, units, shown, missing, details } = answer;
    let (first, last) = (request.offset + 1, request.offset + shown);
    let next = (last < units).then_some(last);
    let whole = format!("{} in {}", matches(total_lines), count(files.len(), "file"));
    let head = if shown == 0 {
        format!("Found {whole}; offset {} is past the end.", request.offset)
    } else if next.is_some() || request.offset > 0 {
        let more = next.map_or(String::new(), |next| format!(" (offset={next} for more)"));
        format!("Found {whole}; showing {first}–{last}{more}.")
    } else {
        format!("Found {whole}.")
    };
    let mut text = format!("{head}\n{body}");
    if missing > 0 {
        text.push_str(&format!(
            "\n[{} could not be read again: the files changed meanwhile.]",
            matches(missing as u64)
        ));
    }
    for note in notes(&request, &counted, next.is_some() || counted.timed_out) {
        text.push_str(&format!("\n{note}"));
    }
    let explanation = Provenance::UNSAVED_DOCUMENT.explain();
    let text = truncate(&text, Truncation { budget: BUDGET, exit: ExitKind::Success, explanation: &explanation }).text;
    let mut output = facts(&request, &counted, total_lines, files.len());
    output.truncated |= next.is_some();
    output.next_offset = next;
    match details {
        Details::Matches(matches) => output.matches = Some(matches),
        Details::Files(files) => output.files = Some(files),
        Details::Counts(counts) => output.counts = Some(counts),
    }
    Ok(Done::text(text, ToolOutput::Grep(output)))
}

async fn read(machine: &dyn Machine, input: &mut Input) -> Result<Request, Failure> {
    let pattern = input.required_text("pattern")?;
    let path = input.optional_text("path")?.unwrap_or_else(|| ".".into());
    let globs = input.texts("glob")?;
    let file_type = input.optional_text("type")?;
    let mode = match input.optional_text("output_mode")?.as_deref() {
        None | Some("content") => GrepMode::Content,
        Some("files_with_matches" | "files") => GrepMode::FilesWithMatches,
        Some("count") => GrepMode::Count,
        Some(other) => {
            return Err(invalid(format!(
                "`output_mode` is {other:?}; it must be content, files_with_matches or count."
            )));
        }
    };
    let around = input.bounded("-C", 0, 100)?;
    let after = input.bounded("-A", 0, 100)?.or(around).unwrap_or(0);
    let before = input.bounded("-B", 0, 100)?.or(around).unwrap_or(0);
    let (ignore_case, numbers) = (input.flag("-i")?, input.flag_unless_off("-n")?);
    let (multiline, literal) = (input.flag("multiline")?, input.flag("literal")?);
    let limit = input.bounded("head_limit", 1, 5000)?.unwrap_or(DEFAULT_ROWS);
    let offset = input.bounded("offset", 0, i64::MAX)?.unwrap_or(0);
    let include_ignored = input.flag("include_ignored")?;
    if pattern.is_empty() {
        return Err(invalid("`pattern` is empty; it would match every line. Name what to look for."));
    }
    if pattern.contains('\0') {
        return Err(invalid("`pattern` contains a NUL character. Search binary files with bash."));
    }
    Matcher::new(&pattern, literal, ignore_case, multiline)
        .map_err(|InvalidRegex(text)| Failure::new(ErrorCode::InvalidRegex, text))?;
    let root = locate(machine, &path).await?;
    let stat = match machine.stat(&root).await {
        Ok(stat) => stat,
        Err(PortError::NotFound | PortError::NotADirectory) => return Err(not_found(machine, &root).await),
        Err(error) => return Err(failed("search", &root, &error)),
    };
    let root_is_file = match stat.kind {
        Kind::File => true,
        Kind::Directory => false,
        Kind::Other => {
            let text = format!("{root} is neither a file nor a directory. Use bash to read it.");
            return Err(Failure::new(ErrorCode::NotAFile, text));
        }
    };
    let search = Search {
        root,
        root_is_file,
        pattern,
        literal,
        ignore_case,
        multiline,
        globs,
        file_type,
        before: usize::try_from(before).unwrap_or(0),
        after: usize::try_from(after).unwrap_or(0),
        include_ignored,
        limit: SEARCH_TIMEOUT,
    };
    Selector::new(&search, "/").map_err(|InvalidGlob(text)| Failure::new(ErrorCode::InvalidGlob, text))?;
    let size = |number| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(Request { search, mode, numbers, limit: size(limit), offset: size(offset) })
}

fn no_matches(request: &Request, counted: &Counted) -> Done {
    let search = &request.search;
    let place = if search.root_is_file {
        format!("in {}", search.root)
    } else {
        format!("in {} under {}", count(usize::try_from(counted.searched).unwrap_or(usize::MAX), "file"), search.root)
    };
    let mut text = format!("[grep: no matches found]\nNo matches for /{}/ {place}.", search.pattern);
    for note in notes(request, counted, true) {
        text.push_str(&format!("\n{note}"));
    }
    let code = (counted.timed_out && counted.searched == 0).then_some(ErrorCode::Timeout);
    Done::text(text, ToolOutput::Grep(facts(request, counted, 0, 0))).failing(code)
}

fn notes(request: &Request, counted: &Counted, partial: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let skipped = counted.skipped;
    let mut left_out = Vec::new();
    if skipped.ignored > 0 && !request.search.include_ignored {
        left_out.push(format!("{} ignored by .gitignore", files(skipped.ignored)));
    }
    if skipped.binary > 0 {
        left_out.push(format!("{} binary that match", skipped.binary));
    }
    if skipped.unreadable > 0 {
        left_out.push(format!("{} unreadable", skipped.unreadable));
    }
    if partial && !left_out.is_empty() {
        let hint = if skipped.ignored > 0 { " Set include_ignored to search ignored ones." } else { "" };
        notes.push(format!("[Not searched: {}.{hint}]", left_out.join(", ")));
    }
    notes.extend(unnameable_note(skipped.unnameable));
    if counted.timed_out {
        notes.push(format!(
            "[Stopped after {} s; {} searched, more remain. Narrow path or glob.]",
            request.search.limit.as_secs(),
            files(counted.searched)
        ));
    }
    notes.extend(counted.note.iter().map(|note| format!("[{note}]")));
    notes
}

fn files(number: u64) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), "file")
}

fn matches(number: u64) -> String {
    if number == 1 { "1 match".into() } else { format!("{number} matches") }
}

fn facts(request: &Request, counted: &Counted, total_matches: u64, total_files: usize) -> GrepOutput {
    let skipped = counted.skipped;
    GrepOutput {
        mode: request.mode,
        path: request.search.root.clone(),
        total_matches,
        total_files,
        files_searched: counted.searched,
        skipped: SkippedFiles { ignored: skipped.ignored, binary: skipped.binary, unreadable: skipped.unreadable },
        timed_out: counted.timed_out,
        truncated: counted.timed_out,
        next_offset: None,
        matches: None,
        files: None,
        counts: None,
    }
}
