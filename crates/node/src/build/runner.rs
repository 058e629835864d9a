//! Carries a build out: begins with the latest state the cache knows, does the steps that are left in a sandbox, and keeps
//! the files after each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::fs::File;
use tokio::time::Instant;

use super::layers::Layer;
use super::log::{BuildLog, Splitter};
use super::machine::{BuildMachine, LONGEST_LIFE};
use super::plan::{Act, Copy, Planned};
use super::{Builds, scripts};
use crate::guest_process::{self, Output, Script};
use crate::id::FilesId;
use crate::log::LogLevel;
use crate::ports::{EngineError, RecordsError};
use crate::sandbox::Resources;
use crate::start_command::{self, DEFAULT_USER};
use crate::template::{BuildFiles, Defaults};
use crate::world::World;

/// Between two attempts of the ready command.
const READY_INTERVAL: Duration = Duration::from_secs(2);
const READY_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// What a start command gets that nobody said how to wait for.
const START_TIME: Duration = Duration::from_secs(20);
const FINALIZE: &str = "finalize";

/// Why a build failed, and where.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) message: String,
    pub(super) step: Option<String>,
}

impl Failed {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), step: None }
    }

    fn at(self, step: &impl ToString) -> Self {
        Self { step: Some(self.step.unwrap_or_else(|| step.to_string())), ..self }
    }
}

impl From<EngineError> for Failed {
    fn from(error: EngineError) -> Self {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        Self::new(format!("{error}{cause}"))
    }
}

impl From<RecordsError> for Failed {
    fn from(error: RecordsError) -> Self {
        Self::new(error.to_string())
    }
}

/// Writes to the build's log, for one step.
pub(super) struct Reporter<'a> {
    pub(super) world: &'a World,
    pub(super) log: &'a BuildLog,
    pub(super) step: Option<String>,
}

impl Reporter<'_> {
    pub(super) fn write(&self, level: LogLevel, message: &str) {
        self.log.write(&*self.world.clock, level, self.step.as_deref(), message);
    }
}

/// A build with all that it needs.
pub(super) struct Job {
    pub(super) template: String,
    /// What the files begin as; nothing but the base when absent.
    pub(super) origin: Option<FilesId>,
    pub(super) steps: Vec<Planned>,
    /// The settings after the last step.
    pub(super) settings: Defaults,
    pub(super) resources: Resources,
    pub(super) log: Arc<BuildLog>,
}

impl Job {
    /// What the build made. Ends by itself within [`LONGEST_LIFE`]; when it fails or is dropped by `stop`, nothing is left but
    /// what the cache keeps.
    pub(super) async fn run(&self, world: &Arc<World>) -> Result<BuildFiles, Failed> {
        let mut machine = None;
        let work = self.work(world, &mut machine);
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(LONGEST_LIFE, work) => {
                outcome.unwrap_or_else(|_| Err(Failed::new("the build took too long")))
            }
            () = world.stop.cancelled() => Err(Failed::new("the server was stopped during the build")),
        };
        if let Some(machine) = machine {
            machine.end().await;
        }
        outcome
    }

    async fn work(&self, world: &Arc<World>, machine: &mut Option<BuildMachine>) -> Result<BuildFiles, Failed> {
        let (current, done) = self.cached(world);
        if let Some(step) = done.checked_sub(1).and_then(|index| self.steps.get(index)) {
            world.builds.layers.touch(&step.key, world.clock.now()).await?;
        }
        for step in &self.steps {
            let reporter = self.reporter(world, Some(step.number.to_string()));
            let is_cached = step.number <= done;
            let mark = if is_cached { "CACHED " } else { "" };
            let title = step.title.lines().next().unwrap_or_default();
            reporter.write(LogLevel::Info, &format!("{mark}[{}/{}] {title}", step.number, self.steps.len()));
            if is_cached || step.act == Act::Nothing {
                continue;
            }
            let done = self.step(world, machine, current.as_ref(), step, &reporter).await;
            done.map_err(|failed| failed.at(&step.number))?;
        }
        // From before anything is started, and a copy of its own: the cache may forget what it has.
        let files = self.keep(world, machine.as_ref(), current.as_ref()).await;
        let files = files.map_err(|error| Failed::from(error).at(&FINALIZE))?;
        if self.settings.start_command.is_some() || self.settings.ready_command.is_some() {
            let started = self.start(world, machine, files.as_ref()).await;
            if let Err(failed) = started {
                world.remove_unused(files.as_slice()).await;
                return Err(failed.at(&FINALIZE));
            }
        }
        Ok(files.map_or(BuildFiles::Base, BuildFiles::Kept))
    }

    /// The files as the template will have them; none when they are the base's.
    async fn keep(
        &self,
        world: &World,
        machine: Option<&BuildMachine>,
        current: Option<&FilesId>,
    ) -> Result<Option<FilesId>, EngineError> {
        match (machine, current) {
            (Some(machine), _) => machine.keep_files().await.map(Some),
            (None, Some(current)) => {
                let files = FilesId::random();
                world.engine.copy_files(current, &files).await?;
                Ok(Some(files))
            }
            (None, None) => Ok(None),
        }
    }

    /// The latest state that is known already, and how many steps lead to it.
    fn cached(&self, world: &World) -> (Option<FilesId>, usize) {
        let usable = self.steps.iter().rev().filter(|step| step.may_be_cached && step.act != Act::Nothing);
        let found = usable.filter_map(|step| Some((world.builds.layers.find(&step.key)?, step.number))).next();
        found.map_or((self.origin.clone(), 0), |(files, number)| (Some(files), number))
    }

    fn reporter<'a>(&'a self, world: &'a World, step: Option<String>) -> Reporter<'a> {
        Reporter { world, log: &self.log, step }
    }

    async fn step(
        &self,
        world: &Arc<World>,
        machine: &mut Option<BuildMachine>,
        current: Option<&FilesId>,
        step: &Planned,
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let machine = self.machine(world, machine, current).await?;
        let user = step.settings.user.as_deref().unwrap_or(DEFAULT_USER);
        match &step.act {
            Act::Run { line, user } => {
                let workdir = step.settings.workdir.as_deref();
                machine.run(Script { user, line, workdir, env: &step.settings.env }, reporter).await?;
            }
            Act::Copy(copy) => self.copy(&world.builds, machine, copy, reporter).await?,
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
        let unused = world.builds.layers.put(layer, !step.may_be_cached).await;
        world.remove_unused(unused.as_deref().unwrap_or(&[files])).await;
        Ok(unused.map(drop)?)
    }

    async fn machine<'a>(
        &self,
        world: &Arc<World>,
        machine: &'a mut Option<BuildMachine>,
        files: Option<&FilesId>,
    ) -> Result<&'a BuildMachine, EngineError> {
        match machine {
            Some(machine) => Ok(machine),
            empty => Ok(empty.insert(BuildMachine::boot(world, files, self.resources).await?)),
        }
    }

    async fn copy(
        &self,
        builds: &Builds,
        machine: &BuildMachine,
        copy: &Copy,
        reporter: &Reporter<'_>,
    ) -> Result<(), Failed> {
        let Copy { files_hash, source, target, owner, mode } = copy;
        let missing = || Failed::new("the files of this step were not uploaded");
        let path = builds.uploads.path(&self.template, files_hash).ok_or_else(missing)?;
        let file = File::open(path).await.map_err(|_| missing())?;
        machine.send_archive(file).await?;
        // The group of the same name, unless one is named.
        let owner = if owner.contains(':') { owner.clone() } else { format!("{owner}:") };
        let mode = mode.as_deref().unwrap_or("");
        let env = variables(&[("source", source), ("target", target), ("owner", &owner), ("mode", mode)]);
        machine.run(as_root(&scripts::copy(), &env), reporter).await
    }

    /// Proves that what the template starts does start. The files are those from before: every sandbox starts it anew.
    async fn start(
        &self,
        world: &Arc<World>,
        machine: &mut Option<BuildMachine>,
        files: Option<&FilesId>,
    ) -> Result<(), Failed> {
        let reporter = self.reporter(world, Some(FINALIZE.to_owned()));
        let machine = self.machine(world, machine, files).await?;
        let Defaults { env, user, workdir, start_command, ready_command } = &self.settings;
        let user = user.as_deref().unwrap_or(DEFAULT_USER);
        let script = |line| Script { user, line, workdir: workdir.as_deref(), env };
        let running = async {
            let Some(line) = start_command else { return std::future::pending().await };
            reporter.write(LogLevel::Info, "starting what the template starts");
            follow(machine, script(line), &reporter).await
        };
        let ready = async {
            match ready_command {
                Some(line) => {
                    reporter.write(LogLevel::Info, "waiting until it is ready");
                    let ready = start_command::retry(machine.guest(), script(line), READY_INTERVAL);
                    let late = |_| Failed::new("the ready command did not succeed in time");
                    tokio::time::timeout(READY_PATIENCE, ready).await.map_err(late)
                }
                None => {
                    tokio::time::sleep(START_TIME).await;
                    Ok(())
                }
            }
        };
        let began = Instant::now();
        tokio::select! {
            failed = running => Err(failed),
            ready = ready => {
                reporter.write(LogLevel::Info, &format!("ready after {:.1?}", began.elapsed()));
                ready
            }
        }
    }
}

/// Hears a start command out; returns only when it has failed. One that ends well may have left something running.
async fn follow(machine: &BuildMachine, script: Script<'_>, reporter: &Reporter<'_>) -> Failed {
    let guest = machine.guest();
    let mut process = match guest_process::start(guest.socket, guest.token, script).await {
        Ok(process) => process,
        Err(error) => return Failed::new(format!("the start command could not be started: {error}")),
    };
    let mut lines = Splitter::default();
    loop {
        match process.next().await {
            Ok(Some(Output::Stdout(bytes) | Output::Stderr(bytes))) => {
                lines.push(&bytes, |line| reporter.write(LogLevel::Info, line));
            }
            Ok(Some(Output::Ended { exit_code, status })) if exit_code != 0 => {
                return Failed::new(format!("the start command failed: {status}"));
            }
            Ok(Some(Output::Ended { .. }) | None) | Err(_) => return std::future::pending().await,
        }
    }
}

fn as_root<'a>(line: &'a str, env: &'a BTreeMap<String, String>) -> Script<'a> {
    Script { user: "root", line, workdir: Some("/"), env }
}

fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
