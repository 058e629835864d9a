//! Carries a build out: finds out what its stages begin with, does those that are needed, keeps what the last one made.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::log::{BuildLog, Splitter};
use super::machine::{BuildMachine, LONGEST_LIFE};
use super::origin::{self, Found, Source};
use super::plan::{self, Act, CopyFrom, Ground, PlannedStage};
use super::{BuildRequest, Origin};
use crate::faults::Point;
use crate::guest_process::{self, Output, Script};
use crate::id::FilesId;
use crate::log::LogLevel;
use crate::owner::chain;
use crate::ports::{EngineError, RecordsError};
use crate::sandbox::Resources;
use crate::start_command::{self, DEFAULT_USER};
use crate::template::{BuildFiles, Defaults};
use crate::world::World;

/// The longest between two attempts of the ready command.
const READY_INTERVAL: Duration = Duration::from_secs(2);
const READY_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// What a start command gets that nobody said how to wait for.
const START_TIME: Duration = Duration::from_secs(20);
const FINALIZE: &str = "finalize";
const BASE: &str = "base";

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

    pub(super) fn at(self, step: &impl ToString) -> Self {
        Self { step: Some(self.step.unwrap_or_else(|| step.to_string())), ..self }
    }
}

impl From<EngineError> for Failed {
    fn from(error: EngineError) -> Self {
        Self::new(chain(&error))
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
    pub(super) request: BuildRequest,
    pub(super) resources: Resources,
    pub(super) log: Arc<BuildLog>,
}

/// A stage, ready to be done.
pub(super) struct Stage {
    found: Found,
    pub(super) planned: PlannedStage,
}

/// What must be taken down when a build ends, however it ends.
#[derive(Default)]
pub(super) struct Held {
    pub(super) machine: Option<BuildMachine>,
    /// Ends of stages that others need.
    files: Vec<FilesId>,
}

impl Job {
    /// What the build made, with its settings. Ends by itself within [`LONGEST_LIFE`]; when it fails or is dropped by `stop`, nothing is
    /// left but what the cache keeps.
    pub(super) async fn run(&self, world: &Arc<World>) -> Result<(BuildFiles, Defaults), Failed> {
        let mut held = Held::default();
        let work = self.work(world, &mut held);
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(LONGEST_LIFE, work) => {
                outcome.unwrap_or_else(|_| Err(Failed::new("the build took too long")))
            }
            () = world.stop.cancelled() => Err(Failed::new("the server was stopped during the build")),
        };
        if let Some(machine) = held.machine {
            machine.end().await;
        }
        world.remove_unused(&held.files).await;
        outcome
    }

    async fn work(&self, world: &Arc<World>, held: &mut Held) -> Result<(BuildFiles, Defaults), Failed> {
        let stages = self.plan(world).await.map_err(|failed| failed.at(&BASE))?;
        let last = stages.len().checked_sub(1).ok_or_else(|| Failed::new("there is no stage to build"))?;
        let settings = self.settings(&stages[last].planned.settings);
        let needed = needed(world, &stages);
        let mut ends: Vec<Option<FilesId>> = Vec::new();
        let mut current = None;
        for (number, stage) in stages.into_iter().enumerate() {
            if !needed[number] {
                self.say_cached(world, &stage.planned);
                ends.push(None);
                continue;
            }
            let Stage { found, planned } = stage;
            let (mut begins, done) = cached(world, &planned);
            if done == 0 {
                let reporter = self.reporter(world, Some(BASE.to_owned()));
                let provided = origin::provide(world, &self.template, found, &ends, &reporter).await;
                begins = provided.map_err(|failed| failed.at(&BASE))?;
            } else if let Some(step) = planned.steps.get(done - 1) {
                world.builds.layers.touch(&step.key, world.clock.now()).await?;
            }
            self.steps(world, held, (begins.as_ref(), done), &planned.steps, &ends).await?;
            if number == last {
                current = begins;
            } else {
                let end = self.keep(world, held.machine.as_ref(), begins.as_ref()).await?;
                held.files.extend(end.clone());
                world.faults.pass(Point::BuildStageKept);
                ends.push(end);
                if let Some(machine) = held.machine.take() {
                    machine.end().await;
                }
            }
        }
        // From before anything is started, and a copy of its own: the cache may forget what it has.
        let files = self.keep(world, held.machine.as_ref(), current.as_ref()).await;
        let files = files.map_err(|error| Failed::from(error).at(&FINALIZE))?;
        world.faults.pass(Point::BuildFilesKept);
        if settings.start_command.is_some() || settings.ready_command.is_some() {
            let started = self.start(world, &mut held.machine, files.as_ref(), &settings).await;
            if let Err(failed) = started {
                world.remove_unused(files.as_slice()).await;
                return Err(failed.at(&FINALIZE));
            }
        }
        Ok((files.map_or(BuildFiles::Base, BuildFiles::Kept), settings))
    }

    /// All stages with what they begin with. Nothing is brought here yet.
    async fn plan(&self, world: &World) -> Result<Vec<Stage>, Failed> {
        let (mut stages, mut first) = (Vec::new(), 1);
        let mut ends: Vec<(String, Defaults)> = Vec::new();
        for request in &self.request.stages {
            let found = origin::find(world, &self.template, &request.origin, &ends).await?;
            let earlier: Vec<String> = ends.iter().map(|(key, _)| key.clone()).collect();
            let ground = Ground { key: &found.key, settings: &found.settings, first, earlier: &earlier };
            let planned = plan::plan(&ground, &request.steps, self.request.force);
            let planned = planned.map_err(|error| Failed::new(error.message).at(&error.step))?;
            first += request.steps.len();
            ends.push((planned.key.clone(), planned.settings.clone()));
            stages.push(Stage { found, planned });
        }
        Ok(stages)
    }

    /// Those after the last step, with what is started.
    fn settings(&self, after: &Defaults) -> Defaults {
        let BuildRequest { start_command, ready_command, stages, .. } = &self.request;
        let own = start_command.is_some() || ready_command.is_some();
        // A template on top of another starts what that one starts, unless it says otherwise.
        let inherited = match stages.last().map(|stage| &stage.origin) {
            Some(Origin::Template(resolved)) if !own => Some(&resolved.defaults),
            _ => None,
        };
        Defaults {
            start_command: inherited.map_or(start_command, |defaults| &defaults.start_command).clone(),
            ready_command: inherited.map_or(ready_command, |defaults| &defaults.ready_command).clone(),
            ..after.clone()
        }
    }

    /// The files as whoever comes next will have them; none when they are the base's.
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

    pub(super) fn reporter<'a>(&'a self, world: &'a World, step: Option<String>) -> Reporter<'a> {
        Reporter { world, log: &self.log, step }
    }

    pub(super) async fn machine<'a>(
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

    /// Proves that what the template starts does start. The files are those from before: every sandbox starts it anew.
    async fn start(
        &self,
        world: &Arc<World>,
        machine: &mut Option<BuildMachine>,
        files: Option<&FilesId>,
        settings: &Defaults,
    ) -> Result<(), Failed> {
        let reporter = self.reporter(world, Some(FINALIZE.to_owned()));
        let machine = self.machine(world, machine, files).await?;
        let Defaults { env, user, workdir, start_command, ready_command } = settings;
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

/// The latest state that is known already, and the index after the step that leads to it; nothing when none is.
pub(super) fn cached(world: &World, planned: &PlannedStage) -> (Option<FilesId>, usize) {
    let steps = planned.steps.iter().enumerate().rev();
    let usable = steps.filter(|(_, step)| step.may_be_cached && step.act != Act::Nothing);
    let found = usable.filter_map(|(index, step)| Some((world.builds.layers.find(&step.key)?, index + 1))).next();
    found.map_or((None, 0), |(files, done)| (Some(files), done))
}

/// Which stages must be looked into: the last, and those that something not yet known is taken from.
fn needed(world: &World, stages: &[Stage]) -> Vec<bool> {
    let mut needed = vec![false; stages.len()];
    if let Some(last) = needed.last_mut() {
        *last = true;
    }
    for (number, Stage { found, planned }) in stages.iter().enumerate().rev() {
        if !needed[number] {
            continue;
        }
        let (_, done) = cached(world, planned);
        if let (Source::Stage(earlier), 0) = (&found.source, done) {
            needed[*earlier] = true;
        }
        for step in &planned.steps[done..] {
            if let Act::Copy(copy) = &step.act
                && let CopyFrom::Stage { stage, .. } = copy.from
            {
                needed[stage] = true;
            }
        }
    }
    needed
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
