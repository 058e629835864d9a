//! `glob`: files by name, newest first.

use std::cmp::Reverse;
use std::time::Duration;

use super::{BUDGET, about, broken, failed, locate, not_found};
use crate::input::Input;
use crate::notice::Provenance;
use crate::paths;
use crate::port::{Kind, Machine, PortError};
use crate::result::{Done, ErrorCode, Failure, Outcome};
use crate::search::{Find, Found, FoundFile, GlobPattern, InvalidGlob, unnameable_note};
use crate::structured::{GlobOutput, ToolOutput};
use text::{ExitKind, Truncation, truncate};

const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT: u64 = 100;

pub(crate) async fn run(machine: &dyn Machine, input: &mut Input) -> Outcome {
    let pattern = input.required_text("pattern")?;
    let path = input.optional_text("path")?;
    let limit = usize::try_from(input.bounded("limit", 1, 1000)?.unwrap_or(DEFAULT)).unwrap_or(usize::MAX);
    let include_ignored = input.flag("include_ignored")?;
    let (base, pattern) = if pattern.starts_with('/') {
        GlobPattern::split_absolute(&pattern)
    } else {
        (path.unwrap_or_else(|| ".".into()), pattern)
    };
    let invalid = |InvalidGlob(text)| Failure::new(ErrorCode::InvalidGlob, text);
    let glob = GlobPattern::new(&pattern).map_err(invalid)?;
    let root = locate(machine, &base).await?;
    match machine.stat(&root).await {
        Ok(stat) if stat.kind == Kind::Directory => {}
        Ok(_) => {
            let text = format!("{root} is not a directory. Set path to the directory that holds it.");
            return Err(Failure::new(ErrorCode::NotAFile, text).with(about(&root)));
        }
        Err(PortError::NotFound | PortError::NotADirectory) => return Err(not_found(machine, &root).await),
        Err(error) => return Err(failed("search", &root, &error)),
    }
    let find = Find { root: root.clone(), pattern: glob, limit: SEARCH_TIMEOUT };
    let Found { mut files, deeper, unnameable, timed_out, note } =
        machine.find(&find).await.map_err(|error| broken("look for files", &error))?;
    files.sort_by(|a, b| (Reverse(a.modified), &a.path).cmp(&(Reverse(b.modified), &b.path)));
    let (ignored, plain): (Vec<FoundFile>, Vec<FoundFile>) = files.into_iter().partition(|file| file.ignored);
    let ignored_count = ignored.len();
    // Ignored files are shown if there are no others.
    let only_ignored = plain.is_empty() && !ignored.is_empty();
    let chosen: Vec<FoundFile> = if include_ignored {
        let mut all = [plain, ignored].concat();
        all.sort_by(|a, b| (Reverse(a.modified), &a.path).cmp(&(Reverse(b.modified), &b.path)));
        all
    } else if only_ignored {
        ignored
    } else {
        plain
    };
    let total = chosen.len();
    let shown: Vec<&str> = chosen.iter().take(limit).map(|file| file.path.as_str()).collect();
    let mut lines: Vec<String> = shown.iter().map(|path| paths::display(path).into_owned()).collect();
    if total == 0 {
        lines.push("[glob: no files matched]".into());
        lines.push(format!("No files match {pattern:?} under {root}."));
        if deeper > 0 {
            lines.push(format!("[\"**/{pattern}\" would match {deeper} at any depth.]"));
        }
    }
    if total > shown.len() {
        lines.push(format!(
            "[Showing {} of {total}, newest first. Narrow the pattern, or raise limit (max 1000).]",
            shown.len()
        ));
    }
    if only_ignored && !include_ignored {
        lines.push(format!(
            "[Only files ignored by .gitignore match; {} shown.]",
            if total == 1 { "it is" } else { "they are" }
        ));
    } else if ignored_count > 0 && !include_ignored {
        let are = if ignored_count == 1 { "is" } else { "are" };
        lines.push(format!("[{ignored_count} more {are} ignored by .gitignore; include_ignored:true]"));
    }
    if timed_out {
        lines.push(format!(
            "[Stopped after {} s; there may be more. Narrow path or pattern.]",
            SEARCH_TIMEOUT.as_secs()
        ));
    }
    lines.extend(unnameable_note(unnameable));
    lines.extend(note.map(|note| format!("[{note}]")));
    let text = lines.join("\n");
    let explanation = Provenance::UNSAVED_DOCUMENT.explain();
    let text = truncate(&text, Truncation { budget: BUDGET, exit: ExitKind::Success, explanation: &explanation }).text;
    let output = GlobOutput {
        path: root,
        truncated: total > shown.len() || timed_out,
        files: shown.into_iter().map(str::to_owned).collect(),
        total,
        ignored: ignored_count,
        timed_out,
        deeper,
    };
    Ok(Done::text(text, ToolOutput::Glob(output)))
}
