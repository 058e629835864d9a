//! Signals that ask this program to stop, for commands that have to tidy up first.

use anyhow::Context as _;
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Ctrl-C.
    Interrupt,
    Terminate,
    /// The terminal was closed.
    Hangup,
}

impl Stop {
    /// The signal's name, as `kill -s` takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "INT",
            Self::Terminate => "TERM",
            Self::Hangup => "HUP",
        }
    }

    /// As shells report it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        }
    }

    pub(crate) fn exit(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

pub(crate) struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stops {
    /// From here on such a signal no longer ends the program by itself.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot watch for signals");
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// The next one. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.hangup.recv() => Stop::Hangup,
        }
    }
}
