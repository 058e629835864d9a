//! Timeouts of sandboxes.

use std::time::Duration;

use http::{Request, StatusCode};
use node::SandboxId;
use protocol::rest::{Refresh, Timeout};

use super::failure::Failure;
use super::{CallResult, payload};
use crate::body;
use crate::content::Content;
use crate::server::App;

const LEAST_REFRESH: i64 = 15;
const MOST_REFRESH: i64 = 3600;

pub(super) async fn set(app: &App, id: &SandboxId, request: Request<Content>) -> CallResult {
    let Timeout { timeout } = payload::read_json(request).await?;
    app.node.set_timeout(id, check(app, timeout)?).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

pub(super) async fn refresh(app: &App, id: &SandboxId, request: Request<Content>) -> CallResult {
    let Refresh { duration } = payload::read_json(request).await?;
    let seconds = duration.unwrap_or(LEAST_REFRESH);
    if !(0..=MOST_REFRESH).contains(&seconds) {
        return Err(Failure::bad_request(format!("duration is {seconds}; it must be between 0 and {MOST_REFRESH}")));
    }
    app.node.refresh(id, Duration::from_secs(seconds.max(LEAST_REFRESH).unsigned_abs())).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// Checks a requested timeout; 0 means now.
pub(super) fn check(app: &App, seconds: i64) -> Result<Duration, Failure> {
    let most = app.node.config().max_timeout();
    match u64::try_from(seconds).map(Duration::from_secs) {
        Err(_) => Err(Failure::bad_request("Timeout must be greater than or equal to 0")),
        Ok(timeout) if timeout > most => {
            Err(Failure::bad_request(format!("Timeout cannot be greater than {} seconds", most.as_secs())))
        }
        Ok(timeout) => Ok(timeout),
    }
}
