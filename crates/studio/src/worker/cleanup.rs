//! Work on ended jobs: restoring a snapshot, and removing a deleted job. A request records the
//! intent first, so that another worker continues after the process dies.

use checkpoint::Stamp;
use tracing::{info, warn};

use super::build::{Interrupted, JobTask};
use super::host::BuildHost;
use crate::error::StudioError;
use crate::events;
use crate::records::{Change, JobRecord};
use text::error_chain;

impl<H: BuildHost> JobTask<'_, H> {
    /// Restores the files. A failure is reported on the timeline and not retried: the user may ask
    /// again.
    pub(super) async fn restore(&self, job: &JobRecord, stamp: Stamp) -> Result<(), Interrupted> {
        let message = match self.host.restore_files(job, stamp).await {
            Ok(()) => None,
            Err(error @ StudioError::ApplicationFailed { .. }) => Some(format!("The files are restored. {error}")),
            Err(error) => {
                let problem = error_chain(&error);
                warn!(problem, %stamp, "cannot restore a checkpoint");
                Some(format!("The snapshot could not be restored: {problem}"))
            }
        };
        let label = job.status.label();
        let now = self.studio.records().job(&job.id).await.map_err(StudioError::from)?.ok_or(Interrupted::LeaseLost)?;
        let status_event =
            events::status(now.status, label, now.sandbox_paused, now.preview_url.as_deref(), message.as_deref());
        let change = Change {
            stage_label: Some(label.to_owned()),
            restore_to: Some(None),
            settled: Some(true),
            ..Change::default()
        };
        self.change(job, change, vec![status_event]).await.map(drop)
    }

    /// Removes everything that a deleted job left. The row with its cost stays. Every step is
    /// idempotent.
    pub(super) async fn remove(&self, job: &JobRecord) -> Result<(), Interrupted> {
        self.host.erase(job).await?;
        let erased = self.studio.records().erase_job(&job.id, self.attempt).await.map_err(StudioError::from)?;
        if !erased {
            return Err(Interrupted::LeaseLost);
        }
        info!("erased a deleted job");
        Ok(())
    }
}
