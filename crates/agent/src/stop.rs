//! Why a run ended. A closed list, so that readers can handle every case.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model declared the work done.
    Completed,
    MaxTurns,
    MaxTokensTotal,
    MaxCost,
    WallClock,
    /// The model repeated itself without progress.
    Stuck,
    ConsecutiveTimeouts,
    /// Too many consecutive responses without a valid call.
    FormatErrors,
    /// The conversation cannot be shortened further.
    ContextExhausted,
    Refusal,
    Cancelled,
    SandboxLost,
    /// The provider could not be reached, or refused the request.
    ProviderError,
}

impl StopReason {
    pub const ALL: [Self; 13] = [
        Self::Completed,
        Self::MaxTurns,
        Self::MaxTokensTotal,
        Self::MaxCost,
        Self::WallClock,
        Self::Stuck,
        Self::ConsecutiveTimeouts,
        Self::FormatErrors,
        Self::ContextExhausted,
        Self::Refusal,
        Self::Cancelled,
        Self::SandboxLost,
        Self::ProviderError,
    ];

    /// Its name in events and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::MaxTurns => "max_turns",
            Self::MaxTokensTotal => "max_tokens_total",
            Self::MaxCost => "max_cost",
            Self::WallClock => "wall_clock",
            Self::Stuck => "stuck",
            Self::ConsecutiveTimeouts => "consecutive_timeouts",
            Self::FormatErrors => "format_errors",
            Self::ContextExhausted => "context_exhausted",
            Self::Refusal => "refusal",
            Self::Cancelled => "cancelled",
            Self::SandboxLost => "sandbox_lost",
            Self::ProviderError => "provider_error",
        }
    }

    /// Whether a configured limit was reached: the work is saved and paused, and can be resumed
    /// with a higher limit.
    pub fn is_budget(self) -> bool {
        matches!(self, Self::MaxTurns | Self::MaxTokensTotal | Self::MaxCost | Self::WallClock)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_serialisation() {
        for reason in StopReason::ALL {
            assert_eq!(serde_json::to_value(reason).expect("a word"), reason.as_str());
        }
    }
}
