//! Jobs and what belongs to them, except their files, pictures and streams.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::{Asked, At, Sent};
use super::requests::{ApprovalAnswer, JobsQuery, RestoreRequest};
use super::view::{Answered, DashboardView, JobView, Jobs, Me, Paused, Preview, Snapshots, Started, Usage};
use crate::{JobId, ProjectId};

pub(super) async fn me(State(app): State<Shared>, caller: Caller) -> Result<Json<Me>, Failure> {
    let credits = app.studio.credits(&caller.user).await?;
    Ok(Json(Me { name: caller.user.name, credits }))
}

pub(super) async fn dashboard(State(app): State<Shared>, caller: Caller) -> Result<Json<DashboardView>, Failure> {
    Ok(Json(app.studio.dashboard(&caller.user).await?.into()))
}

pub(super) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    Asked(JobsQuery { project_id }): Asked<JobsQuery>,
) -> Result<Json<Jobs>, Failure> {
    Ok(Json(app.studio.jobs(&caller.user, project_id.as_ref()).await?.into()))
}

pub(super) async fn get(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<JobView>, Failure> {
    Ok(Json(app.studio.job(&caller.user, &job).await?.into()))
}

pub(super) async fn delete(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<StatusCode, Failure> {
    app.studio.delete(&caller.user, &job).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn cancel(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<Started>, Failure> {
    Ok(Json(app.studio.cancel(&caller.user, &job).await?.into()))
}

/// Lets the preview sleep.
pub(super) async fn pause(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<Paused>, Failure> {
    let paused = app.studio.pause(&caller.user, &job).await?;
    Ok(Json(Paused { job_id: job, paused }))
}

/// How the preview is. Never wakes it.
pub(super) async fn preview(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<Preview>, Failure> {
    Ok(Json(app.studio.check(&caller.user, &job).await?.into()))
}

/// A page has loaded the preview of a build that it watched.
pub(super) async fn preview_loaded(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<StatusCode, Failure> {
    app.studio.preview_loaded(&caller.user, &job).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn snapshots(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<Snapshots>, Failure> {
    Ok(Json(app.studio.snapshots(&caller.user, &job).await?.into()))
}

pub(super) async fn restore(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
    Sent(asked): Sent<RestoreRequest>,
) -> Result<(StatusCode, Json<Started>), Failure> {
    let job = app.studio.restore(&caller.user, &job, &asked.key.0).await?;
    Ok((StatusCode::ACCEPTED, Json(job.into())))
}

pub(super) async fn usage(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<Usage>, Failure> {
    Ok(Json(app.studio.usage(&caller.user, &job).await?.into()))
}

pub(super) async fn project_usage(
    State(app): State<Shared>,
    caller: Caller,
    At(project): At<ProjectId>,
) -> Result<Json<Usage>, Failure> {
    Ok(Json(app.studio.project_usage(&caller.user, &project).await?.into()))
}

/// Answers a question that the timeline shows.
pub(super) async fn answer(
    State(app): State<Shared>,
    caller: Caller,
    At((job, question)): At<(JobId, String)>,
    Sent(ApprovalAnswer { allow, reason }): Sent<ApprovalAnswer>,
) -> Result<Json<Answered>, Failure> {
    let reason = reason.map(|text| text.0).filter(|text| !text.trim().is_empty());
    if question.contains('\0') {
        return Err(Failure::not_found());
    }
    app.studio.answer(&caller.user, &job, &question, allow, reason).await?;
    Ok(Json(Answered { id: question, allowed: allow }))
}
