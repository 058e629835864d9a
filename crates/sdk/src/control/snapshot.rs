//! Snapshots: states of sandboxes that new ones can be made from.

use futures::Stream;
use http::Method;
use protocol::rest;

use super::life::SandboxError;
use super::pages::rows;
use super::query::{Path, encode};
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::id::SandboxId;
use crate::transport::{Failure, Refusal};

/// A snapshot to be taken: `"name".into()`, or one that goes by its id alone.
#[derive(Debug, Clone, Default)]
pub struct NewSnapshot {
    body: rest::NewSnapshot,
}

impl NewSnapshot {
    /// Known by its id alone.
    pub fn unnamed() -> Self {
        Self::default()
    }

    /// Also known as `name`; the same name again makes a newer state of it.
    pub fn named(name: impl Into<String>) -> Self {
        Self { body: rest::NewSnapshot { name: Some(name.into()), memory: None } }
    }

    /// Keeps the files and not the processes.
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

/// Which snapshots to list; all unless narrowed.
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

    /// Only those taken of this sandbox.
    #[must_use]
    pub fn of(mut self, sandbox: &SandboxId) -> Self {
        self.sandbox = Some(sandbox.clone());
        self
    }

    /// Only those of this name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Rows the server sends at once, from 1 to 100; 100 unless set.
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
    /// Keeps the state of a sandbox, which goes on running. The answer's id is a template for [`Client::create`].
    ///
    /// Not repeated after a lost answer: the snapshot may then exist, and [`Client::snapshots`] shows it.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] while it cannot be taken, or what may happen to any call.
    pub async fn snapshot(
        &self,
        id: &SandboxId,
        snapshot: impl Into<NewSnapshot> + Send,
    ) -> Result<rest::Snapshot, SandboxError> {
        let NewSnapshot { body } = snapshot.into();
        let path = format!("/sandboxes/{id}/snapshots");
        let request = Request::new(self, Method::POST, path, format!("take a snapshot of sandbox {id}")).body(&body);
        request.json().await.map_err(|failure| SandboxError::of(failure, id, &request))
    }

    /// All snapshots that match, page after page.
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

    /// Deletes a snapshot by its id. False when there was none.
    ///
    /// # Errors
    /// [`CallError::Invalid`] while sandboxes are made from it, or what may happen to any call.
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
