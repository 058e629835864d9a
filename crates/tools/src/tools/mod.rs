//! The tools: each parses its input, uses the machine and reports what it did.

pub(crate) mod bash;
pub(crate) mod edit_file;
pub(crate) mod glob;
pub(crate) mod grep;
pub(crate) mod read_file;
pub(crate) mod take_screenshot;
pub(crate) mod write_file;

use similar::TextDiff;

use crate::paths::{self, BasePaths, is_relative};
use crate::port::{Machine, PortError};
use crate::result::{ErrorCode, Failure};
use crate::structured::FailureFacts;

/// Most characters of text in one result.
pub(crate) const BUDGET: usize = 50_000;

/// Resolves the path of an input.
pub(crate) async fn locate(machine: &dyn Machine, path: &str) -> Result<String, Failure> {
    if !is_relative(path) && !path.starts_with('~') {
        // An absolute path needs no query to the sandbox.
        return paths::resolve(&BasePaths { current: "/".into(), home: "/".into() }, path);
    }
    let places = machine.base_paths().await.map_err(|error| broken("find the current directory", &error))?;
    paths::resolve(&places, path)
}

/// A failure that is unrelated to the input.
pub(crate) fn broken(what: &str, error: &PortError) -> Failure {
    let code = match error {
        PortError::Unavailable(_) | PortError::Slow(_) => ErrorCode::SandboxUnavailable,
        PortError::NotStartable(_) => ErrorCode::SpawnFailed,
        _ => ErrorCode::Internal,
    };
    Failure::new(code, format!("Could not {what}: {error}."))
}

/// A failure about a path.
pub(crate) fn failed(verb: &str, path: &str, error: &PortError) -> Failure {
    let (code, text) = match error {
        PortError::NotFound => (ErrorCode::NotFound, format!("{path} does not exist.")),
        PortError::IsDirectory => (ErrorCode::IsDirectory, format!("{path} is a directory. Name a file in it.")),
        PortError::NotADirectory => {
            (ErrorCode::NotAFile, format!("{path} cannot exist: a part of the path is a file, not a directory."))
        }
        PortError::PermissionDenied => {
            (ErrorCode::PermissionDenied, format!("Permission denied: cannot {verb} {path}. Use bash with sudo."))
        }
        PortError::ReadOnly => (
            ErrorCode::PermissionDenied,
            format!(
                "Permission denied: cannot {verb} {path}, which is on a read-only file system. Choose a place below /home/user or /tmp."
            ),
        ),
        PortError::NoSpace => (
            ErrorCode::Internal,
            format!("Cannot {verb} {path}: the sandbox's disk is full. Remove files with bash, then try again."),
        ),
        PortError::Conflict => (
            ErrorCode::Conflict,
            format!("{path} changed twice while it was being changed. Read it again with read_file, then try again."),
        ),
        other => return broken(&format!("{verb} {path}"), other),
    };
    Failure::new(code, text)
}

/// The facts of a failure about a path.
pub(crate) fn about(path: &str) -> FailureFacts {
    FailureFacts { path: Some(path.to_owned()), ..FailureFacts::default() }
}

/// A missing file, with suggestions of similar names.
pub(crate) async fn not_found(machine: &dyn Machine, path: &str) -> Failure {
    let near = suggestions(machine, path).await;
    let hint = match near.as_slice() {
        [] => " Use glob or bash (ls) to look for it.".to_owned(),
        near => format!(" Did you mean {}?", near.join(" or ")),
    };
    Failure::new(ErrorCode::NotFound, format!("{path} does not exist.{hint}"))
        .with(FailureFacts { suggestions: Some(near), ..about(path) })
}

async fn suggestions(machine: &dyn Machine, path: &str) -> Vec<String> {
    const MAX: usize = 3;
    const ALIKE: f32 = 0.6;
    let (directory, name) = (paths::parent(path), paths::name(path));
    let entries = machine.list(directory).await.unwrap_or_default();
    let mut near: Vec<(f32, String)> = entries
        .iter()
        // A listed entry that does not exist is a dangling link.
        .filter(|entry| entry.name != name)
        .filter_map(|entry| {
            let like = if entry.name.eq_ignore_ascii_case(name) {
                1.0
            } else {
                TextDiff::from_chars(entry.name.to_lowercase().as_str(), name.to_lowercase().as_str()).ratio()
            };
            (like >= ALIKE).then(|| (like, paths::join(directory, &entry.name)))
        })
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let mut near: Vec<String> = near.into_iter().map(|(_, path)| path).take(MAX).collect();
    if near.is_empty()
        && let Ok(places) = machine.base_paths().await
    {
        let elsewhere = machine.find_by_name(&places.current, name).await.unwrap_or_default();
        near.extend(elsewhere.into_iter().take(MAX));
    }
    near
}

/// `1 line`, `2 lines`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Number of lines; a last one without a line end counts.
pub(crate) fn line_count(text: &str) -> usize {
    text.matches('\n').count() + usize::from(!text.is_empty() && !text.ends_with('\n'))
}
