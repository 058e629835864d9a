//! Sandboxes that were made for workspaces and that no record names: those of processes that died, or gave up waiting, while
//! one was being made for them. They cost until their time is over, unless somebody sweeps.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;
use sdk::model::ListedSandbox;
use sdk::{ListQuery, SandboxId};
use serde::Serialize;
use tracing::{info, warn};
use uuid::Uuid;

use super::Workspaces;
use crate::chain::chain;
use crate::clock::earlier;
use crate::house::House;
use crate::name::ProviderName;
use crate::provider::{ANSWER_TIME, CREATION, Provider};
use crate::records::{RecordsError, UsageQuery};
use crate::snapshot::ProjectId;
use crate::workspace::{METADATA, OpenError, Place, read_details};

/// A creation may take so long until its sandbox stands in a record. Whoever still makes one then has long given up.
const CREATION_TIME: Duration = Duration::from_secs(300);
/// How far a provider's clock may be from ours.
const SKEW: Duration = Duration::from_secs(24 * 3600);

/// A sandbox that was made for a workspace and that no record names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orphan {
    pub provider: ProviderName,
    #[serde(rename = "sandboxID")]
    pub sandbox: String,
    pub workspace: String,
}

impl Workspaces {
    /// Sandboxes that were made for workspaces of these records and that none of them names: those of processes that died
    /// while they made one. Providers that do not answer are left out.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn orphans(&self) -> Result<Vec<Orphan>, OpenError> {
        let mut found = Vec::new();
        let now = self.house.settings.clock.now();
        for provider in self.house.asked_for(None).await {
            let rows = match provider.client().await {
                Ok(client) => {
                    let rows = client.within(ANSWER_TIME).list(ListQuery::new()).try_collect::<Vec<_>>().await;
                    rows.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let Some(rows) = self.house.heard(provider, rows) else { continue };
            let rows: Vec<_> = rows.into_iter().filter(|row| row.metadata.contains_key(METADATA)).collect();
            let ours = self.house.ours(&rows, earlier(now, CREATION_TIME)).await?;
            let rows = rows.into_iter().zip(ours).filter(|(_, ours)| *ours).map(|(row, _)| row);
            found.extend(rows.map(|row| Orphan {
                provider: provider.name().clone(),
                workspace: row.metadata.get(METADATA).cloned().unwrap_or_default(),
                sandbox: row.sandbox_id,
            }));
        }
        // Read last: what a record names by now is no orphan.
        let named = self.named().await?;
        found.retain(|orphan| !named.contains(&(orphan.provider.clone(), orphan.sandbox.clone())));
        Ok(found)
    }

    /// Every sandbox that a record speaks of.
    async fn named(&self) -> Result<HashSet<(ProviderName, String)>, OpenError> {
        let mut named = HashSet::new();
        for record in self.house.records.workspaces().await? {
            let details = read_details(&record)?;
            let own = record.sandbox.clone().map(|sandbox| Place { provider: record.provider.clone(), sandbox });
            let moving = details.handover.into_iter().flat_map(|handover| [handover.old, handover.successor]).flatten();
            let places = own.into_iter().chain(moving).chain(details.retired).chain(details.left_behind);
            named.extend(places.map(|Place { provider, sandbox }| (provider, sandbox.to_string())));
        }
        Ok(named)
    }

    /// Ends all orphans, and says which.
    ///
    /// # Errors
    /// The records cannot be read. A sandbox that could not be ended is not among those returned.
    pub async fn sweep(&self) -> Result<Vec<Orphan>, OpenError> {
        let mut ended = Vec::new();
        for orphan in self.orphans().await? {
            let Ok(provider) = self.house.orchestrator.provider(&orphan.provider) else { continue };
            let (Ok(client), Ok(id)) = (provider.client().await, orphan.sandbox.parse::<SandboxId>()) else { continue };
            match client.within(ANSWER_TIME).kill(&id).await {
                Ok(_) => {
                    info!(provider = %orphan.provider, sandbox = %id, workspace = orphan.workspace, "ended an orphan");
                    let closed =
                        self.house.records.close_interval(&orphan.provider, &id, self.house.settings.clock.now());
                    if let Err(error) = closed.await {
                        warn!(error = %chain(&error), "the end of a run was not noted");
                    }
                    ended.push(orphan);
                }
                Err(error) => warn!(sandbox = %id, %error, "an orphan could not be ended"),
            }
        }
        Ok(ended)
    }
}

impl House {
    /// What a provider answered. That one does not is logged when it begins, and when it is over: somebody asks every few minutes.
    fn heard<T>(&self, provider: &Provider, answer: Result<T, String>) -> Option<T> {
        let name = provider.name();
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(answer) => {
                if silent.remove(name) {
                    info!(provider = %name, "orphans are looked for again");
                }
                Some(answer)
            }
            Err(error) => {
                if silent.insert(name.clone()) {
                    warn!(provider = %name, error, "orphans are not looked for until it answers");
                }
                None
            }
        }
    }

    /// Providers that were ever asked for a sandbox, for a project or for any. Others have none, and the local one would be
    /// started by the question.
    pub(crate) async fn asked_for(&self, project: Option<&ProjectId>) -> Vec<&Provider> {
        let query = UsageQuery { project: project.map(ToString::to_string), ..UsageQuery::default() };
        let asked: HashSet<ProviderName> = match self.records.usage(&query).await {
            Ok(used) => used.creations.into_iter().map(|creation| creation.provider).collect(),
            Err(error) => {
                warn!(error = %chain(&error), "the books cannot be read");
                HashSet::new()
            }
        };
        let usable = |provider: &&Provider| provider.unusable().is_none() && asked.contains(provider.name());
        self.orchestrator.providers().iter().filter(usable).collect()
    }

    /// Which of these sandboxes were made by way of these records, before `before`. Others, of whoever has the same key, are
    /// nobody's business here.
    pub(crate) async fn ours(&self, rows: &[ListedSandbox], before: Timestamp) -> Result<Vec<bool>, RecordsError> {
        let started = rows.iter().filter_map(|row| row.started_at.parse::<Timestamp>().ok()).min();
        let Some(started) = started else { return Ok(vec![false; rows.len()]) };
        let query = UsageQuery { since: Some(earlier(started, SKEW)), ..UsageQuery::default() };
        let creations = self.records.usage(&query).await?.creations;
        let known: HashSet<Uuid> =
            creations.iter().filter(|creation| creation.at <= before).map(|creation| creation.id).collect();
        let ours = |row: &ListedSandbox| {
            row.metadata.get(CREATION).and_then(|id| id.parse().ok()).is_some_and(|id: Uuid| known.contains(&id))
        };
        Ok(rows.iter().map(ours).collect())
    }
}
