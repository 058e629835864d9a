//! Money in whole billionths of a dollar, so that sums are exact in any order.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Serialize, Serializer};

const NANOS: u64 = 1_000_000_000;

/// An amount of US dollars, never negative. Sums saturate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usd {
    nanos: u64,
}

impl Usd {
    pub const ZERO: Self = Self { nanos: 0 };

    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    pub const fn from_cents(cents: u32) -> Self {
        Self { nanos: cents as u64 * (NANOS / 100) }
    }

    /// Rounds to the nearest amount; [`None`] if negative, not finite, or beyond nine billion.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        let nanos = (dollars * 1e9).round();
        let fits = dollars.is_finite() && (0.0..9.0e18).contains(&nanos);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
        fits.then_some(Self { nanos: nanos as u64 })
    }

    pub const fn nanos(self) -> u64 {
        self.nanos
    }

    #[expect(clippy::cast_precision_loss, reason = "for people and JSON, where 15 digits are enough")]
    pub fn dollars(self) -> f64 {
        self.nanos as f64 / 1e9
    }

    /// The cost of `amount` units when `per` units cost this much, rounded to the nearest.
    pub(crate) fn for_share(self, amount: u128, per: u128) -> Self {
        let nanos = (u128::from(self.nanos).saturating_mul(amount).saturating_add(per / 2)) / per;
        Self { nanos: u64::try_from(nanos).unwrap_or(u64::MAX) }
    }

    #[must_use]
    pub(crate) fn times(self, count: u64) -> Self {
        Self { nanos: self.nanos.saturating_mul(count) }
    }
}

impl Add for Usd {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_add(other.nanos) }
    }
}

impl AddAssign for Usd {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Usd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

/// `$1.23`; amounts below a dollar with four places, so that small ones do not show as zero.
impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = if self.nanos > 0 && self.nanos < NANOS { 4 } else { 2 };
        f.pad(&format!("${:.places$}", self.dollars()))
    }
}

/// Serialized as a number of dollars.
impl Serialize for Usd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.dollars())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_and_displayed_short() {
        let dime = Usd::from_dollars(0.1).expect("an amount");
        assert_eq!(dime, Usd::from_cents(10));
        assert_eq!((0..10).map(|_| dime).sum::<Usd>(), Usd::from_cents(100));
        assert_eq!(dime.for_share(1, 2), Usd::from_cents(5));
        for (amount, shown) in [(Usd::ZERO, "$0.00"), (Usd::from_nanos(1_234_567), "$0.0012"), (dime, "$0.1000")] {
            assert_eq!(amount.to_string(), shown);
        }
        assert_eq!(Usd::from_cents(250).to_string(), "$2.50");
    }

    #[test]
    fn invalid_amounts_are_rejected() {
        for dollars in [-0.01, f64::NAN, f64::INFINITY, 1e30] {
            assert_eq!(Usd::from_dollars(dollars), None, "{dollars}");
        }
    }
}
