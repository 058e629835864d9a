//! Runs the steps of a stage in its sandbox and keeps the files after each step.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::FilesId;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::layers::Layer;
use super::log::Splitter;
use super::machine::{BuildMachine, CommandError};
use super::plan::{Copy, CopyFrom, PlannedStage, PlannedStep, StepAction};
use super::runner::{BuildResources, Failed, Job, Reporter};
use super::{MOST_UPLOAD_BYTES, scripts};
use crate::faults::Point;
use crate::guest_process::{self, Output, Script};
use crate::log::LogLevel;
use crate::start_command::DEFAULT_USER;
use crate::state::NodeState;

/// Most characters of a command in the text of its failure. Scripts can be long, and the log has
/// them complete.
const MOST_NAMED_CHARS: usize = 1000;

impl Job {
    /// Runs the steps after the first `done`, starting from the files `begins`. `ends` are the
    /// files of earlier stages.
    pub(super) async fn run_steps(
        &self,
        node_state: &Arc<NodeState>,
        held: &mut BuildResources,
        (begins, done): (Option<&FilesId>, usize),
        steps: &[PlannedStep],
        ends: &[Option<FilesId>],
    ) -> Result<(), Failed> {
        for (index, step) in steps.iter().enumerate() {
            let reporter = self.reporter(node_state, Some(step.number.to_string()));
            let is_cached = index < done;
            self.log_step(&reporter, step, is_cached);
            if !is_cached && step.act != StepAction::Nothing {
                let done = self.run_step(node_state, held, begins, step, ends, &reporter).await;
                done.map_err(|failed| failed.at(&step.number))?;
            }
        }
        Ok(())
    }

    fn log_step(&self, reporter: &Reporter<'_>, step: &PlannedStep, is_cached: bool) {
        let all: usize = self.request.stages.iter().map(|stage| stage.steps.len()).sum();
        let mark = if is_cached { "CACHED " } else { "" };
        let title = step.title.lines().next().unwrap_or_default();
        reporter.write(LogLevel::Info, &format!("{mark}[{}/{all}] {title}", step.number));
    }

    /// Logs the steps of a stage that does not run.
    pub(super) fn log_cached_stage(&self, node_state: &NodeState, stage: &PlannedStage) {
        for step in &stage.steps {
            self.log_step(&self.reporter(node_state, Some(step.number.to_string())), step, true);
        }
    }

    async fn run_step(
        &self,
        node_state: &Arc<NodeState>,
        held: &mut BuildResources,
        begins: Option<&FilesId>,
        step: &PlannedStep,
        ends: &[Option<FilesId>],
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let machine = self.machine(node_state, &mut held.machine, begins).await?;
        let user = step.settings.user.as_deref().unwrap_or(DEFAULT_USER);
        match &step.act {
            StepAction::Run { line, user } => {
                let workdir = step.settings.workdir.as_deref();
                let ran = machine.run(Script { user, line, workdir, env: &step.settings.env }, reporter).await;
                ran.map_err(|error| describe_in_e2b_words(line, &error))?;
            }
            StepAction::Copy(copy) => self.copy(node_state, machine, copy, ends, reporter).await?,
            StepAction::MakeWorkdir { path } => {
                let env = variables(&[("path", path), ("owner", &format!("{user}:"))]);
                machine.run(as_root(&scripts::make_directory(), &env), reporter).await?;
            }
            StepAction::MakeUser { name } => {
                machine.run(as_root(scripts::MAKE_USER, &variables(&[("name", name)])), reporter).await?;
            }
            StepAction::Nothing => {}
        }
        let layer =
            Layer { key: step.key.clone(), files: machine.keep_files().await?, used_at: node_state.clock.now() };
        let files = layer.files.clone();
        node_state.faults.pass(Point::BuildStepCopied);
        let unused = node_state.builds.layers.put(layer, !step.may_be_cached).await;
        node_state.remove_unused(unused.as_deref().unwrap_or(&[files])).await;
        node_state.faults.pass(Point::BuildStepRecorded);
        Ok(unused.map(drop)?)
    }

    async fn copy(
        &self,
        node_state: &Arc<NodeState>,
        machine: &BuildMachine,
        copy: &Copy,
        ends: &[Option<FilesId>],
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let Copy { from, source, target, owner, mode, unpack } = copy;
        match from {
            CopyFrom::Upload(hash) => {
                let missing = || Failed::new("the files of this step were not uploaded");
                let path = node_state.builds.uploads.path(&self.template, hash).ok_or_else(missing)?;
                machine.send_archive(File::open(path).await.map_err(|_| missing())?).await?;
            }
            CopyFrom::Stage { stage, pattern } => {
                let files = ends.get(*stage).cloned().flatten();
                self.copy_from_stage(node_state, files.as_ref(), pattern, machine, reporter).await?;
            }
        }
        // The group of the same name, unless the step names one.
        let owner = if owner.contains(':') { owner.clone() } else { format!("{owner}:") };
        let (mode, unpack) = (mode.as_deref().unwrap_or(""), if *unpack { "1" } else { "" });
        let env =
            variables(&[("source", source), ("target", target), ("owner", &owner), ("mode", mode), ("unpack", unpack)]);
        Ok(machine.run(as_root(&scripts::copy(), &env), reporter).await?)
    }

    /// Copies the paths that `pattern` matches in another stage's `files` to `machine`. One sandbox
    /// packs them and another unpacks them; the server only transfers bytes.
    async fn copy_from_stage(
        &self,
        node_state: &Arc<NodeState>,
        files: Option<&FilesId>,
        pattern: &str,
        machine: &BuildMachine,
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let draft = node_state.builds.uploads.draft(&self.template).await;
        let draft =
            draft.map_err(|error| Failed::new(format!("there is no place for files of another stage: {error}")))?;
        let source = BuildMachine::boot(node_state, files, self.resources).await?;
        let packed = pack(&source, pattern, draft.path(), reporter).await;
        source.end().await;
        packed?;
        let file = File::open(draft.path()).await.map_err(|error| Failed::new(error.to_string()))?;
        machine.send_archive(file).await
    }
}

async fn pack(
    source: &BuildMachine,
    pattern: &str,
    target: &std::path::Path,
    reporter: &Reporter<'_>,
) -> Result<(), Failed> {
    let lost =
        |error: &dyn std::fmt::Display| Failed::new(format!("the files of another stage cannot be packed: {error}"));
    let (env, guest) = (variables(&[("pattern", pattern)]), source.guest());
    let started = guest_process::start(guest.socket, guest.token, as_root(scripts::PACK, &env)).await;
    let mut process = started.map_err(|error| lost(&error))?;
    let mut file = File::create_new(target).await.map_err(|error| lost(&error))?;
    let (mut complaints, mut left) = (Splitter::default(), MOST_UPLOAD_BYTES);
    while let Some(output) = process.next().await.map_err(|error| lost(&error))? {
        match output {
            Output::Stdout(bytes) => {
                left = left.checked_sub(bytes.len() as u64).ok_or_else(|| lost(&"they are too large"))?;
                file.write_all(&bytes).await.map_err(|error| lost(&error))?;
            }
            Output::Stderr(bytes) => complaints.push(&bytes, |line| reporter.write(LogLevel::Warn, line)),
            Output::Ended { exit_code: 0, .. } => return file.flush().await.map_err(|error| lost(&error)),
            Output::Ended { status, .. } => {
                complaints.flush(|line| reporter.write(LogLevel::Warn, line));
                return Err(lost(&status));
            }
        }
    }
    Err(lost(&"the sandbox ended"))
}

/// Words the failure of a `RUN` step as E2B does: its test suites and users' programs search for
/// this text.
fn describe_in_e2b_words(line: &str, error: &CommandError) -> Failed {
    let end = line.char_indices().nth(MOST_NAMED_CHARS).map_or(line.len(), |(end, _)| end);
    let (shown, more) = (&line[..end], if end < line.len() { "…" } else { "" });
    let reason = match error {
        CommandError::Exited(status) => status.clone(),
        CommandError::Lost(reason) => format!("command failed: {reason}"),
    };
    Failed::new(format!("failed to run command '{shown}{more}': {reason}"))
}

fn as_root<'a>(line: &'a str, env: &'a BTreeMap<String, String>) -> Script<'a> {
    Script { user: "root", line, workdir: Some("/"), env }
}

fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
