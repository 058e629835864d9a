//! Records in memory, for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use sdk::SandboxId;
use uuid::Uuid;

use super::model::{
    Creation, Health, Interval, Lease, OrphanRecord, Stored, TokenUsage, Tokens, UsageQuery, UsageRows, Warning,
    WorkspaceRecord,
};
use super::port::{
    HealthRecords, LeaseError, Leases, OrphanRecords, RecordChangeError, RecordsError, UsageRecords, WorkspaceRecords,
};
use crate::ledger::Usd;
use crate::name::{ProviderName, WorkspaceName};
use crate::provider::Breaker;

/// In-memory records of one process.
#[derive(Debug, Default)]
pub struct MemoryRecords {
    held: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    workspaces: BTreeMap<WorkspaceName, WorkspaceRecord>,
    leases: BTreeMap<WorkspaceName, Lease>,
    creations: Vec<Creation>,
    intervals: Vec<Interval>,
    stored: BTreeMap<(String, Timestamp), u64>,
    tokens: Vec<Tokens>,
    warnings: Vec<Warning>,
    health: BTreeMap<ProviderName, Health>,
    orphans: BTreeMap<String, OrphanRecord>,
}

impl MemoryRecords {
    #[cfg(test)]
    pub(crate) fn newest_lease(&self, workspace: &WorkspaceName) -> Option<Lease> {
        self.held().leases.get(workspace).cloned()
    }

    fn held(&self) -> MutexGuard<'_, Tables> {
        self.held.lock()
    }
}

impl Tables {
    fn check(&self, lease: &Lease) -> Result<(), RecordChangeError> {
        let newest = self.leases.get(&lease.workspace).map(|held| held.fence);
        if newest == Some(lease.fence) { Ok(()) } else { Err(RecordChangeError::LeaseLost(lease.workspace.clone())) }
    }

    fn open_intervals(&mut self, provider: &ProviderName, sandbox: &SandboxId) -> impl Iterator<Item = &mut Interval> {
        self.intervals.iter_mut().filter(move |interval| {
            interval.ended_at.is_none() && interval.provider == *provider && interval.sandbox == *sandbox
        })
    }

    fn open(&mut self, new: &Interval) {
        let same = |held: &Interval| {
            (&held.provider, &held.sandbox, held.started_at) == (&new.provider, &new.sandbox, new.started_at)
        };
        if self.intervals.iter().any(same) {
            return;
        }
        for interval in self.open_intervals(&new.provider, &new.sandbox) {
            interval.ended_at = Some(interval.until.min(new.started_at).max(interval.started_at));
        }
        self.intervals.push(new.clone());
    }
}

#[async_trait]
impl WorkspaceRecords for MemoryRecords {
    async fn workspace(&self, name: &WorkspaceName) -> Result<Option<WorkspaceRecord>, RecordsError> {
        Ok(self.held().workspaces.get(name).cloned())
    }

    async fn workspaces_and_unreadable(&self) -> Result<(Vec<WorkspaceRecord>, Vec<String>), RecordsError> {
        Ok((self.held().workspaces.values().cloned().collect(), Vec::new()))
    }

    async fn insert_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError> {
        let mut held = self.held();
        held.check(lease)?;
        if held.workspaces.contains_key(&record.name) {
            return Err(RecordChangeError::Exists(record.name.clone()));
        }
        held.workspaces.insert(record.name.clone(), record.clone());
        Ok(())
    }

    async fn update_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError> {
        let mut held = self.held();
        held.check(lease)?;
        match held.workspaces.get_mut(&record.name) {
            Some(place) => *place = record.clone(),
            None => return Err(RecordChangeError::LeaseLost(record.name.clone())),
        }
        Ok(())
    }

    async fn remove_workspace(&self, lease: &Lease) -> Result<(), RecordChangeError> {
        let mut held = self.held();
        held.check(lease)?;
        held.workspaces.remove(&lease.workspace);
        Ok(())
    }
}

#[async_trait]
impl Leases for MemoryRecords {
    async fn take_lease(
        &self,
        workspace: &WorkspaceName,
        owner: &str,
        now: Timestamp,
        time: Duration,
    ) -> Result<Lease, LeaseError> {
        let mut held = self.held();
        let before = held.leases.get(workspace);
        if let Some(Lease { workspace, owner, fence, until }) = before.filter(|lease| lease.until > now).cloned() {
            return Err(LeaseError::Held { workspace, owner, fence, until });
        }
        let fence = before.map_or(0, |lease| lease.fence) + 1;
        let lease = Lease { workspace: workspace.clone(), owner: owner.to_owned(), fence, until: later(now, time) };
        held.leases.insert(workspace.clone(), lease.clone());
        Ok(lease)
    }

    async fn renew_lease(&self, lease: &Lease, now: Timestamp, time: Duration) -> Result<Lease, LeaseError> {
        match self.held().leases.get_mut(&lease.workspace) {
            Some(held) if held.fence == lease.fence && held.until != Timestamp::UNIX_EPOCH => {
                held.until = later(now, time);
                Ok(held.clone())
            }
            _ => Err(LeaseError::Lost(lease.workspace.clone())),
        }
    }

    async fn break_lease(&self, lease: &Lease) -> Result<(), RecordsError> {
        if let Some(held) = self.held().leases.get_mut(&lease.workspace).filter(|held| *held == lease) {
            held.until = Timestamp::UNIX_EPOCH;
        }
        Ok(())
    }

    async fn release_lease(&self, lease: &Lease) -> Result<(), RecordsError> {
        if let Some(held) = self.held().leases.get_mut(&lease.workspace)
            && held.fence == lease.fence
        {
            held.until = Timestamp::UNIX_EPOCH;
        }
        Ok(())
    }
}

#[async_trait]
impl OrphanRecords for MemoryRecords {
    async fn orphans(&self) -> Result<Vec<OrphanRecord>, RecordsError> {
        Ok(self.held().orphans.values().cloned().collect())
    }

    async fn record_orphan(&self, orphan: &OrphanRecord) -> Result<(), RecordsError> {
        self.held().orphans.insert(orphan.sandbox.to_string(), orphan.clone());
        Ok(())
    }

    async fn forget_orphan(&self, sandbox: &SandboxId) -> Result<(), RecordsError> {
        self.held().orphans.remove(sandbox.as_str());
        Ok(())
    }
}

#[async_trait]
impl UsageRecords for MemoryRecords {
    async fn begin_creation(&self, creation: &Creation) -> Result<(), RecordsError> {
        let mut held = self.held();
        if !held.creations.iter().any(|known| known.id == creation.id) {
            held.creations.push(creation.clone());
        }
        Ok(())
    }

    async fn finish_creation(&self, id: Uuid, interval: &Interval) -> Result<(), RecordsError> {
        let mut held = self.held();
        for creation in held.creations.iter_mut().filter(|creation| creation.id == id) {
            creation.sandbox = Some(interval.sandbox.clone());
        }
        held.open(interval);
        Ok(())
    }

    async fn drop_creation(&self, id: Uuid) -> Result<(), RecordsError> {
        self.held().creations.retain(|creation| creation.id != id || creation.sandbox.is_some());
        Ok(())
    }

    async fn open_interval(&self, interval: &Interval) -> Result<(), RecordsError> {
        self.held().open(interval);
        Ok(())
    }

    async fn extend_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        until: Timestamp,
    ) -> Result<(), RecordsError> {
        for interval in self.held().open_intervals(provider, sandbox) {
            interval.until = until;
        }
        Ok(())
    }

    async fn close_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        at: Timestamp,
    ) -> Result<(), RecordsError> {
        for interval in self.held().open_intervals(provider, sandbox) {
            interval.ended_at = Some(at.min(interval.until).max(interval.started_at));
        }
        Ok(())
    }

    async fn record_stored(&self, stored: &Stored) -> Result<(), RecordsError> {
        self.held().stored.insert((stored.project.clone(), stored.at), stored.bytes);
        Ok(())
    }

    async fn record_tokens(&self, tokens: &Tokens) -> Result<(), RecordsError> {
        let mut held = self.held();
        if !held.tokens.iter().any(|known| known.id == tokens.id) {
            held.tokens.push(tokens.clone());
        }
        Ok(())
    }

    async fn usage(&self, query: &UsageQuery) -> Result<UsageRows, RecordsError> {
        let held = self.held();
        let since = query.since.unwrap_or(Timestamp::MIN);
        let of_project = |project: &str| query.project.as_deref().is_none_or(|wanted| wanted == project);
        let of_provider = |provider: &ProviderName| query.provider.as_ref().is_none_or(|wanted| wanted == provider);
        let creations = held.creations.iter().filter(|creation| {
            creation.at >= since && of_project(&creation.payer.project) && of_provider(&creation.provider)
        });
        let intervals = held.intervals.iter().filter(|interval| {
            interval.ended_at.is_none_or(|ended| ended >= since)
                && of_project(&interval.payer.project)
                && of_provider(&interval.provider)
        });
        let level = |((project, at), bytes): (&(String, Timestamp), &u64)| Stored {
            project: project.clone(),
            at: *at,
            bytes: *bytes,
        };
        let counts = |stored: &Stored| {
            let superseded =
                held.stored.keys().any(|(project, at)| *project == stored.project && *at > stored.at && *at <= since);
            of_project(&stored.project) && !superseded
        };
        let whole = query.provider.is_none();
        let tokens = held.tokens.iter().filter(|tokens| tokens.at >= since && of_project(&tokens.payer.project));
        let mut token_usage = BTreeMap::new();
        for Tokens { id: _, at, payer, model, input, output, cost } in tokens.filter(|_| whole) {
            let hour = at.as_microsecond().div_euclid(TokenUsage::BUCKET_US);
            let first = || TokenUsage {
                at: *at,
                payer: payer.clone(),
                model: model.clone(),
                input: 0,
                output: 0,
                cost: Usd::ZERO,
            };
            let key = (payer.project.clone(), payer.job.clone(), model.clone(), hour);
            let together = token_usage.entry(key).or_insert_with(first);
            together.at = together.at.min(*at);
            together.input += input;
            together.output += output;
            together.cost += *cost;
        }
        let mut rows = UsageRows {
            creations: creations.cloned().collect(),
            intervals: intervals.cloned().collect(),
            stored: held.stored.iter().map(level).filter(counts).filter(|_| whole).collect(),
            token_usage: token_usage.into_values().collect(),
        };
        rows.creations.sort_by_key(|creation| (creation.at, creation.id));
        rows.intervals.sort_by_key(|interval| (interval.started_at, interval.sandbox.clone()));
        rows.stored.sort_by_key(|stored| (stored.at, stored.project.clone()));
        rows.token_usage.sort_by_key(|token_usage| token_usage.at);
        Ok(rows)
    }

    async fn record_warning(&self, warning: &Warning) -> Result<bool, RecordsError> {
        let mut held = self.held();
        let same = |known: &Warning| {
            (&known.limit, &known.period, known.percent) == (&warning.limit, &warning.period, warning.percent)
        };
        let first = !held.warnings.iter().any(same);
        if first {
            held.warnings.push(warning.clone());
        }
        Ok(first)
    }

    async fn warnings(&self) -> Result<Vec<Warning>, RecordsError> {
        let mut warnings = self.held().warnings.clone();
        warnings.sort_by(|a, b| (a.at, &a.limit, a.percent).cmp(&(b.at, &b.limit, b.percent)));
        Ok(warnings)
    }
}

#[async_trait]
impl HealthRecords for MemoryRecords {
    async fn health(&self, provider: &ProviderName) -> Result<Health, RecordsError> {
        Ok(self.held().health.get(provider).cloned().unwrap_or_default())
    }

    async fn change_health(
        &self,
        provider: &ProviderName,
        seen: &Health,
        breaker: Breaker,
        reason: &str,
    ) -> Result<bool, RecordsError> {
        let mut held = self.held();
        let place = held.health.entry(provider.clone()).or_default();
        if place.version != seen.version {
            return Ok(false);
        }
        *place = Health { breaker, reason: reason.to_owned(), version: seen.version + 1 };
        Ok(true)
    }
}

pub(super) fn later(now: Timestamp, time: Duration) -> Timestamp {
    now.checked_add(time).unwrap_or(Timestamp::MAX)
}
