//! Tells the commands that we start in a sandbox for ourselves from those that somebody wanted, by their tags: people are
//! told what of theirs did not survive, and in their words.

use sdk::{Command, ProcessInfo};

/// Of commands that are nobody's but ours.
const OWN: &str = "sandbar:own";
/// Before the words of whoever wanted what a command of ours runs.
const FOR: &str = "sandbar:for ";
/// Letters of a line that is told.
const TOLD: usize = 60;

/// A command of ours, of which nobody is told.
#[must_use]
pub fn own(command: Command) -> Command {
    command.tag(OWN)
}

/// A command of ours that runs `line` for somebody, who knows it by that.
#[must_use]
pub fn on_behalf(command: Command, line: &str) -> Command {
    let line = line.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    command.tag(format!("{FOR}{}", beginning(line.trim())))
}

/// What people know a process by; none when it is ours.
pub(crate) fn told(process: &ProcessInfo) -> Option<String> {
    in_words(process.tag.as_deref(), &process.program, &process.arguments)
}

fn in_words(tag: Option<&str>, program: &str, arguments: &[String]) -> Option<String> {
    match tag {
        Some(OWN) => None,
        Some(tag) if tag.starts_with(FOR) => Some(tag[FOR.len()..].to_owned()),
        _ => {
            let words: Vec<&str> = std::iter::once(program).chain(arguments.iter().map(String::as_str)).collect();
            Some(beginning(&words.join(" ")))
        }
    }
}

fn beginning(line: &str) -> String {
    line.chars().take(TOLD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_of_theirs_in_their_words() {
        let told = |tag| in_words(tag, "/tmp/.sandbar/bin/search-1", &["--run".to_owned(), "x".repeat(100)]);
        assert_eq!(told(Some(OWN)), None);
        assert_eq!(told(Some("sandbar:for npm run watch")).as_deref(), Some("npm run watch"));
        for tag in [None, Some("web")] {
            let line = told(tag).expect("somebody's");
            assert!(line.starts_with("/tmp/.sandbar/bin/search-1 --run xx") && line.len() == TOLD, "{line}");
        }
    }
}
