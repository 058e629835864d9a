//! What this crate needs of a memory that outlives the process. Every implementation passes the contract in
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

/// The memory itself failed. Nothing is known to be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the records of workspaces")]
pub struct RecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

/// A change to a workspace that was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Somebody else has taken the workspace since. Stop acting on it.
    #[error("the lease of workspace {0} was lost to another process")]
    LeaseLost(WorkspaceName),
    #[error("there is a workspace {0} already")]
    Exists(WorkspaceName),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

/// A lease that was not given.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Wait until then, or leave it to them.
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
    /// Why changes are refused, while they are. Does no I/O.
    fn fault(&self) -> Option<Unwritable> {
        None
    }

    async fn workspace(&self, name: &WorkspaceName) -> Result<Option<WorkspaceRecord>, RecordsError>;

    /// By name, without the rows that this version cannot read.
    async fn workspaces(&self) -> Result<Vec<WorkspaceRecord>, RecordsError> {
        Ok(self.workspaces_and_unreadable().await?.0)
    }

    /// The same, with the names of the rows that this version cannot read: their workspaces exist,
    /// and their sandboxes are in use.
    async fn workspaces_and_unreadable(&self) -> Result<(Vec<WorkspaceRecord>, Vec<String>), RecordsError>;

    async fn insert_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), ChangeError>;

    /// Replaces the record whole.
    async fn update_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), ChangeError>;

    /// Removing what is absent succeeds.
    async fn remove_workspace(&self, lease: &Lease) -> Result<(), ChangeError>;
}

/// Who may act on a workspace: one at a time.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes the lease if nobody has it. From then on, no older lease changes the workspace's record. The workspace need not
    /// exist yet.
    async fn take_lease(
        &self,
        workspace: &WorkspaceName,
        owner: &str,
        now: Timestamp,
        time: Duration,
    ) -> Result<Lease, LeaseError>;

    /// Moves its end; also of one that has run out, as long as nobody else took it.
    async fn renew_lease(&self, lease: &Lease, now: Timestamp, time: Duration) -> Result<Lease, LeaseError>;

    /// Takes away this very lease, which is known to be void. One that was renewed or taken since
    /// is not touched.
    async fn break_lease(&self, lease: &Lease) -> Result<(), RecordsError>;

    /// Gives it back. Giving back what was lost succeeds.
    async fn release_lease(&self, lease: &Lease) -> Result<(), RecordsError>;
}

/// What was used. Noting the same thing again changes nothing, so that after a crash it can be noted again.
#[async_trait]
pub trait UsageRecords: Send + Sync {
    async fn begin_creation(&self, creation: &Creation) -> Result<(), RecordsError>;

    /// The provider made it: names the sandbox and opens its interval, both or neither.
    async fn finish_creation(&self, id: Uuid, interval: &Interval) -> Result<(), RecordsError>;

    /// The provider certainly made none.
    async fn drop_creation(&self, id: Uuid) -> Result<(), RecordsError>;

    /// A sandbox runs (again). What was open of it ends by the new start.
    async fn open_interval(&self, interval: &Interval) -> Result<(), RecordsError>;

    /// The provider will end it then.
    async fn extend_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        until: Timestamp,
    ) -> Result<(), RecordsError>;

    /// It stopped, at the latest when the provider would have ended it.
    async fn close_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        at: Timestamp,
    ) -> Result<(), RecordsError>;

    /// Of two levels at one moment the later noted counts.
    async fn note_stored(&self, stored: &Stored) -> Result<(), RecordsError>;

    async fn note_tokens(&self, tokens: &Tokens) -> Result<(), RecordsError>;

    /// In order of time.
    async fn usage(&self, query: &UsageQuery) -> Result<UsageRows, RecordsError>;

    /// True for the one that noted it first.
    async fn note_warning(&self, warning: &Warning) -> Result<bool, RecordsError>;

    /// In order of time.
    async fn warnings(&self) -> Result<Vec<Warning>, RecordsError>;
}

/// How providers are doing, shared by all processes.
#[async_trait]
pub trait HealthRecords: Send + Sync {
    async fn health(&self, provider: &ProviderName) -> Result<Health, RecordsError>;

    /// Writes if nobody has since `seen` was read; else false.
    async fn change_health(
        &self,
        provider: &ProviderName,
        seen: &Health,
        breaker: Breaker,
        reason: &str,
    ) -> Result<bool, RecordsError>;
}

/// Orphans, from when a sweep finds them until they are ended.
#[async_trait]
pub trait OrphanRecords: Send + Sync {
    /// By sandbox.
    async fn orphans(&self) -> Result<Vec<OrphanRecord>, RecordsError>;

    /// Writes one, in place of what was known of the same sandbox.
    async fn note_orphan(&self, orphan: &OrphanRecord) -> Result<(), RecordsError>;

    /// Forgetting what is absent succeeds.
    async fn forget_orphan(&self, sandbox: &SandboxId) -> Result<(), RecordsError>;
}

/// All of it.
pub trait Records: WorkspaceRecords + Leases + UsageRecords + HealthRecords + OrphanRecords {}

impl<T: WorkspaceRecords + Leases + UsageRecords + HealthRecords + OrphanRecords> Records for T {}
