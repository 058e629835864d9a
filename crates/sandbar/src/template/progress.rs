//! What a build says while it runs: on a terminal the steps, with the last line of the present one beneath; elsewhere line by line.

use crate::sandbox::show::{Colour, Show, printable};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sdk::model::LogLevel;
use sdk::model::template::BuildLogEntry;
use std::collections::VecDeque;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// Lines of the failed step that are shown again.
const LAST: usize = 20;

pub(super) struct Progress {
    show: Show,
    /// None where nobody watches.
    bar: Option<ProgressBar>,
    /// What the present step has said.
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
            // A reader that left is noticed when the result is written.
            let _ = self.show.event(entry);
            return;
        }
        let text = printable(&entry.message);
        let is_title = is_title(&text);
        if is_title {
            self.last.clear();
        } else {
            self.last.push_back(text.clone());
            if self.last.len() > LAST {
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

    /// Nothing moves any more. After a failure, what the failed step said is shown on a terminal: it went by.
    pub(super) fn finish(&self, failed: bool) {
        let Some(bar) = &self.bar else { return };
        bar.finish_and_clear();
        if failed {
            self.last.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

/// Whether a line says which step begins: `[3/12] RUN make`, known or not. What programs print in brackets is none.
fn is_title(line: &str) -> bool {
    let line = line.strip_prefix("CACHED ").unwrap_or(line);
    let counts = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")?.0.split_once('/'));
    counts.is_some_and(|(number, all)| number.parse::<usize>().is_ok() && all.parse::<usize>().is_ok())
}
