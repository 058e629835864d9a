//! What the feed needs of an event.

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Delta,
    Other,
}

impl Event {
    pub fn is_delta(&self) -> bool {
        *self == Self::Delta
    }
}

/// An event with its number, and how many deltas were dropped before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    pub seq: u64,
    pub dropped: u64,
    pub event: Event,
}
