//! Records with a hook before and after every write, where a test may wait, block, or kill the
//! process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use sandbar_agent::approval::ApprovalAnswer;
use sandbar_agent::records::{AppendError, Head, JournalEntry, RunRecord, RunRecordsError};
use sandbar_agent::{Plan, RunId, RunRecords};
use tokio::sync::Notify;

/// Before or after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

type Gate = Box<dyn Fn(Side, u64) -> BoxFuture<'static, ()> + Send + Sync>;

pub(crate) struct Gated {
    inner: Arc<dyn RunRecords>,
    writes: AtomicU64,
    gate: Gate,
}

impl Gated {
    /// `gate` runs twice per write, with the number of the write.
    pub(crate) fn new(
        inner: Arc<dyn RunRecords>,
        gate: impl Fn(Side, u64) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, writes: AtomicU64::new(0), gate: Box::new(gate) })
    }

    /// Records that block forever at one write, as if the process were killed there. The `Notify`
    /// reports it.
    pub(crate) fn blocking_at(inner: &Arc<dyn RunRecords>, side: Side, at: u64) -> (Arc<Self>, Arc<Notify>) {
        let dead = Arc::new(Notify::new());
        let death = Arc::clone(&dead);
        let gate = move |reached: Side, write: u64| match reached == side && write == at {
            true => {
                death.notify_one();
                std::future::pending().boxed()
            }
            false => std::future::ready(()).boxed(),
        };
        (Self::new(Arc::clone(inner), gate), dead)
    }
}

#[async_trait]
impl RunRecords for Gated {
    async fn begin(&self, run: &RunRecord) -> Result<(), RunRecordsError> {
        self.inner.begin(run).await
    }

    async fn append(&self, id: &RunId, count: u64, entries: &[JournalEntry], head: &Head) -> Result<(), AppendError> {
        let write = self.writes.fetch_add(1, Ordering::SeqCst);
        (self.gate)(Side::Before, write).await;
        self.inner.append(id, count, entries, head).await?;
        (self.gate)(Side::After, write).await;
        Ok(())
    }

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, RunRecordsError> {
        self.inner.run(id).await
    }

    async fn runs(&self) -> Result<Vec<RunRecord>, RunRecordsError> {
        self.inner.runs().await
    }

    async fn entries(&self, id: &RunId, skip: u64) -> Result<Vec<JournalEntry>, RunRecordsError> {
        self.inner.entries(id, skip).await
    }

    async fn entries_of_call(&self, id: &RunId, call: &str) -> Result<Vec<JournalEntry>, RunRecordsError> {
        self.inner.entries_of_call(id, call).await
    }

    async fn record_answer(&self, id: &RunId, call: &str, answer: &ApprovalAnswer) -> Result<bool, RunRecordsError> {
        self.inner.record_answer(id, call, answer).await
    }

    async fn find_answer(&self, id: &RunId, call: &str) -> Result<Option<ApprovalAnswer>, RunRecordsError> {
        self.inner.find_answer(id, call).await
    }

    async fn update_plan(&self, id: &RunId, plan: &Plan) -> Result<(), RunRecordsError> {
        self.inner.update_plan(id, plan).await
    }

    async fn remove(&self, id: &RunId) -> Result<(), RunRecordsError> {
        self.inner.remove(id).await
    }

    async fn request_cancel(&self, id: &RunId) -> Result<bool, RunRecordsError> {
        self.inner.request_cancel(id).await
    }

    async fn clear_cancel_request(&self, id: &RunId) -> Result<(), RunRecordsError> {
        self.inner.clear_cancel_request(id).await
    }

    async fn heartbeat(&self, id: &RunId, now: Timestamp) -> Result<bool, RunRecordsError> {
        self.inner.heartbeat(id, now).await
    }
}
