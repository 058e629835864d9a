//! `sandbar workspace pictures`, a hidden command: takes the automatic screenshots of a workspace
//! in a separate process, so that `resume` does not wait for them.

use super::Session;
use super::app::WorkspaceLocation;
use clap::Args;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use tracing::warn;
use workspace::WorkspaceName;

/// Take the pictures that are due after the start of a dev server.
#[derive(Args)]
pub(super) struct TakeScreenshots {
    /// The workspace
    name: WorkspaceName,
}

impl TakeScreenshots {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        session.app.take_screenshots(&self.name).await;
        Ok(())
    }
}

/// Starts a process that takes the screenshots of a workspace and outlives this one. A failure is
/// logged, and no screenshot is taken.
pub(super) fn start(location: &WorkspaceLocation, name: &WorkspaceName) {
    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["workspace", "pictures", name.as_str()]);
        for (flag, value) in [("--config", &location.config), ("--data", &location.data)] {
            if let Some(value) = value {
                command.arg(flag).arg(value);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // In its own process group, so that Ctrl-C in this terminal does not reach it.
        command.process_group(0).spawn()
    };
    if let Err(error) = start() {
        warn!(workspace = %name, %error, "no automatic picture could be taken");
    }
}
