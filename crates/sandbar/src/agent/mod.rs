//! `sandbar run` and `sandbar runs`: the agent loop on a workspace, watched, stopped and continued from here.

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
use crate::workspace::house::Place;
use agent::model::{Choice, Keys, Model, Price, with_price};
use agent::records::DatabaseRunRecords;
use anyhow::Context as _;
use sdk::Secret;
use std::sync::Arc;

/// What the environment has for providers of models.
pub(crate) fn keys() -> Keys {
    Keys {
        anthropic: variable("ANTHROPIC_API_KEY").map(Secret::from),
        anthropic_url: variable("ANTHROPIC_BASE_URL"),
        openai: variable("OPENAI_API_KEY").map(Secret::from),
    }
}

/// Where runs and workspaces are remembered.
fn records_url(place: &Place) -> anyhow::Result<Secret> {
    let overrides = Overrides { data: place.data.clone(), ..Overrides::default() };
    let config = Config::load(place.config.as_deref(), &overrides)?;
    Ok(config.workspaces()?.records.location(&variable)?)
}

/// The model that is meant, at the price that was given with it, else at that of the configuration.
fn model(place: &Place, choice: &Choice, price: Option<Price>) -> anyhow::Result<Arc<dyn Model>> {
    let model = choice.model(&keys())?;
    if let Some(price) = price {
        return Ok(with_price(model, price));
    }
    let config = Config::load(place.config.as_deref(), &Overrides::default())?;
    Ok(Prices::new(&config.models)?.apply(choice, model))
}

async fn open_records(url: &Secret) -> anyhow::Result<DatabaseRunRecords> {
    DatabaseRunRecords::open(url).await.context("the runs cannot be remembered")
}
