//! `sandbar workspace snapshot`, `snapshots` and `restore`.

use super::{Session, house};
use crate::sandbox::ask;
use crate::sandbox::show::{Colour, local_time, printable, size};
use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};
use std::io::{IsTerminal as _, stdin};
use workspace::snapshot::{FilePath, Listed, SnapshotCondition, Stamp, Which};
use workspace::{OpenError, Unsaved, WorkspaceName, WorkspaceView};

/// Save the files of a workspace.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace snapshot shop
  sandbar workspace snapshot shop --json     {key, files, bytes, sha256, left_out}

Folders that are seen to be generated are left out: node_modules beside a package.json, target beside a Cargo.toml, dist that \
git ignores; `sandbar workspace show` lists them at any time. Everything else is kept. Five snapshots are kept.")]
pub(super) struct Snapshot {
    /// The workspace
    name: WorkspaceName,
}

impl Snapshot {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspace = session.house.enter(&self.name).await?;
        session.house.progress().doing(format!("saving the files of {}", self.name));
        let saved = workspace.snapshot().await?;
        session.house.progress().done();
        if session.show.json {
            return Ok(session.show.object(&json!({
                "key": saved.key,
                "files": saved.files,
                "bytes": saved.bytes,
                "sha256": saved.sha256,
                "left_out": saved.left_out.iter().map(FilePath::text).collect::<Vec<_>>(),
            }))?);
        }
        if !saved.left_out.is_empty() {
            eprintln!("sandbar: generated folders are not in it: {}", some(&saved.left_out));
        }
        if !saved.changed.is_empty() {
            eprintln!("sandbar: written to while they were read: {}", some(&saved.changed));
        }
        session.show.line(format!("{}  {} files, {}", saved.stamp, saved.files, size(saved.bytes)))?;
        Ok(())
    }
}

/// List the snapshots of a workspace, oldest first.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace snapshots shop
  sandbar workspace snapshots shop --json | jq -r '.[-1].key'

Those of a workspace that was destroyed are listed too.")]
pub(super) struct List {
    /// The workspace
    name: WorkspaceName,
}

impl List {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let listed = match session.house.workspaces().show(&self.name).await {
            Ok(view) => session.house.workspaces().snapshots_of(&view.project_id).await?,
            // Snapshots outlive the workspace, whose project has its name.
            Err(gone @ OpenError::NotFound(_)) => {
                let left = session.house.workspaces().snapshots_of(&self.name.as_str().parse()?).await?;
                if left.is_empty() {
                    return Err(house::explain(gone));
                }
                left
            }
            Err(error) => return Err(house::explain(error)),
        };
        let show = session.show;
        if show.json {
            return Ok(show.object(&listed.iter().map(to_json).collect::<Vec<_>>())?);
        }
        if listed.is_empty() {
            eprintln!("workspace {} has no snapshot; `sandbar workspace snapshot {}` makes one", self.name, self.name);
            return Ok(());
        }
        let row = |listed: &Listed| {
            let when = local_time(&listed.created_at.to_string());
            match &listed.condition {
                SnapshotCondition::Whole { files, bytes, verified, .. } => vec![
                    listed.stamp.to_string(),
                    when,
                    files.to_string(),
                    size(*bytes),
                    match verified {
                        true => show.paint(Colour::Green, "whole"),
                        false => show.paint(Colour::Yellow, "whole, not verified yet"),
                    },
                ],
                SnapshotCondition::Damaged { reason } => {
                    let damaged = format!("damaged: {}", printable(reason));
                    vec![listed.stamp.to_string(), when, "-".into(), "-".into(), show.paint(Colour::Red, &damaged)]
                }
            }
        };
        let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
        Ok(show.table(&["SNAPSHOT", "SAVED", "FILES", "SIZE", ""], &rows)?)
    }
}

fn to_json(listed: &Listed) -> Value {
    let Listed { stamp, key, created_at, condition } = listed;
    match condition {
        SnapshotCondition::Whole { files, bytes, sha256, verified } => json!({
            "snapshot": stamp, "key": key, "files": files, "bytes": bytes, "sha256": sha256,
            "created_at": created_at, "verified": verified,
        }),
        SnapshotCondition::Damaged { reason } => json!({
            "snapshot": stamp, "key": key, "files": null, "bytes": null, "sha256": null,
            "created_at": created_at, "verified": false, "reason": reason,
        }),
    }
}

/// Bring a workspace back to the files of a snapshot.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace restore shop                                the newest one that is good
  sandbar workspace restore shop --snapshot 20261116T000937Z    as `snapshots` lists it, or its key

You are told what takes the place of what and, at a terminal, asked. Before files give way to a snapshot that you name \
they are saved, so that this can be undone; going back to the newest one is for losing what was changed since. Every file \
is verified before it takes the place of the old ones. When the sandbox is gone or does not answer, a new one is made, at \
another provider if need be.")]
pub(super) struct Restore {
    /// The workspace
    name: WorkspaceName,
    /// Which one, by its name or key
    #[arg(long, value_name = "SNAPSHOT", value_parser = stamp)]
    snapshot: Option<Stamp>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Do not save the files that give way to the snapshot that is named
    #[arg(long, requires = "snapshot")]
    discard: bool,
}

/// `20261116T000937Z`, or the whole key that ends in it.
fn stamp(text: &str) -> Result<Stamp, String> {
    let last = text.rsplit('/').next().unwrap_or(text);
    let name = last.split('.').next().unwrap_or(last);
    name.parse().map_err(|_| format!("`{text}` is not a snapshot; `sandbar workspace snapshots NAME` lists them"))
}

impl Restore {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let view = session.house.look(&self.name).await?;
        let listed = session.house.workspaces().snapshots_of(&view.project_id).await?;
        let replaced = self.describe(&view, &listed)?;
        if !session.show.json {
            eprintln!("sandbar: {replaced}");
        }
        if !self.yes && stdin().is_terminal() && !ask::confirmed("replace files", "Go on?")? {
            bail!("nothing was restored");
        }
        let workspace = session.house.enter(&self.name).await?;
        session.house.progress().doing(format!("restoring {}", self.name));
        let unsaved = if self.discard { Unsaved::Discard } else { Unsaved::Keep };
        let restored = workspace.restore_with(self.snapshot.map_or(Which::Newest, Which::Exactly), unsaved).await?;
        session.house.progress().done();
        let skipped = |(stamp, flaw): &(Stamp, workspace::snapshot::Flaw)| json!({ "snapshot": stamp, "reason": flaw.to_string() });
        if session.show.json {
            return Ok(session.show.object(&json!({
                "workspace": self.name,
                "key": restored.key,
                "files": restored.files,
                "left_out": restored.left_out.iter().map(FilePath::text).collect::<Vec<_>>(),
                "skipped": restored.skipped_generations.iter().map(skipped).collect::<Vec<_>>(),
            }))?);
        }
        for (stamp, flaw) in &restored.skipped_generations {
            eprintln!("sandbar: snapshot {stamp} is damaged and was passed over: {}", printable(&flaw.to_string()));
        }
        session.show.line(format!("{}  {} files restored to {}", restored.stamp, restored.files, restored.root))?;
        if !restored.left_out.is_empty() {
            eprintln!("sandbar: generated folders are absent: {}", some(&restored.left_out));
        }
        Ok(())
    }
}

impl Restore {
    /// What takes the place of what.
    fn describe(&self, view: &WorkspaceView, listed: &[Listed]) -> anyhow::Result<String> {
        let whole = |listed: &&Listed| matches!(listed.condition, SnapshotCondition::Whole { .. });
        let chosen = match self.snapshot {
            Some(stamp) => listed.iter().find(|listed| listed.stamp == stamp),
            None => listed.iter().rfind(whole),
        };
        let name = &self.name;
        let Some(chosen) = chosen else {
            let list = format!("`sandbar workspace snapshots {name}` lists those there are");
            match self.snapshot {
                Some(stamp) => bail!("workspace {name} has no snapshot {stamp}; {list}"),
                None => bail!("workspace {name} has no snapshot that is whole; {list}"),
            }
        };
        let saved = local_time(&chosen.created_at.to_string());
        let content = match &chosen.condition {
            SnapshotCondition::Whole { files, bytes, .. } => format!("{files} files, {}", size(*bytes)),
            SnapshotCondition::Damaged { reason } => bail!(
                "snapshot {} is damaged: {}; `sandbar workspace snapshots {name}` lists those that are whole",
                chosen.stamp,
                printable(reason)
            ),
        };
        let replaced = match (&view.sandbox, self.snapshot.filter(|_| !self.discard)) {
            (None, _) => "a new sandbox gets it".to_owned(),
            (Some(sandbox), Some(_)) => {
                format!("the files in sandbox {} give way, and are saved before", printable(sandbox))
            }
            (Some(sandbox), None) => {
                format!("the files in sandbox {} give way, and what was changed since is lost", printable(sandbox))
            }
        };
        Ok(format!("{name} gets snapshot {} of {saved} ({content}): {replaced}", chosen.stamp))
    }
}

/// A few of them.
pub(super) fn some(paths: &[FilePath]) -> String {
    const SHOWN: usize = 5;
    let names: Vec<String> = paths.iter().take(SHOWN).map(|path| printable(&path.text())).collect();
    let more = if paths.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}
