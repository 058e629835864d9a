//! Builds [`Workspaces`] from the resolved configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use crate::config::{Mistake, ObjectsConfig, Variables, WorkspaceConfig};
use crate::context::Parts;
use crate::events::Observer;
use crate::ledger::Ledger;
use crate::provider::{LocalServer, Orchestrator};
use crate::records::{DatabaseRecords, Records, RecordsError};
use crate::settings::Settings;
use crate::workspaces::Workspaces;
use checkpoint::{CheckpointOptions, Checkpoints, Condition, Excludes, ObjectStoreError, Objects, S3Config};
use text::error_chain;

/// The environment variables that AWS's own programs read.
const S3_KEY: &str = "AWS_ACCESS_KEY_ID";
const S3_SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const S3_REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
const S3_REGION: &str = "us-east-1";

/// Why the resolved configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error(transparent)]
    Mistake(#[from] Mistake),
    #[error(transparent)]
    Records(#[from] RecordsError),
    #[error(transparent)]
    Store(#[from] ObjectStoreError),
}

impl ObjectsConfig {
    /// The folders that checkpoints exclude.
    fn excludes(&self) -> Excludes {
        let Excludes { mut certain, mut likely, .. } = Excludes::default();
        for names in [&mut certain, &mut likely] {
            names.retain(|name| !self.keep.contains(name));
        }
        Excludes { named: self.leave_out.clone(), certain, likely }
    }

    /// How many checkpoints are retained, and for how long.
    fn retention(&self) -> checkpoint::CheckpointSettings {
        let known = checkpoint::CheckpointSettings::default();
        let keep_for = self.keep_snapshots_days.map(|days| Duration::from_secs(24 * 3600 * days));
        checkpoint::CheckpointSettings {
            keep: self.keep_snapshots.unwrap_or(known.keep),
            keep_for: keep_for.unwrap_or(known.keep_for),
            ..known
        }
    }

    /// Opens the store that a resolved configuration names: `file:///DIR`, `s3://BUCKET/PREFIX` or
    /// `memory://`.
    ///
    /// # Errors
    /// [`BuildError::Mistake`] for an invalid URL, [`BuildError::Store`] for a directory or bucket
    /// that cannot be opened.
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
    /// Opens records, providers and the object store of a resolved configuration; keys and
    /// passwords come from `variables`.
    ///
    /// # Errors
    /// [`BuildError`]; its `Mistake` names the configuration key to correct.
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
            // Probed in the background: no command waits for a store that does not answer.
            tokio::spawn(probe(objects.clone()));
        }
        let checkpoints = Checkpoints::new(objects).with(config.objects.retention());
        let excluded = config.objects.excludes();
        let minutes = config.objects.save_every_minutes.map(|minutes| Duration::from_secs(60 * minutes));
        let settings = Settings {
            checkpoint: CheckpointOptions { excluded, ..settings.checkpoint },
            save_interval: minutes.unwrap_or(settings.save_interval),
            ..settings
        };
        let ledger = Ledger::new(Arc::clone(&records), config);
        Ok(Self::new(Parts { orchestrator, records, checkpoints, ledger, observer, settings }))
    }
}

/// Warns at startup about a bucket that ignores conditional puts or cannot be reached, before a
/// conflict loses data. Commands that do not need the store still work.
async fn probe(objects: Objects) {
    match objects.conditional_puts().await {
        Ok(found) if found.create == Condition::Ignored => {
            warn!("the object store ignores conditional puts: only the lease keeps two processes apart");
        }
        Ok(_) => {}
        Err(error) => warn!(error = %error_chain(&error), "the object store cannot be reached now"),
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
        let Excludes { named, certain, likely } = objects.excludes();
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
        assert!(open("s3://").is_err_and(|error| error.contains("names no bucket")));
        assert!(open("ftp://x").is_err());
    }
}
