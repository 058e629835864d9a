//! Handlers of screenshots.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::PathParams;
use super::view::Screenshots;
use crate::{JobId, ScreenshotFile, ScreenshotId};

/// The media types that are served. A tool's result states its own type, which must not become a
/// page.
pub(super) const KINDS: &[&str] = &["image/webp", "image/png", "image/jpeg", "image/gif"];

pub(super) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
) -> Result<Json<Screenshots>, Failure> {
    let screenshots = app.studio.screenshots(&caller.user, &job).await?;
    Ok(Json(Screenshots { screenshots }))
}

/// The content of a screenshot, which never changes.
pub(super) async fn get(
    State(app): State<Shared>,
    caller: Caller,
    PathParams((job, screenshot)): PathParams<(JobId, ScreenshotId)>,
) -> Result<Response, Failure> {
    let ScreenshotFile { media_type, content } = app.studio.screenshot(&caller.user, &job, &screenshot).await?;
    let kind = KINDS.iter().find(|kind| **kind == media_type).ok_or_else(Failure::not_found)?;
    let headers = [(CONTENT_TYPE, *kind), (CACHE_CONTROL, "private, max-age=31536000, immutable")];
    Ok((headers, content).into_response())
}
