//! `sandbar workspace snapshot`, `snapshots` and `restore`: save, list and restore checkpoints.

use super::{Session, app};
use anyhow::bail;
use checkpoint::{
    CheckpointCondition, Checkpoints, FilePath, ListedCheckpoint, Objects, ProjectId, Restored, SaveOccasion, Stamp,
    Which,
};
use clap::Args;
use cli::ask;
use cli::show::{Colour, local_time, printable, size};
use serde_json::{Value, json};
use std::io::{IsTerminal as _, stdin};
use std::path::{Path, PathBuf};
use workspace::{OpenError, Unsaved, WorkspaceName, WorkspaceView};

/// Save the files of a workspace.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace snapshot shop
  sandbar workspace snapshot shop --json     {key, unchanged, files, bytes, sha256, left_out}

Folders that are seen to be generated are left out: node_modules beside a package.json, target beside a Cargo.toml, dist that \
git ignores; `sandbar workspace show` lists them at any time. Everything else is kept. Where nothing has changed since the newest snapshot, no other is made.

Five snapshots are kept (`keep_snapshots` and `keep_snapshots_days` under [objects] in the configuration), those of a phase \
longer than those of a pause. Work is also saved by itself when the newest snapshot is older than ten minutes \
(`save_every_minutes`).

Values of --env must not be in snapshots, which are kept in plain text: a save that finds one in a file is refused and \
names the file. The sandbox keeps the work meanwhile.")]
pub(super) struct Snapshot {
    /// The workspace
    name: WorkspaceName,
    /// Let snapshots of this workspace contain values of its --env variables, from now on
    #[arg(long)]
    allow_env_values: bool,
}

impl Snapshot {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("saving the files of {}", self.name));
        if self.allow_env_values {
            workspace.allow_env_values(true).await?;
        }
        let saved = workspace.save_checkpoint().await?;
        session.app.progress().done();
        if session.show.json {
            return Ok(session.show.object(&json!({
                "key": saved.key,
                "unchanged": saved.unchanged,
                "files": saved.files,
                "bytes": saved.bytes,
                "sha256": saved.sha256,
                "left_out": saved.excluded.iter().map(FilePath::text).collect::<Vec<_>>(),
            }))?);
        }
        if !saved.excluded.is_empty() {
            eprintln!("sandbar: generated folders are not in it: {}", summarize_paths(&saved.excluded));
        }
        if !saved.changed.is_empty() {
            eprintln!("sandbar: written to while they were read: {}", summarize_paths(&saved.changed));
        }
        let unchanged = if saved.unchanged { "; nothing has changed since, so no other was made" } else { "" };
        session.show.line(format!("{}  {} files, {}{unchanged}", saved.stamp, saved.files, size(saved.bytes)))?;
        Ok(())
    }
}

/// List the snapshots of a workspace, oldest first.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace snapshots shop
  sandbar workspace snapshots shop --json | jq -r '.[-1].key'
  sandbar workspace snapshots shop --delete 20261116T000937Z
  sandbar workspace snapshots shop --confirm-shrink

Those of a workspace that was destroyed are listed too.

A snapshot from before the tree lost more than half of its files or bytes is kept besides the others, until a newer one is \
as large or --confirm-shrink says that it is meant to be so small.")]
pub(super) struct List {
    /// The workspace
    name: WorkspaceName,
    /// Delete this one for good, by its name or key
    #[arg(long, value_name = "SNAPSHOT", value_parser = stamp)]
    delete: Option<Stamp>,
    /// Delete those that are kept only because the files were far more before
    #[arg(long, conflicts_with = "delete")]
    confirm_shrink: bool,
    /// List or delete those in this directory, of any owner: `sandbar doctor` names it
    #[arg(long, value_name = "DIR", conflicts_with = "confirm_shrink")]
    store: Option<PathBuf>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl List {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        if let Some(directory) = &self.store {
            return self.run_on_store(session, directory).await;
        }
        if let Some(stamp) = self.delete {
            return self.delete(session, stamp).await;
        }
        if self.confirm_shrink {
            let workspace = session.app.enter(&self.name).await?;
            let removed = workspace.confirm_shrink().await?.checkpoints;
            session.app.progress().done();
            match session.show.json {
                true => session.show.object(&json!({ "workspace": self.name, "deleted": removed }))?,
                false => session.show.line(format!("{} deleted", count(removed.len(), "snapshot")))?,
            }
            return Ok(());
        }
        let listed = match session.app.workspaces().show(&self.name).await {
            Ok(view) => session.app.workspaces().checkpoints_of(&view.project_id).await?,
            // Checkpoints outlive their workspace. They are found by its name, which is the
            // project's.
            Err(gone @ OpenError::NotFound(_)) => {
                let left = session.app.workspaces().checkpoints_of(&self.name.as_str().parse()?).await?;
                if left.is_empty() {
                    return Err(app::explain(gone));
                }
                left
            }
            Err(error) => return Err(app::explain(error)),
        };
        self.print(session, &listed)
    }

    fn print(&self, session: &Session, listed: &[ListedCheckpoint]) -> anyhow::Result<()> {
        let show = session.show;
        if show.json {
            return Ok(show.object(&listed.iter().map(to_json).collect::<Vec<_>>())?);
        }
        if listed.is_empty() {
            eprintln!("workspace {} has no snapshot; `sandbar workspace snapshot {}` makes one", self.name, self.name);
            return Ok(());
        }
        let row = |listed: &ListedCheckpoint| {
            let when = local_time(&listed.saved_at.to_string());
            match &listed.condition {
                CheckpointCondition::Whole { files, bytes, verified, .. } => vec![
                    listed.stamp.to_string(),
                    when,
                    occasion_name(listed.occasion).to_owned(),
                    files.to_string(),
                    size(*bytes),
                    match (verified, listed.environment_files.is_empty()) {
                        (_, false) => show.paint(Colour::Red, "has the --env variables in plain text; delete it"),
                        (true, true) => show.paint(Colour::Green, "whole"),
                        (false, true) => show.paint(Colour::Yellow, "whole, not verified yet"),
                    },
                ],
                CheckpointCondition::Damaged { reason } => {
                    let damaged = format!("damaged: {}", printable(reason));
                    vec![
                        listed.stamp.to_string(),
                        when,
                        "-".into(),
                        "-".into(),
                        "-".into(),
                        show.paint(Colour::Red, &damaged),
                    ]
                }
            }
        };
        let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
        Ok(show.table(&["SNAPSHOT", "SAVED", "FOR", "FILES", "SIZE", ""], &rows)?)
    }
}

impl List {
    /// Works on the store alone: no records are read and no workspace is opened, so that it also
    /// reaches the snapshots of a studio's jobs.
    async fn run_on_store(&self, session: &Session, directory: &Path) -> anyhow::Result<()> {
        if !directory.is_dir() {
            bail!("{} is not a directory of snapshots", directory.display());
        }
        let (checkpoints, project) =
            (Checkpoints::new(Objects::disk(directory)?), self.name.as_str().parse::<ProjectId>()?);
        let Some(stamp) = self.delete else { return self.print(session, &checkpoints.list(&project).await?) };
        self.confirm_delete(stamp)?;
        let deleted = checkpoints.delete(&project, stamp).await?;
        self.report_deleted(session, stamp, deleted)
    }

    fn confirm_delete(&self, stamp: Stamp) -> anyhow::Result<()> {
        let name = &self.name;
        let question = format!("Delete snapshot {stamp} of {name} for good?");
        if !self.yes && !ask::confirm(&format!("delete snapshot {stamp} of {name}"), &question)? {
            bail!("nothing was deleted");
        }
        Ok(())
    }

    async fn delete(&self, session: &Session, stamp: Stamp) -> anyhow::Result<()> {
        let name = &self.name;
        self.confirm_delete(stamp)?;
        let workspaces = session.app.workspaces();
        let deleted = match workspaces.show(name).await {
            Ok(_) => session.app.enter(name).await?.delete_checkpoint(stamp).await?,
            Err(OpenError::NotFound(_)) => workspaces.delete_checkpoint_of(&name.as_str().parse()?, stamp).await?,
            Err(error) => return Err(app::explain(error)),
        };
        session.app.progress().done();
        self.report_deleted(session, stamp, deleted)
    }

    fn report_deleted(&self, session: &Session, stamp: Stamp, deleted: bool) -> anyhow::Result<()> {
        let name = &self.name;
        if !deleted {
            bail!("{name} has no snapshot {stamp}; `sandbar workspace snapshots {name}` lists those there are");
        }
        match session.show.json {
            true => session.show.object(&json!({ "workspace": name, "deleted": [stamp] }))?,
            false => session.show.line(format!("{stamp} deleted"))?,
        }
        Ok(())
    }
}

fn to_json(listed: &ListedCheckpoint) -> Value {
    let ListedCheckpoint { stamp, key, created_at, saved_at, occasion, environment_files, condition } = listed;
    let exposed = !environment_files.is_empty();
    match condition {
        CheckpointCondition::Whole { files, bytes, sha256, verified } => json!({
            "snapshot": stamp, "key": key, "files": files, "bytes": bytes, "sha256": sha256, "created_at": created_at,
            "saved_at": saved_at, "occasion": occasion, "has_env_values": exposed, "verified": verified,
        }),
        CheckpointCondition::Damaged { reason } => json!({
            "snapshot": stamp, "key": key, "files": null, "bytes": null, "sha256": null, "created_at": created_at,
            "saved_at": saved_at, "occasion": occasion, "has_env_values": exposed, "verified": false, "reason": reason,
        }),
    }
}

/// The name of the occasion of a checkpoint.
fn occasion_name(occasion: SaveOccasion) -> &'static str {
    match occasion {
        SaveOccasion::Interval => "interval",
        SaveOccasion::Stop => "stop",
        SaveOccasion::Requested => "request",
        SaveOccasion::Phase => "phase",
    }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
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

/// Parses a stamp such as `20261116T000937Z`, or a key that ends in one.
fn stamp(text: &str) -> Result<Stamp, String> {
    let last = text.rsplit('/').next().unwrap_or(text);
    let name = last.split('.').next().unwrap_or(last);
    name.parse().map_err(|_| format!("`{text}` is not a snapshot; `sandbar workspace snapshots NAME` lists them"))
}

impl Restore {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let view = session.app.inspect(&self.name).await?;
        let listed = session.app.workspaces().checkpoints_of(&view.project_id).await?;
        let replaced = self.describe(&view, &listed)?;
        if !session.show.json {
            eprintln!("sandbar: {replaced}");
        }
        if !self.yes && stdin().is_terminal() && !ask::confirm("replace files", "Go on?")? {
            bail!("nothing was restored");
        }
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("restoring {}", self.name));
        let unsaved = if self.discard { Unsaved::Discard } else { Unsaved::Keep };
        let restored = workspace.restore_with(self.snapshot.map_or(Which::Newest, Which::Exactly), unsaved).await?;
        session.app.progress().done();
        if session.show.json {
            return Ok(session.show.object(&json!({
                "workspace": self.name,
                "key": restored.key,
                "snapshot": restored.stamp,
                "saved_at": restored.stamp.time(),
                "files": restored.files,
                "left_out": restored.excluded.iter().map(FilePath::text).collect::<Vec<_>>(),
                "skipped": skipped_to_json(&restored),
            }))?);
        }
        report_skipped(&restored);
        session.show.line(format!("{}  {} files restored to {}", restored.stamp, restored.files, restored.root))?;
        if !restored.excluded.is_empty() {
            eprintln!("sandbar: generated folders are absent: {}", summarize_paths(&restored.excluded));
        }
        Ok(())
    }
}

impl Restore {
    /// Describes which files the snapshot replaces.
    fn describe(&self, view: &WorkspaceView, listed: &[ListedCheckpoint]) -> anyhow::Result<String> {
        let whole = |listed: &&ListedCheckpoint| matches!(listed.condition, CheckpointCondition::Whole { .. });
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
            CheckpointCondition::Whole { files, bytes, .. } => format!("{files} files, {}", size(*bytes)),
            CheckpointCondition::Damaged { reason } => bail!(
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

/// Prints the newer checkpoints that were skipped, with the reasons.
pub(super) fn report_skipped(restored: &Restored) {
    for (stamp, flaw) in &restored.skipped_generations {
        eprintln!("sandbar: snapshot {stamp} is damaged and was passed over: {}", printable(&flaw.to_string()));
    }
}

/// Newer checkpoints that were skipped, with the reasons.
pub(super) fn skipped_to_json(restored: &Restored) -> Value {
    let each = restored.skipped_generations.iter();
    each.map(|(stamp, flaw)| json!({ "snapshot": stamp, "reason": flaw.to_string() })).collect()
}

/// The first few paths in one line.
pub(super) fn summarize_paths(paths: &[FilePath]) -> String {
    const SHOWN: usize = 5;
    let names: Vec<String> = paths.iter().take(SHOWN).map(|path| printable(&path.text())).collect();
    let more = if paths.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}
