//! Why a run ended. The list is closed: whoever reads it can handle all of it.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model said that it is done.
    Completed,
    MaxTurns,
    MaxTokensTotal,
    MaxCost,
    WallClock,
    /// It went in circles.
    Stuck,
    ConsecutiveTimeouts,
    /// Its calls could not be understood, again and again.
    FormatErrors,
    /// Nothing more could be taken out of the conversation.
    ContextExhausted,
    Refusal,
    Cancelled,
    SandboxLost,
    /// The model could not be reached, or would not answer.
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

    /// The word that stands for it in events and records.
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

    /// Whether somebody set a limit and it was reached: the work is saved and paused, and goes on when they raise it.
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
    fn the_word_is_the_same_everywhere() {
        for reason in StopReason::ALL {
            assert_eq!(serde_json::to_value(reason).expect("a word"), reason.as_str());
        }
    }
}
