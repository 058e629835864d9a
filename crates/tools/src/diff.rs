//! What changed between two texts, for people and models.

use similar::{ChangeTag, TextDiff};

/// How long a comparison may take before it becomes rough.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(500);

/// The first lines of a unified difference.
pub(crate) fn unified(old: &str, new: &str, most_lines: usize) -> String {
    let difference = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let whole = difference.unified_diff().context_radius(3).missing_newline_hint(false).to_string();
    let lines = whole.lines().count();
    let mut shown: String = whole.lines().take(most_lines).map(|line| format!("{}\n", cut(line))).collect();
    if lines > most_lines {
        shown.push_str(&format!("[… {} more lines of difference]\n", lines - most_lines));
    }
    shown
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
    let difference = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let (mut removed, mut added, mut at) = (0, 0, 1);
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

    #[test]
    fn what_changed_is_counted_and_shown() {
        let (old, new) = ("a\nb\nc\nd\n", "a\nx\nc\nd\ne\n");
        assert_eq!(changed(old, new), Some(Changed { lines: 2, first: 2, last: 5 }));
        assert_eq!(changed(old, old), None);
        assert_eq!(unified(old, new, 40), "@@ -1,4 +1,5 @@\n a\n-b\n+x\n c\n d\n+e\n");
        assert!(unified(old, new, 2).ends_with("[… 5 more lines of difference]\n"));
    }
}
