//! Pictures of a job's pages.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::At;
use super::view::Screenshots;
use crate::{JobId, PictureFile, ScreenshotId};

/// What a picture may be. A tool's answer says by itself what it is, and must not make a page of it.
pub(super) const KINDS: &[&str] = &["image/webp", "image/png", "image/jpeg", "image/gif"];

pub(super) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
) -> Result<Json<Screenshots>, Failure> {
    let screenshots = app.studio.screenshots(&caller.user, &job).await?;
    Ok(Json(Screenshots::of(&job, screenshots)))
}

/// The picture itself, which never changes.
pub(super) async fn get(
    State(app): State<Shared>,
    caller: Caller,
    At((job, picture)): At<(JobId, ScreenshotId)>,
) -> Result<Response, Failure> {
    let PictureFile { media_type, content } = app.studio.screenshot(&caller.user, &job, &picture).await?;
    let kind = KINDS.iter().find(|kind| **kind == media_type).ok_or_else(Failure::not_found)?;
    let headers = [(CONTENT_TYPE, *kind), (CACHE_CONTROL, "private, max-age=31536000, immutable")];
    Ok((headers, content).into_response())
}
