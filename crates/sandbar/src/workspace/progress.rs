//! The progress line of a command on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Shown on stderr if it is a terminal; hidden with JSON, and while a command prints its own
/// output.
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

    /// Shows the current step.
    pub(super) fn show_step(&self, what: impl Into<String>) {
        if self.bar.is_finished() {
            self.bar.reset();
        }
        self.bar.set_message(what.into());
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Prints a line above the progress line, also without a terminal.
    pub(super) fn print_line(&self, line: &str) {
        self.bar.suspend(|| eprintln!("sandbar: {line}"));
    }

    /// Hides the line for good, because the command in the sandbox prints to the terminal.
    pub(super) fn hide(&self) {
        self.bar.finish_and_clear();
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
    }

    /// Removes the line.
    pub(super) fn done(&self) {
        self.bar.finish_and_clear();
    }
}
