//! Subjects of commits: `scope: imperative`, at most 72 characters.

use crate::Finding;

/// Characters that a subject may have.
pub const SUBJECT: usize = 72;

/// Verbs that end like a past tense, a gerund or a third person, and are imperatives.
const IMPERATIVES: &[&str] =
    &["bring", "embed", "feed", "need", "proceed", "seed", "speed", "string", "alias", "bias", "focus"];

/// What is wrong with the subject of the commit `id`, if anything.
pub fn check_subject(id: &str, subject: &str) -> Option<Finding> {
    let problem = problem(subject)?;
    Some(Finding::new(id, 1, format!("{subject:?}: {problem}")))
}

fn problem(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > SUBJECT {
        return Some(format!("{length} characters; at most {SUBJECT}, the rest belongs into the body"));
    }
    let Some((scope, title)) = subject.split_once(": ") else {
        return Some("no scope; write `crate: imperative subject`".to_owned());
    };
    let is_scope = |scope: &str| {
        !scope.is_empty() && scope.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/.".contains(c))
    };
    if !scope.split(", ").all(is_scope) {
        return Some(format!("{scope:?} is no scope; write names of crates or directories, separated by \", \""));
    }
    let verb = title.split([' ', ',']).next().unwrap_or(title);
    if !verb.chars().all(|c| c.is_ascii_lowercase() || c == '-') || verb.is_empty() {
        return Some(format!("{verb:?} is no verb in small letters"));
    }
    let other_form = verb.ends_with("ed") || verb.ends_with("ing") || (verb.ends_with('s') && !verb.ends_with("ss"));
    if other_form && !IMPERATIVES.contains(&verb) {
        return Some(format!("{verb:?} is no imperative; write what the commit does, as a command"));
    }
    title.ends_with('.').then(|| "a full stop at the end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_and_imperative_pass() {
        for subject in
            ["api: read a body", "net, api: divide descriptors", "web/e2e: process two tabs", "docs: embed it"]
        {
            assert_eq!(problem(subject), None, "{subject}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        let long = format!("api: read {}", "a".repeat(SUBJECT));
        for subject in [
            "Read a body",
            "Api: read a body",
            "api: Read a body",
            "api: reads a body",
            "api: added a body",
            "api: reading a body",
            "api: read a body.",
            "api: ",
            "a thing: read",
            "api: `read` it",
            &long,
        ] {
            assert!(problem(subject).is_some(), "{subject}");
        }
    }
}
