//! `sandbar sandbox kill`: kills sandboxes, after a confirmation for all of them.

use super::Session;
use crate::ask;
use crate::show::printable;
use crate::values::Pair;
use anyhow::{Context as _, bail};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use sdk::model::ListedSandbox;
use sdk::{ListQuery, SandboxId};
use serde_json::json;
use std::process::ExitCode;

/// Kills that are sent concurrently.
const MAX_CONCURRENT: usize = 8;

/// End sandboxes and delete their files.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox kill iabc123 idef456
  sandbar sandbox kill --all  asks first
  sandbar sandbox kill --all --metadata owner=me --yes

Exit code 1 when one of the named sandboxes did not exist.")]
pub(crate) struct Kill {
    /// The sandboxes
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<SandboxId>,
    /// All of them, paused ones too
    #[arg(long)]
    all: bool,
    /// With --all: only those with this pair
    #[arg(long, short, value_name = "KEY=VALUE", requires = "all")]
    metadata: Vec<Pair>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Kill {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let ids = if self.all { self.choose(session).await? } else { self.ids };
        let kill = |id: SandboxId| async move {
            let killed = session.client.kill(&id).await;
            (id, killed)
        };
        let mut kills = stream::iter(ids).map(kill).buffered(MAX_CONCURRENT);
        let (mut results, mut failed) = (Vec::new(), false);
        while let Some((id, killed)) = kills.next().await {
            match killed {
                // With --all, a sandbox that another process has killed is no error.
                Ok(false) if !self.all => {
                    failed = true;
                    eprintln!("sandbar: sandbox {id} does not exist (any more)");
                }
                Ok(_) if !session.show.json => session.show.line(format!("{id} killed"))?,
                Ok(_) => {}
                Err(ref error) => {
                    failed = true;
                    eprintln!("sandbar: {error}");
                }
            }
            results.push(json!({ "sandboxID": id.as_str(), "killed": killed.is_ok_and(|killed| killed) }));
        }
        if session.show.json {
            session.show.object(&results)?;
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Lists all that match, and asks for confirmation.
    async fn choose(&self, session: &Session) -> anyhow::Result<Vec<SandboxId>> {
        let query =
            self.metadata.iter().fold(ListQuery::new(), |query, Pair { key, value }| query.metadata(key, value));
        let rows: Vec<ListedSandbox> = session.client.list(query).try_collect().await?;
        if rows.is_empty() {
            eprintln!("no sandbox to kill at {}", session.client.api_url());
        } else if !self.yes && !confirm(&rows, session.client.api_url())? {
            bail!("nothing was killed");
        }
        rows.iter().map(|row| row.sandbox_id.parse().context("the list cannot be used")).collect()
    }
}

fn confirm(rows: &[ListedSandbox], url: &str) -> anyhow::Result<bool> {
    const SHOWN: usize = 5;
    let names: Vec<String> = rows.iter().take(SHOWN).map(|row| printable(&row.sandbox_id)).collect();
    let more = if rows.len() > SHOWN { ", …" } else { "" };
    let what = match rows.len() {
        1 => "1 sandbox".to_owned(),
        count => format!("all {count} sandboxes"),
    };
    let question = format!("Kill {what} at {url} ({}{more})? Their files are lost.", names.join(", "));
    ask::confirm(&format!("kill {what} at {url}"), &question)
}
