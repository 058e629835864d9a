//! What is done for a job that has ended: its files are set back, or all it leaves is removed. Begun by a call, which notes it in the
//! records first, and gone on with by whichever worker has the job when the process that began it is no more.

use tracing::{info, warn};
use workspace::snapshot::Stamp;

use super::build::{Left, Work};
use super::host::Host;
use crate::body;
use crate::chain;
use crate::error::StudioError;
use crate::records::{Change, JobRecord};

impl<H: Host> Work<'_, H> {
    /// Sets the files back. What fails is told and left at that: whoever asked may ask again.
    pub(super) async fn restore(&self, job: &JobRecord, stamp: Stamp) -> Result<(), Left> {
        let message = match self.host.set_back(job, stamp).await {
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
        self.host.erase(job).await?;
        let forgotten = self.studio.records().forget(&job.id, self.attempt).await.map_err(StudioError::from)?;
        if !forgotten {
            return Err(Left::Lost);
        }
        info!("a deleted job is gone");
        Ok(())
    }
}
