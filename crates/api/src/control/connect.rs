//! Connect and resume: ensure that a sandbox runs.

use http::{Request, StatusCode};
use node::lifecycle::PauseMode;
use node::{Created, OnTimeout, Resumed, SandboxError, SandboxId};
use protocol::rest::{Connect, Resume};

use super::failure::Failure;
use super::pause::pause_mode;
use super::{ApiVersion, CallResult, payload, timeout, view};
use crate::body;
use crate::content::Content;
use crate::server::App;

const CONNECT_TIMEOUT: i64 = 300;
const RESUME_TIMEOUT: i64 = 15;

pub(super) async fn connect(app: &App, id: &SandboxId, request: Request<Content>, version: ApiVersion) -> CallResult {
    let Connect { timeout, memory } = payload::read_json(request).await?;
    let seconds = match (timeout, version) {
        (Some(seconds), _) => seconds,
        (None, ApiVersion::V2) => CONNECT_TIMEOUT,
        (None, ApiVersion::V1) => return Err(Failure::bad_request("missing field `timeout`")),
    };
    let lease = timeout::check(app, seconds)?;
    let status = match app.node.connect(id, lease, pause_mode(memory)).await? {
        Resumed::WasRunning => StatusCode::OK,
        Resumed::FromPause => StatusCode::CREATED,
    };
    answer(app, id, status)
}

pub(super) async fn resume(app: &App, id: &SandboxId, request: Request<Content>) -> CallResult {
    let Resume { timeout, auto_pause, memory } = payload::read_json(request).await?;
    let lease = timeout::check(app, timeout.unwrap_or(RESUME_TIMEOUT))?;
    let on_timeout = auto_pause.map(|pause| if pause { OnTimeout::Pause(PauseMode::Full) } else { OnTimeout::Kill });
    app.node.resume(id, lease, pause_mode(memory), on_timeout).await?;
    answer(app, id, StatusCode::CREATED)
}

fn answer(app: &App, id: &SandboxId, status: StatusCode) -> CallResult {
    let seen = app.node.get(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
    Ok(body::json(status, &view::sandbox(Created::from(&*seen.record), &app.config.domain)))
}
