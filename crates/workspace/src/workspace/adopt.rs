//! What a workspace takes in: a sandbox that runs already, a server that is to run in it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sdk::{Connect, Sandbox, SandboxId};
use tracing::warn;

use super::core::{Attached, Core, SavedFor, Turn, services};
use super::details::{Details, Place, Run};
use super::error::{Unavailable, WorkspaceError};
use super::wake::{BroughtBack, Found};
use crate::chain::chain;
use crate::clock::later;
use crate::devserver::{self, Choice, DevServer, Ready, Start};
use crate::events::EventKind;
use crate::name::ProviderName;
use crate::records::{ChangeError, WorkspaceState};
use crate::setup::PROJECT_DIRECTORY;
use crate::snapshot::Saved;

impl Core {
    /// The sandbox, awake, for somebody who has the turn and therefore needs no pass.
    /// Says also whether it had to be brought back from a snapshot.
    pub(super) async fn awake(&self, turn: &Turn<'_>) -> Result<(Attached, Option<Arc<BroughtBack>>), WorkspaceError> {
        self.check().await?;
        if let Some((attached, _)) = self.is_ready() {
            return Ok((attached, None));
        }
        let woken = self.wake(turn).await?;
        let attached = self.attached().ok_or_else(|| Unavailable::NotSetUp(self.name.clone()))?;
        Ok((attached, woken.brought_back()))
    }

    pub(super) async fn snapshot(&self) -> Result<Saved, WorkspaceError> {
        let turn = self.turn().await;
        let (attached, _) = self.awake(&turn).await?;
        Ok(self.save(&turn, &attached.sandbox, SavedFor::Request).await?)
    }

    /// Starts a server, which is declared from then on; without one, what is declared or shows the project anyway.
    pub(super) async fn serve(&self, server: Option<DevServer>) -> Result<Option<Ready>, WorkspaceError> {
        let turn = self.turn().await;
        let (Attached { sandbox, .. }, _) = self.awake(&turn).await?;
        let Choice { server, else_at } = match server {
            Some(server) => Choice { server: Some(server), else_at: None },
            None => devserver::choose(&sandbox, PROJECT_DIRECTORY, self.dev_server()).await?,
        };
        let ready = match (server, else_at) {
            (Some(server), else_at) => {
                self.update(&turn, |record, _| record.services = services(Some(&server))).await?;
                match (devserver::start(&sandbox, &server, Start::AfterRestore).await, else_at) {
                    (Ok(ready), _) => ready,
                    (Err(error), Some(port)) => {
                        warn!(workspace = %self.name, error = %self.hidden(&chain(&error)), port, "another server is shown");
                        self.update(&turn, |record, _| record.services = services(None)).await?;
                        Ready::found(port)
                    }
                    (Err(error), None) => return Err(error.into()),
                }
            }
            (None, Some(port)) => Ready::found(port),
            (None, None) => return Ok(None),
        };
        let url = sandbox.url(ready.port);
        self.tell(EventKind::DevServerReady { sandbox: sandbox.id().to_string(), port: ready.port, url }).await;
        Ok(Some(ready))
    }

    /// Sees to it that what is declared runs, or else what shows the project. Nothing is installed, and what is starting goes on.
    pub(super) async fn serve_again(&self) -> Result<Option<Ready>, WorkspaceError> {
        let Some(server) = self.dev_server() else { return self.serve(None).await };
        let turn = self.turn().await;
        let (Attached { sandbox, .. }, _) = self.awake(&turn).await?;
        let ready = devserver::start(&sandbox, &server, Start::Plain).await?;
        let url = sandbox.url(ready.port);
        self.tell(EventKind::DevServerReady { sandbox: sandbox.id().to_string(), port: ready.port, url }).await;
        Ok(Some(ready))
    }

    /// What the project's files speak of is declared, where nothing is.
    pub(super) async fn declare_found(&self, turn: &Turn<'_>, sandbox: &Sandbox) -> Result<(), ChangeError> {
        if self.dev_server().is_some() {
            return Ok(());
        }
        match devserver::detect(sandbox, PROJECT_DIRECTORY).await {
            Ok(Some(server)) => self.update(turn, |record, _| record.services = services(Some(&server))).await,
            Ok(None) => Ok(()),
            Err(error) => {
                warn!(workspace = %self.name, error = %chain(&error), "no dev server was looked for");
                Ok(())
            }
        }
    }

    /// Makes a sandbox that runs the workspace's own. The one before it is saved and ended.
    pub(super) async fn adopt(&self, id: &SandboxId) -> Result<(), WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        if self.seat().record.state == WorkspaceState::Moving {
            self.settle(&turn).await?;
        }
        let (place, found) = self.find(id).await?;
        let left_behind = {
            let Details { left_behind, lost, .. } = &self.seat().details;
            left_behind.iter().chain(lost).any(|known| known.sandbox == place.sandbox)
        } || self.house.records.orphans().await?.iter().any(|orphan| orphan.sandbox == place.sandbox);
        let (sandbox, remaining, size) = match found {
            Found::Running { sandbox, remaining, size } => (sandbox, remaining, size),
            Found::Paused { size } if left_behind => {
                let provider = self.house.orchestrator.provider(&place.provider)?;
                let lifetime = provider.plan().lifetime(self.settings().resumed.min(self.ttl_left()));
                let connect = Connect::timeout(lifetime);
                (self.client(&place.provider).await?.connect(id, connect).await?, lifetime, size)
            }
            Found::Paused { .. } | Found::Gone => return Err(WorkspaceError::NotRunning(id.clone())),
        };
        let closed = self.fence.close();
        closed.emptied(self.settings().leave_wait).await;
        let current = self.place();
        let is_same = current.as_ref().is_some_and(|current| current.sandbox == place.sandbox);
        let before = current.filter(|_| !is_same);
        if let Some(before) = &before
            && let Ok(Found::Running { sandbox, .. }) = self.look(before).await
        {
            self.save(&turn, &sandbox, SavedFor::Handover).await?;
        }
        let run = Run { started_at: self.now(), ends_at: later(self.now(), remaining), size };
        self.update(&turn, |record, details| {
            record.state = WorkspaceState::Ready;
            record.provider = place.provider.clone();
            record.sandbox = Some(place.sandbox.clone());
            record.paused = false;
            details.stopped = None;
            details.run = Some(run);
            // Nothing is known of its disk, nor whether a snapshot has what is on it.
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
        self.end_retired(&turn).await
    }

    /// Whose sandbox it is: the workspace's provider is asked first.
    async fn find(&self, id: &SandboxId) -> Result<(Place, Found), WorkspaceError> {
        let own = self.seat().record.provider.clone();
        let all = self.house.orchestrator.providers().iter().map(|provider| provider.name().clone());
        let others: Vec<ProviderName> = all.filter(|name| *name != own).collect();
        for provider in std::iter::once(own).chain(others) {
            let place = Place { provider, sandbox: id.clone() };
            match self.look(&place).await {
                Ok(Found::Gone) => {}
                Ok(found) => return Ok((place, found)),
                Err(error) => warn!(sandbox = %place, error = %chain(&error), "not looked for here"),
            }
        }
        Err(sdk::SandboxError::NotFound { id: id.clone() }.into())
    }
}
