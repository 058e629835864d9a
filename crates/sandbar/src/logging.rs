//! The program's own log, on stderr. What is logged is `SANDBAR_LOG`'s to say.

use crate::doctor;
use anyhow::anyhow;
use std::io::stderr;
use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "SANDBAR_LOG";
const DEFAULT: &str = "info,sqlx=warn,sea_orm_migration=warn";

/// Starts logging; a filter that does not parse is named instead of being left out.
pub(crate) fn start() -> anyhow::Result<()> {
    install(&wanted()?.unwrap_or_else(|| DEFAULT.to_owned()))
}

/// For programs that are silent unless they are asked to speak.
pub(crate) fn start_if_wanted() -> anyhow::Result<()> {
    wanted()?.as_deref().map_or(Ok(()), install)
}

fn wanted() -> anyhow::Result<Option<String>> {
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
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(stderr)
        .with_ansi(doctor::colours_on(&stderr()))
        .with_target(false)
        .init();
    Ok(())
}
