//! Line patterns, validated on the host before anything runs, so that every engine reports the same
//! errors.

use regex::bytes::{Regex, RegexBuilder};

/// A pattern that no engine can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidRegex(pub(crate) String);

/// Finds lines in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    regex: Regex,
}

impl Matcher {
    pub(crate) fn new(pattern: &str, literal: bool, ignore_case: bool, multiline: bool) -> Result<Self, InvalidRegex> {
        let source = if literal { regex::escape(pattern) } else { pattern.to_owned() };
        let mut builder = RegexBuilder::new(&source);
        builder.case_insensitive(ignore_case).multi_line(true).dot_matches_new_line(multiline).crlf(false);
        builder.build().map(|regex| Self { regex }).map_err(|error| InvalidRegex(explain(pattern, &error)))
    }

    /// The first match.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(usize, usize)> {
        self.regex.find(bytes).map(|found| (found.start(), found.end()))
    }

    /// All matches, in order, for searches across lines. In a sandbox ripgrep does these.
    #[cfg(feature = "testing")]
    pub(crate) fn find_all<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.regex.find_iter(bytes).map(|found| (found.start(), found.end()))
    }
}

/// The error with its position, and a way to fix it.
fn explain(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let detail = text.trim_start_matches("regex parse error:").trim_end().trim_start_matches('\n');
    let hint = if text.contains("look-around") {
        "Look-ahead and look-behind are not supported; match more and filter with bash."
    } else if text.contains("backreferences") {
        "Backreferences are not supported."
    } else if pattern.contains('{') && (text.contains("repetition") || text.contains("decimal")) {
        "Write braces as \\{ and \\}, or set literal: true to search for the text as it is."
    } else {
        "Escape special characters with \\, or set literal: true to search for the text as it is."
    };
    format!("The pattern is not a valid regular expression:\n{detail}\n{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn mistake(pattern: &str) -> String {
        Matcher::new(pattern, false, false, false).expect_err("a mistake").0
    }

    #[test]
    fn invalid_patterns_get_position_and_hint() {
        assert!(mistake("a(").contains('^'));
        assert!(mistake("(?=x)").contains("Look-ahead"));
        assert!(mistake(r"(a)\1").contains("Backreferences"));
        assert!(mistake("interface{}").contains("literal: true"));
        assert!(Matcher::new("interface{}", true, false, false).is_ok());
    }

    #[test]
    fn matcher_agrees_with_ripgrep() {
        let find =
            |pattern, text: &str| Matcher::new(pattern, false, true, false).expect("valid").find(text.as_bytes());
        assert_eq!(find("^B", "a\nb\n"), Some((2, 3)));
        assert_eq!(find("a.b", "a\nb"), None);
    }
}
