//! `edit_file`: replaces one text of a file. The text itself proves that the model knows the place,
//! so a change elsewhere in the file is no reason to refuse.

use bytes::Bytes;

use super::read_file::check_changeable;
use super::{about, count, failed, line_count, locate, not_found, write_file};
use crate::diagnosis;
use crate::file_cache::{self, CachedFile, digest};
use crate::input::{Input, invalid};
use crate::port::{Basis, Fetch, Machine, PortError};
use crate::result::{Done, ErrorCode, Failure, Outcome};
use crate::structured::{EditFileOutput, FailureFacts, ToolOutput};
use text::diff;
use text::edit::{self, Edit, EditError, Edited, Tier};
use text::encoding::{decode, is_binary};

/// Larger files are for sed.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
const AROUND: usize = 4;
/// A shorter text occurs by chance, which does not show that the edit was made before.
const MIN_DISTINCTIVE: usize = 12;
const MAX_SHOWN: usize = 60;
const WIDTH: usize = 300;

struct Request {
    path: String,
    old: String,
    new: String,
    replace_all: bool,
}

pub(crate) async fn run(machine: &dyn Machine, input: &mut Input) -> Outcome {
    let path = input.required_text("path")?;
    let old = input.required_text("old_string")?;
    let new = input.required_text("new_string")?;
    let replace_all = input.flag("replace_all")?;
    let path = locate(machine, &path).await?;
    if old == new {
        let text = format!("old_string and new_string are the same, so there is nothing to change in {path}.");
        return Err(Failure::new(ErrorCode::NoChange, text).with(about(&path)));
    }
    let request = Request { path, old, new, replace_all };
    if request.old.is_empty() {
        return create(machine, &request).await;
    }
    match attempt(machine, &request).await? {
        Some(done) => Ok(done),
        // Lost a race against another writer: the text is searched again in what it wrote.
        None => match attempt(machine, &request).await? {
            Some(done) => Ok(done),
            None => Err(failed("edit", &request.path, &PortError::Conflict)),
        },
    }
}

async fn create(machine: &dyn Machine, request: &Request) -> Outcome {
    let path = &request.path;
    let sha256 = write_file::create(machine, path, &request.new).await?;
    let lines = line_count(&request.new);
    let text = format!("Created {path} ({}, {}).", count(lines, "line"), count(request.new.len(), "byte"));
    let output = EditFileOutput {
        path: path.clone(),
        replacements: 0,
        lines: Vec::new(),
        tier: Tier::Exact,
        stale: false,
        created: true,
        sha256: Some(sha256),
        diff: None,
    };
    Ok(Done::text(text, ToolOutput::EditFile(output)))
}

/// [`None`] if it lost a race against another writer.
async fn attempt(machine: &dyn Machine, request: &Request) -> Result<Option<Done>, Failure> {
    let Request { path, old, new, replace_all } = request;
    let (fetched, seen) = tokio::join!(machine.fetch(path, MAX_BYTES), file_cache::load(machine, path));
    let fetch = match fetched {
        Ok(fetched) => check_changeable(path, fetched)?,
        Err(PortError::NotFound | PortError::NotADirectory) => return Err(not_found(machine, path).await),
        Err(error) => return Err(failed("edit", path, &error)),
    };
    let seen = seen.map_err(|error| failed("recall", path, &error))?;
    let Fetch { bytes, sha256: before, .. } = &fetch;
    if is_binary(bytes) {
        let text = format!("{path} is binary ({} bytes). Use bash to change it.", bytes.len());
        return Err(Failure::new(ErrorCode::BinaryFile, text)
            .with(FailureFacts { size: Some(bytes.len() as u64), ..about(path) }));
    }
    let decoded = decode(bytes);
    let stale = seen.as_ref().is_some_and(|seen| seen.sha256 != *before);
    let changed =
        seen.as_ref().filter(|_| stale).and_then(|seen| diff::changed_lines(seen.text.as_deref()?, &decoded.text));
    if stale && *replace_all {
        let shown =
            seen.as_ref().and_then(|seen| seen.text.as_deref()).map(|then| diff::unified_diff(then, &decoded.text, 40));
        let text = format!(
            "{path} changed after you last read it, and replace_all could change places you have not seen.\n{}Read it again with \
             read_file, then edit.",
            shown.unwrap_or_default()
        );
        return Err(
            Failure::new(ErrorCode::Stale, text).with(FailureFacts { sha256: Some(before.clone()), ..about(path) })
        );
    }
    let edit = Edit { old, new, replace_all: *replace_all };
    let mut edited = match edit::apply(bytes, edit) {
        Ok(edited) => edited,
        Err(unedited) => return Err(explain(request, &decoded.text, seen.as_ref(), unedited)),
    };
    let new_bytes = Bytes::from(std::mem::take(&mut edited.bytes));
    let after = decode(&new_bytes);
    let sha256 = digest(&new_bytes);
    let first = edited.lines.first().copied().unwrap_or(1);
    let note = CachedFile::new(path, &new_bytes, sha256.clone(), &after.text).after_edit(seen.as_ref(), old, first);
    let replace = machine.replace(path, new_bytes.clone(), Basis::from_fetch(&fetch));
    let (replaced, difference) = tokio::join!(
        file_cache::store_during(machine, &note, seen.as_ref(), replace),
        // Computed while the file is uploaded.
        async { diff::unified_diff(&decoded.text, &after.text, 400) }
    );
    match replaced {
        Ok(_) => {}
        Err(PortError::Conflict) => return Ok(None),
        Err(error) => return Err(failed("edit", path, &error)),
    }

    let mut text = summary(path, &edited);
    if stale {
        let place = changed.map_or(String::new(), |changed| format!(" (lines {}–{})", changed.first, changed.last));
        text.push_str(&format!(
            "\n[Note: the file changed since you last read it{place}; your edit was applied to the current content.]"
        ));
    }
    text.push('\n');
    text.push_str(&snippet(&after.text, &edited));
    let output = EditFileOutput {
        path: path.clone(),
        replacements: edited.lines.len(),
        lines: edited.lines,
        tier: edited.tier,
        stale,
        created: false,
        sha256: Some(sha256),
        diff: Some(difference).filter(|text| text.len() <= 16 * 1024),
    };
    Ok(Some(Done::text(text, ToolOutput::EditFile(output))))
}

fn summary(path: &str, edited: &Edited) -> String {
    let places: Vec<String> = edited.lines.iter().take(10).map(usize::to_string).collect();
    let more = edited.lines.len().saturating_sub(places.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let lines = if edited.lines.len() == 1 { "line" } else { "lines" };
    let mut text =
        format!("Edited {path}: {} at {lines} {}{more}.", count(edited.lines.len(), "replacement"), places.join(", "));
    let note = match edited.tier {
        Tier::Exact if edited.line_ends_mapped => Some("new_string was written with the file's CRLF line ends"),
        Tier::Exact => None,
        Tier::LineEnding => Some("line ends differ from old_string's; the file's were kept"),
        Tier::LinePrefix => Some("line numbers copied from read_file were taken off"),
        Tier::TrailingBlanks => Some("the file has blanks at line ends that old_string has not"),
    };
    if let Some(note) = note {
        text.push_str(&format!("\n[Note: {note}.]"));
    }
    text
}

/// The edited places with context lines.
fn snippet(text: &str, edited: &Edited) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut shown: Vec<String> = Vec::new();
    let mut last = 0;
    for start in &edited.lines {
        let from = start.saturating_sub(AROUND).max(last + 1).max(1);
        let to = (start + edited.height - 1 + AROUND).min(lines.len());
        if last > 0 && from > last + 1 && from <= to {
            shown.push("…".into());
        }
        for number in from..=to {
            if shown.len() >= MAX_SHOWN {
                shown.push("…".into());
                return shown.join("\n");
            }
            let line: String = lines[number - 1].chars().take(WIDTH).collect();
            shown.push(format!("{number}\t{line}"));
        }
        last = last.max(to);
    }
    shown.join("\n")
}

fn explain(request: &Request, text: &str, seen: Option<&CachedFile>, unedited: EditError) -> Failure {
    let Request { path, old, new, .. } = request;
    match unedited {
        EditError::Absent => {
            let mut message = format!("Error: old_string not found in {path}.");
            if let Some(line) = seen.and_then(|seen| seen.replaced_before(old)) {
                message.push_str(&format!(" This text was already replaced by your edit at line {line}."));
            } else if text.contains(new.as_str()) && new.trim().chars().count() >= MIN_DISTINCTIVE {
                let line = text[..text.find(new.as_str()).unwrap_or(0)].matches('\n').count() + 1;
                message.push_str(&format!(" new_string is already there, at line {line}."));
            }
            let explanation = diagnosis::explain(text, old);
            if explanation.is_empty() {
                message.push_str(" Read the file again with read_file and copy the text exactly.");
            } else {
                message.push_str(&format!(" {explanation}\nCopy the text exactly as it stands in the file."));
            }
            Failure::new(ErrorCode::NoMatch, message).with(FailureFacts { replacements: Some(0), ..about(path) })
        }
        EditError::Ambiguous { lines } => {
            let all: Vec<&str> = text.lines().collect();
            let context: Vec<String> = lines.iter().take(3).map(|line| around(&all, *line)).collect();
            let message = format!(
                "old_string occurs {} times in {path}, at {}. Add surrounding lines to make it unique, or set replace_all.\n{}",
                lines.len(),
                places(&lines),
                context.join("\n…\n")
            );
            let facts = FailureFacts { replacements: Some(0), lines: Some(lines), ..about(path) };
            Failure::new(ErrorCode::NotUnique, message).with(facts)
        }
        EditError::Unencodable { letter, encoding } => invalid(format!(
            "{path} is written in {encoding}, which has no {letter:?} (U+{:04X}). Use another character, or convert the file with \
             iconv in bash.",
            u32::from(letter)
        ))
        .with(about(path)),
        EditError::Same => {
            let message = format!("The replacement is what {path} has already, so nothing was changed.");
            Failure::new(ErrorCode::NoChange, message).with(about(path))
        }
    }
}

fn around(all: &[&str], line: usize) -> String {
    let from = line.saturating_sub(1).max(1);
    let to = (line + 1).min(all.len());
    let shown = (from..=to).map(|number| {
        let text: String = all[number - 1].chars().take(WIDTH).collect();
        format!("{number}\t{text}")
    });
    shown.collect::<Vec<_>>().join("\n")
}

/// `lines 12, 40 and 77`.
fn places(lines: &[usize]) -> String {
    const MAX: usize = 10;
    let mut lines = lines.to_vec();
    lines.dedup();
    match lines.as_slice() {
        [one] => format!("line {one}"),
        lines if lines.len() > MAX => {
            let first: Vec<String> = lines.iter().take(MAX).map(usize::to_string).collect();
            format!("lines {} and {} more", first.join(", "), lines.len() - MAX)
        }
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(usize::to_string).collect();
            format!("lines {} and {last}", first.join(", "))
        }
        [] => String::new(),
    }
}
