//! `sandbar down`: ends the server, if one runs, and every sandbox of the data directory.

use crate::config::{Config, Overrides};
use crate::data::{Busy, DataDirectory};
use crate::up;
use anyhow::{Context, bail};
use clap::Args;
use node::Closing;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for a server that ends its sandboxes.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// End the server and all its sandboxes; their files go with them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar down
  sandbar down --data /tmp/try

Paused sandboxes are ended too. To stop only the server and keep the sandboxes, press Ctrl-C in `sandbar up`.")]
pub(crate) struct Down {
    /// The data directory of the server to end [default: by XDG rules]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

/// Takes the data directory; a server that has it is told to end its sandboxes and itself. Gives that server's process.
fn take_from_server(path: &Path) -> anyhow::Result<(DataDirectory, Option<u32>)> {
    let deadline = Instant::now() + PATIENCE;
    let mut told = None;
    loop {
        match DataDirectory::take(path)? {
            Ok(directory) => return Ok((directory, told)),
            Err(Busy(Some(note))) if told.is_none() => {
                let pid =
                    i32::try_from(note.pid).ok().and_then(Pid::from_raw).context("the server's note is damaged")?;
                kill_process(pid, Signal::USR1).with_context(|| format!("cannot reach process {}", note.pid))?;
                told = Some(note.pid);
            }
            // Just starting, or on its way out.
            Err(_) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            Err(_) => bail!("the server in {} did not end within {PATIENCE:?}", path.display()),
        }
    }
}

impl Down {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let overrides = Overrides { data: self.data.clone(), ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        if !rustix::process::geteuid().is_root() {
            bail!("sandboxes belong to root; run `sudo sandbar down`");
        }
        if !config.data.exists() {
            self.report(None, 0);
            return Ok(());
        }
        let (directory, server) = take_from_server(&config.data)?;
        let by_server = directory.take_ended();
        // A server ended its own; what an earlier one left behind is ended here.
        engine::enter_private_mounts().context("cannot make a mount namespace")?;
        let left = tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
            let node = up::open_node(&config, &directory).await?;
            node.close(Closing::End).await.context("cannot end the sandboxes")
        })?;
        self.report(server, by_server * usize::from(server.is_some()) + left);
        Ok(())
    }

    fn report(&self, server: Option<u32>, sandboxes: usize) {
        if self.json {
            println!("{}", serde_json::json!({ "server": server, "sandboxesEnded": sandboxes }));
            return;
        }
        match server {
            Some(pid) => println!("ended the server (process {pid}); sandboxes ended: {sandboxes}"),
            None => println!("no server was running; sandboxes ended: {sandboxes}"),
        }
    }
}
