//! Creates a workspace: record, sandbox, and then either the project's newest checkpoint or the
//! steps of the setup. After an interruption, creating it again continues from there.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use sdk::Sandbox;
use serde_json::Value;
use tracing::info;
use uuid::Uuid;

use super::core::{OpGuard, WorkspaceCore, services, to_value};
use super::details::{Details, Run, SandboxRef};
use super::error::{OpenError, SetupError, WorkspaceError};
use super::lease::HeldLease;
use super::resume::SandboxStatus;
use crate::clock::later;
use crate::context::WorkspaceContext;
use crate::devserver::Start;
use crate::events::EventKind;
use crate::faults::{WorkspacePoint, reach};
use crate::ledger::find_used_up_budget;
use crate::name::WorkspaceName;
use crate::provider::{Limits, SkippedProvider};
use crate::records::{RecordChangeError, WorkspaceRecord, WorkspaceState};
use crate::setup::{self, Prepare, Progress, Setup, StepFailed};
use checkpoint::{RestoreError, Restored, Which};

/// The result of a setup.
pub(crate) struct SetUp {
    /// The preferred providers that were skipped.
    pub(crate) skipped: Vec<SkippedProvider>,
    pub(crate) limits: Limits,
    /// The restored checkpoint, if the project had one; then the steps of the setup were skipped.
    pub(crate) restored: Option<Restored>,
}

impl WorkspaceCore {
    /// Takes the lease and writes the record, or continues an unfinished one.
    pub(crate) async fn begin(
        context: Arc<WorkspaceContext>,
        name: &WorkspaceName,
        setup: &Setup,
    ) -> Result<Self, SetupError> {
        if let Some(name) = setup.env.keys().find(|name| !is_variable(name)) {
            return Err(SetupError::VariableName(name.clone()));
        }
        // Reported before waiting for the lease: another process may hold it for hours.
        let known = context.records.workspace(name).await.map_err(OpenError::from)?;
        if known.is_some_and(|record| record.state != WorkspaceState::SettingUp) {
            return Err(SetupError::Exists(name.clone()));
        }
        let meters = context.ledger.meters(context.settings.clock.now()).await.map_err(OpenError::from)?;
        if let Some(limit) = find_used_up_budget(&meters, name.as_str()) {
            return Err(SetupError::OverBudget { workspace: name.clone(), limit });
        }
        let held_lease = HeldLease::take(Arc::clone(&context), name, context.settings.lease_timeout).await;
        let held_lease = held_lease.map_err(OpenError::from_lease)?;
        match Self::record(&context, &held_lease, name, setup).await {
            Ok((record, details)) => Ok(Self::new(context, held_lease, record, details)),
            Err(error) => {
                held_lease.release().await;
                Err(error)
            }
        }
    }

    async fn record(
        context: &WorkspaceContext,
        held_lease: &HeldLease,
        name: &WorkspaceName,
        setup: &Setup,
    ) -> Result<(WorkspaceRecord, Details), SetupError> {
        let known = context.records.workspace(name).await.map_err(OpenError::from)?;
        let now = context.settings.clock.now();
        let (mut record, mut details) = match known {
            Some(record) if record.state == WorkspaceState::SettingUp => {
                let details = read_details(&record)?;
                (record, details)
            }
            Some(_) => return Err(SetupError::Exists(name.clone())),
            None => {
                let details = Details { id: Some(Uuid::new_v4()), ..Details::default() };
                (new_record(context, name, setup, now), details)
            }
        };
        // The caller may have corrected the setup since the last attempt.
        let ttl = setup.ttl.unwrap_or(context.settings.ttl);
        record.template = setup.template.clone();
        record.env = setup.env.clone();
        record.services = services(setup.dev_server.as_ref());
        record.expires_at = later(now, ttl);
        details.ttl_seconds = ttl.as_secs();
        details.resources = setup.resources;
        details.job = setup.job.clone();
        record.details = to_value(&details);
        let written = match context.records.insert_workspace(&record, &held_lease.lease()).await {
            Err(RecordChangeError::Exists(_)) => context.records.update_workspace(&record, &held_lease.lease()).await,
            other => other,
        };
        written.map_err(|error| SetupError::Failed { workspace: name.clone(), source: error.into() })?;
        Ok((record, details))
    }

    /// Runs the steps that are not done.
    pub(crate) async fn set_up(&self, setup: &Setup) -> Result<SetUp, SetupError> {
        let op = self.begin_op().await;
        reach(WorkspacePoint::CreateRecorded).await;
        let failed = |source: WorkspaceError| match source {
            WorkspaceError::Placement(error) => SetupError::Placement(error),
            source => SetupError::Failed { workspace: self.name.clone(), source },
        };
        let (sandbox, skipped) = match self.reattach(&op).await.map_err(failed)? {
            Some(sandbox) => (sandbox, Vec::new()),
            None => self.create_first_sandbox(&op, setup).await.map_err(failed)?,
        };
        let restored = self.restore_newest(&op, &sandbox, setup).await.map_err(failed)?;
        let own = restored.as_ref().is_some_and(|restored| restored.project == self.project);
        if restored.is_none() {
            let mut progress = self.state().details.setup.clone();
            let save = |progress: Progress| self.store_progress(&op, progress);
            // Boxed, so that the compiler can prove it `Send`.
            let steps: BoxFuture<'_, Result<(), StepFailed>> = setup::run(&sandbox, setup, &mut progress, save).boxed();
            steps.await?;
            for note in progress.notes() {
                self.add_notice(note);
            }
        }
        if own {
            self.declare_from_tombstone(&op).await.map_err(|error| failed(error.into()))?;
        }
        self.declare_detected(&op, &sandbox).await.map_err(|error| failed(error.into()))?;
        self.start_services(&sandbox, Start::AfterRestore).await;
        reach(WorkspacePoint::CreateSetUp).await;
        self.context.upkeep.sync_files(&sandbox).await;
        let head = self.head(&sandbox).await;
        let changed = self.update(&op, |record, details| {
            record.state = WorkspaceState::Ready;
            details.head = head;
            details.epoch += 1;
            details.saved = own;
            details.unsaved = !own;
        });
        changed.await.map_err(|error| failed(error.into()))?;
        let (provider, id) = self.location();
        let limits = self.context.orchestrator.provider(&provider).map_err(SetupError::Placement)?.limits();
        info!(workspace = %self.name, %provider, sandbox = id, "workspace set up");
        self.emit(EventKind::Created { provider, sandbox: id }).await;
        Ok(SetUp { skipped, limits, restored })
    }

    async fn store_progress(&self, op: &OpGuard<'_>, progress: Progress) -> Result<(), RecordChangeError> {
        self.update(op, |_, details| details.setup = progress).await
    }

    /// The sandbox of an earlier attempt, if it still runs.
    async fn reattach(&self, op: &OpGuard<'_>) -> Result<Option<Sandbox>, WorkspaceError> {
        if let Some(place) = self.current_sandbox() {
            if let SandboxStatus::Running { sandbox, remaining, .. } = self.inspect_sandbox(&place).await? {
                self.attach(sandbox.clone(), remaining);
                return Ok(Some(sandbox));
            }
            // It was never used, so setup is repeated in a new one.
            self.update(op, |record, details| {
                record.sandbox = None;
                details.retired.push(place);
            })
            .await?;
        }
        let strays = self.find_strays(None).await.found;
        if !strays.is_empty() {
            self.update(op, |_, details| details.retired.extend(strays)).await?;
        }
        self.kill_retired(op).await?;
        Ok(None)
    }

    async fn create_first_sandbox(
        &self,
        op: &OpGuard<'_>,
        setup: &Setup,
    ) -> Result<(Sandbox, Vec<SkippedProvider>), WorkspaceError> {
        let placed = self.context.orchestrator.create(&self.request(setup.provider.clone(), None)).await?;
        reach(WorkspacePoint::CreateMade).await;
        let place = SandboxRef { provider: placed.provider.clone(), sandbox: placed.sandbox.id().clone() };
        let run = Run::from_placed(&placed);
        let noted = self.update(op, |record, details| {
            record.provider = place.provider.clone();
            record.sandbox = Some(place.sandbox.clone());
            details.run = Some(run);
        });
        if let Err(error) = noted.await {
            self.kill_sandbox(&place).await;
            return Err(error.into());
        }
        reach(WorkspacePoint::CreateNoted).await;
        self.attach(placed.sandbox.clone(), self.settings().clock.until(run.ends_at));
        Ok((placed.sandbox, placed.skipped))
    }

    /// Restores the project's newest checkpoint, if it has any, or else that of the project that
    /// the setup starts from.
    async fn restore_newest(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        setup: &Setup,
    ) -> Result<Option<Restored>, WorkspaceError> {
        if self.state().details.setup.clone() != Progress::default() {
            return Ok(None);
        }
        let own = if self.context.store.newest(&self.project).await?.is_some() {
            match self.context.store.restore(sandbox, &self.project, Which::Newest).await {
                Ok(restored) => Some((restored, "the project".to_owned())),
                Err(error @ RestoreError::NoCheckpoint { .. }) => {
                    self.add_notice(&format!("The project's snapshots are of no use: {error}"));
                    None
                }
                Err(error) => return Err(error.into()),
            }
        } else {
            None
        };
        let found = match (own, &setup.from) {
            (None, Some(from)) => {
                let restored = self.context.store.restore(sandbox, from, Which::Newest).await?;
                Some((restored, format!("project {from}")))
            }
            (own, _) => own,
        };
        let Some((restored, whose)) = found else { return Ok(None) };
        let missing = self.describe_missing(&restored.excluded);
        let Setup { repo, prepare, .. } = setup;
        let unused = match (repo.is_some(), *prepare != Prepare::default()) {
            (true, true) => " Repository and preparation were left out.",
            (true, false) => " The repository was left out.",
            (false, true) => " The preparation was left out.",
            (false, false) => "",
        };
        self.add_notice(&format!("The files are those of snapshot {} of {whose}.{unused}{missing}", restored.stamp));
        self.store_notices(op).await?;
        Ok(Some(restored))
    }
}

/// The record of a new workspace.
fn new_record(context: &WorkspaceContext, name: &WorkspaceName, setup: &Setup, now: Timestamp) -> WorkspaceRecord {
    let first = context.orchestrator.providers().first().map(|provider| provider.name().clone());
    let provider = setup.provider.clone().or(first).expect("a context has a provider, else it is not built");
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

/// Whether every shell accepts the name.
fn is_variable(name: &str) -> bool {
    let letter = |byte: u8| byte == b'_' || byte.is_ascii_alphabetic();
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// Parses the details of a record.
pub(crate) fn read_details(record: &WorkspaceRecord) -> Result<Details, OpenError> {
    if record.details.is_null() {
        return Ok(Details::default());
    }
    serde_json::from_value(record.details.clone())
        .map_err(|error| OpenError::Damaged { workspace: record.name.clone(), reason: error.to_string() })
}
