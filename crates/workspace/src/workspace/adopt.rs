//! Adds to a workspace: adopts a running sandbox, declares and starts a dev server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sdk::{Sandbox, SandboxId};
use tracing::warn;

use super::core::{Attached, OpGuard, SavedFor, WorkspaceCore, services};
use super::details::{Details, Run, SandboxRef};
use super::error::{Unavailable, WorkspaceError};
use super::resume::{AutoRestore, SandboxStatus};
use crate::clock::later;
use crate::devserver::{self, Choice, DevServer, Ready, Start};
use crate::events::EventKind;
use crate::name::ProviderName;
use crate::records::{RecordChangeError, WorkspaceState};
use crate::setup::PROJECT_DIRECTORY;
use checkpoint::SavedCheckpoint;
use text::error_chain;

impl WorkspaceCore {
    /// Makes sure that the sandbox runs, for a caller that holds the operation lock and so needs no
    /// sandbox guard. Also returns whether it was restored from a checkpoint.
    pub(super) async fn ensure_running(
        &self,
        op: &OpGuard<'_>,
    ) -> Result<(Attached, Option<Arc<AutoRestore>>), WorkspaceError> {
        self.check().await?;
        if let Some((attached, _)) = self.ready_sandbox() {
            return Ok((attached, None));
        }
        let outcome = self.ensure_ready(op).await?;
        let attached = self.attached().ok_or_else(|| Unavailable::NotSetUp(self.name.clone()))?;
        Ok((attached, outcome.auto_restore()))
    }

    pub(super) async fn save_checkpoint(&self) -> Result<SavedCheckpoint, WorkspaceError> {
        let op = self.begin_op().await;
        let (attached, _) = self.ensure_running(&op).await?;
        Ok(self.save(&op, &attached.sandbox, SavedFor::Request).await?)
    }

    /// Starts a server and declares it; without one, starts the declared server or the one that
    /// [`devserver::choose`] selects.
    pub(super) async fn serve(&self, server: Option<DevServer>) -> Result<Option<Ready>, WorkspaceError> {
        let op = self.begin_op().await;
        let (Attached { sandbox, .. }, _) = self.ensure_running(&op).await?;
        let Choice { server, fallback_port } = match server {
            Some(server) => Choice { server: Some(server), fallback_port: None },
            None => devserver::choose(&sandbox, PROJECT_DIRECTORY, self.dev_server()).await?,
        };
        let ready = match (server, fallback_port) {
            (Some(server), fallback_port) => {
                self.update(&op, |record, _| record.services = services(Some(&server))).await?;
                match (devserver::start(&sandbox, &server, Start::AfterRestore).await, fallback_port) {
                    (Ok(ready), _) => ready,
                    (Err(error), Some(port)) => {
                        warn!(workspace = %self.name, error = %self.mask_text(&error_chain(&error)), port, "dev server failed, showing another port");
                        self.update(&op, |record, _| record.services = services(None)).await?;
                        Ready::already_running(port)
                    }
                    (Err(error), None) => return Err(error.into()),
                }
            }
            (None, Some(port)) => Ready::already_running(port),
            (None, None) => return Ok(None),
        };
        let url = sandbox.url(ready.port);
        self.emit(EventKind::DevServerReady { sandbox: sandbox.id().to_string(), port: ready.port, url }).await;
        Ok(Some(ready))
    }

    /// Makes sure that the declared server runs, or else the one that shows the project. Installs
    /// nothing, and lets a starting server continue.
    pub(super) async fn ensure_served(&self) -> Result<Option<Ready>, WorkspaceError> {
        let Some(server) = self.dev_server() else { return self.serve(None).await };
        let op = self.begin_op().await;
        let (Attached { sandbox, .. }, _) = self.ensure_running(&op).await?;
        let ready = devserver::start(&sandbox, &server, Start::Plain).await?;
        let url = sandbox.url(ready.port);
        self.emit(EventKind::DevServerReady { sandbox: sandbox.id().to_string(), port: ready.port, url }).await;
        Ok(Some(ready))
    }

    /// Declares the detected server, if none is declared.
    pub(super) async fn declare_detected(&self, op: &OpGuard<'_>, sandbox: &Sandbox) -> Result<(), RecordChangeError> {
        if self.dev_server().is_some() {
            return Ok(());
        }
        match self.context.upkeep.detect_server(sandbox).await {
            Ok(Some(server)) => self.update(op, |record, _| record.services = services(Some(&server))).await,
            Ok(None) => Ok(()),
            Err(error) => {
                warn!(workspace = %self.name, error = %error_chain(&error), "dev server could not be detected");
                Ok(())
            }
        }
    }

    /// Makes a running sandbox the workspace's own. The previous one is checkpointed and killed.
    pub(super) async fn adopt(&self, id: &SandboxId) -> Result<(), WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        if self.state().record.state == WorkspaceState::Moving {
            self.settle(&op).await?;
        }
        let (place, found) = self.find(id).await?;
        let left_behind =
            {
                let Details { left_behind, lost, .. } = &self.state().details;
                left_behind.iter().chain(lost).any(|known| known.sandbox == place.sandbox)
            } || self.context.records.orphans().await?.iter().any(|orphan| orphan.sandbox == place.sandbox);
        let (sandbox, remaining, size) = match found {
            SandboxStatus::Running { sandbox, remaining, size } => (sandbox, remaining, size),
            SandboxStatus::Paused { size } if left_behind => {
                let provider = self.context.orchestrator.provider(&place.provider)?;
                let lifetime = provider.plan().lifetime(self.settings().resumed.min(self.ttl_left()));
                (self.service(&place.provider).await?.connect(id, lifetime).await?, lifetime, size)
            }
            SandboxStatus::Paused { .. } | SandboxStatus::Gone => return Err(WorkspaceError::NotRunning(id.clone())),
        };
        let closed = self.gate.close();
        closed.drain(self.settings().drain_timeout).await;
        let current = self.current_sandbox();
        let is_same = current.as_ref().is_some_and(|current| current.sandbox == place.sandbox);
        let before = current.filter(|_| !is_same);
        if let Some(before) = &before
            && let Ok(SandboxStatus::Running { sandbox, .. }) = self.inspect_sandbox(before).await
        {
            self.save(&op, &sandbox, SavedFor::Handover).await?;
        }
        let run = Run { started_at: self.now(), ends_at: later(self.now(), remaining), size };
        self.update(&op, |record, details| {
            record.state = WorkspaceState::Ready;
            record.provider = place.provider.clone();
            record.sandbox = Some(place.sandbox.clone());
            record.paused = false;
            details.saved_at_pause = None;
            details.stopped = None;
            details.run = Some(run);
            // Its disk is unknown, and so is whether a checkpoint has its files.
            details.mark = details.mark.take().filter(|_| is_same);
            details.unsaved |= !is_same;
            details.epoch += u64::from(before.is_some());
            for places in [&mut details.left_behind, &mut details.lost, &mut details.retired] {
                places.retain(|known| known.sandbox != place.sandbox);
            }
            details.retired.extend(before);
        })
        .await?;
        if !is_same {
            self.unsaved.store(true, Ordering::Release);
        }
        self.attach(sandbox, remaining);
        self.open_interval(&place, &run).await;
        self.kill_retired(&op).await
    }

    /// Finds the provider of a sandbox; the workspace's own is asked first.
    async fn find(&self, id: &SandboxId) -> Result<(SandboxRef, SandboxStatus), WorkspaceError> {
        let own = self.state().record.provider.clone();
        let all = self.context.orchestrator.providers().iter().map(|provider| provider.name().clone());
        let others: Vec<ProviderName> = all.filter(|name| *name != own).collect();
        for provider in std::iter::once(own).chain(others) {
            let place = SandboxRef { provider, sandbox: id.clone() };
            match self.inspect_sandbox(&place).await {
                Ok(SandboxStatus::Gone) => {}
                Ok(found) => return Ok((place, found)),
                Err(error) => {
                    warn!(sandbox = %place, error = %error_chain(&error), "provider could not be asked for the sandbox");
                }
            }
        }
        Err(sdk::SandboxError::NotFound { id: id.clone() }.into())
    }
}
