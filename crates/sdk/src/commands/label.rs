//! Tags for commands that a program starts for itself, to tell them from its user's. A report about
//! processes that did not survive then names only the user's, by their own command lines.

use super::{Command, ProcessInfo};

/// The tag of internal commands.
const OWN: &str = "sandbar:own";
/// The prefix of tags of internal commands that run a user's command line.
const FOR: &str = "sandbar:for ";
/// The most characters of a command line in a report.
const MAX_LABEL: usize = 60;

/// Tags an internal command, which reports omit.
#[must_use]
pub fn tag_internal(command: Command) -> Command {
    command.tag(OWN)
}

/// Tags an internal command that runs `line` for the user; reports name it by that line.
#[must_use]
pub fn tag_for_user(command: Command, line: &str) -> Command {
    let line = line.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    command.tag(format!("{FOR}{}", truncate(line.trim())))
}

/// The name of a process in reports; [`None`] for an internal command.
#[must_use]
pub fn report_name(process: &ProcessInfo) -> Option<String> {
    format_name(process.tag.as_deref(), &process.program, &process.arguments)
}

fn format_name(tag: Option<&str>, program: &str, arguments: &[String]) -> Option<String> {
    match tag {
        Some(OWN) => None,
        Some(tag) if tag.starts_with(FOR) => Some(tag[FOR.len()..].to_owned()),
        _ => {
            let words: Vec<&str> = std::iter::once(program).chain(arguments.iter().map(String::as_str)).collect();
            Some(truncate(&words.join(" ")))
        }
    }
}

fn truncate(line: &str) -> String {
    line.chars().take(MAX_LABEL).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_name_user_commands_by_their_own_line() {
        let shown = |tag| format_name(tag, "/tmp/.sandbar/bin/search-1", &["--run".to_owned(), "x".repeat(100)]);
        assert_eq!(shown(Some(OWN)), None);
        assert_eq!(shown(Some("sandbar:for npm run watch")).as_deref(), Some("npm run watch"));
        for tag in [None, Some("web")] {
            let line = shown(tag).expect("a user's command");
            assert!(line.starts_with("/tmp/.sandbar/bin/search-1 --run xx") && line.len() == MAX_LABEL, "{line}");
        }
    }
}
