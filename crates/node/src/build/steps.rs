//! The steps of a stage: each done in the stage's sandbox, its files kept after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::layers::Layer;
use super::log::Splitter;
use super::machine::{BuildMachine, CommandError};
use super::plan::{Act, Copy, CopyFrom, Planned, PlannedStage};
use super::runner::{Failed, Held, Job, Reporter};
use super::{MOST_UPLOAD_BYTES, scripts};
use crate::faults::Point;
use crate::guest_process::{self, Output, Script};
use crate::id::FilesId;
use crate::log::LogLevel;
use crate::start_command::DEFAULT_USER;
use crate::world::World;

/// Of a command, in the text of its failure. Scripts can be long, and the log shows them whole.
const MOST_NAMED_CHARS: usize = 1000;

impl Job {
    /// Does the steps after the first `done`, beginning with `begins`. `ends` are the files of earlier stages.
    pub(super) async fn steps(
        &self,
        world: &Arc<World>,
        held: &mut Held,
        (begins, done): (Option<&FilesId>, usize),
        steps: &[Planned],
        ends: &[Option<FilesId>],
    ) -> Result<(), Failed> {
        for (index, step) in steps.iter().enumerate() {
            let reporter = self.reporter(world, Some(step.number.to_string()));
            let is_cached = index < done;
            self.say(&reporter, step, is_cached);
            if !is_cached && step.act != Act::Nothing {
                let done = self.step(world, held, begins, step, ends, &reporter).await;
                done.map_err(|failed| failed.at(&step.number))?;
            }
        }
        Ok(())
    }

    fn say(&self, reporter: &Reporter<'_>, step: &Planned, is_cached: bool) {
        let all: usize = self.request.stages.iter().map(|stage| stage.steps.len()).sum();
        let mark = if is_cached { "CACHED " } else { "" };
        let title = step.title.lines().next().unwrap_or_default();
        reporter.write(LogLevel::Info, &format!("{mark}[{}/{all}] {title}", step.number));
    }

    /// Of a stage that nothing is needed of.
    pub(super) fn say_cached(&self, world: &World, stage: &PlannedStage) {
        for step in &stage.steps {
            self.say(&self.reporter(world, Some(step.number.to_string())), step, true);
        }
    }

    async fn step(
        &self,
        world: &Arc<World>,
        held: &mut Held,
        begins: Option<&FilesId>,
        step: &Planned,
        ends: &[Option<FilesId>],
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let machine = self.machine(world, &mut held.machine, begins).await?;
        let user = step.settings.user.as_deref().unwrap_or(DEFAULT_USER);
        match &step.act {
            Act::Run { line, user } => {
                let workdir = step.settings.workdir.as_deref();
                let ran = machine.run(Script { user, line, workdir, env: &step.settings.env }, reporter).await;
                ran.map_err(|error| describe_in_e2b_words(line, &error))?;
            }
            Act::Copy(copy) => self.copy(world, machine, copy, ends, reporter).await?,
            Act::MakeWorkdir { path } => {
                let env = variables(&[("path", path), ("owner", &format!("{user}:"))]);
                machine.run(as_root(&scripts::make_directory(), &env), reporter).await?;
            }
            Act::MakeUser { name } => {
                machine.run(as_root(scripts::MAKE_USER, &variables(&[("name", name)])), reporter).await?;
            }
            Act::Nothing => {}
        }
        let layer = Layer { key: step.key.clone(), files: machine.keep_files().await?, used_at: world.clock.now() };
        let files = layer.files.clone();
        world.faults.pass(Point::BuildStepCopied);
        let unused = world.builds.layers.put(layer, !step.may_be_cached).await;
        world.remove_unused(unused.as_deref().unwrap_or(&[files])).await;
        world.faults.pass(Point::BuildStepRecorded);
        Ok(unused.map(drop)?)
    }

    async fn copy(
        &self,
        world: &Arc<World>,
        machine: &BuildMachine,
        copy: &Copy,
        ends: &[Option<FilesId>],
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let Copy { from, source, target, owner, mode, unpack } = copy;
        match from {
            CopyFrom::Upload(hash) => {
                let missing = || Failed::new("the files of this step were not uploaded");
                let path = world.builds.uploads.path(&self.template, hash).ok_or_else(missing)?;
                machine.send_archive(File::open(path).await.map_err(|_| missing())?).await?;
            }
            CopyFrom::Stage { stage, pattern } => {
                let files = ends.get(*stage).cloned().flatten();
                self.carry(world, files.as_ref(), pattern, machine, reporter).await?;
            }
        }
        // The group of the same name, unless one is named.
        let owner = if owner.contains(':') { owner.clone() } else { format!("{owner}:") };
        let (mode, unpack) = (mode.as_deref().unwrap_or(""), if *unpack { "1" } else { "" });
        let env =
            variables(&[("source", source), ("target", target), ("owner", &owner), ("mode", mode), ("unpack", unpack)]);
        Ok(machine.run(as_root(&scripts::copy(), &env), reporter).await?)
    }

    /// Carries what `pattern` matches in the files of another stage to `machine`. It is packed inside a sandbox and unpacked inside another;
    /// here it is bytes.
    async fn carry(
        &self,
        world: &Arc<World>,
        files: Option<&FilesId>,
        pattern: &str,
        machine: &BuildMachine,
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let draft = world.builds.uploads.draft(&self.template).await;
        let draft =
            draft.map_err(|error| Failed::new(format!("there is no place for files of another stage: {error}")))?;
        let source = BuildMachine::boot(world, files, self.resources).await?;
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

/// As E2B words the failure of a `RUN` step: its test suites and users' programs look for this text.
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
