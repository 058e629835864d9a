//! From the configuration to workspaces.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use crate::chain::chain;
use crate::config::{Mistake, ObjectsConfig, Variables, WorkspaceConfig};
use crate::events::Observer;
use crate::house::Parts;
use crate::ledger::Ledger;
use crate::provider::{LocalServer, Orchestrator};
use crate::records::{DatabaseRecords, Records, RecordsError};
use crate::settings::Settings;
use crate::snapshot::{self, Condition, LeftOut, Objects, S3Config, SnapshotOptions, Snapshots, StoreError};
use crate::workspaces::Workspaces;

/// Where AWS's own programs look.
const S3_KEY: &str = "AWS_ACCESS_KEY_ID";
const S3_SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const S3_REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
const S3_REGION: &str = "us-east-1";

/// What is configured cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error(transparent)]
    Mistake(#[from] Mistake),
    #[error(transparent)]
    Records(#[from] RecordsError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ObjectsConfig {
    /// What snapshots leave out.
    fn left_out(&self) -> LeftOut {
        let LeftOut { mut certain, mut likely, .. } = LeftOut::default();
        for names in [&mut certain, &mut likely] {
            names.retain(|name| !self.keep.contains(name));
        }
        LeftOut { named: self.leave_out.clone(), certain, likely }
    }

    /// How many snapshots are kept, and for how long.
    fn retention(&self) -> snapshot::Settings {
        let known = snapshot::Settings::default();
        let keep_for = self.keep_snapshots_days.map(|days| Duration::from_secs(24 * 3600 * days));
        snapshot::Settings {
            keep: self.keep_snapshots.unwrap_or(known.keep),
            keep_for: keep_for.unwrap_or(known.keep_for),
            ..known
        }
    }

    /// The store that a resolved configuration names: `file:///DIR`, `s3://BUCKET/PREFIX` or `memory://`.
    ///
    /// # Errors
    /// A URL that cannot be meant, or a directory that cannot be used.
    pub fn open(&self, variables: Variables<'_>) -> Result<Objects, BuildError> {
        let mistake = |problem: String| Mistake { key: "objects.url".to_owned(), problem };
        let url = self.url.as_deref().ok_or_else(|| mistake("it is not set".to_owned()))?;
        match url.split_once("://") {
            Some(("memory", _)) => Ok(Objects::memory()),
            Some(("file", path)) => Ok(Objects::disk(&PathBuf::from(path))?),
            Some(("s3", place)) => {
                let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
                if bucket.is_empty() {
                    return Err(mistake(format!("`{url}` names no bucket")).into());
                }
                let credentials = match (variables(S3_KEY), variables(S3_SECRET)) {
                    (Some(key), Some(secret)) => Some((key, secret.into())),
                    _ => None,
                };
                Ok(Objects::s3(S3Config {
                    bucket: bucket.to_owned(),
                    prefix: prefix.trim_matches('/').to_owned(),
                    region: S3_REGIONS.into_iter().find_map(variables).unwrap_or_else(|| S3_REGION.to_owned()),
                    endpoint: self.endpoint.clone(),
                    credentials,
                })?)
            }
            _ => Err(mistake(format!("`{url}` is neither file:///DIR nor s3://BUCKET")).into()),
        }
    }
}

impl Workspaces {
    /// By a resolved configuration, with keys and passwords from `variables`.
    ///
    /// # Errors
    /// [`BuildError`] names the key of the file that is to blame.
    pub async fn from_config(
        config: &WorkspaceConfig,
        variables: Variables<'_>,
        local: &Arc<dyn LocalServer>,
        observer: Arc<dyn Observer>,
        settings: Settings,
    ) -> Result<Self, BuildError> {
        let location = config.records.location(variables)?;
        let records: Arc<dyn Records> = Arc::new(DatabaseRecords::open(&location).await?);
        let orchestrator = Orchestrator::from_config(config, variables, local, Arc::clone(&records))?;
        let objects = config.objects.open(variables)?;
        if config.objects.url.as_ref().is_some_and(|url| url.starts_with("s3://")) {
            // No command waits for a store that does not answer.
            tokio::spawn(probe(objects.clone()));
        }
        let snapshots = Snapshots::new(objects).with(config.objects.retention());
        let left_out = config.objects.left_out();
        let minutes = config.objects.save_every_minutes.map(|minutes| Duration::from_secs(60 * minutes));
        let settings = Settings {
            snapshot: SnapshotOptions { left_out, ..settings.snapshot },
            save_interval: minutes.unwrap_or(settings.save_interval),
            ..settings
        };
        let ledger = Ledger::new(Arc::clone(&records), config);
        Ok(Self::new(Parts { orchestrator, records, snapshots, ledger, observer, settings }))
    }
}

/// A bucket that does not keep conditions, or cannot be used, is told of at the start and not by a loss. What can be done
/// without it still can be.
async fn probe(objects: Objects) {
    match objects.conditional_puts().await {
        Ok(found) if found.create == Condition::Ignored => {
            warn!("the objects' store ignores conditions: only the lease keeps two processes apart");
        }
        Ok(_) => {}
        Err(error) => warn!(error = %chain(&error), "the objects' store cannot be used now"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusions_are_configurable() {
        let folder = |name: &str| name.parse().expect("a folder");
        let objects =
            ObjectsConfig { leave_out: vec![folder("cache")], keep: vec![folder("dist")], ..ObjectsConfig::default() };
        let LeftOut { named, certain, likely } = objects.left_out();
        assert!(named == [folder("cache")] && certain.contains(&folder("node_modules")));
        assert!(!likely.contains(&folder("dist")) && likely.contains(&folder("build")));
    }

    #[test]
    fn stores_are_named_by_url() {
        let open = |url: &str| {
            let objects = ObjectsConfig { url: Some(url.to_owned()), ..ObjectsConfig::default() };
            objects.open(&|_| None).map(drop).map_err(|error| error.to_string())
        };
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(open(&format!("file://{}", directory.path().display())), Ok(()));
        assert_eq!((open("memory://"), open("s3://bucket/some/prefix")), (Ok(()), Ok(())));
        assert!(open("s3://").is_err_and(|said| said.contains("names no bucket")));
        assert!(open("ftp://x").is_err());
    }
}
