//! Records with a gate before and after every write: there a test may wait, stop the world, or end the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use sandbar_agent::approval::Answer;
use sandbar_agent::records::{AppendError, Entry, Head, RunRecord, RunRecordsError};
use sandbar_agent::{Plan, RunId, RunRecords};
use tokio::sync::Notify;

/// On which side of a write something happens.
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
    /// `gate` is passed twice a write, with the write's number.
    pub(crate) fn new(
        inner: Arc<dyn RunRecords>,
        gate: impl Fn(Side, u64) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, writes: AtomicU64::new(0), gate: Box::new(gate) })
    }

    /// Records that stop the world at a write: nobody who waits for it ever goes on. The other part hears of it.
    pub(crate) fn deadly(inner: &Arc<dyn RunRecords>, side: Side, at: u64) -> (Arc<Self>, Arc<Notify>) {
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

    async fn append(&self, id: &RunId, count: u64, entries: &[Entry], head: &Head) -> Result<(), AppendError> {
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

    async fn entries(&self, id: &RunId, skip: u64) -> Result<Vec<Entry>, RunRecordsError> {
        self.inner.entries(id, skip).await
    }

    async fn of_call(&self, id: &RunId, call: &str) -> Result<Vec<Entry>, RunRecordsError> {
        self.inner.of_call(id, call).await
    }

    async fn answer(&self, id: &RunId, call: &str, answer: &Answer) -> Result<bool, RunRecordsError> {
        self.inner.answer(id, call, answer).await
    }

    async fn answered(&self, id: &RunId, call: &str) -> Result<Option<Answer>, RunRecordsError> {
        self.inner.answered(id, call).await
    }

    async fn replan(&self, id: &RunId, plan: &Plan) -> Result<(), RunRecordsError> {
        self.inner.replan(id, plan).await
    }

    async fn remove(&self, id: &RunId) -> Result<(), RunRecordsError> {
        self.inner.remove(id).await
    }

    async fn ask_to_cancel(&self, id: &RunId) -> Result<bool, RunRecordsError> {
        self.inner.ask_to_cancel(id).await
    }

    async fn forget_cancel(&self, id: &RunId) -> Result<(), RunRecordsError> {
        self.inner.forget_cancel(id).await
    }

    async fn touch(&self, id: &RunId, now: Timestamp) -> Result<bool, RunRecordsError> {
        self.inner.touch(id, now).await
    }
}
