//! Signals that stop this program, for commands that clean up first.

use anyhow::Context as _;
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signal that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-C.
    Interrupt,
    Terminate,
    /// The terminal was closed.
    Hangup,
}

impl Stop {
    /// The signal's name, as `kill -s` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "INT",
            Self::Terminate => "TERM",
            Self::Hangup => "HUP",
        }
    }

    /// The exit code that shells report for it.
    pub fn code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        }
    }

    pub fn exit(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

pub struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stops {
    /// Installs the handlers. From then on these signals no longer end the process.
    pub fn install() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot watch for signals");
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.hangup.recv() => Stop::Hangup,
        }
    }
}
