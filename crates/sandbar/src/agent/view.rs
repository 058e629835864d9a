//! Prints the events of a run: as JSON lines for programs, as coloured text for people.

use agent::{Event, Happened};
use cli::show::{Colour, Show, local_time, printable};
use serde_json::Value;
use std::io::{self, Write as _, stdout};
use std::time::Duration;

/// Lines of a failed call's output that are printed for a recorded run.
const LAST_LINES: usize = 10;

pub(super) struct View {
    show: Show,
    json: bool,
    /// The last text of the model did not end its line.
    open: bool,
}

impl View {
    pub(super) fn new(json: bool) -> Self {
        Self { show: Show::new(json), json, open: false }
    }

    pub(super) fn event(&mut self, happened: &Happened) -> io::Result<()> {
        if self.json {
            return self.show.event(happened);
        }
        if happened.dropped > 0 {
            self.line(&self.dim(&format!("… {} pieces were left out", happened.dropped)))?;
        }
        self.print_for_people(happened)
    }

    /// Prints an event of the journal, which has whole messages in place of deltas.
    pub(super) fn print_recorded(&mut self, happened: &Happened) -> io::Result<()> {
        match &happened.event {
            Event::Message { text } if !self.json => self.text(&format!("{text}\n")),
            Event::ToolCallFinished { is_error: true, output, images, .. } if !self.json && images.is_empty() => {
                // Output deltas are not recorded. The end of a failed call's output says why it
                // failed.
                let lines: Vec<&str> = output.lines().collect();
                lines[lines.len().saturating_sub(LAST_LINES)..].iter().try_for_each(|line| self.output(line))?;
                self.event(happened)
            }
            _ => self.event(happened),
        }
    }

    fn print_for_people(&mut self, happened: &Happened) -> io::Result<()> {
        match &happened.event {
            Event::RunStarted { run_id, model, workspace, resumed, goal } => {
                let again = if *resumed { "goes on: " } else { "" };
                let workspace = workspace.as_deref().map_or_else(String::new, |name| format!(" · workspace {name}"));
                self.line(&format!("{} · {}{workspace}", self.show.paint(Colour::Blue, run_id), printable(model)))?;
                self.line(&format!("{again}{}", first_line(goal)))
            }
            Event::TurnStarted {} => {
                let time = local_time(&happened.ts.to_string());
                self.line(&self.dim(&format!("── turn {} · {time}", happened.turn)))
            }
            Event::TextDelta { text } => self.text(text),
            Event::ThinkingDelta { text } => self.text(&self.dim(&keep_lines(text))),
            // Its deltas were printed before.
            Event::Message { .. } | Event::Observed {} => Ok(()),
            Event::ToolCallStarted { tool, args, .. } => {
                self.line(&format!("{} {}", self.show.paint(Colour::Blue, &format!("▸ {tool}")), subject(args)))
            }
            Event::ToolOutputDelta { chunk, .. } => chunk.lines().try_for_each(|line| self.output(line)),
            Event::ToolCallFinished { tool, is_error, duration_ms, summary, truncated, images, output, .. } => {
                let mark =
                    if *is_error { self.show.paint(Colour::Red, "✗") } else { self.show.paint(Colour::Green, "✓") };
                let cut = if *truncated { " (cut)" } else { "" };
                let took = self.dim(&format!("{tool} {}", took(*duration_ms)));
                self.line(&format!("  {mark} {took} {}{cut}", first_line(summary)))?;
                // The remaining lines have the URLs of the images.
                let mut more = output.lines().skip(1).filter(|_| !images.is_empty());
                more.try_for_each(|line| self.output(line))
            }
            Event::Usage { usage, total_cost_usd, context_tokens, context_window, .. } => {
                let cost = total_cost_usd.map_or_else(String::new, |cost| format!(" · ${cost:.4} so far"));
                let share = context_tokens * 100 / (*context_window).max(1);
                let text =
                    format!("  {} in, {} out · {share} % of the window{cost}", usage.prompt(), usage.output_tokens);
                self.line(&self.dim(&text))
            }
            Event::Retry { attempt, wait_ms, reason } => {
                let text = format!("  {}; attempt {} in {}", printable(reason), attempt + 1, took(*wait_ms));
                self.line(&self.show.paint(Colour::Yellow, &text))
            }
            Event::Nudge { text } => self.line(&self.dim(&format!("» {}", first_line(text)))),
            Event::Pruned { before, after, .. } => {
                self.line(&self.dim(&format!("  old results removed: {before} → {after} tokens")))
            }
            Event::Compacted { before, after } => {
                self.line(&self.dim(&format!("  conversation shortened: {before} → {after} tokens")))
            }
            Event::BackgroundExited { task_id, exit_code, .. } => {
                self.line(&self.dim(&format!("  background task {} ended with {exit_code}", printable(task_id))))
            }
            Event::ApprovalAsked { tool, args, .. } => {
                self.line(&self.show.paint(Colour::Yellow, &format!("? {tool} {}", subject(args))))
            }
            Event::ApprovalAnswered { allowed, .. } => self.line(if *allowed { "  allowed" } else { "  denied" }),
            Event::PhaseStarted { phase, of, goal } => {
                self.line(&self.show.paint(Colour::Blue, &format!("══ phase {phase} of {of}: {}", first_line(goal))))
            }
            Event::PhaseFinished { phase, commit, snapshot } => {
                let named = [
                    commit.as_deref().map(|id| format!("commit {}", &id[..id.len().min(12)])),
                    snapshot.clone().map(|name| format!("snapshot {name}")),
                ];
                let kept: Vec<String> = named.into_iter().flatten().collect();
                self.line(&self.show.paint(Colour::Green, &format!("══ phase {phase} is kept: {}", kept.join(", "))))
            }
            Event::Saved { snapshot, problem } => match (problem, snapshot) {
                (Some(problem), _) => self.line(&self.show.paint(Colour::Red, &printable(problem))),
                (None, Some(snapshot)) => self.line(&self.dim(&format!("snapshot {snapshot}"))),
                (None, None) => Ok(()),
            },
            Event::Paused { problem } => match problem {
                Some(problem) => self.line(&self.show.paint(Colour::Red, &printable(problem))),
                None => self.line(&self.dim("paused")),
            },
            Event::RunFinished { stop_reason, message, turns, cost_usd, files_changed, .. } => {
                let colour = if stop_reason.as_str() == "completed" { Colour::Green } else { Colour::Yellow };
                let cost = cost_usd.map_or_else(String::new, |cost| format!(", ${cost:.4}"));
                let files = if files_changed.is_empty() {
                    String::new()
                } else {
                    let files = if files_changed.len() == 1 { "file" } else { "files" };
                    format!(", {} {files} changed", files_changed.len())
                };
                self.line(&format!(
                    "{} after {turns} turns{cost}{files}. {}",
                    self.show.paint(colour, stop_reason.as_str()),
                    printable(message)
                ))
            }
        }
    }

    /// Prints a line of a tool's output.
    fn output(&mut self, line: &str) -> io::Result<()> {
        self.line(&self.dim(&format!("  │ {}", first_line(line))))
    }

    fn dim(&self, text: &str) -> String {
        self.show.paint(Colour::Dim, text)
    }

    /// Prints a whole line, after ending a line of the model's text.
    fn line(&mut self, text: &str) -> io::Result<()> {
        if std::mem::take(&mut self.open) {
            writeln!(stdout())?;
        }
        writeln!(stdout(), "{text}")
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        let text = keep_lines(text);
        write!(stdout(), "{text}")?;
        if !text.is_empty() {
            self.open = !text.ends_with('\n');
        }
        stdout().flush()
    }
}

/// Escapes control characters and keeps line ends: a model's text is as untrusted as a sandbox's.
fn keep_lines(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| match line.strip_suffix('\n') {
            Some(line) => format!("{}\n", printable(line)),
            None => printable(line),
        })
        .collect()
}

/// The first line of a text, shortened to `WIDTH` characters.
fn first_line(text: &str) -> String {
    const WIDTH: usize = 160;
    let line = text.lines().next().unwrap_or_default().replace('\t', " ");
    let short: String = line.chars().take(WIDTH).collect();
    let more = if short.len() < text.trim_end().len() { " …" } else { "" };
    format!("{}{more}", printable(&short))
}

/// The argument that identifies a call: its command, pattern or path.
fn subject(args: &Value) -> String {
    let named = ["command", "pattern", "path", "url_path"].iter().find_map(|field| args[*field].as_str());
    named.map_or_else(String::new, first_line)
}

fn took(millis: u64) -> String {
    let time = Duration::from_millis(millis);
    if time < Duration::from_secs(60) { format!("{:.1}s", time.as_secs_f64()) } else { cli::show::span(time) }
}
