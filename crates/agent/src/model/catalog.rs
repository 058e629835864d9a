//! What is known of models before they are asked: `models.json`. A model that is not in it can be used all the same, but
//! nobody can say what it costs.

use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use workspace::ledger::Usd;

use super::Usage;

/// A model in the list.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    pub id: String,
    pub window: u64,
    pub longest_answer: u64,
    input: f64,
    output: f64,
    cache_write: f64,
    cache_read: f64,
    #[serde(default)]
    above: Option<u64>,
    #[serde(default)]
    factor: Option<f64>,
}

/// What tokens cost, in dollars per million.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    pub cache_write: f64,
    pub cache_read: f64,
    /// Prompts of more tokens than this cost so many times as much.
    pub long: Option<(u64, f64)>,
}

impl Known {
    pub fn price(&self) -> Price {
        let Self { input, output, cache_write, cache_read, .. } = *self;
        Price { input, output, cache_write, cache_read, long: self.above.zip(self.factor) }
    }
}

/// Not two amounts of dollars.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no price; write dollars per million tokens of input and of output, such as 0.20/0.80")]
pub struct InvalidPrice(String);

impl FromStr for Price {
    type Err = InvalidPrice;

    /// `IN/OUT`.
    fn from_str(text: &str) -> Result<Self, InvalidPrice> {
        let invalid = || InvalidPrice(text.to_owned());
        let (input, output) = text.split_once('/').ok_or_else(invalid)?;
        let dollars = |text: &str| text.trim().parse::<f64>().ok();
        dollars(input).zip(dollars(output)).and_then(|(input, output)| Self::new(input, output)).ok_or_else(invalid)
    }
}

impl Price {
    /// What is read from or written to a cache costs what other input does: at most too much is
    /// counted. [`None`] when one of them is no amount.
    pub fn new(input: f64, output: f64) -> Option<Self> {
        let amount = |dollars: f64| dollars.is_finite() && dollars >= 0.0;
        let price = Self { input, output, cache_write: input, cache_read: input, long: None };
        (amount(input) && amount(output)).then_some(price)
    }

    /// What one turn costs.
    pub fn of(&self, usage: Usage) -> Usd {
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
    models: Vec<Known>,
}

static LIST: LazyLock<List> =
    LazyLock::new(|| serde_json::from_str(include_str!("models.json")).expect("the file is tested"));

/// Looks a model up. A dated snapshot, such as `claude-haiku-4-5-20251001`, is its model.
pub fn known(name: &str) -> Option<&'static Known> {
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
    fn a_model_costs_what_the_list_says() {
        let opus = known("claude-opus-5-5").expect("it is in the list").price();
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cache_read_tokens: 500_000,
            cache_write_tokens: 0,
        };
        assert_eq!(opus.of(usage), Usd::from_cents(400 + 200 + 10));
        let haiku = known("claude-haiku-5-5").expect("it is in the list").price();
        let short = Usage { input_tokens: 100_000, ..Usage::default() };
        let long = Usage { input_tokens: 200_000, ..Usage::default() };
        assert_eq!((haiku.of(short), haiku.of(long)), (Usd::from_cents(1), Usd::from_cents(10)));
    }

    #[test]
    fn a_price_is_two_amounts_per_million_tokens() {
        let price: Price = "0.20/0.80".parse().expect("a price");
        let usage =
            Usage { input_tokens: 500_000, cache_read_tokens: 500_000, output_tokens: 1_000_000, ..Usage::default() };
        assert_eq!(price.of(usage), Usd::from_cents(20 + 80));
        assert_eq!("0/0".parse::<Price>().map(|price| price.of(usage)), Ok(Usd::from_cents(0)));
        for text in ["", "1", "1/", "/1", "-1/1", "1/inf", "NaN/1", "1/2/3", "one/two"] {
            assert!(text.parse::<Price>().is_err(), "{text}");
        }
    }

    #[test]
    fn dated_names_are_found_and_strangers_are_not() {
        assert_eq!(known("claude-haiku-4-5-20251001").map(|model| model.window), Some(200_000));
        assert!(known("claude-haiku-4").is_none() && known("claude-opus-5-7").is_none());
        assert_eq!(known("claude-opus-5").map(|model| model.id.as_str()), Some("claude-opus-5"));
    }
}
