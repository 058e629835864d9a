//! The life cycle of a sandbox as one pure function.
//!
//! ```text
//!   Starting ──► Running ◄──────── Resuming
//!       │         │  ▲ ╲              ▲
//!       │         ▼  │  ╲ machine     │
//!       │       Pausing  ╲ lost       │
//!       │         │       ▼           │
//!       │         └────► Paused ──────┘        Paused keeps memory and files, or files alone.
//!       ▼
//!     Gone ◄── Ending ◄── any of them
//! ```

use std::fmt;

pub use protocol::rest::PauseMode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Starting,
    Running,
    Pausing(PauseMode),
    Paused(PauseMode),
    Resuming(PauseMode),
    Ending,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Process 1 runs.
    Started,
    /// The machine could not be started or thawed.
    StartFailed,
    PauseAsked(PauseMode),
    PauseDone,
    PauseFailed,
    ResumeAsked,
    /// Process 1 ended without a request.
    MachineLost,
    EndAsked,
    Ended,
}

/// The event has no meaning in this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} cannot happen to a sandbox that is {state}")]
pub struct Refused {
    pub state: State,
    pub event: Event,
}

pub fn next(state: State, event: Event) -> Result<State, Refused> {
    use Event as E;
    use State as S;
    match (state, event) {
        (S::Starting | S::Resuming(_), E::Started) => Ok(S::Running),
        (S::Starting, E::StartFailed) => Ok(S::Gone),
        (S::Running, E::PauseAsked(kept)) => Ok(S::Pausing(kept)),
        (S::Pausing(kept), E::PauseDone) => Ok(S::Paused(kept)),
        (S::Pausing(_), E::PauseFailed) => Ok(S::Running),
        (S::Paused(kept), E::ResumeAsked) => Ok(S::Resuming(kept)),
        (S::Resuming(kept), E::StartFailed) => Ok(S::Paused(kept)),
        // The files outlive every process, so losing the machine loses no files.
        (S::Running | S::Pausing(_) | S::Paused(_) | S::Resuming(_), E::MachineLost) => {
            Ok(S::Paused(PauseMode::Filesystem))
        }
        (S::Starting | S::Running | S::Pausing(_) | S::Paused(_) | S::Resuming(_), E::EndAsked) => Ok(S::Ending),
        (S::Ending, E::Ended) => Ok(S::Gone),
        (state, event) => Err(Refused { state, event }),
    }
}

impl State {
    /// Whether the sandbox's processes occupy memory.
    pub fn holds_memory(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Pausing(_) | Self::Resuming(_) | Self::Ending => true,
            Self::Paused(kept) => kept == PauseMode::Full,
            Self::Gone => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Pausing(_) => "being paused",
            Self::Paused(_) => "paused",
            Self::Resuming(_) => "being resumed",
            Self::Ending => "being ended",
            Self::Gone => "gone",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: PauseMode = PauseMode::Full;
    const FILES: PauseMode = PauseMode::Filesystem;

    #[track_caller]
    fn check(start: State, events: &[Event], end: State) {
        let mut state = start;
        for event in events {
            state = next(state, *event).expect("each event is allowed");
        }
        assert_eq!(state, end);
    }

    #[test]
    fn events_lead_through_all_states() {
        use Event::*;
        check(State::Starting, &[Started, EndAsked, Ended], State::Gone);
        check(State::Starting, &[StartFailed], State::Gone);
        check(State::Running, &[PauseAsked(MEMORY), PauseDone, ResumeAsked, Started], State::Running);
        check(State::Running, &[PauseAsked(FILES), PauseDone], State::Paused(FILES));
        check(State::Running, &[PauseAsked(MEMORY), PauseFailed], State::Running);
        check(State::Running, &[MachineLost, ResumeAsked, Started], State::Running);
        check(State::Paused(MEMORY), &[MachineLost], State::Paused(FILES));
        check(State::Paused(MEMORY), &[ResumeAsked, MachineLost, ResumeAsked], State::Resuming(FILES));
        check(State::Paused(FILES), &[ResumeAsked, StartFailed], State::Paused(FILES));
        check(State::Paused(FILES), &[EndAsked, Ended], State::Gone);
    }

    #[test]
    fn events_without_meaning_are_refused() {
        use Event::*;
        let refused = [
            (State::Running, Started),
            (State::Running, ResumeAsked),
            (State::Paused(MEMORY), PauseAsked(MEMORY)),
            (State::Paused(FILES), PauseAsked(MEMORY)),
            (State::Pausing(MEMORY), ResumeAsked),
            (State::Starting, PauseAsked(FILES)),
            (State::Ending, EndAsked),
            (State::Ending, MachineLost),
            (State::Gone, ResumeAsked),
            (State::Gone, EndAsked),
        ];
        for (state, event) in refused {
            assert_eq!(next(state, event), Err(Refused { state, event }));
        }
    }
}
