//! This program's terminal: raw mode and size.

use anyhow::{Context as _, bail};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sdk::Size;
use std::io::{IsTerminal, stdin, stdout};

/// The terminal in raw mode: every key is read as it is, Ctrl-C included. Dropping it restores the
/// earlier settings.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> anyhow::Result<Self> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            bail!("a shell needs a terminal; without one use `sandbar sandbox exec ID -- COMMAND`");
        }
        let before = tcgetattr(stdin()).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw).context("cannot change the terminal's settings")?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Fails if the terminal is gone, and then there is nothing to restore.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}

/// The size of the terminal, or the usual default if it is unknown.
pub(crate) fn size() -> Size {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Size { cols: size.ws_col, rows: size.ws_row },
        _ => Size::default(),
    }
}
