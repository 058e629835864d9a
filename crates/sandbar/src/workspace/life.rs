//! `sandbar workspace pause`, `resume`, `move` and `rotate`: change the sandbox of a workspace.

use super::queries::WorkspaceStatus;
use super::snapshots::{report_skipped, skipped_to_json, summarize_paths};
use super::{Session, screenshot_process};
use checkpoint::FilePath;
use clap::Args;
use cli::show::{printable, span};
use serde_json::{Value, json};
use std::sync::Arc;
use workspace::{AutoRestore, HandedOver, LeftBehind, MoveOptions, ProviderName, Workspace, WorkspaceName};

/// Pause a workspace: its files are saved, its sandbox is stopped and kept.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace pause shop

The next command or tool call wakes it; opening a preview does not. Pausing one that is paused already succeeds.")]
pub(super) struct Pause {
    /// The workspace
    name: WorkspaceName,
}

impl Pause {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("pausing {}", self.name));
        workspace.pause().await?;
        session.app.leave().await;
        print_status(session, &self.name, "paused").await
    }
}

/// Wake a workspace, and its dev server.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace resume shop

When its sandbox is gone, it comes back in a new one with the files of its newest snapshot: stderr then says since when changes \
are gone, and --json has `brought_back` {reason, snapshot, saved_at, skipped, notice}. Automatic pictures of its dev \
server are taken afterwards, by a process of their own.")]
pub(super) struct Resume {
    /// The workspace
    name: WorkspaceName,
}

impl Resume {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("waking {}", self.name));
        session.app.defer_screenshots();
        let back = workspace.resume().await?;
        session.app.leave().await;
        if session.app.has_deferred_screenshots() {
            screenshot_process::start(&session.location, &self.name);
        }
        if !session.show.json {
            report_auto_restore(session, back.as_deref());
            return print_status(session, &self.name, "runs").await;
        }
        let mut object = WorkspaceStatus::load(session.app.workspaces(), &self.name).await?.to_json();
        session.app.progress().done();
        object["brought_back"] = brought_back_to_json(back.as_deref());
        Ok(session.show.object(&object)?)
    }
}

pub(super) async fn print_status(session: &Session, name: &WorkspaceName, how: &str) -> anyhow::Result<()> {
    let status = WorkspaceStatus::load(session.app.workspaces(), name).await?;
    session.app.progress().done();
    match session.show.json {
        true => session.show.object(&status.to_json())?,
        false => session.show.line(format!("{name} {how}"))?,
    }
    Ok(())
}

/// Move a workspace to another provider, with its files and its dev server.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace move shop --to e2b
  sandbar workspace move shop --to local --json

Its sandbox stays in use until the new one has every file. Other processes in it end.

When the provider that it is with does not answer, nothing can be saved there any more, and the move is refused unless \
--leave-unsaved says otherwise. Then the files are those of the newest snapshot, and what was changed since stays in the \
old sandbox, which is named and not ended. When the provider answers again, `sandbar workspace attach NAME SANDBOX` goes \
back to it.")]
pub(super) struct Move {
    /// The workspace
    name: WorkspaceName,
    /// The provider, by its name in the configuration
    #[arg(long, value_name = "PROVIDER")]
    to: ProviderName,
    /// Go also when its provider does not answer: what was changed since the newest snapshot is
    /// left behind
    #[arg(long)]
    leave_unsaved: bool,
}

impl Move {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("moving {} to {}", self.name, self.to));
        let back = bring_back(session, &workspace).await;
        let mut moved = workspace.move_to(&self.to, MoveOptions { leave_unsaved: self.leave_unsaved }).await?;
        moved.auto_restore = back.or(moved.auto_restore);
        session.app.leave().await;
        print_handover(session, &self.name, &moved)
    }
}

/// Put a workspace into a new sandbox of the same provider.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace rotate shop

This happens by itself before a sandbox's time is over. Generated folders are not taken along: they are named before the old \
sandbox is given up, as `sandbar workspace show` names them at any time.")]
pub(super) struct Rotate {
    /// The workspace
    name: WorkspaceName,
}

impl Rotate {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("putting {} into a new sandbox", self.name));
        let back = bring_back(session, &workspace).await;
        let mut rotated = workspace.rotate().await?;
        rotated.auto_restore = back.or(rotated.auto_restore);
        session.app.leave().await;
        print_handover(session, &self.name, &rotated)
    }
}

/// Prints that the files are those of a checkpoint, and which changes are lost.
fn report_auto_restore(session: &Session, back: Option<&AutoRestore>) {
    if let Some(back) = back {
        session.app.progress().print_line(&printable(&back.notice));
    }
}

fn brought_back_to_json(back: Option<&AutoRestore>) -> Value {
    back.map_or(Value::Null, |AutoRestore { reason, notice, restored }| {
        json!({
            "reason": reason,
            "snapshot": restored.stamp,
            "saved_at": restored.stamp.time(),
            "skipped": skipped_to_json(restored),
            "notice": notice,
        })
    })
}

/// Makes the workspace run, so that its generated folders can be listed, and returns what that
/// cost. An error is ignored here: the handover that follows reports it.
async fn bring_back(session: &Session, workspace: &Workspace) -> Option<Arc<AutoRestore>> {
    let back = workspace.resume().await.ok()?;
    report_excluded(session, workspace).await;
    back
}

/// Prints the generated folders that the new sandbox will not have, while the old one still has
/// them. An error is ignored here: the handover that follows reports it.
async fn report_excluded(session: &Session, workspace: &Workspace) {
    let excluded = workspace.excluded_folders().await.unwrap_or_default();
    if !session.show.json && !excluded.is_empty() {
        session
            .app
            .progress()
            .print_line(&format!("generated folders are not taken along: {}", summarize_paths(&excluded)));
    }
}

fn print_handover(session: &Session, name: &WorkspaceName, new: &HandedOver) -> anyhow::Result<()> {
    session.app.progress().done();
    if session.show.json {
        return Ok(session.show.object(&json!({
            "workspace": name,
            "provider": new.provider,
            "sandboxID": new.sandbox,
            "key": new.restored.key,
            "files": new.restored.files,
            "skipped": skipped_to_json(&new.restored),
            "left_out": new.restored.excluded.iter().map(FilePath::text).collect::<Vec<_>>(),
            "fenced_ms": u64::try_from(new.gate_closed.as_millis()).unwrap_or(u64::MAX),
            "brought_back": brought_back_to_json(new.auto_restore.as_deref()),
            "left_behind": new.left_behind.as_ref().map(|LeftBehind { provider, sandbox, since }| {
                json!({ "provider": provider, "sandboxID": sandbox, "since": since })
            }),
        }))?);
    }
    report_auto_restore(session, new.auto_restore.as_deref());
    report_skipped(&new.restored);
    let files = new.restored.files;
    Ok(session.show.line(format!(
        "{name} is at {} in sandbox {}, with {files} files, after {}",
        new.provider,
        new.sandbox,
        span(new.gate_closed)
    ))?)
}
