//! The commands that use sandboxes and templates of any E2B service, and what all commands of the
//! program share: how they print, parse values, ask and react to signals.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong
//! arguments.

pub mod ask;
pub mod interrupt;
pub mod keep;
pub mod sandbox;
pub mod show;
pub mod template;
mod terminal;
pub mod values;

use sdk::Client;

/// Chooses the service that a command uses, by flags and by what the machine has.
pub trait Connect {
    /// # Errors
    /// When no service is configured or its key is missing; the text says what to set.
    fn connect(&self) -> anyhow::Result<Client>;
}
