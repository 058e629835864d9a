//! `write_file`: the whole content of a file. It does not overwrite a file whose current content
//! the session has not seen, because a blind overwrite loses data unnoticed.

use bytes::Bytes;

use super::read_file::check_changeable;
use super::{about, count, failed, line_count, locate};
use crate::dispatch::OverwriteGuard;
use crate::file_cache::{self, CachedFile, digest};
use crate::input::{Input, invalid};
use crate::port::{Basis, Fetch, Fetched, Machine, PortError};
use crate::result::{Done, ErrorCode, Failure, Outcome};
use crate::structured::{FailureFacts, ToolOutput, WriteFileOutput};
use text::diff;
use text::encoding::{Encoding, LineEnding, Unencodable, decode, is_binary};

const MAX_BYTES: usize = 10 * 1024 * 1024;
/// The largest file that is compared with the session's cache.
const MAX_REPLACED: u64 = 64 * 1024 * 1024;
/// Diff lines that are shown to explain a refusal.
const SHOWN_DIFFERENCE: usize = 40;
const MAX_DIFFERENCE_BYTES: usize = 16 * 1024;

pub(crate) async fn run(machine: &dyn Machine, guard: OverwriteGuard, input: &mut Input) -> Outcome {
    let path = input.required_text("path")?;
    let content = input.required_text("content")?;
    if content.len() > MAX_BYTES {
        return Err(Failure::new(
            ErrorCode::TooLarge,
            format!("content has {} bytes; {MAX_BYTES} are the most. Write it in parts with bash.", content.len()),
        ));
    }
    let path = locate(machine, &path).await?;
    match attempt(machine, guard, &path, &content).await? {
        Some(done) => Ok(done),
        // Lost a race against another writer once: its content is checked again.
        None => match attempt(machine, guard, &path, &content).await? {
            Some(done) => Ok(done),
            None => Err(failed("write", &path, &PortError::Conflict)),
        },
    }
}

/// [`None`] if it lost a race against another writer.
async fn attempt(
    machine: &dyn Machine,
    guard: OverwriteGuard,
    path: &str,
    content: &str,
) -> Result<Option<Done>, Failure> {
    let (existing, seen) = tokio::join!(fetch_existing(machine, path), file_cache::load(machine, path));
    let existing = existing?;
    let seen = seen.map_err(|error| failed("recall", path, &error))?;
    if guard == OverwriteGuard::Hash
        && let Some(existing) = &existing
    {
        check_seen(path, existing, seen.as_ref())?;
    }
    let prepared = prepare(existing.as_ref(), content)?;
    let bytes = Bytes::from(prepared.bytes);
    let sha256 = digest(&bytes);
    let old = existing.as_ref().filter(|old| !is_binary(&old.bytes)).map(|old| decode(&old.bytes));
    let warnings = placeholders(content, old.as_ref().map(|old| &*old.text));
    let unchanged = existing.as_ref().is_some_and(|existing| existing.sha256 == sha256);
    let mut notes = prepared.notes;
    let note = CachedFile::new(path, &bytes, sha256.clone(), &prepared.text);
    let difference = async {
        let shown = old.as_ref().filter(|_| !unchanged).map(|old| diff::unified_diff(&old.text, &prepared.text, 1000));
        shown.filter(|text| text.len() <= MAX_DIFFERENCE_BYTES)
    };
    let difference = if unchanged {
        file_cache::store(machine, &note).await.map_err(|error| failed("remember", path, &error))?;
        None
    } else {
        let basis = existing.as_ref().map_or(Basis::Absent, Basis::from_fetch);
        let replace =
            file_cache::store_during(machine, &note, seen.as_ref(), machine.replace(path, bytes.clone(), basis));
        let (replaced, difference) = tokio::join!(replace, difference);
        match replaced {
            Ok(false) => {}
            Ok(true) => notes.push("The directory is not writable, so the file was written in place.".into()),
            Err(PortError::Conflict) => return Ok(None),
            Err(error) => return Err(write_failure("write", path, &error)),
        }
        difference
    };

    let lines = line_count(&prepared.text);
    let size = bytes.len();
    let mut text = match (&existing, &old) {
        _ if unchanged => format!("[unchanged] {path} already has exactly this content ({}).", count(lines, "line")),
        (None, _) => format!("Created {path} ({}, {}).", count(lines, "line"), count(size, "byte")),
        (Some(_), Some(old)) => format!("Overwrote {path} ({} → {}).", line_count(&old.text), count(lines, "line")),
        (Some(existing), None) => format!("Overwrote {path} ({} → {}).", existing.bytes.len(), count(size, "byte")),
    };
    for note in notes.iter().chain(&warnings) {
        text.push_str(&format!("\n[{note}]"));
    }
    let output = WriteFileOutput {
        path: path.to_owned(),
        created: existing.is_none(),
        unchanged,
        bytes: size,
        lines,
        old_sha256: existing.as_ref().map(|existing| existing.sha256.clone()),
        sha256,
        diff: difference,
        line_ending: LineEnding::detect(&prepared.text),
        warnings,
        notes,
    };
    Ok(Some(Done::text(text, ToolOutput::WriteFile(output))))
}

async fn fetch_existing(machine: &dyn Machine, path: &str) -> Result<Option<Fetch>, Failure> {
    // Bounded, since the sandbox controls the file's size.
    match machine.fetch(path, MAX_REPLACED).await {
        Ok(Fetched::Large { size }) => {
            let text = format!(
                "{path} exists and has {size} bytes; write_file replaces files of at most {MAX_REPLACED}. Remove or move it with bash \
                 first."
            );
            Err(Failure::new(ErrorCode::TooLarge, text).with(about(path)))
        }
        Ok(fetched) => check_changeable(path, fetched).map(Some),
        Err(PortError::NotFound) => Ok(None),
        Err(error) => Err(failed("write", path, &error)),
    }
}

/// A failure to write. Missing directories are created, so a missing parent means that nothing can
/// be created there.
fn write_failure(verb: &str, path: &str, error: &PortError) -> Failure {
    match error {
        PortError::NotFound => Failure::new(
            ErrorCode::PermissionDenied,
            format!("Permission denied: cannot {verb} {path}, since its directory takes no new files."),
        )
        .with(about(path)),
        error => failed(verb, path, error),
    }
}

fn check_seen(path: &str, existing: &Fetch, seen: Option<&CachedFile>) -> Result<(), Failure> {
    if existing.bytes.is_empty() {
        return Ok(());
    }
    let facts = FailureFacts { sha256: Some(existing.sha256.clone()), ..about(path) };
    let Some(seen) = seen else {
        let size = if is_binary(&existing.bytes) {
            format!("{} bytes, binary", existing.bytes.len())
        } else {
            count(line_count(&decode(&existing.bytes).text), "line")
        };
        let text = format!(
            "{path} exists ({size}) and has not been read in this session. Use read_file first, or edit_file for a partial change."
        );
        return Err(Failure::new(ErrorCode::NotRead, text).with(facts));
    };
    if seen.sha256 == existing.sha256 {
        return Ok(());
    }
    let now = decode(&existing.bytes).text;
    let text = match seen.text.as_deref().and_then(|then| Some((then, diff::changed_lines(then, &now)?))) {
        Some((then, changed)) => format!(
            "{path} changed after you last read it ({} differ{}):\n{}Read it again with read_file, then write.",
            count(changed.lines, "line"),
            if changed.lines == 1 { "s" } else { "" },
            diff::unified_diff(then, &now, SHOWN_DIFFERENCE)
        ),
        None => format!("{path} changed after you last read it. Read it again with read_file, then write."),
    };
    Err(Failure::new(ErrorCode::Stale, text).with(facts))
}

struct Prepared {
    bytes: Vec<u8>,
    /// The new content as text.
    text: String,
    notes: Vec<String>,
}

/// The bytes to write: the file keeps its byte order mark, its encoding if it has a mark, and its
/// line ends.
fn prepare(existing: Option<&Fetch>, content: &str) -> Result<Prepared, Failure> {
    let mut notes = Vec::new();
    let (mut text, mut encoding, mut mark): (String, Encoding, &[u8]) = (content.to_owned(), Encoding::Utf8, b"");
    if let Some(existing) = existing.filter(|existing| !is_binary(&existing.bytes)) {
        let (was, length) = Encoding::detect(&existing.bytes);
        mark = &existing.bytes[..length];
        if length > 0 {
            encoding = was;
            text = text.trim_start_matches('\u{feff}').to_owned();
        }
        let old = was.decode(&existing.bytes[length..]);
        if LineEnding::detect(&old) == LineEnding::Crlf && text.contains('\n') && !text.contains('\r') {
            text = text.replace('\n', "\r\n");
            notes.push("Line ends were written as CRLF, as the file has them.".to_owned());
        }
    }
    let encoded = encoding.encode(&text);
    let body = encoded.map_err(|Unencodable(letter)| {
        invalid(format!("The file is written in {encoding}, which has no {letter:?}."))
    })?;
    Ok(Prepared { bytes: [mark, &body].concat(), text, notes })
}

/// Lines that look like placeholders for omitted code.
fn placeholders(content: &str, old: Option<&str>) -> Vec<String> {
    let suspicious = |line: &str| {
        let bare = line.trim().trim_start_matches(['/', '#', '*', '-', '<', '!', ' ', '(', '{', '[']).trim_start();
        let lower = bare.to_lowercase();
        let dots = lower.starts_with("...") || lower.starts_with('…');
        let words = ["rest of", "existing code", "unchanged", "remains the same", "previous code", "remaining"];
        let speaks = words.iter().any(|word| lower.contains(word));
        speaks && (dots || lower.ends_with("...") || lower.ends_with('…'))
    };
    let lines = content.lines().enumerate().filter(|(_, line)| suspicious(line));
    lines
        .filter(|(_, line)| !old.is_some_and(|old| old.lines().any(|known| known.trim() == line.trim())))
        .take(3)
        .map(|(at, line)| {
            let shown: String = line.trim().chars().take(80).collect();
            format!("Warning: line {} looks like a placeholder ({shown:?}); the file now has it literally", at + 1)
        })
        .collect()
}

/// An edit of a missing or empty file: the same as writing it. Returns the digest of the content.
pub(crate) async fn create(machine: &dyn Machine, path: &str, content: &str) -> Result<String, Failure> {
    let prepared = CachedFile::new(path, content.as_bytes(), digest(content.as_bytes()), content);
    let basis = match fetch_existing(machine, path).await? {
        None => None,
        Some(existing) if existing.bytes.is_empty() => Some(existing),
        Some(_) => {
            return Err(invalid(format!(
                "old_string is empty, but {path} exists and is not empty. Use write_file to replace all of it, or name the text to replace."
            )));
        }
    };
    let basis = basis.as_ref().map_or(Basis::Absent, Basis::from_fetch);
    let bytes = Bytes::from(content.to_owned());
    machine.replace(path, bytes, basis).await.map_err(|error| write_failure("create", path, &error))?;
    file_cache::store(machine, &prepared).await.map_err(|error| failed("remember", path, &error))?;
    Ok(prepared.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_detected() {
        assert_eq!(placeholders("a\n// ... rest of the code unchanged\n", None).len(), 1);
        assert_eq!(placeholders("# existing code ...\n", None).len(), 1);
        assert_eq!(placeholders("let rest = &args[1..];\nfoo(...rest)\n", None).len(), 0);
        assert_eq!(placeholders("// ... rest of it\n", Some("  // ... rest of it\n")).len(), 0);
    }
}
