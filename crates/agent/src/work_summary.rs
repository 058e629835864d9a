//! Summary of a run's work, derived from tool results: files read and changed, commands and exit
//! codes, background tasks, open errors. Unlike a summary by a model, it forgets nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use tools::{ReadContent, ReadFileOutput, ToolOutput, ToolResult};

use crate::change::Fact;
use crate::message::ToolUse;

const MAX_COMMANDS: usize = 40;
const MAX_ERRORS: usize = 10;
const WIDTH: usize = 160;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkSummary {
    read: BTreeMap<String, FileReads>,
    changed: BTreeMap<String, (u64, u64)>,
    commands: VecDeque<(String, Option<i64>)>,
    known_commands: BTreeSet<String>,
    tasks: BTreeMap<String, String>,
    directory: Option<String>,
    errors: VecDeque<(String, String)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct FileReads {
    sha256: Option<String>,
    ranges: Vec<(u64, u64)>,
}

/// The facts that a result shows.
pub(crate) fn extract_facts(call: &ToolUse, result: &ToolResult) -> Vec<Fact> {
    let input = |name: &str| call.input[name].as_str().map(str::to_owned);
    let path = result.structured.path().map(str::to_owned).or_else(|| input("path"));
    let command = input("command").unwrap_or_default();
    let subject = path.unwrap_or_else(|| shorten(if command.is_empty() { &call.name } else { &command }));
    let mut facts = Vec::new();
    match &result.structured.output {
        ToolOutput::ReadFile(ReadFileOutput { path, content: ReadContent::Text(page), .. }) => facts.push(Fact::Read {
            path: path.clone(),
            sha256: page.sha256.clone(),
            first: page.start_line as u64,
            last: page.end_line as u64,
        }),
        ToolOutput::WriteFile(written) if !written.unchanged => {
            facts.push(describe_change(&written.path, written.diff.as_deref(), written.lines as u64));
        }
        ToolOutput::EditFile(edited) => facts.push(describe_change(&edited.path, edited.diff.as_deref(), 0)),
        ToolOutput::Bash(run) => {
            match &run.background {
                Some(task) if task.running => facts.push(Fact::TaskBegun {
                    task: task.task_id.clone(),
                    command: shorten(&command),
                    output: task.output_path.clone(),
                }),
                _ => facts.push(Fact::Ran { command: shorten(&command), exit_code: run.exit_code.map(i64::from) }),
            }
            let directory = run.foreground.as_ref().and_then(|end| end.cwd.clone());
            facts.extend(directory.map(|path| Fact::Directory { path }));
        }
        ToolOutput::ShellRestarted(restarted) => {
            facts.push(Fact::Ran { command: shorten(&command), exit_code: Some(restarted.exit_code.into()) });
        }
        _ if call.name == "bash" => facts.push(Fact::Ran { command: shorten(&command), exit_code: None }),
        _ => {}
    }
    if call.name == "bash" {
        for ended in result.structured.call.finished_tasks.iter().flatten() {
            facts.push(Fact::TaskEnded {
                task: ended.task_id.clone(),
                exit_code: ended.exit_code.map_or(-1, i64::from),
                output: Some(ended.output_path.clone()),
            });
        }
    }
    facts.push(match result.code.filter(|_| result.is_error) {
        Some(code) => Fact::Failed { tool: call.name.clone(), code: code.as_str().to_owned(), subject },
        None => Fact::Worked { tool: call.name.clone(), subject },
    });
    facts
}

/// A change of a file. Without a diff, all `lines` count as added.
fn describe_change(path: &str, diff: Option<&str>, lines: u64) -> Fact {
    let (added, removed) = diff.map_or((lines, 0), count_diff_lines);
    Fact::Changed { path: path.to_owned(), added, removed }
}

fn count_diff_lines(diff: &str) -> (u64, u64) {
    diff.lines().fold((0, 0), |(added, removed), line| match line.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => (added, removed),
        [b'+', ..] => (added + 1, removed),
        [b'-', ..] => (added, removed + 1),
        _ => (added, removed),
    })
}

fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

impl WorkSummary {
    /// Adds a fact. True if it is progress: a change, or something not known before.
    pub(crate) fn apply(&mut self, fact: &Fact) -> bool {
        match fact {
            Fact::Read { path, sha256, first, last } => {
                let fresh = !self.read.contains_key(path);
                let seen = self.read.entry(path.clone()).or_default();
                let other = seen.sha256 != *sha256;
                if other {
                    *seen = FileReads { sha256: sha256.clone(), ranges: Vec::new() };
                }
                if !seen.ranges.contains(&(*first, *last)) {
                    seen.ranges.push((*first, *last));
                }
                fresh || other
            }
            Fact::Changed { path, added, removed } => {
                let counts = self.changed.entry(path.clone()).or_default();
                *counts = (counts.0 + added, counts.1 + removed);
                true
            }
            Fact::Ran { command, exit_code } => {
                self.commands.push_back((command.clone(), *exit_code));
                if self.commands.len() > MAX_COMMANDS {
                    self.commands.pop_front();
                }
                self.known_commands.insert(command.clone())
            }
            Fact::TaskBegun { task, command, output } => {
                self.tasks.insert(task.clone(), format!("{command} (output: {output})"));
                true
            }
            Fact::TaskEnded { task, .. } => {
                self.tasks.remove(task);
                false
            }
            Fact::Directory { path } => {
                self.directory = Some(path.clone());
                false
            }
            Fact::Failed { tool, code, subject } => {
                self.clear_errors(tool, subject);
                self.errors.push_back((format!("{tool} {subject}"), code.clone()));
                if self.errors.len() > MAX_ERRORS {
                    self.errors.pop_front();
                }
                false
            }
            Fact::Worked { tool, subject } => {
                self.clear_errors(tool, subject);
                false
            }
        }
    }

    fn clear_errors(&mut self, tool: &str, subject: &str) {
        let what = format!("{tool} {subject}");
        self.errors.retain(|(open, _)| *open != what);
    }

    pub fn files_changed(&self) -> Vec<String> {
        self.changed.keys().cloned().collect()
    }

    /// Names of the tasks that are still running, as far as known.
    pub fn background_tasks(&self) -> Vec<String> {
        self.tasks.iter().map(|(task, what)| format!("{task}: {what}")).collect()
    }

    /// Renders the summary for a model, in about `budget` characters; omitted entries are counted.
    pub(crate) fn render(&self, budget: usize) -> String {
        let mut text = String::new();
        let section = |text: &mut String, title: &str, lines: Vec<String>| {
            if lines.is_empty() {
                return;
            }
            let _ = writeln!(text, "{title}:");
            let share = budget / 4;
            let (mut used, total) = (0, lines.len());
            for (at, line) in lines.iter().enumerate() {
                used += line.len() + 3;
                if used > share {
                    let _ = writeln!(text, "- … and {} more", total - at);
                    break;
                }
                let _ = writeln!(text, "- {line}");
            }
        };
        let range = |(first, last): &(u64, u64)| format!("{first}–{last}");
        section(
            &mut text,
            "Files changed",
            self.changed.iter().map(|(path, (added, removed))| format!("{path} (+{added}/−{removed})")).collect(),
        );
        section(
            &mut text,
            "Files read",
            self.read
                .iter()
                .map(|(path, seen)| {
                    let sha = seen.sha256.as_deref().map_or("unknown", |sha| &sha[..sha.len().min(12)]);
                    let ranges: Vec<String> = seen.ranges.iter().take(8).map(range).collect();
                    format!("{path} (sha256 {sha}, lines {})", ranges.join(", "))
                })
                .collect(),
        );
        section(
            &mut text,
            "Commands, latest first",
            self.commands
                .iter()
                .rev()
                .map(|(command, exit)| match exit {
                    Some(exit) => format!("`{command}` [exit {exit}]"),
                    None => format!("`{command}` [exit unknown]"),
                })
                .collect(),
        );
        section(&mut text, "Background tasks", self.background_tasks());
        section(&mut text, "Open errors", self.errors.iter().map(|(what, code)| format!("{what}: {code}")).collect());
        if let Some(directory) = &self.directory {
            let _ = writeln!(text, "Current directory: {directory}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_lines_are_counted_without_the_header() {
        assert_eq!(count_diff_lines("--- a\n+++ b\n@@ -1 +1,2 @@\n-old\n+new\n+more\n same\n"), (2, 1));
    }

    #[test]
    fn error_stays_open_until_the_same_call_succeeds() {
        let mut work_summary = WorkSummary::default();
        let subject = || "/x".to_owned();
        work_summary.apply(&Fact::Failed { tool: "edit_file".into(), code: "no_match".into(), subject: subject() });
        assert!(work_summary.render(4000).contains("edit_file /x: no_match"));
        work_summary.apply(&Fact::Worked { tool: "edit_file".into(), subject: subject() });
        assert_eq!(work_summary.render(4000), "");
    }

    #[test]
    fn omitted_entries_are_counted() {
        let mut work_summary = WorkSummary::default();
        for number in 0..500 {
            work_summary.apply(&Fact::Changed {
                path: format!("/home/user/project/file{number}.rs"),
                added: 1,
                removed: 0,
            });
        }
        let text = work_summary.render(2000);
        assert!(text.len() < 1000 && text.contains("more"), "{text}");
    }
}
