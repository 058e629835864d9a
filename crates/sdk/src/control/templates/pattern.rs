//! Docker's path patterns: `*` and `?` stay within a segment, `**` crosses segments, `[…]` is a
//! character class.

use regex::Regex;

/// Whether `text` contains wildcards.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// Compiles a pattern that matches whole paths relative to the context, with `/` separators.
pub(super) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    let mut regex = String::from("^(?s:");
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '*' if rest.next_if_eq(&'*').is_some() => {
                rest.next_if_eq(&'/');
                regex.push_str(if rest.peek().is_none() { ".*" } else { "(.*/)?" });
            }
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '[' => {
                regex.push('[');
                if rest.next_if(|next| matches!(next, '^' | '!')).is_some() {
                    regex.push('^');
                }
                while let Some(inner) = rest.next() {
                    match inner {
                        ']' => {
                            regex.push(']');
                            break;
                        }
                        '-' => regex.push('-'),
                        '\\' => regex.push_str(&regex::escape(&rest.next().unwrap_or('\\').to_string())),
                        // Nested classes and set operations exist in regex but not in Docker.
                        other if other.is_ascii_punctuation() => regex.extend(['\\', other]),
                        other => regex.push(other),
                    }
                }
            }
            '\\' => regex.push_str(&regex::escape(&rest.next().unwrap_or('\\').to_string())),
            other => regex.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push_str(")$");
    Regex::new(&regex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_docker() {
        for (pattern, matching, other) in [
            ("*.txt", &["a.txt", ".txt"][..], &["d/a.txt", "a.txt2"][..]),
            ("**/*.txt", &["a.txt", "d/a.txt", "d/e/a.txt"], &["a.md"]),
            ("d/**", &["d/a", "d/e/a"], &["d", "x/d/a"]),
            ("d?r/[ab]c", &["dir/ac", "der/bc"], &["dir/cc", "d/r/ac"]),
            ("[^a]", &["b"], &["a", "bb"]),
            ("a.b+c", &["a.b+c"], &["axb+c", "a.bbc"]),
            (r"\*", &["*"], &["a"]),
        ] {
            let regex = compile(pattern).expect("a pattern");
            assert!(matching.iter().all(|path| regex.is_match(path)), "{pattern} {regex}");
            assert!(!other.iter().any(|path| regex.is_match(path)), "{pattern} {regex}");
        }
        assert!(compile("[a").is_err());
    }
}
