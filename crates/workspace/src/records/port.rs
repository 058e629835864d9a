//! The storage ports of this crate. Every implementation passes the contract tests in
//! `tests/records`.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use database::Unwritable;
use jiff::Timestamp;
use sdk::SandboxId;
use uuid::Uuid;

use super::model::{
    Creation, Health, Interval, Lease, OrphanRecord, Stored, Tokens, UsageQuery, UsageRows, Warning, WorkspaceRecord,
};
use crate::name::{ProviderName, WorkspaceName};
use crate::provider::Breaker;

/// The storage failed. Whether a write took effect is unknown.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the records of workspaces")]
pub struct RecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a change to a workspace was rejected.
#[derive(Debug, thiserror::Error)]
pub enum RecordChangeError {
    /// Another process took the workspace. Stop acting on it.
    #[error("the lease of workspace {0} was lost to another process")]
    LeaseLost(WorkspaceName),
    #[error("there is a workspace {0} already")]
    Exists(WorkspaceName),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

/// Why a lease was not granted.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another process holds it: retry after `until`, or leave the workspace to that process.
    #[error("workspace {workspace} is in use by {owner} until {until}")]
    Held { workspace: WorkspaceName, owner: String, fence: i64, until: Timestamp },
    #[error("the lease of workspace {0} was lost to another process")]
    Lost(WorkspaceName),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

/// Workspaces. A change needs the newest lease.
#[async_trait]
pub trait WorkspaceRecords: Send + Sync {
    /// Why changes are rejected at the moment, if they are. Does no I/O.
    fn fault(&self) -> Option<Unwritable> {
        None
    }

    async fn workspace(&self, name: &WorkspaceName) -> Result<Option<WorkspaceRecord>, RecordsError>;

    /// Sorted by name, without rows that this version cannot decode.
    async fn workspaces(&self) -> Result<Vec<WorkspaceRecord>, RecordsError> {
        Ok(self.workspaces_and_unreadable().await?.0)
    }

    /// Like [`WorkspaceRecords::workspaces`], with the names of rows that this version cannot
    /// decode: their workspaces exist, and their sandboxes are in use.
    async fn workspaces_and_unreadable(&self) -> Result<(Vec<WorkspaceRecord>, Vec<String>), RecordsError>;

    async fn insert_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError>;

    /// Replaces the whole record.
    async fn update_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError>;

    /// Removing an absent workspace succeeds.
    async fn remove_workspace(&self, lease: &Lease) -> Result<(), RecordChangeError>;
}

/// Leases: at most one process acts on a workspace.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes the lease if no process holds it. From then on, writes under older leases are
    /// rejected. The workspace need not exist yet.
    async fn take_lease(
        &self,
        workspace: &WorkspaceName,
        owner: &str,
        now: Timestamp,
        time: Duration,
    ) -> Result<Lease, LeaseError>;

    /// Extends a lease, also an expired one as long as no other process took it.
    async fn renew_lease(&self, lease: &Lease, now: Timestamp, time: Duration) -> Result<Lease, LeaseError>;

    /// Revokes exactly this lease, known to be void. A lease that was renewed or taken since stays.
    async fn break_lease(&self, lease: &Lease) -> Result<(), RecordsError>;

    /// Releases a lease. Releasing a lost lease succeeds.
    async fn release_lease(&self, lease: &Lease) -> Result<(), RecordsError>;
}

/// Usage. All writes are idempotent, so that they can be retried after a crash.
#[async_trait]
pub trait UsageRecords: Send + Sync {
    async fn begin_creation(&self, creation: &Creation) -> Result<(), RecordsError>;

    /// The provider created the sandbox: atomically names it and opens its interval.
    async fn finish_creation(&self, id: Uuid, interval: &Interval) -> Result<(), RecordsError>;

    /// The provider certainly created no sandbox.
    async fn drop_creation(&self, id: Uuid) -> Result<(), RecordsError>;

    /// A sandbox runs (again). An interval still open for it ends at the new start.
    async fn open_interval(&self, interval: &Interval) -> Result<(), RecordsError>;

    /// Sets the time at which the provider will end the sandbox.
    async fn extend_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        until: Timestamp,
    ) -> Result<(), RecordsError>;

    /// The sandbox stopped, at the latest when the provider would have ended it.
    async fn close_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        at: Timestamp,
    ) -> Result<(), RecordsError>;

    /// Of two levels at the same time, the later write wins.
    async fn record_stored(&self, stored: &Stored) -> Result<(), RecordsError>;

    async fn record_tokens(&self, tokens: &Tokens) -> Result<(), RecordsError>;

    /// Ordered by time.
    async fn usage(&self, query: &UsageQuery) -> Result<UsageRows, RecordsError>;

    /// Returns true to the first writer only.
    async fn record_warning(&self, warning: &Warning) -> Result<bool, RecordsError>;

    /// Ordered by time.
    async fn warnings(&self) -> Result<Vec<Warning>, RecordsError>;
}

/// Health of providers, shared by all processes.
#[async_trait]
pub trait HealthRecords: Send + Sync {
    async fn health(&self, provider: &ProviderName) -> Result<Health, RecordsError>;

    /// Compare-and-swap: returns false if another writer changed it since `seen` was read.
    async fn change_health(
        &self,
        provider: &ProviderName,
        seen: &Health,
        breaker: Breaker,
        reason: &str,
    ) -> Result<bool, RecordsError>;
}

/// Orphans, from when a sweep finds them until they are killed.
#[async_trait]
pub trait OrphanRecords: Send + Sync {
    /// Sorted by sandbox.
    async fn orphans(&self) -> Result<Vec<OrphanRecord>, RecordsError>;

    /// Inserts or replaces the record of a sandbox.
    async fn record_orphan(&self, orphan: &OrphanRecord) -> Result<(), RecordsError>;

    /// Forgetting an absent orphan succeeds.
    async fn forget_orphan(&self, sandbox: &SandboxId) -> Result<(), RecordsError>;
}

/// All ports of the records.
pub trait Records: WorkspaceRecords + Leases + UsageRecords + HealthRecords + OrphanRecords {}

impl<T: WorkspaceRecords + Leases + UsageRecords + HealthRecords + OrphanRecords> Records for T {}
