//! The program's log on stderr, filtered by the variable `SANDBAR_LOG`.

use anyhow::anyhow;
use std::io::stderr;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

const VARIABLE: &str = "SANDBAR_LOG";
const DEFAULT: &str = "info,sqlx=warn,sea_orm_migration=warn";

/// Starts logging. A filter that does not parse is an error that names it.
pub(crate) fn start() -> anyhow::Result<()> {
    install(&read_filter()?.unwrap_or_else(|| DEFAULT.to_owned()))
}

/// Starts logging if `SANDBAR_LOG` is set, for commands that log nothing by default.
pub(crate) fn start_if_wanted() -> anyhow::Result<()> {
    read_filter()?.as_deref().map_or(Ok(()), install)
}

fn read_filter() -> anyhow::Result<Option<String>> {
    match std::env::var(VARIABLE) {
        Ok(filter) => Ok(Some(filter).filter(|filter| !filter.trim().is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(anyhow!("{VARIABLE} is not text")),
    }
}

fn install(filter: &str) -> anyhow::Result<()> {
    let parsed = EnvFilter::builder().parse(filter).map_err(|error| {
        anyhow!("{VARIABLE}: `{filter}` is not a log filter ({error}); for example `debug` or `warn,sandbar_api=debug`")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(stderr)
        .with_ansi(cli::show::colours_on(&stderr()))
        .with_target(false)
        .with_filter(filter_fn(|event| !shows_contents(event)));
    tracing_subscriber::registry().with(lines).with(parsed).init();
    Ok(())
}

/// Whether an event could have the contents of files: `rmcp` logs whole messages below `INFO`.
fn shows_contents(event: &Metadata<'_>) -> bool {
    event.target().starts_with("rmcp") && *event.level() > Level::INFO
}
