//! `sandbar recover`: lists files that no record names, and restores them.

use crate::endpoint::Endpoint;
use crate::{logging, runtime};
use clap::Args;
use cli::Connect as _;
use cli::show::{Show, printable};
use sdk::Client;
use sdk::model::{Recoverable, Recovered};
use std::process::ExitCode;

/// List files that no record names, and bring them back as paused sandboxes, templates or volumes.
///
/// When the server starts, it moves files that none of its records names to a trash in its pool,
/// for example after an older copy of its database was put back. They stay there for days
/// (`trash_days`). Volumes are never moved.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar recover               what can be brought back, and until when
  sandbar recover iabc123       a sandbox, paused with its files; `sandbar sandbox resume iabc123` starts it
  sandbar recover cache         a volume or template by its name
  sandbar recover --all
  sandbar recover --json        [{filesID, kind, id, name, metadata, trashedAt, deletedAt, bytes}]

A recovered sandbox has its files, size, metadata and network rules. Its tokens are new, and variables of its create have no values: \
they are in the lost database only.

Exit code 1 when something that was named could not be brought back.")]
pub(crate) struct Recover {
    /// Files, sandboxes, templates or volumes, as the list names them
    #[arg(value_name = "ID", conflicts_with = "all")]
    ids: Vec<String>,
    /// Everything there is
    #[arg(long)]
    all: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    endpoint: Endpoint,
}

impl Recover {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        logging::start_if_wanted()?;
        let (client, show) = (self.endpoint.connect()?, Show::new(self.json));
        runtime::block_on(async {
            if self.ids.is_empty() && !self.all {
                list(&client, &show).await?;
                return Ok(ExitCode::SUCCESS);
            }
            let ids =
                if self.all { client.trash().await?.into_iter().map(|row| row.files_id).collect() } else { self.ids };
            recover(&client, &show, &ids).await
        })
    }
}

async fn list(client: &Client, show: &Show) -> anyhow::Result<()> {
    let rows = client.trash().await?;
    if show.json {
        return Ok(show.object(&rows)?);
    }
    if rows.is_empty() {
        eprintln!("nothing to recover at {}", client.api_url());
    }
    for row in &rows {
        show.line(describe(row))?;
    }
    Ok(())
}

fn describe(row: &Recoverable) -> String {
    let id = row.id.as_deref().filter(|_| row.kind == "sandbox").unwrap_or(&row.files_id);
    let name = row.name.as_deref().map(|name| format!(" {}", printable(name))).unwrap_or_default();
    let pairs: String = row.metadata.iter().map(|(key, value)| printable(&format!(" {key}={value}"))).collect();
    let size = row.bytes.map(|bytes| format!("  {} MiB", bytes.div_ceil(1 << 20))).unwrap_or_default();
    let until = match &row.deleted_at {
        Some(moment) => format!("kept until {moment}"),
        None => "a volume without a record, kept".to_owned(),
    };
    format!("{id}  {}{name}{pairs}{size}  {until}", row.kind)
}

async fn recover(client: &Client, show: &Show, ids: &[String]) -> anyhow::Result<ExitCode> {
    let (mut recovered, mut failed) = (Vec::new(), false);
    for id in ids {
        match client.recover(id).await {
            Ok(Some(back)) => {
                if !show.json {
                    show.line(describe_recovered(&back))?;
                }
                recovered.push(back);
            }
            Ok(None) => {
                failed = true;
                eprintln!("sandbar: there is no {:?} to recover; `sandbar recover` lists what there is", printable(id));
            }
            Err(error) => {
                failed = true;
                eprintln!("sandbar: {error}");
            }
        }
    }
    if show.json {
        show.object(&recovered)?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn describe_recovered(Recovered { kind, id, name }: &Recovered) -> String {
    match kind.as_str() {
        "sandbox" => format!("sandbox {id} is paused with its files; `sandbar sandbox resume {id}` starts it"),
        _ => format!("{kind} {} is back", name.as_deref().map_or_else(|| id.clone(), printable)),
    }
}
