//! The files a build starts from: those of an earlier build, saved first where only its sandbox has
//! the newest state.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;
use workspace::OpenError;
use workspace::snapshot::ProjectId as SnapshotsOf;

use super::build::Left;
use super::host::WorkspaceHost;
use crate::chain;
use crate::error::StudioError;
use crate::previews::close;
use crate::records::JobRecord;

/// For the worker of the earlier build, which saves its files and pauses or ends its sandbox.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// For the process that holds the earlier build's workspace.
const HELD_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl WorkspaceHost {
    /// The snapshots to start from. They have all that the sandbox of the earlier build has, edits
    /// by hand included. Where the earlier build never had files, the ones it started from itself.
    pub(super) async fn prepare_base(&self, job: &JobRecord) -> Result<Option<SnapshotsOf>, Left> {
        let mut from = job.begins_from.clone();
        while let Some(files) = from {
            let workspace = files.as_str().parse().map_err(StudioError::unavailable)?;
            let earlier = self.studio.records().job_in(&workspace).await.map_err(StudioError::from)?;
            if let Some(earlier) = &earlier {
                self.save_files(earlier).await?;
            }
            if self.studio.has_files(&files).await? {
                return Ok(Some(files));
            }
            from = earlier.and_then(|earlier| earlier.begins_from);
        }
        Ok(None)
    }

    /// Saves what only the sandbox of an ended job has. One that was saved when it was paused is
    /// not woken.
    async fn save_files(&self, job: &JobRecord) -> Result<(), Left> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let now = self.studio.records().job(&job.id).await.map_err(StudioError::from)?;
            match now {
                // The removal of a deleted job waits until this build has its files.
                Some(now) if now.deleted => return Ok(()),
                Some(now) if now.settled => break,
                Some(_) if Instant::now() < deadline => tokio::time::sleep(POLL_INTERVAL).await,
                Some(_) => return Err(Left::Again(format!("the files of {} are still being saved", job.id))),
                None => return Ok(()),
            }
        }
        let _turn = self.studio.turn(&job.id).await;
        let deadline = Instant::now() + HELD_TIMEOUT;
        let workspace = loop {
            match self.studio.workspaces().open(&job.workspace).await {
                Ok(workspace) => break workspace,
                // Its sandbox was ended after its files were saved.
                Err(OpenError::NotFound(_)) => return Ok(()),
                Err(error @ OpenError::Held { .. }) if Instant::now() < deadline => {
                    info!(job = %job.id, "waiting: {error}");
                }
                Err(error) => return Err(Left::Again(chain(&error))),
            }
        };
        let saved = workspace.keep_files().await;
        close(&workspace).await;
        saved.map(drop).map_err(|error| {
            Left::Again(format!("the newest files of {} could not be saved: {}", job.id, chain(&error)))
        })
    }
}
