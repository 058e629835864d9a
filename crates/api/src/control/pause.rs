//! Pause: with the memory, or with the files alone.

use http::{Request, StatusCode};
use node::SandboxId;
use node::lifecycle::Kept;
use protocol::rest::Pause;

use super::{Answer, payload};
use crate::body;
use crate::content::Content;
use crate::server::App;

pub(super) async fn pause(app: &App, id: &SandboxId, request: Request<Content>) -> Answer {
    let Pause { memory, require_healthy_guest } = payload::read_json(request).await?;
    app.node.pause(id, kept(memory), require_healthy_guest.unwrap_or(false)).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// What the field `memory` asks for; the memory counts unless it is refused.
pub(super) fn kept(memory: Option<bool>) -> Kept {
    if memory.unwrap_or(true) { Kept::Memory } else { Kept::Files }
}
