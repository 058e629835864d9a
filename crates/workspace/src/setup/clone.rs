//! Brings a repository into a sandbox: cloned from a URL, or unpacked from a bundle of this
//! machine.
//!
//! The clone is staged in another directory and moved into place by an atomic rename, so the
//! project directory is always complete. A file in its `.git` identifies the setup that made it; so
//! a retry can tell its own work from files of the user or the template.

use std::time::Duration;

use sdk::{CloneOptions, Sandbox};
use tracing::info;

use super::bundle::Bundle;
use super::repo::{Repo, RepoSource};
use super::{PROJECT_DIRECTORY, StepError};
use crate::shell::{SESSION_DIRECTORY, STAGE, script, tail_of};

const STAGE_SCRIPT: &str = include_str!("scripts/stage.sh");
const UNBUNDLE: &str = include_str!("scripts/unbundle.sh");
const PLACE: &str = include_str!("scripts/place.sh");
/// The exit codes of `stage.sh`.
const THERE_ALREADY: i32 = 20;
const OCCUPIED: i32 = 21;

/// Allows for a large repository on a slow line; a longer clone hangs.
const CLONE_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// For removing leftovers of an attempt, and for renaming.
const TIDY_DEADLINE: Duration = Duration::from_secs(5 * 60);

/// Makes the project directory, with the repository in it if there is one. Returns notes for the
/// user.
pub(super) async fn run(sandbox: &Sandbox, repo: Option<&Repo>, digest: &str) -> Result<Vec<String>, StepError> {
    let Some(repo) = repo else {
        let output = sandbox.commands().run(sdk::Command::exec("mkdir", ["-p", "--", PROJECT_DIRECTORY])).await?;
        return match output.success() {
            true => Ok(Vec::new()),
            false => Err(StepError::Script { what: "making the project's directory", tail: tail_of(&output) }),
        };
    };
    let stage = format!("{STAGE}{:016x}", rand::random::<u64>());
    let command = script(STAGE_SCRIPT, [stage.as_str(), PROJECT_DIRECTORY, digest]).timeout(TIDY_DEADLINE);
    let output = sandbox.commands().run(command).await?;
    match output.exit.code {
        0 => {}
        THERE_ALREADY => {
            info!("the repository is there already");
            return Ok(Vec::new());
        }
        OCCUPIED => return Err(StepError::Occupied { path: PROJECT_DIRECTORY.to_owned() }),
        _ => return Err(StepError::Script { what: "making room for the repository", tail: tail_of(&output) }),
    }
    let mut notes = match &repo.source {
        RepoSource::Url(url) => from_url(sandbox, url, repo, &stage).await?,
        RepoSource::Directory(path) => from_directory(sandbox, path, repo, &stage).await?,
    };
    let command = script(PLACE, [stage.as_str(), PROJECT_DIRECTORY, digest]).timeout(TIDY_DEADLINE);
    let output = sandbox.commands().run(command).await?;
    if !output.success() {
        return Err(StepError::Script { what: "putting the repository in place", tail: tail_of(&output) });
    }
    let submodules: u32 = output.stdout_text().trim().parse().unwrap_or(0);
    if submodules > 0 {
        notes.push(format!(
            "the repository names {} that are not fetched; their directories are empty until \
             `git submodule update --init --recursive`",
            pluralize(submodules as usize, "submodule")
        ));
    }
    Ok(notes)
}

async fn from_url(sandbox: &Sandbox, url: &str, repo: &Repo, stage: &str) -> Result<Vec<String>, StepError> {
    // A source that was not parsed may contain credentials.
    let Repo { source, credentials, .. } = Repo::parse(url);
    let url = match &source {
        RepoSource::Url(clean) => clean,
        RepoSource::Directory(_) => url,
    };
    let mut git = sandbox.git().timeout(CLONE_DEADLINE);
    if let Some(credentials) = repo.credentials.clone().or(credentials) {
        git = git.credentials(credentials);
    }
    let mut options = CloneOptions::default().path(stage);
    if let Some(branch) = &repo.branch {
        options = options.branch(branch);
    }
    git.clone(url, options).await?;
    Ok(Vec::new())
}

async fn from_directory(
    sandbox: &Sandbox,
    path: &std::path::Path,
    repo: &Repo,
    stage: &str,
) -> Result<Vec<String>, StepError> {
    let bundle = Bundle::inspect(path, repo.branch.as_deref()).await?;
    let sent = format!("{SESSION_DIRECTORY}/setup.bundle");
    sandbox.files().write_stream(&sent, bundle.stream().await?).await?;
    let origin = bundle.origin.as_deref().unwrap_or_default();
    let branch = bundle.branch.as_deref().unwrap_or_default();
    let mut command = script(UNBUNDLE, [stage, &sent, branch, &bundle.reference(), origin]).timeout(CLONE_DEADLINE);
    if let Some(shallow) = &bundle.shallow {
        command = command.env("SANDBAR_SHALLOW", String::from_utf8_lossy(shallow).trim());
    }
    let output = sandbox.commands().run(command).await?;
    if !output.success() {
        return Err(StepError::Script { what: "unpacking the repository", tail: tail_of(&output) });
    }
    let mut notes = Vec::new();
    if bundle.uncommitted > 0 {
        notes.push(format!(
            "{} in {} not committed, and not sent: commit them and set up again to have them in the workspace",
            pluralize(bundle.uncommitted, "change"),
            path.display()
        ));
    }
    if bundle.branch.is_none() {
        notes.push("no branch is checked out, as in the directory it came from".to_owned());
    }
    Ok(notes)
}

fn pluralize(number: usize, of: &str) -> String {
    if number == 1 { format!("1 {of}") } else { format!("{number} {of}s") }
}
