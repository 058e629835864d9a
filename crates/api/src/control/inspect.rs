//! Get and kill one sandbox.

use http::StatusCode;
use node::{SandboxError, SandboxId};

use super::{CallResult, view};
use crate::body;
use crate::server::App;

pub(super) fn get(app: &App, id: &SandboxId) -> CallResult {
    let seen = app.node.get(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
    Ok(body::json(StatusCode::OK, &view::detail(&seen, &app.config.domain)))
}

pub(super) async fn kill(app: &App, id: &SandboxId) -> CallResult {
    app.node.kill(id).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}
