//! Banned words: which they are, where they are banned, and what to write instead.

use crate::Finding;
use crate::lists::{Exception, WORD_EXCEPTIONS};
use crate::scan::{Kind, Language, scan, without_code};

/// A word or phrase that the repository does not use.
pub struct Banned {
    /// Lower case, words separated by one space. In names it matches parts of an identifier:
    /// `put to sleep` matches `put_to_sleep` and `putToSleep`.
    pub phrase: &'static str,
    pub instead: &'static str,
    pub scope: Scope,
}

/// Where a word is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In names, comments, documents and the texts of strings that are sentences.
    Everywhere,
    /// In names and comments of code. Users' documents and texts of the dashboard may have it.
    Code,
    /// In names only: in prose the word has an ordinary meaning.
    Names,
}

const fn ban(phrase: &'static str, scope: Scope, instead: &'static str) -> Banned {
    Banned { phrase, instead, scope }
}

/// The words, with the indefinite pronouns first: they hide the actor.
pub const BANNED: &[Banned] = &[
    ban("whoever", Scope::Everywhere, "the actor: the caller, the worker, the guest"),
    ban("nobody", Scope::Everywhere, "no caller, no process, no user; `nobody` in backticks for the Linux user"),
    ban("somebody", Scope::Everywhere, "the actor: another process, a user"),
    ban("anybody", Scope::Everywhere, "any caller, any user"),
    ban("anew", Scope::Everywhere, "again, or a new ..."),
    ban("otherwise than", Scope::Everywhere, "unlike, differs from"),
    ban("in how far", Scope::Everywhere, "how, which"),
    ban("who may", Scope::Everywhere, "the actor and the permission it has"),
    ban("bedtime", Scope::Everywhere, "auto_pause_at"),
    ban("errand", Scope::Everywhere, "cleanup task"),
    ban("errands", Scope::Everywhere, "cleanup tasks"),
    ban("patience", Scope::Everywhere, "timeout, deadline"),
    ban("put to sleep", Scope::Code, "pause"),
    ban("let sleep", Scope::Code, "pause"),
    ban("asleep", Scope::Code, "paused"),
    ban("awake", Scope::Code, "running, resumed"),
    ban("told", Scope::Code, "receives, is notified, reports; in names: message, notice"),
    ban("said", Scope::Code, "reports, states; in names: output, message"),
    ban("desk", Scope::Code, "ServerState, ApprovalQueue"),
    ban("house", Scope::Code, "context, app"),
    ban("attendant", Scope::Code, "maintenance"),
    ban("premises", Scope::Code, "StudioHost"),
    ban("workplace", Scope::Code, "SandboxProvider, SandboxHandle, Checkpointer"),
    ban("workplaces", Scope::Code, "SandboxProvider"),
    ban("photograph", Scope::Code, "take a screenshot"),
    ban("photographer", Scope::Code, "the screenshot type"),
    ban("shortcomings", Scope::Code, "rootless_limitations"),
    ban("room", Scope::Names, "capacity, free space, compaction"),
    ban("rooms", Scope::Names, "LocalHost, or the concept's name"),
    ban("seat", Scope::Names, "CallContext, WorkspaceState, or the concept's name"),
    ban("seats", Scope::Names, "slots, permits"),
    ban("news", Scope::Names, "notices"),
    ban("look", Scope::Names, "query, inspect, read"),
    ban("looks", Scope::Names, "queries"),
    ban("picture", Scope::Names, "screenshot, or image for images in general"),
    ban("pictures", Scope::Names, "screenshots, or images"),
];

/// Banned words of one file, without those that an exception of [`WORD_EXCEPTIONS`] allows.
pub fn check_words(file: &str, text: &str) -> Vec<Finding> {
    check_with(file, text, WORD_EXCEPTIONS)
}

/// As [`check_words`], with the exceptions given.
pub fn check_with(file: &str, text: &str, exceptions: &[Exception]) -> Vec<Finding> {
    let Some(language) = Language::from_path(file) else { return Vec::new() };
    let mut findings = Vec::new();
    for piece in scan(language, text) {
        // This file quotes the words.
        if file == "crates/tidy/src/words.rs" && piece.kind == Kind::Text {
            continue;
        }
        let prose = matches!(piece.kind, Kind::Comment | Kind::Document);
        let words = split(&if prose { without_code(&piece.text) } else { piece.text.clone() });
        for banned in BANNED.iter().filter(|banned| applies(banned.scope, piece.kind, &piece.text)) {
            let phrase: Vec<&str> = banned.phrase.split(' ').collect();
            if words.windows(phrase.len()).any(|window| window == phrase.as_slice())
                && !exceptions.iter().any(|e| file.starts_with(e.path) && e.word == banned.phrase)
            {
                let message = format!("\"{}\" in {:?}; write: {}", banned.phrase, shorten(&piece.text), banned.instead);
                findings.push(Finding::new(file, piece.line, message));
            }
        }
    }
    findings
}

/// A string is prose when it has several words; others may be wire names, paths or Linux users.
fn applies(scope: Scope, kind: Kind, text: &str) -> bool {
    match kind {
        Kind::Name => true,
        Kind::Comment => scope != Scope::Names,
        Kind::Document => scope == Scope::Everywhere,
        Kind::Text => scope == Scope::Everywhere && text.split_whitespace().count() > 2,
    }
}

/// Lower-case words of a text or an identifier: split at everything that is no letter or digit, and
/// where a capital follows a small letter.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut small = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && small) {
            words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        small = c.is_lowercase() || c.is_ascii_digit();
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

fn shorten(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(file: &str, text: &str) -> Vec<usize> {
        check_with(file, text, &[]).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn comments_names_and_sentences_are_checked() {
        assert_eq!(lines("a.rs", "// Whoever asks.\nfn f() {}"), [1]);
        assert_eq!(lines("a.rs", "fn ask_nobody() {}\nstruct AskNobody;\nconst NOBODY: u8 = 1;"), [1, 2, 3]);
        assert_eq!(lines("a.rs", "f(\"is open for anybody here\");"), [1]);
        assert_eq!(lines("a.ts", "letSleep();\n/* anew */"), [1, 2]);
        assert_eq!(lines("a.py", "# somebody\n\"\"\"in how far\"\"\"\nbedtime = 1"), [1, 2, 3]);
        assert_eq!(lines("README.md", "a\nnobody's\n"), [2]);
        assert_eq!(lines("dev", "# somebody\n"), [1]);
    }

    #[test]
    fn quoted_code_and_single_words_are_not() {
        assert_eq!(lines("a.rs", "// The user `nobody`.\nf(\"nobody\");\nf(\"/a nobody\");"), [0; 0]);
        assert_eq!(lines("README.md", "```\nwhoever\n```\n`whoever`"), [0; 0]);
        assert_eq!(lines("a.rs", "// renewed, headroom\nlet renewed = lookup();"), [0; 0]);
        assert_eq!(lines("a.css", "whoever"), [0; 0]);
    }

    #[test]
    fn words_of_names_are_allowed_in_prose() {
        assert_eq!(lines("a.rs", "// There is room for one."), [0; 0]);
        assert_eq!(lines("a.rs", "let room = 1;"), [1]);
        assert_eq!(lines("README.md", "The preview is asleep."), [0; 0]);
        assert_eq!(lines("a.rs", "// The preview is asleep."), [1]);
    }

    #[test]
    fn a_finding_names_the_place_and_the_alternative() {
        let finding = &check_with("a.rs", "\n// Whoever asks.", &[])[0];
        let text = finding.to_string();
        assert!(text.starts_with("a.rs:2: \"whoever\"") && text.contains("the caller"), "{text}");
    }

    #[test]
    fn an_exception_holds_for_its_path_and_word() {
        let exception = [Exception { path: "web/src/wire.ts", word: "pictures", reason: "a field" }];
        assert_eq!(check_with("web/src/wire.ts", "pictures: string[];", &exception), []);
        assert_eq!(check_with("web/src/api.ts", "pictures: string[];", &exception).len(), 1);
        assert_eq!(check_with("web/src/wire.ts", "nobody: string[];", &exception).len(), 1);
    }
}
