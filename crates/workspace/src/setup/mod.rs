//! Turns a fresh sandbox into the wanted workspace: the repository at its branch, files, commands.
//!
//! ```text
//! clone ── files ── command 1 ── command 2 … ── finished
//! ```
//!
//! The caller stores the [`Progress`] after each step. After an interruption, the next attempt
//! continues with the first step that is not done, after removing its leftovers and killing its
//! processes. So a command may run twice when the connection broke while it ran, and must be
//! idempotent. The environment is not a step: a sandbox is created with it.

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
use crate::name::ProviderName;
use crate::provider::Resources;
use crate::shell::{self, KillFilter, STAGE};
use checkpoint::ProjectId;
use secret::Mask;

/// The project directory in every workspace.
pub const PROJECT_DIRECTORY: &str = "/home/user/project";

/// The task mark of processes that a setup starts, followed by the step.
const MARK: &str = "setup";

/// The wanted workspace.
#[derive(Clone, Default)]
pub struct Setup {
    /// The content of the project directory; empty if unset.
    pub repo: Option<Repo>,
    /// Another project whose newest complete checkpoint replaces repository and preparation. A
    /// checkpoint of the workspace's own project takes precedence. Without one that can be
    /// restored, creation fails.
    pub from: Option<ProjectId>,
    pub prepare: Prepare,
    /// Variables for all processes in the sandbox. The values are secrets and masked in all output.
    pub env: BTreeMap<String, Secret>,
    pub template: Option<String>,
    pub resources: Resources,
    /// Only this provider.
    pub provider: Option<ProviderName>,
    /// Detected from the project's files if unset.
    pub dev_server: Option<DevServer>,
    /// The lifetime of the workspace itself.
    pub ttl: Option<Duration>,
    /// The job that pays.
    pub job: Option<String>,
}

/// Shows names of variables, not their values.
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

/// The preparation of a sandbox before first use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepare {
    pub files: Vec<PreparedFile>,
    /// Lines for the login shell, run in the project directory one after the other. Each must
    /// succeed and be idempotent.
    pub commands: Vec<String>,
}

/// A file to write into the sandbox.
#[derive(Clone, PartialEq, Eq)]
pub struct PreparedFile {
    /// Relative paths are below the project directory.
    pub path: String,
    pub content: Bytes,
    /// Permission bits; [`None`] for the default of a new file.
    pub mode: Option<u32>,
}

/// Omits the content.
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

/// A failed step. A retry continues with it.
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
    /// The project directory holds files that no setup made; the template may contain them.
    #[error("{path} is not empty and not from this set-up; nothing was changed")]
    Occupied { path: String },
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    File(#[from] FileError),
    /// A user's command failed.
    #[error("`{line}` ended with {status}{}", shell::format_tail(tail))]
    CommandFailed { line: String, code: i32, status: String, tail: String },
    /// A script of the setup itself failed.
    #[error("{what} failed in the sandbox{}", shell::format_tail(tail))]
    Script { what: &'static str, tail: String },
    /// The sandbox cannot be reached, or the connection broke.
    #[error(transparent)]
    Sandbox(#[from] CommandError),
    /// The progress could not be stored, so a retry would not know of the step.
    #[error("the progress could not be stored: {0}")]
    NotStored(String),
}

/// Runs the steps that are not done, and passes the progress to `save` after each.
///
/// Dropping the future, or killing the process, leaves a step half done; the next call repeats it.
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
        // Steps were removed from the setup since.
        progress.finish();
        return save(progress.clone()).await.map_err(|error| not_stored(steps[0].step, &error));
    };
    let (done, left) = steps.split_at(next);
    kill_earlier_attempts(sandbox, done).await.map_err(|source| StepFailed { step: left[0].step, source })?;
    for (index, planned) in left.iter().enumerate() {
        let Planned { step, digest } = planned;
        let done = match step {
            Step::Clone => clone::run(sandbox, setup.repo.as_ref(), digest).await,
            Step::Files => prepare::write_files(sandbox, &setup.prepare.files).await.map(|()| Vec::new()),
            Step::Command(number) => {
                let line = &setup.prepare.commands[number - 1];
                prepare::run_command(sandbox, line, &planned.mark(), &mask).await.map(|()| Vec::new())
            }
        };
        let notes = done.map_err(|source| StepFailed { step: *step, source })?;
        info!(%step, "setup step done");
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

/// Kills processes that an earlier attempt left running. Background processes of completed steps,
/// such as a database, are kept.
async fn kill_earlier_attempts(sandbox: &Sandbox, done: &[Planned]) -> Result<(), StepError> {
    let except = done.iter().map(Planned::mark).collect();
    let text = if done.is_empty() { STAGE } else { "" };
    Ok(shell::kill_marked(sandbox, KillFilter { mark: MARK, except, text }).await?)
}

/// Masks values of variables in errors.
fn mask(setup: &Setup) -> Mask {
    Mask::for_variables(setup.env.iter().map(|(name, value)| (name.as_str(), value.expose())))
}

/// A step and its digest.
struct Planned {
    step: Step,
    digest: String,
}

impl Planned {
    /// The task mark of its processes.
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
