//! `sandbar run` and `sandbar runs`: start, watch, stop and resume runs of the agent loop on a
//! workspace.

mod approve;
mod drive;
mod prices;
mod run;
mod runs;
mod view;

pub(crate) use prices::{ModelConfig, Prices};
pub(crate) use run::{DEFAULT_MODEL, Start};
pub(crate) use runs::Runs;

use crate::config::{Config, Overrides, variable};
use crate::workspace::app::WorkspaceLocation;
use agent::model::{Keys, Model, ModelChoice, ModelPrice, with_price};
use agent::records::DatabaseRunRecords;
use anyhow::Context as _;
use sdk::Secret;
use std::sync::Arc;

/// Reads the keys and URLs of model providers from the environment.
pub(crate) fn keys() -> Keys {
    Keys {
        anthropic: variable("ANTHROPIC_API_KEY").map(Secret::from),
        anthropic_url: variable("ANTHROPIC_BASE_URL"),
        openai: variable("OPENAI_API_KEY").map(Secret::from),
    }
}

/// The database of the records of runs and workspaces.
fn records_url(location: &WorkspaceLocation) -> anyhow::Result<Secret> {
    let overrides = Overrides { data: location.data.clone(), ..Overrides::default() };
    let config = Config::load(location.config.as_deref(), &overrides)?;
    Ok(config.workspaces()?.records.location(&variable)?)
}

/// The chosen model, at `price` if the caller has one, else at the configured price.
fn model(
    location: &WorkspaceLocation,
    choice: &ModelChoice,
    price: Option<ModelPrice>,
) -> anyhow::Result<Arc<dyn Model>> {
    let model = choice.model(&keys())?;
    if let Some(price) = price {
        return Ok(with_price(model, price));
    }
    let config = Config::load(location.config.as_deref(), &Overrides::default())?;
    Ok(Prices::new(&config.models)?.apply(choice, model))
}

async fn open_records(url: &Secret) -> anyhow::Result<DatabaseRunRecords> {
    DatabaseRunRecords::open(url).await.context("the runs cannot be remembered")
}
