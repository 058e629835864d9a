//! Snapshots: saved states of sandboxes, from which new ones are created.

use futures::Stream;
use http::Method;
use protocol::{SandboxId, rest};

use super::life::SandboxError;
use super::pages::rows;
use super::query::{Path, encode};
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};

/// A snapshot to take: `"name".into()`, or unnamed.
#[derive(Debug, Clone, Default)]
pub struct NewSnapshot {
    body: rest::NewSnapshot,
}

impl NewSnapshot {
    /// Identified by its id only.
    pub fn unnamed() -> Self {
        Self::default()
    }

    /// Also identified by `name`; reusing a name adds a newer state to it.
    pub fn named(name: impl Into<String>) -> Self {
        Self { body: rest::NewSnapshot { name: Some(name.into()), memory: None } }
    }

    /// Saves the files but not the processes.
    #[must_use]
    pub fn files_only(mut self) -> Self {
        self.body.memory = Some(false);
        self
    }
}

impl From<&str> for NewSnapshot {
    fn from(name: &str) -> Self {
        Self::named(name)
    }
}

/// Filters of a list of snapshots; all by default.
#[derive(Debug, Clone, Default)]
pub struct SnapshotQuery {
    sandbox: Option<SandboxId>,
    name: Option<String>,
    page_size: Option<u32>,
}

impl SnapshotQuery {
    pub fn new() -> Self {
        Self::default()
    }

    /// Only snapshots of this sandbox.
    #[must_use]
    pub fn sandbox(mut self, sandbox: &SandboxId) -> Self {
        self.sandbox = Some(sandbox.clone());
        self
    }

    /// Only snapshots with this name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Rows per page, from 1 to 100; 100 by default.
    #[must_use]
    pub fn page_size(mut self, rows: u32) -> Self {
        self.page_size = Some(rows);
        self
    }

    fn path(&self, token: Option<&str>) -> Path {
        Path::new("/snapshots")
            .with("sandboxID", self.sandbox.as_ref())
            .with("name", self.name.as_deref())
            .with("limit", self.page_size)
            .with("nextToken", token)
    }
}

impl Client {
    /// Saves the state of a sandbox, which continues to run. The returned id is a template for
    /// [`Client::create`].
    ///
    /// Not retried after a lost response: the snapshot may exist, and [`Client::snapshots`] lists
    /// it.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] while it cannot be taken,
    /// [`SandboxError::Call`].
    pub async fn snapshot(
        &self,
        id: &SandboxId,
        snapshot: impl Into<NewSnapshot> + Send,
    ) -> Result<rest::Snapshot, SandboxError> {
        let NewSnapshot { body } = snapshot.into();
        let path = format!("/sandboxes/{id}/snapshots");
        let request = Request::new(self, Method::POST, path, format!("take a snapshot of sandbox {id}")).body(&body);
        request.json().await.map_err(|failure| SandboxError::from_failure(failure, id, &request))
    }

    /// Streams all matching snapshots, page by page.
    pub fn snapshots(
        &self,
        query: SnapshotQuery,
    ) -> impl Stream<Item = Result<rest::Snapshot, CallError>> + Send + use<> {
        let client = self.clone();
        rows(move |token| {
            let (client, path) = (client.clone(), query.path(token.as_deref()));
            async move {
                let request = Request::new(&client, Method::GET, path, "list snapshots");
                let page = request.page().await.map_err(|failure| failure.into_error(&request.call))?;
                Ok(page.0)
            }
        })
    }

    /// Deletes a snapshot by its id. Returns false when it did not exist.
    ///
    /// # Errors
    /// [`CallError::Invalid`] while sandboxes use it, or another [`CallError`].
    pub async fn delete_snapshot(&self, snapshot_id: &str) -> Result<bool, CallError> {
        let path = format!("/templates/{}", encode(snapshot_id));
        let request = Request::new(self, Method::DELETE, path, format!("delete snapshot {snapshot_id:?}"));
        match request.send().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(false),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }
}
