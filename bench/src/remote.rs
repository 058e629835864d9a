//! Sandboxes of the server under measurement, through our own SDK.

use std::time::Duration;

use anyhow::ensure;
use sdk::{Client, Command, Sandbox};

use crate::server::Server;

/// Longer than any command of a measurement takes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) fn client(server: &Server) -> anyhow::Result<Client> {
    let url = format!("http://{}", server.address);
    let client = Client::builder().ignore_environment().api_key(server.key.as_str());
    Ok(client.api_url(&url).sandbox_url(&url).build()?)
}

/// Runs a command that must succeed, and returns its output.
pub(crate) async fn run(sandbox: &Sandbox, command: Command) -> anyhow::Result<String> {
    let output = sandbox.commands().run(command.timeout(COMMAND_TIMEOUT)).await?;
    ensure!(output.success(), "a command of the measurement failed: {}", output.stderr_text());
    Ok(output.stdout_text().into_owned())
}
