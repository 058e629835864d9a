//! Writes files into a fresh sandbox and runs commands in it.

use std::collections::BTreeMap;
use std::time::Duration;

use sdk::{Command, Sandbox};

use super::{PROJECT_DIRECTORY, PreparedFile, StepError};
use crate::shell::{self, run_to_end, tail_of};
use secret::Mask;

/// Allows for a long installation; a longer command hangs.
const COMMAND_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// Writes the files. Idempotent.
pub(super) async fn write_files(sandbox: &Sandbox, files: &[PreparedFile]) -> Result<(), StepError> {
    let files: Vec<(String, &PreparedFile)> = files.iter().map(|file| (absolute(&file.path), file)).collect();
    sandbox.files().write_many(files.iter().map(|(path, file)| (path.clone(), file.content.clone()))).await?;
    let mut by_mode: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (path, file) in files {
        if let Some(mode) = file.mode {
            by_mode.entry(mode & 0o7777).or_default().push(path);
        }
    }
    for (mode, paths) in by_mode {
        let arguments = [format!("{mode:o}"), "--".to_owned()].into_iter().chain(paths);
        let output = sandbox.commands().run(Command::exec("chmod", arguments)).await?;
        if !output.success() {
            return Err(StepError::Script { what: "setting the modes of files", tail: tail_of(&output) });
        }
    }
    Ok(())
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{PROJECT_DIRECTORY}/{path}") }
}

/// Runs a line in the project directory. Its background processes carry the mark.
pub(super) async fn run_command(sandbox: &Sandbox, line: &str, mark: &str, mask: &Mask) -> Result<(), StepError> {
    let command = shell::mark(Command::new(line).cwd(PROJECT_DIRECTORY).timeout(COMMAND_DEADLINE), mark);
    let (exit, tail) = run_to_end(sandbox, command).await?;
    if exit.success() {
        return Ok(());
    }
    let [line, tail] = [line, &tail].map(|text| mask.mask(text).into_owned());
    Err(StepError::CommandFailed { line, code: exit.code, status: exit.status, tail })
}

impl From<shell::KillError> for StepError {
    fn from(error: shell::KillError) -> Self {
        match error {
            shell::KillError::Command(error) => Self::Sandbox(error),
            shell::KillError::StillRunning(tail) => Self::Script { what: "ending an earlier attempt", tail },
        }
    }
}
