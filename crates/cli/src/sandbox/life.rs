//! `sandbar sandbox pause`, `resume` and `timeout`: change the life cycle of a sandbox.

use super::{Session, explain};
use crate::show::{ahead, local_time, span};
use crate::values;
use clap::Args;
use sdk::{PauseOutcome, SandboxError, SandboxId};
use serde_json::json;
use std::time::Duration;

/// Pause a sandbox: stop it and keep it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox pause iabc123               processes go on where they stopped, after `resume`
  sandbar sandbox pause iabc123 --files-only  processes end; the next start is a fresh one

Pausing one that is paused already succeeds.")]
pub(crate) struct Pause {
    /// The sandbox
    id: SandboxId,
    /// Keep only its files
    #[arg(long)]
    files_only: bool,
}

impl Pause {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let pause = if self.files_only { sdk::Pause::files_only() } else { sdk::Pause::with_memory() };
        let outcome = session.client.pause(&self.id, pause).await.map_err(explain)?;
        if session.show.json {
            return Ok(session.show.object(&json!({ "sandboxID": self.id.as_str(), "state": "paused" }))?);
        }
        let how = match outcome {
            PauseOutcome::Paused => "paused",
            PauseOutcome::AlreadyPaused => "was paused already",
        };
        Ok(session.show.line(format!("{} {how}", self.id))?)
    }
}

/// Wake a paused sandbox.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox resume iabc123
  sandbar sandbox resume iabc123 --timeout 1h

One that runs already is left running; then --timeout makes it live at least that long.")]
pub(crate) struct Resume {
    /// The sandbox
    id: SandboxId,
    /// How long it lives from now: 90, 5m, 1h30m, 2d
    #[arg(long, value_name = "TIME", value_parser = values::wait, default_value = "5m")]
    timeout: Duration,
}

impl Resume {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let (sandbox, how) = match session.client.resume(&self.id, sdk::Resume::timeout(self.timeout)).await {
            Ok(sandbox) => (sandbox, "runs"),
            Err(SandboxError::Conflict { .. }) => {
                let connect = sdk::Connect::timeout(self.timeout);
                (session.client.connect(&self.id, connect).await.map_err(explain)?, "was running already")
            }
            Err(error) => return Err(explain(error)),
        };
        if session.show.json {
            return Ok(session.show.object(&sandbox.model())?);
        }
        Ok(session.show.line(format!("{} {how}", self.id))?)
    }
}

/// Set how long a running sandbox lives from now. This may shorten its life.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox timeout iabc123 2h
  sandbar sandbox timeout iabc123 90  in seconds
  sandbar sandbox timeout iabc123 0   its time is up now: killed, or paused if it was made so")]
pub(crate) struct Timeout {
    /// The sandbox
    id: SandboxId,
    /// How long from now: 90, 5m, 1h30m, 2d
    #[arg(value_name = "TIME", value_parser = values::duration)]
    time: Duration,
}

impl Timeout {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        session.client.set_timeout(&self.id, self.time).await.map_err(explain)?;
        let end_at = match session.client.info(&self.id).await {
            Ok(detail) => Some(detail.listed.end_at),
            // A timeout of 0 has killed it.
            Err(SandboxError::NotFound { .. }) => None,
            Err(error) => return Err(explain(error)),
        };
        if session.show.json {
            return Ok(session.show.object(&json!({ "sandboxID": self.id.as_str(), "endAt": end_at }))?);
        }
        let left = end_at.as_deref().and_then(|moment| Some((moment, ahead(moment)?)));
        Ok(session.show.line(match left {
            Some((moment, left)) => format!("{} ends at {} (in {})", self.id, local_time(moment), span(left)),
            None => format!("{} has ended", self.id),
        })?)
    }
}
