//! Run records in memory, for tests on a paused clock, which a wait for SQLite's thread would let
//! pass.

use std::collections::{BTreeMap, btree_map};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use sandbar_agent::approval::ApprovalAnswer;
use sandbar_agent::records::{AppendError, Head, JournalEntry, RunRecord, RunRecordsError};
use sandbar_agent::{Plan, RunId, RunRecords};

#[derive(Debug, Default)]
pub(crate) struct MemoryRunRecords {
    runs: Mutex<BTreeMap<RunId, (RunRecord, Vec<JournalEntry>)>>,
    answers: Mutex<BTreeMap<(RunId, String), ApprovalAnswer>>,
}

impl MemoryRunRecords {
    fn runs(&self) -> MutexGuard<'_, BTreeMap<RunId, (RunRecord, Vec<JournalEntry>)>> {
        self.runs.lock()
    }

    fn answers(&self) -> MutexGuard<'_, BTreeMap<(RunId, String), ApprovalAnswer>> {
        self.answers.lock()
    }
}

#[async_trait]
impl RunRecords for MemoryRunRecords {
    async fn begin(&self, run: &RunRecord) -> Result<(), RunRecordsError> {
        match self.runs().entry(run.id.clone()) {
            btree_map::Entry::Vacant(place) => {
                place.insert((run.clone(), Vec::new()));
                Ok(())
            }
            btree_map::Entry::Occupied(_) => {
                Err(RunRecordsError { what: "write", source: "there is such a run already".into() })
            }
        }
    }

    async fn append(&self, id: &RunId, count: u64, entries: &[JournalEntry], head: &Head) -> Result<(), AppendError> {
        let mut runs = self.runs();
        match runs.get_mut(id) {
            Some((run, held)) if run.entries == count => {
                held.extend_from_slice(entries);
                run.entries = u64::try_from(held.len()).unwrap_or(u64::MAX);
                run.head = head.clone();
                Ok(())
            }
            _ => Err(AppendError::Taken(id.clone())),
        }
    }

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, RunRecordsError> {
        Ok(self.runs().get(id).map(|(run, _)| run.clone()))
    }

    async fn runs(&self) -> Result<Vec<RunRecord>, RunRecordsError> {
        let mut all: Vec<RunRecord> = self.runs().values().map(|(run, _)| run.clone()).collect();
        all.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        Ok(all)
    }

    async fn entries(&self, id: &RunId, skip: u64) -> Result<Vec<JournalEntry>, RunRecordsError> {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        Ok(self.runs().get(id).map(|(_, held)| held.iter().skip(skip).cloned().collect()).unwrap_or_default())
    }

    async fn entries_of_call(&self, id: &RunId, call: &str) -> Result<Vec<JournalEntry>, RunRecordsError> {
        let all = self.entries(id, 0).await?;
        Ok(all.into_iter().filter(|entry| entry.happened.event.call() == Some(call)).collect())
    }

    async fn record_answer(&self, id: &RunId, call: &str, answer: &ApprovalAnswer) -> Result<bool, RunRecordsError> {
        match self.answers().entry((id.clone(), call.to_owned())) {
            btree_map::Entry::Vacant(place) => {
                place.insert(answer.clone());
                Ok(true)
            }
            btree_map::Entry::Occupied(_) => Ok(false),
        }
    }

    async fn find_answer(&self, id: &RunId, call: &str) -> Result<Option<ApprovalAnswer>, RunRecordsError> {
        Ok(self.answers().get(&(id.clone(), call.to_owned())).cloned())
    }

    async fn update_plan(&self, id: &RunId, plan: &Plan) -> Result<(), RunRecordsError> {
        if let Some((run, _)) = self.runs().get_mut(id) {
            run.plan = plan.clone();
        }
        Ok(())
    }

    async fn remove(&self, id: &RunId) -> Result<(), RunRecordsError> {
        self.runs().remove(id);
        self.answers().retain(|(run, _), _| run != id);
        Ok(())
    }

    async fn request_cancel(&self, id: &RunId) -> Result<bool, RunRecordsError> {
        Ok(self.runs().get_mut(id).map(|(run, _)| run.cancel_asked = true).is_some())
    }

    async fn clear_cancel_request(&self, id: &RunId) -> Result<(), RunRecordsError> {
        if let Some((run, _)) = self.runs().get_mut(id) {
            run.cancel_asked = false;
        }
        Ok(())
    }

    async fn heartbeat(&self, id: &RunId, now: Timestamp) -> Result<bool, RunRecordsError> {
        Ok(self.runs().get_mut(id).is_some_and(|(run, _)| {
            run.head.seen_at = now;
            run.cancel_asked
        }))
    }
}
