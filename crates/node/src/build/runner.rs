//! Runs a build: resolves the origins of its stages, runs the stages that are needed and keeps the
//! files of the last one.

use std::sync::Arc;
use std::time::Duration;

use engine::{EngineError, FilesId, Resources};
use tokio::time::Instant;

use super::log::{BuildLog, Splitter};
use super::machine::{BUILD_TIMEOUT, BuildMachine};
use super::origin::{self, OriginFiles, ResolvedOrigin};
use super::plan::{self, CopyFrom, PlannedStage, StageContext, StepAction};
use super::{BuildRequest, Origin};
use crate::faults::Point;
use crate::guest_process::{self, Output, Script};
use crate::id::new_files_id;
use crate::log::LogLevel;
use crate::owner::chain;
use crate::ports::RecordsError;
use crate::start_command::{self, DEFAULT_USER};
use crate::state::NodeState;
use crate::template::{BuildFiles, Defaults};

/// Longest wait between two attempts of the ready command.
const READY_INTERVAL: Duration = Duration::from_secs(2);
const READY_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long a start command runs without a ready command before it counts as started.
const START_WAIT: Duration = Duration::from_secs(20);
const FINALIZE: &str = "finalize";
const BASE: &str = "base";

/// Why a build failed, and in which step.
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
    pub(super) node_state: &'a NodeState,
    pub(super) log: &'a BuildLog,
    pub(super) step: Option<String>,
}

impl Reporter<'_> {
    pub(super) fn write(&self, level: LogLevel, message: &str) {
        self.log.write(&*self.node_state.clock, level, self.step.as_deref(), message);
    }
}

/// A build with everything that it needs.
pub(super) struct Job {
    pub(super) template: String,
    pub(super) request: BuildRequest,
    pub(super) resources: Resources,
    pub(super) log: Arc<BuildLog>,
}

/// A stage that was planned.
pub(super) struct Stage {
    found: ResolvedOrigin,
    pub(super) planned: PlannedStage,
}

/// Resources that are released when a build ends, with success or not.
#[derive(Default)]
pub(super) struct BuildResources {
    pub(super) machine: Option<BuildMachine>,
    /// Files at the ends of stages that later stages need.
    files: Vec<FilesId>,
}

impl Job {
    /// Runs the build and returns its files and settings. Ends within [`BUILD_TIMEOUT`]. If the
    /// build fails or the server stops, only the entries of the cache are left.
    pub(super) async fn run(&self, node_state: &Arc<NodeState>) -> Result<(BuildFiles, Defaults), Failed> {
        let mut held = BuildResources::default();
        let work = self.work(node_state, &mut held);
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(BUILD_TIMEOUT, work) => {
                outcome.unwrap_or_else(|_| Err(Failed::new("the build took too long")))
            }
            () = node_state.stop.cancelled() => Err(Failed::new("the server was stopped during the build")),
        };
        if let Some(machine) = held.machine {
            machine.end().await;
        }
        node_state.remove_unused(&held.files).await;
        outcome
    }

    async fn work(
        &self,
        node_state: &Arc<NodeState>,
        held: &mut BuildResources,
    ) -> Result<(BuildFiles, Defaults), Failed> {
        let stages = self.plan(node_state).await.map_err(|failed| failed.at(&BASE))?;
        let last = stages.len().checked_sub(1).ok_or_else(|| Failed::new("there is no stage to build"))?;
        let settings = self.settings(&stages[last].planned.settings);
        let needed = find_needed(node_state, &stages);
        let mut ends: Vec<Option<FilesId>> = Vec::new();
        let mut current = None;
        for (number, stage) in stages.into_iter().enumerate() {
            if !needed[number] {
                self.log_cached_stage(node_state, &stage.planned);
                ends.push(None);
                continue;
            }
            let Stage { found, planned } = stage;
            let (mut begins, done) = find_cached(node_state, &planned);
            if done == 0 {
                let reporter = self.reporter(node_state, Some(BASE.to_owned()));
                let provided = origin::provide(node_state, &self.template, found, &ends, &reporter).await;
                begins = provided.map_err(|failed| failed.at(&BASE))?;
            } else if let Some(step) = planned.steps.get(done - 1) {
                node_state.builds.layers.touch(&step.key, node_state.clock.now()).await?;
            }
            self.run_steps(node_state, held, (begins.as_ref(), done), &planned.steps, &ends).await?;
            if number == last {
                current = begins;
            } else {
                let end = self.keep(node_state, held.machine.as_ref(), begins.as_ref()).await?;
                held.files.extend(end.clone());
                node_state.faults.pass(Point::BuildStageKept);
                ends.push(end);
                if let Some(machine) = held.machine.take() {
                    machine.end().await;
                }
            }
        }
        // The template gets a copy from before the start command runs, since the cache may evict
        // its own.
        let files = self.keep(node_state, held.machine.as_ref(), current.as_ref()).await;
        let files = files.map_err(|error| Failed::from(error).at(&FINALIZE))?;
        node_state.faults.pass(Point::BuildFilesKept);
        if settings.start_command.is_some() || settings.ready_command.is_some() {
            let started = self.start(node_state, &mut held.machine, files.as_ref(), &settings).await;
            if let Err(failed) = started {
                node_state.remove_unused(files.as_slice()).await;
                return Err(failed.at(&FINALIZE));
            }
        }
        Ok((files.map_or(BuildFiles::Base, BuildFiles::Kept), settings))
    }

    /// Plans all stages and resolves their origins, without downloading anything.
    async fn plan(&self, node_state: &NodeState) -> Result<Vec<Stage>, Failed> {
        let (mut stages, mut first) = (Vec::new(), 1);
        let mut ends: Vec<(String, Defaults)> = Vec::new();
        for request in &self.request.stages {
            let found = origin::find(node_state, &self.template, &request.origin, &ends).await?;
            let earlier: Vec<String> = ends.iter().map(|(key, _)| key.clone()).collect();
            let context = StageContext { key: &found.key, settings: &found.settings, first, earlier: &earlier };
            let planned = plan::plan(&context, &request.steps, self.request.force);
            let planned = planned.map_err(|error| Failed::new(error.message).at(&error.step))?;
            first += request.steps.len();
            ends.push((planned.key.clone(), planned.settings.clone()));
            stages.push(Stage { found, planned });
        }
        Ok(stages)
    }

    /// The settings after the last step, with the start and ready commands.
    fn settings(&self, after: &Defaults) -> Defaults {
        let BuildRequest { start_command, ready_command, stages, .. } = &self.request;
        let own = start_command.is_some() || ready_command.is_some();
        // A template inherits the commands of the template it is built on, unless the request has
        // its own.
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

    /// Copies the files at the end of a stage; `None` if they are the base's.
    async fn keep(
        &self,
        node_state: &NodeState,
        machine: Option<&BuildMachine>,
        current: Option<&FilesId>,
    ) -> Result<Option<FilesId>, EngineError> {
        match (machine, current) {
            (Some(machine), _) => machine.keep_files().await.map(Some),
            (None, Some(current)) => {
                let files = new_files_id();
                node_state.engine.copy_files(current, &files).await?;
                Ok(Some(files))
            }
            (None, None) => Ok(None),
        }
    }

    pub(super) fn reporter<'a>(&'a self, node_state: &'a NodeState, step: Option<String>) -> Reporter<'a> {
        Reporter { node_state, log: &self.log, step }
    }

    pub(super) async fn machine<'a>(
        &self,
        node_state: &Arc<NodeState>,
        machine: &'a mut Option<BuildMachine>,
        files: Option<&FilesId>,
    ) -> Result<&'a BuildMachine, EngineError> {
        match machine {
            Some(machine) => Ok(machine),
            empty => Ok(empty.insert(BuildMachine::boot(node_state, files, self.resources).await?)),
        }
    }

    /// Checks that the start command starts. Its effects on the files are not kept: every sandbox
    /// runs it again.
    async fn start(
        &self,
        node_state: &Arc<NodeState>,
        machine: &mut Option<BuildMachine>,
        files: Option<&FilesId>,
        settings: &Defaults,
    ) -> Result<(), Failed> {
        let reporter = self.reporter(node_state, Some(FINALIZE.to_owned()));
        let machine = self.machine(node_state, machine, files).await?;
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
                    tokio::time::timeout(READY_TIMEOUT, ready).await.map_err(late)
                }
                None => {
                    tokio::time::sleep(START_WAIT).await;
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

/// Returns the files of the latest cached state and the number of steps that lead to it; `(None,
/// 0)` without any.
pub(super) fn find_cached(node_state: &NodeState, planned: &PlannedStage) -> (Option<FilesId>, usize) {
    let steps = planned.steps.iter().enumerate().rev();
    let usable = steps.filter(|(_, step)| step.may_be_cached && step.act != StepAction::Nothing);
    let found = usable.filter_map(|(index, step)| Some((node_state.builds.layers.find(&step.key)?, index + 1))).next();
    found.map_or((None, 0), |(files, done)| (Some(files), done))
}

/// Returns which stages must run: the last one, and those that an uncached step or stage depends
/// on.
fn find_needed(node_state: &NodeState, stages: &[Stage]) -> Vec<bool> {
    let mut needed = vec![false; stages.len()];
    if let Some(last) = needed.last_mut() {
        *last = true;
    }
    for (number, Stage { found, planned }) in stages.iter().enumerate().rev() {
        if !needed[number] {
            continue;
        }
        let (_, done) = find_cached(node_state, planned);
        if let (OriginFiles::Stage(earlier), 0) = (&found.source, done) {
            needed[*earlier] = true;
        }
        for step in &planned.steps[done..] {
            if let StepAction::Copy(copy) = &step.act
                && let CopyFrom::Stage { stage, .. } = copy.from
            {
                needed[stage] = true;
            }
        }
    }
    needed
}

/// Logs the output of a start command; returns only if it fails. A command that exits with 0 may
/// have left processes in the background.
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
