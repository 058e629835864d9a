//! Keeps a claim while a job is being built, and hears that it is lost or that somebody wants the job cancelled.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::chain;
use crate::records::JobRecord;
use crate::studio::{Studio, locked};

/// A claim that is kept until it is dropped.
pub(super) struct Claim {
    studio: Studio,
    job: JobRecord,
    /// Somebody wants the job cancelled.
    pub(super) cancel: CancellationToken,
    /// Another worker has the job, or may have it.
    pub(super) lost: CancellationToken,
    _renewing: AbortOnDropHandle<()>,
}

impl Claim {
    pub(super) fn keep(studio: &Studio, job: &JobRecord) -> Self {
        let (cancel, lost) = (CancellationToken::new(), CancellationToken::new());
        if job.cancel_asked {
            cancel.cancel();
        }
        locked(&studio.inner.building).insert(job.id.clone(), cancel.clone());
        let renewing = tokio::spawn(renew(studio.clone(), job.clone(), cancel.clone(), lost.clone()));
        let _renewing = AbortOnDropHandle::new(renewing);
        Self { studio: studio.clone(), job: job.clone(), cancel, lost, _renewing }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        locked(&self.studio.inner.building).remove(&self.job.id);
    }
}

async fn renew(studio: Studio, job: JobRecord, cancel: CancellationToken, lost: CancellationToken) {
    let settings = &studio.inner.settings;
    let mut good_until = tokio::time::Instant::now() + settings.lease;
    loop {
        tokio::time::sleep(settings.renew_every.min(settings.lease / 3)).await;
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
            Ok(Err(error)) => warn!(job = %job.id, error = %chain(&error), "a claim was not renewed; trying again"),
            Err(_) => {}
        }
        if tokio::time::Instant::now() + Duration::from_secs(1) >= good_until {
            // Somebody else may have it by now.
            return lost.cancel();
        }
    }
}
