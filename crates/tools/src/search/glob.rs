//! Glob patterns for file names: `*`, `?`, `**`, `[a-z]`, `[!x]`, `{a,b}`. `*` does not cross
//! directories, so `*.rs` means one directory and `**/*.rs` any depth.

use globset::{GlobBuilder, GlobMatcher};

use crate::paths;

/// More alternatives than a person writes by hand.
const MAX_EXPANSIONS: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidGlob(pub(crate) String);

/// A pattern below a directory.
#[derive(Debug, Clone)]
pub(crate) struct GlobPattern {
    text: String,
    matcher: GlobMatcher,
    deep: GlobMatcher,
    directories: bool,
}

impl GlobPattern {
    pub(crate) fn new(pattern: &str) -> Result<Self, InvalidGlob> {
        let directories = pattern.ends_with('/');
        let text = pattern.trim_start_matches("./").trim_end_matches('/').to_owned();
        if text.is_empty() {
            return Err(InvalidGlob("The pattern is empty. \"**/*\" stands for all files.".into()));
        }
        if expansions(&text) > MAX_EXPANSIONS {
            return Err(InvalidGlob(format!("The braces stand for more than {MAX_EXPANSIONS} patterns. Use fewer.")));
        }
        let build = |text: &str| {
            let built =
                GlobBuilder::new(text).literal_separator(true).backslash_escape(true).empty_alternates(true).build();
            built.map(|glob| glob.compile_matcher()).map_err(|error| explain(text, error.kind()))
        };
        let matcher = build(&text)?;
        let deep = build(&format!("**/{text}"))?;
        Ok(Self { matcher, deep, text, directories })
    }

    /// Splits an absolute pattern into its literal directory and the rest.
    pub(crate) fn split_absolute(pattern: &str) -> (String, String) {
        let special = |part: &&str| part.contains(['*', '?', '[', '{', '\\']);
        let parts: Vec<&str> = pattern.split('/').collect();
        let plain = parts.iter().position(special).unwrap_or(parts.len().saturating_sub(1));
        let base = paths::normalize(&parts[..plain].join("/"));
        (base, parts[plain..].join("/"))
    }

    /// Whether it matches directories.
    pub(crate) fn directories(&self) -> bool {
        self.directories
    }

    pub(crate) fn matches(&self, relative: &str) -> bool {
        self.matcher.is_match(relative)
    }

    /// Matches as if it began with `**/`.
    pub(crate) fn matches_deeper(&self, relative: &str) -> bool {
        self.deep.is_match(relative)
    }

    /// The part that the file name must match; [`None`] if any may.
    pub(crate) fn name_part(&self) -> Option<&str> {
        last_part(&self.text)
    }
}

/// The part of a glob that matches the last component of a path.
pub(crate) fn last_part(glob: &str) -> Option<&str> {
    // A slash inside braces or brackets would make the last part ambiguous.
    let last = glob.rsplit('/').next()?;
    let balanced = |open, close| last.matches(open).count() == last.matches(close).count();
    let usable = !last.is_empty() && last != "**" && last != "*" && balanced('{', '}') && balanced('[', ']');
    (usable && (last.contains('{') || !last.contains([',', ':']))).then_some(last)
}

/// Approximate number of patterns that the braces expand to.
fn expansions(text: &str) -> usize {
    let (mut product, mut commas, mut depth) = (1_usize, 0, 0_usize);
    for letter in text.chars() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    product = product.saturating_mul(commas + 1);
                    commas = 0;
                }
            }
            ',' if depth > 0 => commas += 1,
            _ => {}
        }
    }
    product
}

fn explain(pattern: &str, kind: &globset::ErrorKind) -> InvalidGlob {
    let place = match kind {
        globset::ErrorKind::UnclosedClass => pattern.rfind('['),
        globset::ErrorKind::UnclosedAlternates => pattern.rfind('{'),
        globset::ErrorKind::UnopenedAlternates => pattern.rfind('}'),
        _ => None,
    };
    let place = place.map_or(String::new(), |at| format!(" at position {}", pattern[..at].chars().count() + 1));
    InvalidGlob(format!(
        "{pattern:?} is not a valid glob: {kind}{place}. Write special characters as [*], [?] or [{{]."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], other: &[&str]) {
        let glob = GlobPattern::new(pattern).expect("a glob");
        for path in matching {
            assert!(glob.matches(path), "{pattern} should match {path}");
        }
        for path in other {
            assert!(!glob.matches(path), "{pattern} should not match {path}");
        }
    }

    #[test]
    fn globs_match_expected_paths() {
        check("*.rs", &["a.rs", ".a.rs"], &["src/a.rs", "a.rss", "A.RS"]);
        check("**/*.rs", &["a.rs", "src/a.rs", "a/b/.c/d.rs"], &["a.rs/x"]);
        check("src/**/*.{c,h}", &["src/a.c", "src/x/y/a.h"], &["a.c", "src/a.cc"]);
        check("[!a]?.txt", &["bc.txt"], &["ac.txt", "b.txt"]);
        check("./a/*", &["a/b"], &["a/b/c"]);
        check("**", &["a", "a/b"], &[]);
    }

    #[test]
    fn absolute_pattern_splits_at_first_wildcard() {
        let split = |pattern| GlobPattern::split_absolute(pattern);
        assert_eq!(split("/etc/*.conf"), ("/etc".into(), "*.conf".into()));
        assert_eq!(split("/etc/passwd"), ("/etc".into(), "passwd".into()));
        assert_eq!(split("/**/x"), ("/".into(), "**/x".into()));
    }

    #[test]
    fn invalid_globs_name_the_position() {
        assert!(GlobPattern::new("src/[a").expect_err("unclosed").0.contains("at position 5"));
        assert!(GlobPattern::new("{a").is_err());
        assert!(GlobPattern::new("").is_err());
        assert!(GlobPattern::new(&"{a,b,c,d,e,f,g,h,i,j}".repeat(4)).expect_err("too many").0.contains("1000"));
    }

    #[test]
    fn last_part_of_a_glob_is_extracted() {
        assert_eq!(last_part("src/**/*.{c,h}"), Some("*.{c,h}"));
        assert_eq!(last_part("*.rs"), Some("*.rs"));
        assert_eq!(last_part("src/**"), None);
        assert_eq!(last_part("{a/b,c}"), None);
    }
}
