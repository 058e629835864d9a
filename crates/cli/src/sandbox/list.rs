//! `sandbar sandbox list`: lists sandboxes by state, metadata and template.

use super::Session;
use crate::show::{ago, ahead, printable, span};
use crate::values::Pair;
use clap::{Args, ValueEnum};
use futures::{StreamExt, TryStreamExt};
use sdk::ListQuery;
use sdk::model::{ListedSandbox, SandboxState};

/// List sandboxes, newest first.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox list
  sandbar sandbox list --state paused
  sandbar sandbox list --metadata owner=me --template base
  sandbar sandbox list --quiet | xargs -r sandbar sandbox kill
  sandbar sandbox list --json | jq -r '.[] | select(.memoryMB > 1024) | .sandboxID'")]
pub(crate) struct List {
    /// Only those in this state
    #[arg(long)]
    state: Option<StateFilter>,
    /// Only those with this pair; several must all match
    #[arg(long, short, value_name = "KEY=VALUE")]
    metadata: Vec<Pair>,
    /// Only those made from this template, by id or name
    #[arg(long)]
    template: Option<String>,
    /// At most so many
    #[arg(long, short = 'n', value_name = "COUNT")]
    limit: Option<usize>,
    /// Print ids only
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum StateFilter {
    Running,
    Paused,
}

impl List {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut query = ListQuery::new();
        for Pair { key, value } in self.metadata {
            query = query.metadata(key, value);
        }
        query = match self.state {
            Some(StateFilter::Running) => query.state(SandboxState::Running),
            Some(StateFilter::Paused) => query.state(SandboxState::Paused),
            None => query,
        };
        if let Some(template) = self.template {
            query = query.template(template);
        }
        let rows = session.client.list(query).take(self.limit.unwrap_or(usize::MAX));
        let rows: Vec<ListedSandbox> = rows.try_collect().await?;
        let show = session.show;
        if show.json {
            return Ok(show.object(&rows)?);
        }
        if self.quiet {
            return Ok(rows.iter().try_for_each(|row| show.line(&row.sandbox_id))?);
        }
        if rows.is_empty() {
            eprintln!("no sandbox at {}", session.client.api_url());
            return Ok(());
        }
        let cells = |row: &ListedSandbox| {
            let metadata: Vec<String> = row.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
            vec![
                printable(&row.sandbox_id),
                printable(row.alias.as_deref().unwrap_or(&row.template_id)),
                show.state(row.state),
                ago(&row.started_at).map_or_else(|| "-".to_owned(), |age| format!("{} ago", span(age))),
                match row.state {
                    SandboxState::Running => ahead(&row.end_at).map_or_else(|| "now".to_owned(), span),
                    SandboxState::Paused => "-".to_owned(),
                },
                row.cpu_count.to_string(),
                format!("{} MiB", row.memory_mb),
                printable(&metadata.join(" ")),
            ]
        };
        let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let head = ["SANDBOX", "TEMPLATE", "STATE", "STARTED", "ENDS IN", "CPUS", "MEMORY", "METADATA"];
        Ok(show.table(&head, &rows)?)
    }
}
