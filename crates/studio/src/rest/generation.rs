//! Handlers that start, poll, resume and rebuild builds.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::{JsonBody, OptionalJsonBody, PathParams};
use super::requests::RebuildRequest;
use super::view::{GenerationStatus, StartedBuild};
use crate::{JobId, NewBuild, ResumedPreview};

pub(super) async fn start(
    State(app): State<Shared>,
    caller: Caller,
    JsonBody(asked): JsonBody<NewBuild>,
) -> Result<(StatusCode, Json<StartedBuild>), Failure> {
    let job = app.studio.start(&caller.user, asked).await?;
    Ok((StatusCode::ACCEPTED, Json(job.into())))
}

pub(super) async fn status(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<GenerationStatus>, Failure> {
    Ok(Json(app.studio.status(&caller.user, &job).await?.into()))
}

/// Returns when the application responds, after at most 150 s. A disconnecting caller does not stop
/// the resume, because others may wait for it.
pub(super) async fn resume(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<ResumedPreview>, Failure> {
    Ok(Json(app.studio.resume(&caller.user, &job).await?))
}

pub(super) async fn rebuild(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
    OptionalJsonBody(asked): OptionalJsonBody<RebuildRequest>,
) -> Result<(StatusCode, Json<StartedBuild>), Failure> {
    let job = app.studio.rebuild(&caller.user, &job, asked.confirm).await?;
    Ok((StatusCode::ACCEPTED, Json(job.into())))
}
