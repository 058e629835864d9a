//! Differences between two texts, for people and models.

use similar::{ChangeTag, TextDiff};

/// Time after which a comparison becomes approximate.
const DIFF_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(500);

/// Context lines around a change.
const AROUND: usize = 3;

/// The first lines of a unified diff.
pub fn unified_diff(old: &str, new: &str, most_lines: usize) -> String {
    let ChangedCore { old, new, above } = ChangedCore::new(old, new, AROUND);
    let difference = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
    let whole = difference.unified_diff().context_radius(AROUND).missing_newline_hint(false).to_string();
    let lines = whole.lines().count();
    let moved = |line: &str| if line.starts_with("@@ ") { shift_header(line, above) } else { cut(line) };
    let mut shown: String = whole.lines().take(most_lines).map(|line| format!("{}\n", moved(line))).collect();
    if lines > most_lines {
        shown.push_str(&format!("[… {} more lines of difference]\n", lines - most_lines));
    }
    shown
}

/// Two texts without their common first and last lines: an edit changes little of a long file, and
/// comparing all of it would take longer than writing it.
struct ChangedCore<'a> {
    old: &'a str,
    new: &'a str,
    /// Number of lines omitted before.
    above: usize,
}

impl<'a> ChangedCore<'a> {
    /// Keeps `around` common lines on both sides.
    fn new(old: &'a str, new: &'a str, around: usize) -> Self {
        let same = old.bytes().zip(new.bytes()).take_while(|(one, other)| one == other).count();
        let mut start = memchr::memrchr(b'\n', &old.as_bytes()[..same]).map_or(0, |at| at + 1);
        for _ in 0..around {
            start = memchr::memrchr(b'\n', &old.as_bytes()[..start.saturating_sub(1)]).map_or(0, |at| at + 1);
        }
        let (old_rest, new_rest) = (&old[start..], &new[start..]);
        let same = old_rest.bytes().rev().zip(new_rest.bytes().rev()).take_while(|(one, other)| one == other).count();
        // From after a whole line end, so that both sides are cut between the same lines.
        let tail = &old_rest.as_bytes()[old_rest.len() - same..];
        let left_out = memchr::memchr_iter(b'\n', tail).nth(around).map_or(0, |at| tail.len() - at - 1);
        Self {
            old: &old_rest[..old_rest.len() - left_out],
            new: &new_rest[..new_rest.len() - left_out],
            above: memchr::memchr_iter(b'\n', &old.as_bytes()[..start]).count(),
        }
    }
}

/// Shifts the header of a hunk down by `lines`.
fn shift_header(head: &str, lines: usize) -> String {
    let word = |word: &str| {
        let Some((sign, numbers)) = word.split_at_checked(1).filter(|(sign, _)| matches!(*sign, "-" | "+")) else {
            return word.to_owned();
        };
        let (first, rest) = numbers.find(',').map_or((numbers, ""), |at| numbers.split_at(at));
        format!("{sign}{}{rest}", first.parse::<usize>().unwrap_or(0) + lines)
    };
    head.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn cut(line: &str) -> String {
    const WIDTH: usize = 300;
    let mut shown: String = line.chars().take(WIDTH).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    shown
}

/// The range of changed lines in the new text, and the number of lines that differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedLines {
    pub lines: usize,
    /// First and last line in the new text.
    pub first: usize,
    pub last: usize,
}

pub fn changed_lines(old: &str, new: &str) -> Option<ChangedLines> {
    let ChangedCore { old, new, above } = ChangedCore::new(old, new, 0);
    let difference = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
    let (mut removed, mut added, mut at) = (0, 0, above + 1);
    let (mut first, mut last) = (None, 0);
    for change in difference.iter_all_changes() {
        match change.tag() {
            ChangeTag::Equal => at += 1,
            ChangeTag::Delete => {
                removed += 1;
                first.get_or_insert(at);
                last = last.max(at);
            }
            ChangeTag::Insert => {
                added += 1;
                first.get_or_insert(at);
                last = last.max(at);
                at += 1;
            }
        }
    }
    first.map(|first| ChangedLines { lines: std::cmp::max(removed, added), first, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn changed_lines_are_counted_and_shown() {
        let (old, new) = ("a\nb\nc\nd\n", "a\nx\nc\nd\ne\n");
        assert_eq!(changed_lines(old, new), Some(ChangedLines { lines: 2, first: 2, last: 5 }));
        assert_eq!(changed_lines(old, old), None);
        assert_eq!(unified_diff(old, new, 40), "@@ -1,4 +1,5 @@\n a\n-b\n+x\n c\n d\n+e\n");
        assert!(unified_diff(old, new, 2).ends_with("[… 5 more lines of difference]\n"));
    }

    #[test]
    fn hunk_header_has_original_line_numbers() {
        let lines = |word: &str| -> String {
            (1..=1000).map(|n| if n == 500 { format!("{word}\n") } else { format!("line {n}\n") }).collect()
        };
        let (old, new) = (lines("old"), lines("new"));
        assert_eq!(changed_lines(&old, &new), Some(ChangedLines { lines: 1, first: 500, last: 500 }));
        let expected =
            "@@ -497,7 +497,7 @@\n line 497\n line 498\n line 499\n-old\n+new\n line 501\n line 502\n line 503\n";
        assert_eq!(unified_diff(&old, &new, 40), expected);
    }

    proptest! {
        /// Trimming common lines changes nothing about the result.
        #[test]
        fn trimming_common_lines_keeps_the_diff(
            before in "([a-c]\n){0,12}", old in "([a-e]{0,2}\n){0,4}[a-c]{0,2}", new in "([a-e]{0,2}\n){0,4}[a-c]{0,2}",
            after in "(\n[a-cé]){0,12}\n?",
        ) {
            let (old, new) = (format!("{before}{old}{after}"), format!("{before}{new}{after}"));
            for around in [0, 3] {
                let core = ChangedCore::new(&old, &new, around);
                let start: usize = old.split_inclusive('\n').take(core.above).map(str::len).sum();
                prop_assert!(old[start..].starts_with(core.old) && new[start..].starts_with(core.new));
                prop_assert_eq!(&old[..start], &new[..start]);
                prop_assert_eq!(&old[start + core.old.len()..], &new[start + core.new.len()..]);
            }
            let applied = changed_lines(&old, &new);
            prop_assert_eq!(applied.is_none(), old == new);
        }
    }
}
