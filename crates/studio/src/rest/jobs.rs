//! Handlers of jobs, except those of files, screenshots and streams.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::{JsonBody, PathParams, QueryParams};
use super::requests::{ApprovalAnswer, JobsQuery, RestoreRequest};
use super::view::{ApprovalAnswered, Jobs, Paused, Snapshots, StartedBuild};
use crate::{Dashboard, Job, JobId, Me, PreviewCheck, ProjectId, UsageReport};

pub(super) async fn me(State(app): State<Shared>, caller: Caller) -> Result<Json<Me>, Failure> {
    Ok(Json(app.studio.me(&caller.user).await?))
}

pub(super) async fn dashboard(State(app): State<Shared>, caller: Caller) -> Result<Json<Dashboard>, Failure> {
    Ok(Json(app.studio.dashboard(&caller.user).await?))
}

pub(super) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    QueryParams(JobsQuery { project_id }): QueryParams<JobsQuery>,
) -> Result<Json<Jobs>, Failure> {
    Ok(Json(Jobs { jobs: app.studio.jobs(&caller.user, project_id.as_ref()).await? }))
}

pub(super) async fn get(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<Job>, Failure> {
    Ok(Json(app.studio.job(&caller.user, &job).await?))
}

pub(super) async fn delete(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<StatusCode, Failure> {
    app.studio.delete(&caller.user, &job).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn cancel(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<StartedBuild>, Failure> {
    Ok(Json(app.studio.cancel(&caller.user, &job).await?.into()))
}

/// Pauses the preview.
pub(super) async fn pause(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<Paused>, Failure> {
    let paused = app.studio.pause(&caller.user, &job).await?;
    Ok(Json(Paused { job_id: job, paused }))
}

/// The state of the preview. Never resumes it.
pub(super) async fn preview(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<PreviewCheck>, Failure> {
    Ok(Json(app.studio.check(&caller.user, &job).await?))
}

/// A page has loaded the preview of a build that it watched.
pub(super) async fn preview_loaded(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<StatusCode, Failure> {
    app.studio.preview_loaded(&caller.user, &job).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn snapshots(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<Snapshots>, Failure> {
    Ok(Json(Snapshots { snapshots: app.studio.snapshots(&caller.user, &job).await? }))
}

pub(super) async fn restore(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
    JsonBody(asked): JsonBody<RestoreRequest>,
) -> Result<(StatusCode, Json<StartedBuild>), Failure> {
    let job = app.studio.restore(&caller.user, &job, &asked.key.0).await?;
    Ok((StatusCode::ACCEPTED, Json(job.into())))
}

pub(super) async fn usage(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<UsageReport>, Failure> {
    Ok(Json(app.studio.usage(&caller.user, &job).await?))
}

pub(super) async fn project_usage(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(project): PathParams<ProjectId>,
) -> Result<Json<UsageReport>, Failure> {
    Ok(Json(app.studio.project_usage(&caller.user, &project).await?))
}

/// Answers an approval request of the timeline.
pub(super) async fn answer(
    State(app): State<Shared>,
    caller: Caller,
    PathParams((job, question)): PathParams<(JobId, String)>,
    JsonBody(ApprovalAnswer { allow, reason }): JsonBody<ApprovalAnswer>,
) -> Result<Json<ApprovalAnswered>, Failure> {
    let reason = reason.map(|text| text.0).filter(|text| !text.trim().is_empty());
    if question.contains('\0') {
        return Err(Failure::not_found());
    }
    app.studio.answer(&caller.user, &job, &question, allow, reason).await?;
    Ok(Json(ApprovalAnswered { id: question, allowed: allow }))
}
