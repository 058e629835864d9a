//! Handlers of files: in the running sandbox, or in a snapshot.

use axum::Json;
use axum::extract::State;

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::{PathParams, QueryParams};
use super::requests::{FileQuery, FilesQuery};
use crate::{FileContent, JobId, Listing};

pub(super) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
    QueryParams(FilesQuery { path, snapshot }): QueryParams<FilesQuery>,
) -> Result<Json<Listing>, Failure> {
    let snapshot = snapshot.as_ref().map(|key| key.0.as_str());
    Ok(Json(app.studio.files(&caller.user, &job, &path.0, snapshot).await?))
}

pub(super) async fn read(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
    QueryParams(FileQuery { path, snapshot }): QueryParams<FileQuery>,
) -> Result<Json<FileContent>, Failure> {
    let snapshot = snapshot.as_ref().map(|key| key.0.as_str());
    Ok(Json(app.studio.file(&caller.user, &job, &path.0, snapshot).await?))
}
