//! `sandbar down`: ends the server, if one runs, and every sandbox of the data directory. The files of workspaces are saved
//! before.

mod save;

use self::save::{Kept, Target, Unsaved};
use crate::config::{Config, Overrides};
use crate::data::{self, Busy, DataDirectory, Found, ServerNote};
use crate::workspace::house::Place;
use crate::{runtime, up};
use anyhow::{Context, anyhow, bail};
use clap::Args;
use node::{Closing, Node, OnMissing, Seen};
use rustix::process::{Pid, Signal, kill_process};
use sdk::model::ListedSandbox;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for a server that ends its sandboxes.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// For the kernel to clear up after a server that was killed.
const FAREWELL: Duration = Duration::from_secs(3);
/// For a workspace that somebody works in.
const WAIT: Duration = Duration::from_secs(20);

/// End the server and all its sandboxes; their files go with them, but those of workspaces are saved first.
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

/// The server that serves from a directory, once it is neither starting nor stopping.
fn server_of(path: &Path) -> anyhow::Result<Option<ServerNote>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match data::find_server(path).with_context(|| format!("cannot look into {}", path.display()))? {
            Found::Serving(note) => return Ok(Some(note)),
            Found::Nobody | Found::Dead { .. } => return Ok(None),
            Found::Busy if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            Found::Busy => bail!("the server in {} neither serves nor ends", path.display()),
        }
    }
}

/// The sandboxes that are workspaces' own, if the server tells.
type Rows = anyhow::Result<Vec<ListedSandbox>>;

/// The server of a directory and what it says. One that was killed has the directory for a moment longer.
fn serving(path: &Path) -> anyhow::Result<Option<(ServerNote, Rows)>> {
    let deadline = Instant::now() + FAREWELL;
    loop {
        let Some(server) = server_of(path)? else { return Ok(None) };
        match runtime::block_on(save::sandboxes(&server)) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            rows => return Ok(Some((server, rows))),
        }
    }
}

impl Down {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let overrides = Overrides { data: self.data.clone(), ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        if !config.data.exists() {
            self.report(None, 0, &Kept::default());
            return Ok(());
        }
        data::check_owner(&config.data)?;
        // Before any thread exists: namespaces belong to the whole process.
        engine::enter_private_mounts(&config.data).context("cannot make namespaces")?;
        let place = Place { config: self.config.clone(), data: Some(config.data.clone()), wait: WAIT };
        let target = Target { place, database: data::known_database(&config.data) };
        let expected = data::expected_server(&config.data);
        let serving = serving(&config.data)?;
        if serving.is_none() {
            // One may be started to save what is there.
            data::expect_none(&config.data);
        }
        let done = self.end(&config, &target, serving);
        if let (Err(_), Some(expected)) = (&done, expected) {
            data::expect_server(&config.data, &expected)?;
        }
        done
    }

    fn end(&self, config: &Config, target: &Target, mut serving: Option<(ServerNote, Rows)>) -> anyhow::Result<()> {
        if serving.is_none()
            && !self.yes
            && has_workspaces(config)?
            && runtime::block_on(save::start_server(config, target))?
        {
            serving = self::serving(&config.data)?;
        }
        let careful = !self.yes && !serving.as_ref().is_some_and(|(server, _)| server.ephemeral);
        let mut kept = match serving {
            Some((server, rows)) => self.keep(target, &server, rows, careful)?,
            None => Kept::default(),
        };
        let (directory, server) = take_from_server(&config.data)?;
        let by_server = directory.take_ended();
        // A server ended its own; what an earlier one left behind is ended here.
        let left = runtime::block_on(async {
            let on_missing = if self.yes { OnMissing::Accept } else { OnMissing::Refuse };
            let node = up::open_node(config, &directory, on_missing).await?;
            let found = workspaces_in(&node, if careful { save::UNKNOWN } else { save::AS_ASKED });
            if careful && !found.is_empty() {
                node.close(Closing::Keep).await.context("cannot leave the sandboxes as they are")?;
                return Err(refusal(&found));
            }
            kept.unsaved.extend(found);
            node.close(Closing::End).await.context("cannot end the sandboxes")
        })?;
        runtime::block_on(async {
            save::note_ended(target, &kept).await;
            Ok(())
        })?;
        up::remove_shared_files(directory.path());
        directory.forget_server();
        self.report(server, by_server * usize::from(server.is_some()) + left, &kept);
        Ok(())
    }

    /// Saves the files of the workspaces that a server has, if that is wanted.
    fn keep(&self, target: &Target, server: &ServerNote, rows: Rows, careful: bool) -> anyhow::Result<Kept> {
        let rows = match rows {
            Ok(rows) if careful => rows,
            Ok(rows) => {
                return Ok(Kept {
                    saved: Vec::new(),
                    unsaved: rows.iter().map(|row| Unsaved::as_asked(row, server.ephemeral)).collect(),
                });
            }
            Err(_) if !careful => return Ok(Kept::default()),
            Err(error) => {
                let context = "the server does not say whether it has workspaces; --yes ends it all the same";
                return Err(error.context(context));
            }
        };
        if rows.is_empty() {
            return Ok(Kept::default());
        }
        let kept = runtime::block_on(save::save(target, rows, self.json))?;
        if kept.unsaved.is_empty() { Ok(kept) } else { Err(refusal(&kept.unsaved)) }
    }

    fn report(&self, server: Option<u32>, sandboxes: usize, kept: &Kept) {
        let Kept { saved, unsaved } = kept;
        if self.json {
            let told = serde_json::json!({
                "server": server, "sandboxesEnded": sandboxes, "saved": saved, "unsaved": unsaved,
            });
            println!("{told}");
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

/// Whether sandboxes of workspaces are there without a server. The records of workspaces do not tell: those that name a sandbox of a
/// server like this one may mean another machine's, or one that is gone.
fn has_workspaces(config: &Config) -> anyhow::Result<bool> {
    let Ok(directory) = DataDirectory::take(&config.data)? else { return Ok(true) };
    runtime::block_on(async {
        let node = up::open_node(config, &directory, OnMissing::Refuse).await?;
        let found = !workspaces_in(&node, save::UNKNOWN).is_empty();
        node.close(Closing::Keep).await.context("cannot leave the sandboxes as they are")?;
        Ok(found)
    })
}

/// Sandboxes of workspaces that are there without a server, and why their files are not saved.
fn workspaces_in(node: &Node, reason: &str) -> Vec<Unsaved> {
    let unsaved = |seen: &Seen| {
        let workspace = seen.record.metadata.get(workspace::METADATA)?.clone();
        Some(Unsaved { workspace, sandbox: seen.record.id.to_string(), reason: reason.to_owned() })
    };
    node.all().iter().filter_map(unsaved).collect()
}
