//! The files that a build starts from: those of an earlier build, saved first if only its sandbox
//! has the newest state.

use std::time::Duration;

use checkpoint::ProjectId as SnapshotsOf;
use tokio::time::Instant;
use tracing::info;
use workspace::OpenError;

use super::build::Interrupted;
use super::host::WorkspaceHost;
use crate::error::StudioError;
use crate::previews::close;
use crate::records::JobRecord;
use text::error_chain;

/// For the worker of the earlier build, which saves its files and pauses or deletes its sandbox.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// For the process that holds the earlier build's workspace.
const HELD_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl WorkspaceHost {
    /// The snapshots to start from. They contain all files of the earlier build's sandbox, edits by
    /// hand included. If the earlier build never had files, those that it started from itself.
    pub(super) async fn prepare_base(&self, job: &JobRecord) -> Result<Option<SnapshotsOf>, Interrupted> {
        let mut from = job.spec.begins_from.clone();
        while let Some(files) = from {
            let workspace = files.as_str().parse().map_err(StudioError::unavailable)?;
            let earlier = self.studio.records().job_in_workspace(&workspace).await.map_err(StudioError::from)?;
            if let Some(earlier) = &earlier {
                self.save_files(earlier).await?;
            }
            if self.studio.has_files(&files).await? {
                return Ok(Some(files));
            }
            from = earlier.and_then(|earlier| earlier.spec.begins_from);
        }
        Ok(None)
    }

    /// Saves the files that only the sandbox of an ended job has. A sandbox whose files were saved
    /// when it was paused is not resumed.
    async fn save_files(&self, job: &JobRecord) -> Result<(), Interrupted> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let now = self.studio.records().job(&job.id).await.map_err(StudioError::from)?;
            match now {
                // The removal of a deleted job waits until this build has copied its files.
                Some(now) if now.deleted => return Ok(()),
                Some(now) if now.settled => break,
                Some(_) if Instant::now() < deadline => tokio::time::sleep(POLL_INTERVAL).await,
                Some(_) => return Err(Interrupted::Retry(format!("the files of {} are still being saved", job.id))),
                None => return Ok(()),
            }
        }
        let _lock = self.studio.lock_job(&job.id).await;
        let deadline = Instant::now() + HELD_TIMEOUT;
        let workspace = loop {
            match self.studio.workspaces().open(&job.workspace).await {
                Ok(workspace) => break workspace,
                // Its sandbox was deleted after its files were saved.
                Err(OpenError::NotFound(_)) => return Ok(()),
                Err(error @ OpenError::Held { .. }) if Instant::now() < deadline => {
                    info!(job = %job.id, "waiting: {error}");
                }
                Err(error) => return Err(Interrupted::Retry(error_chain(&error))),
            }
        };
        let saved = workspace.keep_files().await;
        close(&workspace).await;
        saved.map(drop).map_err(|error| {
            Interrupted::Retry(format!("the newest files of {} could not be saved: {}", job.id, error_chain(&error)))
        })
    }
}
