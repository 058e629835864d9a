//! Pause: with the memory, or with the files only.

use http::{Request, StatusCode};
use node::SandboxId;
use node::lifecycle::PauseMode;
use protocol::rest::Pause;

use super::{CallResult, payload};
use crate::body;
use crate::content::Content;
use crate::server::App;

pub(super) async fn pause(app: &App, id: &SandboxId, request: Request<Content>) -> CallResult {
    let Pause { memory, require_healthy_guest } = payload::read_json(request).await?;
    app.node.pause(id, pause_mode(memory), require_healthy_guest.unwrap_or(false)).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// Converts the field `memory`; the default keeps the memory.
pub(super) fn pause_mode(memory: Option<bool>) -> PauseMode {
    if memory.unwrap_or(true) { PauseMode::Full } else { PauseMode::Filesystem }
}
