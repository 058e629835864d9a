//! `sandbar sandbox watch`: prints file events of a directory in a sandbox.

use super::Session;
use super::files::model;
use crate::show::{Colour, printable};
use clap::Args;
use futures::TryStreamExt;
use sdk::{FileEvent, FileEventKind, SandboxId};
use serde_json::json;

/// Tell what happens in a directory of a sandbox, until Ctrl-C.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox watch iabc123 project --recursive
  sandbar sandbox watch iabc123 /tmp --count 1  waits for one event
  sandbar sandbox watch iabc123 --json          one object a line: {name, type, entry}

`watching` on stderr says that whatever happens from now on is told. The exit code is 1 when the connection is \
lost, since events may then have been missed.")]
pub(crate) struct Watch {
    /// The sandbox
    id: SandboxId,
    /// The directory; relative ones begin at the user's home
    #[arg(default_value = "~", hide_default_value = true)]
    path: String,
    /// What is below it too
    #[arg(long, short)]
    recursive: bool,
    /// End after so many events
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Whose home relative paths begin at
    #[arg(long, short)]
    user: Option<String>,
}

impl Watch {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let sandbox = session.sandbox(&self.id).await?;
        let files = self.user.map_or_else(|| sandbox.files(), |user| sandbox.files().as_user(user));
        let mut watch = sdk::Watch::default();
        if self.recursive {
            watch = watch.recursive();
        }
        if session.show.json {
            watch = watch.include_entry();
        }
        let mut events = files.watch(&self.path, watch).await?;
        eprintln!("watching {} in {}", if self.path == "~" { "home" } else { &self.path }, self.id);
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0
            && let Some(event) = events.try_next().await?
        {
            print(session, &event)?;
            left -= 1;
        }
        Ok(())
    }
}

fn print(session: &Session, event: &FileEvent) -> std::io::Result<()> {
    let (word, wire, colour) = match event.kind {
        FileEventKind::Create => ("create", "EVENT_TYPE_CREATE", Colour::Green),
        FileEventKind::Write => ("write ", "EVENT_TYPE_WRITE", Colour::Blue),
        FileEventKind::Remove => ("remove", "EVENT_TYPE_REMOVE", Colour::Red),
        FileEventKind::Rename => ("rename", "EVENT_TYPE_RENAME", Colour::Yellow),
        FileEventKind::Chmod => ("chmod ", "EVENT_TYPE_CHMOD", Colour::Dim),
        _ => ("other ", "EVENT_TYPE_UNSPECIFIED", Colour::Dim),
    };
    if !session.show.json {
        return session.show.line(format!("{}  {}", session.show.paint(colour, word), printable(&event.name)));
    }
    let mut object = json!({ "name": event.name, "type": wire });
    if let Some(entry) = &event.entry {
        object["entry"] = model(entry);
    }
    session.show.event(&object)
}
