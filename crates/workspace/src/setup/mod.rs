//! Makes a fresh sandbox the workspace that somebody asked for: the repository at its branch, files, commands.
//!
//! ```text
//! clone ── files ── command 1 ── command 2 … ── finished
//! ```
//!
//! After each step the caller stores the [`Progress`]. Whatever breaks off, the next attempt goes on with the step that was
//! not done; what that one left half made, and what of it still runs, is removed first. A command may therefore run twice
//! when the connection broke while it ran, and should bear it. The environment is none of the steps: a sandbox is created
//! with it.

mod bundle;
mod clone;
mod prepare;
mod progress;
mod repo;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use sdk::{CommandError, FileError, GitError, Sandbox, Secret};
use sha2::{Digest, Sha256};
use tracing::info;

pub use bundle::BundleError;
pub use progress::{Progress, Step};
pub use repo::{Repo, RepoSource};

use crate::devserver::DevServer;
use crate::mask::Mask;
use crate::name::ProviderName;
use crate::provider::Resources;
use crate::shell::{self, Ending, STAGE};
use crate::snapshot::ProjectId;

/// Where the project is in every workspace.
pub const PROJECT_DIRECTORY: &str = "/home/user/project";

/// Carried by what a set-up starts, with the step after it.
const MARK: &str = "setup";

/// What a workspace shall be.
#[derive(Clone, Default)]
pub struct Setup {
    /// What is in the project's directory; unless set it is empty.
    pub repo: Option<Repo>,
    /// The files of another project's newest whole snapshot stand in for repository and preparation. A snapshot of the
    /// workspace's own goes first. Without any that can be restored, creating fails.
    pub from: Option<ProjectId>,
    pub prepare: Prepare,
    /// Variables that everything in the sandbox sees. The values are secrets, and hidden in all that is shown.
    pub env: BTreeMap<String, Secret>,
    pub template: Option<String>,
    pub resources: Resources,
    /// This provider and no other.
    pub provider: Option<ProviderName>,
    /// Found out from the project's files unless set.
    pub dev_server: Option<DevServer>,
    /// How long the workspace itself lives.
    pub ttl: Option<Duration>,
    /// On whose account it is.
    pub job: Option<String>,
}

/// Names of variables, not their values.
impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("repo", &self.repo)
            .field("from", &self.from)
            .field("prepare", &self.prepare)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("template", &self.template)
            .field("resources", &self.resources)
            .field("provider", &self.provider)
            .field("dev_server", &self.dev_server)
            .field("ttl", &self.ttl)
            .field("job", &self.job)
            .finish()
    }
}

/// What is done to the sandbox before somebody works in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepare {
    pub files: Vec<PreparedFile>,
    /// Lines for the login shell, run in the project's directory one after the other. Each must succeed, and should bear
    /// to be run again.
    pub commands: Vec<String>,
}

/// A file that is put into the sandbox.
#[derive(Clone, PartialEq, Eq)]
pub struct PreparedFile {
    /// Relative ones are below the project's directory.
    pub path: String,
    pub content: Bytes,
    /// Permission bits, when others are wanted than a new file has.
    pub mode: Option<u32>,
}

/// The content is left out.
impl fmt::Debug for PreparedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.map(|mode| format!("{mode:o}"));
        f.debug_struct("PreparedFile")
            .field("path", &self.path)
            .field("bytes", &self.content.len())
            .field("mode", &mode)
            .finish()
    }
}

/// A step that failed. Setting up again goes on from it.
#[derive(Debug, thiserror::Error)]
#[error("set-up failed at step {step}")]
pub struct StepFailed {
    pub step: Step,
    pub source: StepError,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The directory on this machine cannot be sent.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Something that is no set-up's work is where the project belongs: a template may have put it there.
    #[error("{path} is not empty and not from this set-up; nothing was changed")]
    Occupied { path: String },
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    File(#[from] FileError),
    /// A command ran and failed.
    #[error("`{line}` ended with {status}{}", shell::after_colon(tail))]
    CommandFailed { line: String, code: i32, status: String, tail: String },
    /// What the set-up itself does in the sandbox failed.
    #[error("{what} failed in the sandbox{}", shell::after_colon(tail))]
    Script { what: &'static str, tail: String },
    /// The sandbox could not be asked, or did not answer to the end.
    #[error(transparent)]
    Sandbox(#[from] CommandError),
    /// What was done could not be stored, so the next attempt would not know of it.
    #[error("the progress could not be stored: {0}")]
    NotStored(String),
}

/// Does what is not done yet, and gives the progress to `save` after each step.
///
/// Dropping the future, or killing the process, leaves a step half done; the next call does it again.
///
/// # Errors
/// [`StepFailed`] names the step; those before it are done.
#[tracing::instrument(skip_all, fields(sandbox = %sandbox.id()))]
pub async fn run<S, E: fmt::Display>(
    sandbox: &Sandbox,
    setup: &Setup,
    progress: &mut Progress,
    save: impl Fn(Progress) -> S + Send + Sync,
) -> Result<(), StepFailed>
where
    S: Future<Output = Result<(), E>> + Send,
{
    if progress.is_finished() {
        return Ok(());
    }
    progress.begin(sandbox);
    let mask = mask(setup);
    let steps = steps(setup);
    let Some(next) = (0..steps.len()).find(|&index| !progress.has(index, &steps[index].digest)) else {
        // Something was taken out of the set-up since.
        progress.finish();
        return save(progress.clone()).await.map_err(|error| not_stored(steps[0].step, &error));
    };
    let (done, left) = steps.split_at(next);
    end_earlier_attempts(sandbox, done).await.map_err(|source| StepFailed { step: left[0].step, source })?;
    for (index, planned) in left.iter().enumerate() {
        let Planned { step, digest } = planned;
        let done = match step {
            Step::Clone => clone::run(sandbox, setup.repo.as_ref(), digest).await,
            Step::Files => prepare::files(sandbox, &setup.prepare.files).await.map(|()| Vec::new()),
            Step::Command(number) => {
                let line = &setup.prepare.commands[number - 1];
                prepare::command(sandbox, line, &planned.mark(), &mask).await.map(|()| Vec::new())
            }
        };
        let notes = done.map_err(|source| StepFailed { step: *step, source })?;
        info!(%step, "a step of the set-up is done");
        progress.add(digest.clone(), notes);
        if index + 1 == left.len() {
            progress.finish();
        }
        save(progress.clone()).await.map_err(|error| not_stored(*step, &error))?;
    }
    Ok(())
}

fn not_stored(step: Step, error: &impl fmt::Display) -> StepFailed {
    StepFailed { step, source: StepError::NotStored(error.to_string()) }
}

/// What an attempt before this one left running would work against it. What steps that are done have left in the background,
/// a database perhaps, is what they were for.
async fn end_earlier_attempts(sandbox: &Sandbox, done: &[Planned]) -> Result<(), StepError> {
    let except = done.iter().map(Planned::mark).collect();
    let text = if done.is_empty() { STAGE } else { "" };
    Ok(shell::end(sandbox, Ending { mark: MARK, except, text }).await?)
}

/// What errors must not repeat.
fn mask(setup: &Setup) -> Mask {
    Mask::of_variables(setup.env.iter().map(|(name, value)| (name.as_str(), value.expose())))
}

/// A step and what it is known by.
struct Planned {
    step: Step,
    digest: String,
}

impl Planned {
    /// Carried by its processes.
    fn mark(&self) -> String {
        let step = match self.step {
            Step::Clone => 0,
            Step::Files => 1,
            Step::Command(number) => number + 1,
        };
        format!("{MARK}:{step}-{:.16}", self.digest)
    }
}

fn steps(setup: &Setup) -> Vec<Planned> {
    let digest = |parts: &[&[u8]]| {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update(part.len().to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let repo = setup.repo.as_ref().map(|repo| format!("{:?} {:?}", repo.source, repo.branch)).unwrap_or_default();
    let mut steps = vec![Planned { step: Step::Clone, digest: digest(&[repo.as_bytes()]) }];
    if !setup.prepare.files.is_empty() {
        let modes: Vec<String> = setup.prepare.files.iter().map(|file| format!("{:?}", file.mode)).collect();
        let files = setup.prepare.files.iter().zip(&modes);
        let parts: Vec<&[u8]> =
            files.flat_map(|(file, mode)| [file.path.as_bytes(), &file.content[..], mode.as_bytes()]).collect();
        steps.push(Planned { step: Step::Files, digest: digest(&parts) });
    }
    let commands = setup.prepare.commands.iter().enumerate();
    steps.extend(
        commands.map(|(index, line)| Planned { step: Step::Command(index + 1), digest: digest(&[line.as_bytes()]) }),
    );
    steps
}
