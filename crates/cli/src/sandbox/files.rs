//! `sandbar sandbox ls` and `cat`, and their parts that `sandbar workspace` uses.

use super::Session;
use crate::show::{Colour, Show, printable, size};
use clap::Args;
use futures::TryStreamExt;
use sdk::{Entry, EntryKind, Files, SandboxId};
use serde_json::{Value, json};
use std::io::{Write, stdout};

/// List a directory of a sandbox.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox ls iabc123  the user's home
  sandbar sandbox ls iabc123 /etc --user root
  sandbar sandbox ls iabc123 project --depth 3
  sandbar sandbox ls iabc123 --json | jq -r '.[].path'")]
pub struct Ls {
    /// The sandbox
    id: SandboxId,
    /// The directory; relative ones begin at the user's home
    #[arg(default_value = "~", hide_default_value = true)]
    path: String,
    /// How many levels
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Whose home relative paths begin at
    #[arg(long, short)]
    user: Option<String>,
}

impl Ls {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let sandbox = session.sandbox(&self.id).await?;
        let files = self.user.map_or_else(|| sandbox.files(), |user| sandbox.files().as_user(user));
        list(&files, &self.path, self.depth, session.show).await
    }
}

/// Lists a directory.
pub async fn list(files: &Files<'_>, path: &str, depth: u32, show: Show) -> anyhow::Result<()> {
    let entries = files.list_depth(path, depth).await?;
    if show.json {
        return Ok(show.object(&entries.iter().map(model).collect::<Vec<_>>())?);
    }
    // Paths are shown relative to the listed directory.
    let root = files.stat(path).await?.path;
    let row = |entry: &Entry| {
        let below = entry.path.strip_prefix(&root).map_or(entry.path.as_str(), |rest| rest.trim_start_matches('/'));
        let modified = entry.modified.map_or_else(String::new, |moment| {
            moment.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string()
        });
        vec![
            printable(&entry.permissions),
            printable(&entry.owner),
            printable(&entry.group),
            size(entry.size),
            modified,
            name(show, entry, below),
        ]
    };
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    Ok(show.table(&["MODE", "OWNER", "GROUP", "SIZE", "MODIFIED", "NAME"], &rows)?)
}

fn name(show: Show, entry: &Entry, name: &str) -> String {
    let name = printable(name);
    match (&entry.symlink_target, entry.kind) {
        (Some(target), _) => format!("{name} -> {}", printable(target)),
        (None, EntryKind::Directory) => format!("{}/", show.paint(Colour::Blue, &name)),
        (None, EntryKind::File) if entry.mode & 0o111 != 0 => show.paint(Colour::Green, &name),
        (None, EntryKind::File | EntryKind::Other) => name,
    }
}

/// The protocol's object for an entry.
pub fn model(entry: &Entry) -> Value {
    let kind = match entry.kind {
        EntryKind::File => "FILE_TYPE_FILE",
        EntryKind::Directory => "FILE_TYPE_DIRECTORY",
        EntryKind::Other => "FILE_TYPE_UNSPECIFIED",
    };
    let mut object = json!({
        "name": entry.name,
        "type": kind,
        "path": entry.path,
        "size": entry.size,
        "mode": entry.mode,
        "permissions": entry.permissions,
        "owner": entry.owner,
        "group": entry.group,
        "isSymlink": entry.is_symlink(),
    });
    if let Some(moment) = entry.modified {
        object["modifiedTime"] = moment.to_string().into();
    }
    if let Some(target) = &entry.symlink_target {
        object["symlinkTarget"] = target.as_str().into();
    }
    if !entry.metadata.is_empty() {
        object["metadata"] = json!(entry.metadata);
    }
    object
}

/// Print files of a sandbox, as they are.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox cat iabc123 notes.txt
  sandbar sandbox cat iabc123 /var/log/a.log /var/log/b.log > both.log
  sandbar sandbox cat iabc123 notes.txt --json  [{path, content}]; for text only")]
pub struct Cat {
    /// The sandbox
    id: SandboxId,
    /// The files; relative ones begin at the user's home
    #[arg(required = true)]
    paths: Vec<String>,
    /// Whose home relative paths begin at
    #[arg(long, short)]
    user: Option<String>,
}

impl Cat {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let sandbox = session.sandbox(&self.id).await?;
        let files = self.user.map_or_else(|| sandbox.files(), |user| sandbox.files().as_user(user));
        print(&files, &self.paths, session.show).await
    }
}

/// Prints the contents of files unchanged, or as JSON.
pub async fn print(files: &Files<'_>, paths: &[String], show: Show) -> anyhow::Result<()> {
    let mut objects = Vec::new();
    for path in paths {
        if show.json {
            objects.push(json!({ "path": path, "content": files.read_text(path).await? }));
            continue;
        }
        let mut content = files.read_stream(path).await?;
        while let Some(piece) = content.try_next().await? {
            stdout().write_all(&piece)?;
        }
        stdout().flush()?;
    }
    if show.json {
        show.object(&objects)?;
    }
    Ok(())
}
