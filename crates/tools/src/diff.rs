//! What changed between two texts, for people and models.

use similar::{ChangeTag, TextDiff};

/// How long a comparison may take before it becomes rough.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(500);

/// Lines shown around a change.
const AROUND: usize = 3;

/// The first lines of a unified difference.
pub(crate) fn unified(old: &str, new: &str, most_lines: usize) -> String {
    let Core { old, new, above } = Core::of(old, new, AROUND);
    let difference = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let whole = difference.unified_diff().context_radius(AROUND).missing_newline_hint(false).to_string();
    let lines = whole.lines().count();
    let moved = |line: &str| if line.starts_with("@@ ") { moved_down(line, above) } else { cut(line) };
    let mut shown: String = whole.lines().take(most_lines).map(|line| format!("{}\n", moved(line))).collect();
    if lines > most_lines {
        shown.push_str(&format!("[… {} more lines of difference]\n", lines - most_lines));
    }
    shown
}

/// What is left of two texts without the lines that both begin and end with: an edit of a long file changes little of it,
/// and comparing all of it would take longer than writing it.
struct Core<'a> {
    old: &'a str,
    new: &'a str,
    /// Lines that were left out before.
    above: usize,
}

impl<'a> Core<'a> {
    /// Leaves `around` of the common lines on both sides.
    fn of(old: &'a str, new: &'a str, around: usize) -> Self {
        let same = old.bytes().zip(new.bytes()).take_while(|(one, other)| one == other).count();
        let mut start = memchr::memrchr(b'\n', &old.as_bytes()[..same]).map_or(0, |at| at + 1);
        for _ in 0..around {
            start = memchr::memrchr(b'\n', &old.as_bytes()[..start.saturating_sub(1)]).map_or(0, |at| at + 1);
        }
        let (old_rest, new_rest) = (&old[start..], &new[start..]);
        let same = old_rest.bytes().rev().zip(new_rest.bytes().rev()).take_while(|(one, other)| one == other).count();
        // From behind a whole line end on, so that both sides are cut between the same lines.
        let tail = &old_rest.as_bytes()[old_rest.len() - same..];
        let left_out = memchr::memchr_iter(b'\n', tail).nth(around).map_or(0, |at| tail.len() - at - 1);
        Self {
            old: &old_rest[..old_rest.len() - left_out],
            new: &new_rest[..new_rest.len() - left_out],
            above: memchr::memchr_iter(b'\n', &old.as_bytes()[..start]).count(),
        }
    }
}

/// The head of a hunk, so many lines further down.
fn moved_down(head: &str, lines: usize) -> String {
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

/// Lines of the new text that are not in the old one, and how many lines differ in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) lines: usize,
    /// First and last, in the new text.
    pub(crate) first: usize,
    pub(crate) last: usize,
}

pub(crate) fn changed(old: &str, new: &str) -> Option<Changed> {
    let Core { old, new, above } = Core::of(old, new, 0);
    let difference = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
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
    first.map(|first| Changed { lines: std::cmp::max(removed, added), first, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_changed_is_counted_and_shown() {
        let (old, new) = ("a\nb\nc\nd\n", "a\nx\nc\nd\ne\n");
        assert_eq!(changed(old, new), Some(Changed { lines: 2, first: 2, last: 5 }));
        assert_eq!(changed(old, old), None);
        assert_eq!(unified(old, new, 40), "@@ -1,4 +1,5 @@\n a\n-b\n+x\n c\n d\n+e\n");
        assert!(unified(old, new, 2).ends_with("[… 5 more lines of difference]\n"));
    }

    #[test]
    fn a_change_far_down_has_its_own_line_numbers() {
        let lines = |word: &str| -> String {
            (1..=1000).map(|n| if n == 500 { format!("{word}\n") } else { format!("line {n}\n") }).collect()
        };
        let (old, new) = (lines("old"), lines("new"));
        assert_eq!(changed(&old, &new), Some(Changed { lines: 1, first: 500, last: 500 }));
        let expected =
            "@@ -497,7 +497,7 @@\n line 497\n line 498\n line 499\n-old\n+new\n line 501\n line 502\n line 503\n";
        assert_eq!(unified(&old, &new, 40), expected);
    }

    proptest! {
        /// What is left out changes nothing about the answer.
        #[test]
        fn the_core_has_the_whole_difference(
            before in "([a-c]\n){0,12}", old in "([a-e]{0,2}\n){0,4}[a-c]{0,2}", new in "([a-e]{0,2}\n){0,4}[a-c]{0,2}",
            after in "(\n[a-cé]){0,12}\n?",
        ) {
            let (old, new) = (format!("{before}{old}{after}"), format!("{before}{new}{after}"));
            for around in [0, 3] {
                let core = Core::of(&old, &new, around);
                let start: usize = old.split_inclusive('\n').take(core.above).map(str::len).sum();
                prop_assert!(old[start..].starts_with(core.old) && new[start..].starts_with(core.new));
                prop_assert_eq!(&old[..start], &new[..start]);
                prop_assert_eq!(&old[start + core.old.len()..], &new[start + core.new.len()..]);
            }
            let applied = changed(&old, &new);
            prop_assert_eq!(applied.is_none(), old == new);
        }
    }
}
