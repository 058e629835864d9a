//! Known models and their prices: `models.json`. Other models can be used as well, but their cost
//! is unknown.

use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use workspace::ledger::Usd;

use super::Usage;

/// A model of the list.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelInfo {
    pub id: String,
    pub window: u64,
    pub max_answer_tokens: u64,
    input: f64,
    output: f64,
    cache_write: f64,
    cache_read: f64,
    #[serde(default)]
    above: Option<u64>,
    #[serde(default)]
    factor: Option<f64>,
}

/// Price of tokens, in dollars per million.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ModelPrice {
    pub input: f64,
    pub output: f64,
    pub cache_write: f64,
    pub cache_read: f64,
    /// Prompts above this many tokens cost this many times as much.
    pub long: Option<(u64, f64)>,
}

impl ModelInfo {
    pub fn price(&self) -> ModelPrice {
        let Self { input, output, cache_write, cache_read, .. } = *self;
        ModelPrice { input, output, cache_write, cache_read, long: self.above.zip(self.factor) }
    }
}

/// The text is not two amounts of dollars.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no price; write dollars per million tokens of input and of output, such as 0.20/0.80")]
pub struct InvalidPrice(String);

impl FromStr for ModelPrice {
    type Err = InvalidPrice;

    /// Parses `IN/OUT`.
    fn from_str(text: &str) -> Result<Self, InvalidPrice> {
        let invalid = || InvalidPrice(text.to_owned());
        let (input, output) = text.split_once('/').ok_or_else(invalid)?;
        let dollars = |text: &str| text.trim().parse::<f64>().ok();
        dollars(input).zip(dollars(output)).and_then(|(input, output)| Self::new(input, output)).ok_or_else(invalid)
    }
}

impl ModelPrice {
    /// Cached input is priced like other input, so costs are at most overestimated. [`None`] if one
    /// of the two is not an amount.
    pub fn new(input: f64, output: f64) -> Option<Self> {
        let amount = |dollars: f64| dollars.is_finite() && dollars >= 0.0;
        let price = Self { input, output, cache_write: input, cache_read: input, long: None };
        (amount(input) && amount(output)).then_some(price)
    }

    /// The cost of one turn.
    pub fn cost(&self, usage: Usage) -> Usd {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 tokens")]
        let cost = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        let factor = self.long.filter(|(above, _)| usage.prompt() > *above).map_or(1.0, |(_, factor)| factor);
        let dollars = cost(usage.input_tokens, self.input)
            + cost(usage.output_tokens, self.output)
            + cost(usage.cache_write_tokens, self.cache_write)
            + cost(usage.cache_read_tokens, self.cache_read);
        Usd::from_dollars(dollars * factor).unwrap_or(Usd::from_nanos(u64::MAX))
    }
}

#[derive(Deserialize)]
struct List {
    #[serde(rename = "about")]
    _about: String,
    models: Vec<ModelInfo>,
}

static LIST: LazyLock<List> =
    LazyLock::new(|| serde_json::from_str(include_str!("models.json")).expect("the file is tested"));

/// Finds a model. A dated snapshot, such as `claude-haiku-4-5-20251001`, is found as its model.
pub fn find_model(name: &str) -> Option<&'static ModelInfo> {
    let dated = |id: &str| {
        let rest = name.strip_prefix(id).and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|date| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()))
    };
    LIST.models.iter().find(|model| model.id == name || dated(&model.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_follows_the_catalog() {
        let opus = find_model("claude-opus-5-5").expect("it is in the list").price();
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cache_read_tokens: 500_000,
            cache_write_tokens: 0,
        };
        assert_eq!(opus.cost(usage), Usd::from_cents(400 + 200 + 10));
        let haiku = find_model("claude-haiku-5-5").expect("it is in the list").price();
        let short = Usage { input_tokens: 100_000, ..Usage::default() };
        let long = Usage { input_tokens: 200_000, ..Usage::default() };
        assert_eq!((haiku.cost(short), haiku.cost(long)), (Usd::from_cents(1), Usd::from_cents(10)));
    }

    #[test]
    fn price_parses_two_amounts_per_million_tokens() {
        let price: ModelPrice = "0.20/0.80".parse().expect("a price");
        let usage =
            Usage { input_tokens: 500_000, cache_read_tokens: 500_000, output_tokens: 1_000_000, ..Usage::default() };
        assert_eq!(price.cost(usage), Usd::from_cents(20 + 80));
        assert_eq!("0/0".parse::<ModelPrice>().map(|price| price.cost(usage)), Ok(Usd::from_cents(0)));
        for text in ["", "1", "1/", "/1", "-1/1", "1/inf", "NaN/1", "1/2/3", "one/two"] {
            assert!(text.parse::<ModelPrice>().is_err(), "{text}");
        }
    }

    #[test]
    fn dated_names_are_found_and_unknown_ones_are_not() {
        assert_eq!(find_model("claude-haiku-4-5-20251001").map(|model| model.window), Some(200_000));
        assert!(find_model("claude-haiku-4").is_none() && find_model("claude-opus-5-7").is_none());
        assert_eq!(find_model("claude-opus-5").map(|model| model.id.as_str()), Some("claude-opus-5"));
    }
}
