//! What is being done, on a terminal: one line that changes.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Shown on stderr when that is a terminal; never beside JSON, nor beside a command's own output.
#[derive(Clone)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new(hidden: bool) -> Self {
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is well formed");
        bar.set_style(style);
        Self { bar }
    }

    /// What is being done from now on.
    pub(super) fn doing(&self, what: impl Into<String>) {
        if self.bar.is_finished() {
            self.bar.reset();
        }
        self.bar.set_message(what.into());
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Something to be read by people also when there is no terminal.
    pub(super) fn tell(&self, line: &str) {
        self.bar.suspend(|| eprintln!("sandbar: {line}"));
    }

    /// From now on the terminal is a command's own.
    pub(super) fn hide(&self) {
        self.bar.finish_and_clear();
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
    }

    /// Nothing is being done any more: the line is removed.
    pub(super) fn done(&self) {
        self.bar.finish_and_clear();
    }
}
