//! `sandbar workspace pictures`: the automatic pictures of a workspace, taken by a process of their own so that nobody waits
//! for them. Programs start it, not people.

use super::Session;
use super::house::Place;
use clap::Args;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use tracing::warn;
use workspace::WorkspaceName;

/// Take the pictures that are due after the start of a dev server.
#[derive(Args)]
pub(super) struct Pictures {
    /// The workspace
    name: WorkspaceName,
}

impl Pictures {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        session.house.photograph(&self.name).await;
        Ok(())
    }
}

/// Has the pictures of a workspace taken by another process, which goes on when this one ends. Without it there are none this
/// time.
pub(super) fn take_beside(place: &Place, name: &WorkspaceName) {
    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["workspace", "pictures", name.as_str()]);
        for (flag, value) in [("--config", &place.config), ("--data", &place.data)] {
            if let Some(value) = value {
                command.arg(flag).arg(value);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Out of reach of this terminal's Ctrl-C.
        command.process_group(0).spawn()
    };
    if let Err(error) = start() {
        warn!(workspace = %name, %error, "no automatic picture could be taken");
    }
}
