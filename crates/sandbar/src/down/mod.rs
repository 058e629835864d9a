//! `sandbar down`: saves the files of workspaces, then ends the server, if one runs, and every
//! sandbox of the data directory.

mod save;

use self::save::{SaveReport, SaveTarget, Unsaved};
use crate::config::{Config, Overrides};
use crate::workspace::app::WorkspaceLocation;
use crate::{runtime, up};
use anyhow::{Context, anyhow, bail};
use clap::Args;
use data_directory::{Busy, DataDirectory, FoundServer, ServerNote};
use node::{Closing, Node, OnMissing, Seen};
use rustix::process::{Pid, Signal, kill_process};
use sdk::Secret;
use sdk::model::ListedSandbox;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For a server to end its sandboxes and exit.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// For the kernel to release the lock of a killed server.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the lease of a workspace that another process has open.
const LEASE_TIMEOUT: Duration = Duration::from_secs(20);

/// End the server and all its sandboxes; their files go with them, but those of workspaces are
/// saved first.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar down
  sandbar down --data /tmp/try
  sandbar down --yes            saves nothing first
  sandbar down --json           {server, sandboxesEnded, saved: [{workspace, sandboxID, snapshot}], unsaved}

Workspaces come back with their files when they are next used. When the files of one cannot be saved, nothing is ended \
and it is named. A server that was started with --ephemeral keeps nothing, so nothing is saved then.

Paused sandboxes are ended too. To stop only the server and keep the sandboxes, press Ctrl-C in `sandbar up`.")]
pub(crate) struct Down {
    /// The data directory of the server to end [default: by XDG rules]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The database of a studio whose workspaces are saved too; those of studios that were started
    /// with this data directory are known
    #[arg(long, value_name = "URL", env = "SANDBAR_DATABASE", hide_env_values = true)]
    database: Option<Secret>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    /// End everything at once: what workspaces changed since their last snapshots is lost
    #[arg(long, short)]
    yes: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

/// Locks the data directory. A server that has it gets SIGUSR1, by which it ends its sandboxes and
/// exits. Returns that server's process id.
fn take_from_server(path: &Path) -> anyhow::Result<(DataDirectory, Option<u32>)> {
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    let mut signalled = None;
    loop {
        match DataDirectory::take(path)? {
            Ok(directory) => return Ok((directory, signalled)),
            Err(Busy(Some(note))) if signalled.is_none() => {
                let pid =
                    i32::try_from(note.pid).ok().and_then(Pid::from_raw).context("the server's note is damaged")?;
                kill_process(pid, Signal::USR1).with_context(|| format!("cannot reach process {}", note.pid))?;
                signalled = Some(note.pid);
            }
            // Starting or stopping.
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Err(_) => bail!("the server in {} did not end within {SHUTDOWN_TIMEOUT:?}", path.display()),
        }
    }
}

/// Waits until the server of a directory is neither starting nor stopping, and returns its note.
fn wait_for_server(path: &Path) -> anyhow::Result<Option<ServerNote>> {
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    loop {
        match data_directory::find_server(path).with_context(|| format!("cannot look into {}", path.display()))? {
            FoundServer::Serving(note) => return Ok(Some(note)),
            FoundServer::Absent | FoundServer::Dead { .. } => return Ok(None),
            FoundServer::Busy if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            FoundServer::Busy => bail!("the server in {} neither serves nor ends", path.display()),
        }
    }
}

/// The sandboxes of workspaces as the server lists them, or why it does not.
type Rows = anyhow::Result<Vec<ListedSandbox>>;

/// The server of a directory with its sandboxes of workspaces. Failed calls are retried for
/// [`EXIT_TIMEOUT`]: the lock of a killed server is released late.
fn query_server(path: &Path) -> anyhow::Result<Option<(ServerNote, Rows)>> {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        let Some(server) = wait_for_server(path)? else { return Ok(None) };
        match runtime::block_on(save::list_workspace_sandboxes(&server)) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            rows => return Ok(Some((server, rows))),
        }
    }
}

impl Down {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let overrides = Overrides { data: self.data.clone(), ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        if !config.data.exists() {
            self.report(None, 0, &SaveReport::default());
            return Ok(());
        }
        data_directory::check_owner(&config.data)?;
        // Before any thread is started: a thread that exists already would stay outside of the
        // namespaces.
        engine::enter_private_mounts(&config.data).context("cannot make namespaces")?;
        let location =
            WorkspaceLocation { config: self.config.clone(), data: Some(config.data.clone()), wait: LEASE_TIMEOUT };
        let known = data_directory::known_databases(&config.data);
        let target = SaveTarget { location, databases: known.into_iter().chain(self.database.clone()).collect() };
        let expected = data_directory::expected_server(&config.data);
        let serving = query_server(&config.data)?;
        if serving.is_none() {
            // A server may be started here to save the workspaces.
            data_directory::expect_none(&config.data);
        }
        let done = self.end(&config, &target, serving);
        if let (Err(_), Some(expected)) = (&done, expected) {
            data_directory::expect_server(&config.data, &expected)?;
        }
        done
    }

    fn end(&self, config: &Config, target: &SaveTarget, mut serving: Option<(ServerNote, Rows)>) -> anyhow::Result<()> {
        if serving.is_none()
            && !self.yes
            && has_workspaces(config)?
            && runtime::block_on(save::start_server(config, target))?
        {
            serving = query_server(&config.data)?;
        }
        let save_first = !self.yes && !serving.as_ref().is_some_and(|(server, _)| server.ephemeral);
        let mut kept = match serving {
            Some((server, rows)) => self.keep(target, &server, rows, save_first)?,
            None => SaveReport::default(),
        };
        let (directory, server) = take_from_server(&config.data)?;
        let by_server = directory.take_ended();
        // The server has ended its sandboxes; this ends those that an earlier server left behind.
        let left = runtime::block_on(async {
            let on_missing = if self.yes { OnMissing::Accept } else { OnMissing::Refuse };
            let node = up::open_node(config, &directory, on_missing).await?;
            let found = workspaces_in(&node, if save_first { save::UNKNOWN } else { save::AS_ASKED });
            if save_first && !found.is_empty() {
                node.close(Closing::Keep).await.context("cannot leave the sandboxes as they are")?;
                return Err(refusal(&found));
            }
            kept.unsaved.extend(found);
            node.close(Closing::End).await.context("cannot end the sandboxes")
        })?;
        runtime::block_on(async {
            save::record_ended(target, &kept).await;
            Ok(())
        })?;
        up::remove_shared_files(directory.path());
        directory.forget_server();
        data_directory::forget_databases(directory.path());
        self.report(server, by_server * usize::from(server.is_some()) + left, &kept);
        Ok(())
    }

    /// Saves the files of the server's workspaces if `save_first` is set.
    fn keep(
        &self,
        target: &SaveTarget,
        server: &ServerNote,
        rows: Rows,
        save_first: bool,
    ) -> anyhow::Result<SaveReport> {
        let rows = match rows {
            Ok(rows) if save_first => rows,
            Ok(rows) => {
                return Ok(SaveReport {
                    saved: Vec::new(),
                    unsaved: rows.iter().map(|row| Unsaved::from_request(row, server.ephemeral)).collect(),
                });
            }
            Err(_) if !save_first => return Ok(SaveReport::default()),
            Err(error) => {
                let context = "the server does not say whether it has workspaces; --yes ends it all the same";
                return Err(error.context(context));
            }
        };
        if rows.is_empty() {
            return Ok(SaveReport::default());
        }
        let kept = runtime::block_on(save::save(target, rows, self.json))?;
        if kept.unsaved.is_empty() { Ok(kept) } else { Err(refusal(&kept.unsaved)) }
    }

    fn report(&self, server: Option<u32>, sandboxes: usize, kept: &SaveReport) {
        let SaveReport { saved, unsaved } = kept;
        if self.json {
            let report = serde_json::json!({
                "server": server, "sandboxesEnded": sandboxes, "saved": saved, "unsaved": unsaved,
            });
            println!("{report}");
            return;
        }
        for saved in saved {
            println!("saved workspace {}: snapshot {}", saved.workspace, saved.snapshot);
        }
        for unsaved in unsaved {
            eprintln!("sandbar: ended unsaved: {unsaved}");
        }
        match server {
            Some(pid) => println!("ended the server (process {pid}); sandboxes ended: {sandboxes}"),
            None => println!("no server was running; sandboxes ended: {sandboxes}"),
        }
    }
}

fn refusal(unsaved: &[Unsaved]) -> anyhow::Error {
    let lines: Vec<String> = unsaved.iter().map(|unsaved| format!("\n  {unsaved}")).collect();
    let lines = lines.concat();
    anyhow!("nothing was ended: the files of these workspaces could not be saved:{lines}\n--yes ends them unsaved")
}

/// Whether the data directory has sandboxes of workspaces while no server runs. The records of
/// workspaces cannot answer that: a sandbox that they name may be on another machine, or gone.
fn has_workspaces(config: &Config) -> anyhow::Result<bool> {
    let Ok(directory) = DataDirectory::take(&config.data)? else { return Ok(true) };
    runtime::block_on(async {
        let node = up::open_node(config, &directory, OnMissing::Refuse).await?;
        let found = !workspaces_in(&node, save::UNKNOWN).is_empty();
        node.close(Closing::Keep).await.context("cannot leave the sandboxes as they are")?;
        Ok(found)
    })
}

/// Lists the sandboxes of workspaces of a node, with the reason why their files are not saved.
fn workspaces_in(node: &Node, reason: &str) -> Vec<Unsaved> {
    let unsaved = |seen: &Seen| {
        let workspace = seen.record.spec.metadata.get(workspace::METADATA)?.clone();
        Some(Unsaved { workspace, sandbox: seen.record.id.to_string(), reason: reason.to_owned() })
    };
    node.all().iter().filter_map(unsaved).collect()
}
