//! Builds: taken in, asked about, woken and repeated.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::{At, MaybeSent, Sent};
use super::requests::{NewGeneration, RebuildRequest};
use super::view::{GenerationStatus, ResumedView, Started};
use crate::JobId;

pub(super) async fn start(
    State(app): State<Shared>,
    caller: Caller,
    Sent(asked): Sent<NewGeneration>,
) -> Result<(StatusCode, Json<Started>), Failure> {
    let job = app.studio.start(&caller.user, asked.try_into()?).await?;
    Ok((StatusCode::ACCEPTED, Json(job.into())))
}

pub(super) async fn status(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<GenerationStatus>, Failure> {
    Ok(Json(app.studio.status(&caller.user, &job).await?.into()))
}

/// Returns when the application answers, which takes as long as it takes, 150 s at most. A caller that goes away does not stop
/// it: others may wait for the same.
pub(super) async fn resume(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<ResumedView>, Failure> {
    Ok(Json(app.studio.resume(&caller.user, &job).await?.into()))
}

pub(super) async fn rebuild(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
    MaybeSent(asked): MaybeSent<RebuildRequest>,
) -> Result<(StatusCode, Json<Started>), Failure> {
    let job = app.studio.rebuild(&caller.user, &job, asked.confirm).await?;
    Ok((StatusCode::ACCEPTED, Json(job.into())))
}
