//! `sandbar sandbox fork`: starts copies of a sandbox.

use super::{Session, explain};
use crate::values;
use clap::Args;
use sdk::model::{ErrorBody, ForkResult};
use sdk::{ForkError, SandboxId};
use std::process::ExitCode;
use std::time::Duration;

/// Start copies of a running sandbox, which itself goes on.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox fork iabc123  prints the id of the copy
  sandbar sandbox fork iabc123 --count 3 --timeout 1h

When some copies start and others do not, the ids of the first are printed and the exit code is 1.")]
pub(crate) struct Fork {
    /// The sandbox
    id: SandboxId,
    /// How many copies, all of one moment
    #[arg(long, short = 'n', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    count: u32,
    /// How long the copies live [default: the service's]
    #[arg(long, value_name = "TIME", value_parser = values::wait)]
    timeout: Option<Duration>,
}

impl Fork {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let fork = sdk::Fork::new().count(self.count);
        let fork = self.timeout.map_or(fork, |time| fork.timeout(time));
        let children = session.client.fork(&self.id, fork).await.map_err(explain)?;
        let failed = children.iter().any(Result::is_err);
        if session.show.json {
            let results: Vec<ForkResult> = children.iter().map(result).collect();
            session.show.object(&results)?;
        } else {
            for child in &children {
                match child {
                    Ok(sandbox) => session.show.line(sandbox.id().as_str())?,
                    Err(error) => eprintln!("sandbar: {error}"),
                }
            }
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The protocol's object for a child.
fn result(child: &Result<sdk::Sandbox, ForkError>) -> ForkResult {
    let error =
        |code, message| ForkResult { sandbox: None, error: Some(ErrorBody { code, message, error_code: None }) };
    match child {
        Ok(sandbox) => ForkResult { sandbox: Some(sandbox.model()), error: None },
        Err(ForkError::NotStarted { status, message, .. }) => error(*status, message.clone()),
        Err(other) => error(500, other.to_string()),
    }
}
