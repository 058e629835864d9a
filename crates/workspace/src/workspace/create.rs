//! Makes a workspace: record, sandbox, and then either the project's newest snapshot or the steps of the set-up. Whatever
//! breaks off, creating it again goes on from there.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use sdk::Sandbox;
use serde_json::Value;
use tracing::info;

use super::core::{Core, Turn, services, to_value};
use super::details::{Details, Place, Run};
use super::error::{OpenError, SetupError, WorkspaceError};
use super::lease::Holding;
use super::wake::Found;
use crate::clock::later;
use crate::devserver::Start;
use crate::events::EventKind;
use crate::faults::{Point, reach};
use crate::house::House;
use crate::ledger::budget_used_up;
use crate::name::WorkspaceName;
use crate::provider::{Limits, Skipped};
use crate::records::{ChangeError, WorkspaceRecord, WorkspaceState};
use crate::setup::{self, Prepare, Progress, Setup, StepFailed};
use crate::shell;
use crate::snapshot::{RestoreError, Restored, Which};

/// How a set-up went.
pub(crate) struct SetUp {
    /// Providers that come first and did not take the sandbox.
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) limits: Limits,
    /// The project had snapshots: its newest files are there, and the steps of the set-up were left out.
    pub(crate) restored: Option<Restored>,
}

impl Core {
    /// Takes the lease and writes the record, or goes on with one that was not finished.
    pub(crate) async fn begin(house: Arc<House>, name: &WorkspaceName, setup: &Setup) -> Result<Self, SetupError> {
        if let Some(name) = setup.env.keys().find(|name| !is_variable(name)) {
            return Err(SetupError::VariableName(name.clone()));
        }
        // Somebody may be working in it, for hours: that is told at once.
        let known = house.records.workspace(name).await.map_err(OpenError::from)?;
        if known.is_some_and(|record| record.state != WorkspaceState::SettingUp) {
            return Err(SetupError::Exists(name.clone()));
        }
        let meters = house.ledger.meters(house.settings.clock.now()).await.map_err(OpenError::from)?;
        if let Some(limit) = budget_used_up(&meters, name.as_str()) {
            return Err(SetupError::OverBudget { workspace: name.clone(), limit });
        }
        let holding = Holding::take(Arc::clone(&house), name, house.settings.lease_wait).await;
        let holding = holding.map_err(OpenError::of_lease)?;
        match Self::record(&house, &holding, name, setup).await {
            Ok((record, details)) => Ok(Self::new(house, holding, record, details)),
            Err(error) => {
                holding.release().await;
                Err(error)
            }
        }
    }

    async fn record(
        house: &House,
        holding: &Holding,
        name: &WorkspaceName,
        setup: &Setup,
    ) -> Result<(WorkspaceRecord, Details), SetupError> {
        let known = house.records.workspace(name).await.map_err(OpenError::from)?;
        let now = house.settings.clock.now();
        let (mut record, mut details) = match known {
            Some(record) if record.state == WorkspaceState::SettingUp => {
                let details = read_details(&record)?;
                (record, details)
            }
            Some(_) => return Err(SetupError::Exists(name.clone())),
            None => (blank(house, name, setup, now), Details::default()),
        };
        // Who tries again may have corrected something.
        let ttl = setup.ttl.unwrap_or(house.settings.ttl);
        record.template = setup.template.clone();
        record.env = setup.env.clone();
        record.services = services(setup.dev_server.as_ref());
        record.expires_at = later(now, ttl);
        details.ttl_seconds = ttl.as_secs();
        details.resources = setup.resources;
        details.job = setup.job.clone();
        record.details = to_value(&details);
        let written = match house.records.insert_workspace(&record, &holding.lease()).await {
            Err(ChangeError::Exists(_)) => house.records.update_workspace(&record, &holding.lease()).await,
            other => other,
        };
        written.map_err(|error| SetupError::Failed { workspace: name.clone(), source: error.into() })?;
        Ok((record, details))
    }

    /// Does what is not done yet.
    pub(crate) async fn set_up(&self, setup: &Setup) -> Result<SetUp, SetupError> {
        let turn = self.turn().await;
        reach(Point::CreateRecorded).await;
        let failed = |source: WorkspaceError| match source {
            WorkspaceError::Place(error) => SetupError::Place(error),
            source => SetupError::Failed { workspace: self.name.clone(), source },
        };
        let (sandbox, skipped) = match self.take_up(&turn).await.map_err(failed)? {
            Some(sandbox) => (sandbox, Vec::new()),
            None => self.first_sandbox(&turn, setup).await.map_err(failed)?,
        };
        let restored = self.newest_files(&turn, &sandbox, setup).await.map_err(failed)?;
        let own = restored.as_ref().is_some_and(|restored| restored.project == self.project);
        if restored.is_none() {
            let mut progress = self.seat().details.setup.clone();
            let save = |progress: Progress| self.store_progress(&turn, progress);
            // In a box its lifetimes are plain, so that it can be seen to be `Send`.
            let steps: BoxFuture<'_, Result<(), StepFailed>> = setup::run(&sandbox, setup, &mut progress, save).boxed();
            steps.await?;
            for note in progress.notes() {
                self.notice(note);
            }
        }
        if own {
            self.declare_remembered(&turn).await.map_err(|error| failed(error.into()))?;
        }
        self.declare_found(&turn, &sandbox).await.map_err(|error| failed(error.into()))?;
        self.start_services(&sandbox, Start::AfterRestore).await;
        reach(Point::CreateSetUp).await;
        shell::sync_files(&sandbox).await;
        let head = self.head(&sandbox).await;
        let changed = self.update(&turn, |record, details| {
            record.state = WorkspaceState::Ready;
            details.head = head;
            details.epoch += 1;
            details.saved = own;
            details.unsaved = !own;
        });
        changed.await.map_err(|error| failed(error.into()))?;
        let (provider, id) = self.whereabouts();
        let limits = self.house.orchestrator.provider(&provider).map_err(SetupError::Place)?.limits();
        info!(workspace = %self.name, %provider, sandbox = id, "set up");
        self.tell(EventKind::Created { provider, sandbox: id }).await;
        Ok(SetUp { skipped, limits, restored })
    }

    async fn store_progress(&self, turn: &Turn<'_>, progress: Progress) -> Result<(), ChangeError> {
        self.update(turn, |_, details| details.setup = progress).await
    }

    /// The sandbox of an attempt before this one, if it still runs.
    async fn take_up(&self, turn: &Turn<'_>) -> Result<Option<Sandbox>, WorkspaceError> {
        if let Some(place) = self.place() {
            if let Found::Running { sandbox, remaining, .. } = self.look(&place).await? {
                self.attach(sandbox.clone(), remaining);
                return Ok(Some(sandbox));
            }
            // Nobody worked in it: what was set up there is set up again.
            self.update(turn, |record, details| {
                record.sandbox = None;
                details.retired.push(place);
            })
            .await?;
        }
        let strays = self.strays(None).await;
        if !strays.is_empty() {
            self.update(turn, |_, details| details.retired.extend(strays)).await?;
        }
        self.end_retired(turn).await?;
        Ok(None)
    }

    async fn first_sandbox(&self, turn: &Turn<'_>, setup: &Setup) -> Result<(Sandbox, Vec<Skipped>), WorkspaceError> {
        let placed = self.house.orchestrator.create(&self.request(setup.provider.clone(), None)).await?;
        reach(Point::CreateMade).await;
        let place = Place { provider: placed.provider.clone(), sandbox: placed.sandbox.id().clone() };
        let run = Run::of(&placed);
        let noted = self.update(turn, |record, details| {
            record.provider = place.provider.clone();
            record.sandbox = Some(place.sandbox.clone());
            details.run = Some(run);
        });
        if let Err(error) = noted.await {
            self.end(&place).await;
            return Err(error.into());
        }
        reach(Point::CreateNoted).await;
        self.attach(placed.sandbox.clone(), self.settings().clock.until(run.ends_at));
        Ok((placed.sandbox, placed.skipped))
    }

    /// The files of the project's newest snapshot, if it has any, or else of the project that the set-up begins from.
    async fn newest_files(
        &self,
        turn: &Turn<'_>,
        sandbox: &Sandbox,
        setup: &Setup,
    ) -> Result<Option<Restored>, WorkspaceError> {
        if self.seat().details.setup.clone() != Progress::default() {
            return Ok(None);
        }
        let own = if self.house.snapshots.has_any(&self.project).await? {
            match self.house.snapshots.restore(sandbox, &self.project, Which::Newest).await {
                Ok(restored) => Some((restored, "the project".to_owned())),
                Err(error @ RestoreError::NoSnapshot { .. }) => {
                    self.notice(&format!("The project's snapshots are of no use: {error}"));
                    None
                }
                Err(error) => return Err(error.into()),
            }
        } else {
            None
        };
        let found = match (own, &setup.from) {
            (None, Some(from)) => {
                let restored = self.house.snapshots.restore(sandbox, from, Which::Newest).await?;
                Some((restored, format!("project {from}")))
            }
            (own, _) => own,
        };
        let Some((restored, whose)) = found else { return Ok(None) };
        let absent = self.absent(&restored.left_out);
        let Setup { repo, prepare, .. } = setup;
        let unused = match (repo.is_some(), *prepare != Prepare::default()) {
            (true, true) => " Repository and preparation were left out.",
            (true, false) => " The repository was left out.",
            (false, true) => " The preparation was left out.",
            (false, false) => "",
        };
        self.notice(&format!("The files are those of snapshot {} of {whose}.{unused}{absent}", restored.stamp));
        self.store_notices(turn).await?;
        Ok(Some(restored))
    }
}

/// A workspace of which nothing is there yet.
fn blank(house: &House, name: &WorkspaceName, setup: &Setup, now: Timestamp) -> WorkspaceRecord {
    let first = house.orchestrator.providers().first().map(|provider| provider.name().clone());
    let provider = setup.provider.clone().or(first).expect("a house has a provider, else it is not built");
    WorkspaceRecord {
        name: name.clone(),
        project: name.as_str().parse().expect("every name of a workspace can be a project's id"),
        provider,
        sandbox: None,
        state: WorkspaceState::SettingUp,
        paused: false,
        template: None,
        created_at: now,
        expires_at: now,
        services: Value::Null,
        env: std::collections::BTreeMap::new(),
        details: Value::Null,
    }
}

/// As every shell takes it.
fn is_variable(name: &str) -> bool {
    let letter = |byte: u8| byte == b'_' || byte.is_ascii_alphabetic();
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// What a record carries for us.
pub(crate) fn read_details(record: &WorkspaceRecord) -> Result<Details, OpenError> {
    if record.details.is_null() {
        return Ok(Details::default());
    }
    serde_json::from_value(record.details.clone())
        .map_err(|error| OpenError::Damaged { workspace: record.name.clone(), reason: error.to_string() })
}
