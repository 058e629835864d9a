//! Prices of models that the program does not know, or that differ from the known ones:
//! `[models.NAME]` of the configuration.

use agent::model::{Model, ModelChoice, ModelPrice, with_price};
use anyhow::Context as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model's prices in dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelConfig {
    /// Price of what is sent to the model.
    input_usd: f64,
    /// Price of what it writes.
    output_usd: f64,
    /// Price of what it reads from its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "as `input_usd`"))]
    cache_read_usd: Option<f64>,
    /// Price of what it writes to its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "as `input_usd`"))]
    cache_write_usd: Option<f64>,
}

impl ModelConfig {
    fn price(&self) -> Option<ModelPrice> {
        let Self { input_usd, output_usd, cache_read_usd, cache_write_usd } = *self;
        let price = ModelPrice::new(input_usd, output_usd)?;
        let caches = ModelPrice::new(cache_read_usd.unwrap_or(input_usd), cache_write_usd.unwrap_or(input_usd))?;
        Some(ModelPrice { cache_read: caches.input, cache_write: caches.output, ..price })
    }
}

/// Prices by a model's name, either alone or in the form that `--model` takes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prices(BTreeMap<String, ModelPrice>);

impl Prices {
    pub(crate) fn new(models: &BTreeMap<String, ModelConfig>) -> anyhow::Result<Self> {
        let price = |(name, model): (&String, &ModelConfig)| {
            let price = model.price().with_context(|| format!("`models.{name}`: prices must be 0 or more"))?;
            Ok((name.clone(), price))
        };
        models.iter().map(price).collect::<anyhow::Result<_>>().map(Self)
    }

    fn find(&self, choice: &ModelChoice) -> Option<ModelPrice> {
        let alone = match choice {
            ModelChoice::Anthropic { model } | ModelChoice::OpenAi { model, .. } => self.0.get(model),
            ModelChoice::Scripted { .. } => None,
        };
        self.0.get(&choice.to_string()).or(alone).copied()
    }

    /// Sets the configured price on a model, if there is one.
    pub(crate) fn apply(&self, choice: &ModelChoice, model: Arc<dyn Model>) -> Arc<dyn Model> {
        match self.find(choice) {
            Some(price) => with_price(model, price),
            None => model,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::model::Keys;
    use figment::Figment;
    use figment::providers::{Format, Toml};

    fn prices(text: &str) -> anyhow::Result<Prices> {
        Prices::new(&Figment::from(Toml::string(text)).extract().expect("TOML"))
    }

    #[test]
    fn an_unknown_model_has_its_configured_price() {
        let text = "[\"qwen3-coder\"]\ninput_usd = 0.2\noutput_usd = 0.8\n\
                    [\"openai:dear@http://127.0.0.1:8000/v1\"]\ninput_usd = 5\noutput_usd = 9\ncache_read_usd = 0.5";
        let prices = prices(text).expect("prices");
        let price = |name: &str| {
            let choice: ModelChoice = name.parse().expect("a model");
            prices.apply(&choice, choice.model(&Keys::default()).expect("a model")).price()
        };
        assert_eq!(price("openai:qwen3-coder@http://127.0.0.1:8000/v1"), ModelPrice::new(0.2, 0.8));
        let dear = price("openai:dear@http://127.0.0.1:8000/v1").expect("a price");
        assert_eq!((dear.input, dear.cache_read, dear.cache_write), (5.0, 0.5, 5.0));
        assert_eq!(
            price("openai:dear@http://127.0.0.1:9000/v1"),
            None,
            "another endpoint of a model that is named whole"
        );
        assert_eq!(price("openai:unknown@http://127.0.0.1:8000/v1"), None);
    }

    #[test]
    fn a_negative_price_is_refused_with_the_models_name() {
        let error = prices("[x]\ninput_usd = -1\noutput_usd = 1").expect_err("it is wrong");
        assert!(error.to_string().contains("`models.x`"), "{error:#}");
    }
}
