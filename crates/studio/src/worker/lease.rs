//! Renews a claim while its job is built, and detects that the claim is lost or that the user
//! cancelled the job.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::records::JobRecord;
use crate::studio::Studio;
use text::error_chain;

/// A claim that is renewed until it is dropped.
pub(super) struct Claim {
    studio: Studio,
    job: JobRecord,
    /// Cancelled when the user cancels the job.
    pub(super) cancel: CancellationToken,
    /// Cancelled when another worker has the job, or may have it.
    pub(super) lost: CancellationToken,
    _renewing: AbortOnDropHandle<()>,
}

impl Claim {
    pub(super) fn hold(studio: &Studio, job: &JobRecord) -> Self {
        let (cancel, lost) = (CancellationToken::new(), CancellationToken::new());
        if job.cancel_asked {
            cancel.cancel();
        }
        studio.inner.building.lock().insert(job.id.clone(), cancel.clone());
        let renewing = tokio::spawn(renew(studio.clone(), job.clone(), cancel.clone(), lost.clone()));
        let _renewing = AbortOnDropHandle::new(renewing);
        Self { studio: studio.clone(), job: job.clone(), cancel, lost, _renewing }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.studio.inner.building.lock().remove(&self.job.id);
    }
}

async fn renew(studio: Studio, job: JobRecord, cancel: CancellationToken, lost: CancellationToken) {
    let settings = &studio.inner.settings;
    let mut good_until = tokio::time::Instant::now() + settings.lease;
    loop {
        tokio::time::sleep(settings.renew_interval.min(settings.lease / 3)).await;
        let asked = tokio::time::Instant::now();
        let renewed = studio.records().renew(&job.id, job.attempt, settings.lease);
        match tokio::time::timeout(settings.lease, renewed).await {
            Ok(Ok(Some(wanted))) => {
                good_until = asked + settings.lease;
                if wanted {
                    cancel.cancel();
                }
            }
            Ok(Ok(None)) => return lost.cancel(),
            Ok(Err(error)) => warn!(job = %job.id, error = %error_chain(&error), "cannot renew a claim; trying again"),
            Err(_) => {}
        }
        if tokio::time::Instant::now() + Duration::from_secs(1) >= good_until {
            // The lease may have expired, so another worker may have claimed the job.
            return lost.cancel();
        }
    }
}
