//! Prints the log of a running build: on a terminal the steps, with the last line of the current
//! one below; elsewhere line by line.

use crate::show::{Colour, Show, printable};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sdk::model::LogLevel;
use sdk::model::template::BuildLogEntry;
use std::collections::VecDeque;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// Lines of the failed step that are shown again.
const LAST_LINES: usize = 20;

pub(super) struct Progress {
    show: Show,
    /// [`None`] where stderr is not a terminal.
    bar: Option<ProgressBar>,
    /// The last lines of the current step's output.
    last: VecDeque<String>,
}

impl Progress {
    pub(super) fn new(show: Show) -> Self {
        let bar = (!show.json && stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}");
            bar.set_style(style.expect("the template is well formed"));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar.set_message("sending the files");
            bar
        });
        Self { show, bar, last: VecDeque::new() }
    }

    pub(super) fn take(&mut self, entry: &BuildLogEntry) {
        if self.show.json {
            // A broken pipe is reported when the result is written.
            let _ = self.show.event(entry);
            return;
        }
        let text = printable(&entry.message);
        let is_title = is_title(&text);
        if is_title {
            self.last.clear();
        } else {
            self.last.push_back(text.clone());
            if self.last.len() > LAST_LINES {
                self.last.pop_front();
            }
        }
        match &self.bar {
            None => eprintln!("{}{text}", if is_title { "" } else { "  " }),
            Some(bar) if is_title => {
                let colour = if text.starts_with('C') { Colour::Dim } else { Colour::Blue };
                bar.println(self.show.paint(colour, &text));
                bar.set_message(String::new());
            }
            Some(bar) if entry.level == LogLevel::Error => bar.println(self.show.paint(Colour::Red, &text)),
            Some(bar) => bar.set_message(text),
        }
    }

    /// Removes the bar. After a failure, prints the last lines of the failed step, which the bar
    /// has overwritten.
    pub(super) fn finish(&self, failed: bool) {
        let Some(bar) = &self.bar else { return };
        bar.finish_and_clear();
        if failed {
            self.last.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

/// Whether a line is the title of a step, such as `[3/12] RUN make`, cached or not. Other text in
/// brackets, which programs print, is no title.
fn is_title(line: &str) -> bool {
    let line = line.strip_prefix("CACHED ").unwrap_or(line);
    let counts = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")?.0.split_once('/'));
    counts.is_some_and(|(number, all)| number.parse::<usize>().is_ok() && all.parse::<usize>().is_ok())
}
