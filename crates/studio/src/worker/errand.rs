//! What is done for a job that has ended: its files are set back, or all it leaves is removed. Begun by a call, which notes it in the
//! records first, and gone on with by whichever worker has the job when the process that began it is no more.

use tracing::{info, warn};
use workspace::snapshot::{ProjectId as SnapshotsOf, Stamp, Which};
use workspace::{OpenError, Unsaved};

use super::build::{Left, Work};
use crate::body;
use crate::chain;
use crate::error::StudioError;
use crate::previews::close;
use crate::records::{Change, JobRecord};

impl Work<'_> {
    /// Sets the files back. What fails is told and left at that: whoever asked may ask again.
    pub(super) async fn restore(&self, job: &JobRecord, stamp: Stamp) -> Result<(), Left> {
        let message = match self.studio.set_back(job, Which::Exactly(stamp)).await {
            Ok(()) => None,
            Err(error @ StudioError::ApplicationFailed { .. }) => Some(format!("The files are restored. {error}")),
            Err(error) => {
                let problem = chain(&error);
                warn!(problem, %stamp, "a snapshot was not restored");
                Some(format!("The snapshot could not be restored: {problem}"))
            }
        };
        let label = job.status.label();
        let now = self.studio.records().job(&job.id).await.map_err(StudioError::from)?.ok_or(Left::Lost)?;
        let told = body::status(now.status, label, now.sandbox_paused, now.preview_url.as_deref(), message.as_deref());
        let change = Change {
            stage_label: Some(label.to_owned()),
            restore_to: Some(None),
            settled: Some(true),
            ..Change::default()
        };
        self.change(job, change, vec![told]).await.map(drop)
    }

    /// Removes all that a job leaves; the row that says what it cost stays. Every step can be done again.
    pub(super) async fn remove(&self, job: &JobRecord) -> Result<(), Left> {
        let _turn = self.studio.turn(&job.id).await;
        match self.studio.workspaces().open(&job.workspace).await {
            Ok(workspace) => {
                if let Err(error) = workspace.destroy(Unsaved::Unwanted).await {
                    close(&workspace).await;
                    return Err(Left::Again(chain(&error)));
                }
            }
            Err(OpenError::NotFound(_)) => {}
            Err(error) => return Err(Left::Again(chain(&error))),
        }
        if self.studio.records().is_waited_for(&job.workspace).await.map_err(StudioError::from)? {
            return Err(Left::Again("another build is about to begin from its files".to_owned()));
        }
        let files: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let removed = self.studio.workspaces().remove_snapshots_of(&files).await;
        removed.map_err(StudioError::unavailable)?;
        if let Some(run) = &job.run {
            let forgotten = self.studio.inner.runs.remove(run).await;
            forgotten.map_err(StudioError::unavailable)?;
        }
        let forgotten = self.studio.records().forget(&job.id, self.attempt).await.map_err(StudioError::from)?;
        if !forgotten {
            return Err(Left::Lost);
        }
        info!("a deleted job is gone");
        Ok(())
    }
}
