//! Cuts the middle out of a long text. One algorithm for the dispatcher, the agent loop and every
//! tool.
//!
//! ```text
//! head lines
//! [… 1433 lines (88120 chars) omitted: lines 211–1643 of 2010; output truncated at 50000 chars. …]
//! [Lines of the omitted part that look important:]
//! 532: error[E0308]: mismatched types
//! [… the end of the output follows:]
//! tail lines
//! [… the first notice again, for a reader of the end only]
//! ```
//!
//! Invariants, each with a test: never longer than the budget; the head is a prefix and the tail a
//! suffix of the text; kept and omitted parts add up, in characters and in lines; deterministic; a
//! text that fits is returned unchanged, so truncation is idempotent; no budget is too small.

use std::sync::LazyLock;

use regex::Regex;
use unicode_segmentation::UnicodeSegmentation;

/// Whether the text's producer succeeded: failures are mostly explained at the end of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    Success,
    Failure,
}

/// What to cut to, and how to explain it.
#[derive(Debug, Clone, Copy)]
pub struct Truncation<'a> {
    /// In characters.
    pub budget: usize,
    pub exit: ExitKind,
    /// Ends the notice: where the omitted part can be read.
    pub explanation: &'a str,
}

/// A text that fits, and how it was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    pub text: String,
    /// [`None`] if nothing was cut.
    pub cut: Option<Cut>,
}

/// The omitted part. Lines are counted from 1; a partly omitted line counts as omitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    pub head: String,
    pub tail: String,
    pub total_chars: usize,
    pub omitted_chars: usize,
    pub total_lines: usize,
    pub omitted_lines: usize,
    pub first_omitted_line: usize,
    pub last_omitted_line: usize,
}

/// Most salient lines of the omitted part, and their maximum width.
const SALIENT_LINES: usize = 20;
const SALIENT_WIDTH: usize = 200;
const SALIENT_TITLE: &str = "[Lines of the omitted part that look important:]\n";
const SALIENT_END: &str = "[… the end of the output follows:]\n";

static SALIENT: LazyLock<Regex> = LazyLock::new(|| {
    let words = r"(?i)\b(error|errors|failed|failure|panic(ked)?|traceback|exception|fatal|assert(ion)?(error)?|undefined|cannot find|segmentation fault|warning:)|(error|exception):";
    Regex::new(words).expect("the expression is constant and tested")
});

/// Cuts `text` to the budget, if needed.
pub fn truncate(text: &str, how: Truncation<'_>) -> Truncated {
    let total_chars = text.chars().count();
    if total_chars <= how.budget {
        return Truncated { text: text.to_owned(), cut: None };
    }
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let cut = |head: &str, tail: &str| {
        let kept_head = whole_lines(head);
        let begins_a_line = text[..text.len() - tail.len()].ends_with('\n');
        let kept_tail = tail.split_inclusive('\n').count().saturating_sub(usize::from(!begins_a_line));
        Cut {
            head: head.to_owned(),
            tail: tail.to_owned(),
            total_chars,
            omitted_chars: total_chars - head.chars().count() - tail.chars().count(),
            total_lines: lines.len(),
            omitted_lines: lines.len() - kept_head - kept_tail,
            first_omitted_line: kept_head + 1,
            last_omitted_line: lines.len() - kept_tail,
        }
    };
    // The notice about omitting everything is the longest possible one.
    let widest = notice(&cut("", ""), &how).chars().count() + 1;
    let Some(space) = how.budget.checked_sub(2 * widest + 2).filter(|space| *space > 0) else {
        let cut = cut("", "");
        let text = notice(&cut, &how).chars().take(how.budget).collect();
        return Truncated { text, cut: Some(cut) };
    };
    let for_salient = space / 10;
    let (parts, of) = match how.exit {
        ExitKind::Success => (1, 2),
        ExitKind::Failure => (3, 10),
    };
    let for_head = (space - for_salient) * parts / of;
    let head = take_head(text, for_head);
    let rest = &text[head.len()..];
    let tail = take_tail(rest, space - for_salient - for_head);
    let cut = cut(head, tail);
    let middle = &rest[..rest.len() - tail.len()];
    let salient = salient(middle, whole_lines(head) + 1, for_salient);

    let notice = notice(&cut, &how);
    let mut shown = String::with_capacity(text.len().min(how.budget * 4));
    push_lines(&mut shown, head);
    shown.push_str(&notice);
    shown.push('\n');
    shown.push_str(&salient);
    push_lines(&mut shown, tail);
    shown.push_str(&notice);
    Truncated { text: shown, cut: Some(cut) }
}

/// Appends a text and ends its last line.
fn push_lines(shown: &mut String, text: &str) {
    shown.push_str(text);
    if !text.is_empty() && !text.ends_with('\n') {
        shown.push('\n');
    }
}

/// Number of complete lines in a head.
fn whole_lines(head: &str) -> usize {
    head.matches('\n').count()
}

/// Whole lines from the start, at most `space` characters; if the first does not fit, its start.
fn take_head(text: &str, space: usize) -> &str {
    let (mut end, mut used) = (0, 0);
    for line in text.split_inclusive('\n') {
        let length = line.chars().count();
        if used + length > space {
            break;
        }
        (end, used) = (end + line.len(), used + length);
    }
    if end > 0 {
        return &text[..end];
    }
    let mut used = 0;
    for (at, grapheme) in text.grapheme_indices(true) {
        used += grapheme.chars().count();
        if used > space {
            return &text[..at];
        }
    }
    text
}

/// Whole lines from the end, at most `space` characters; if the last does not fit, its end.
fn take_tail(text: &str, space: usize) -> &str {
    let (mut start, mut used) = (text.len(), 0);
    for line in text.split_inclusive('\n').rev() {
        let length = line.chars().count();
        if used + length > space {
            break;
        }
        (start, used) = (start - line.len(), used + length);
    }
    if start < text.len() {
        return &text[start..];
    }
    let (mut start, mut used) = (text.len(), 0);
    for (at, grapheme) in text.grapheme_indices(true).rev() {
        used += grapheme.chars().count();
        if used > space {
            break;
        }
        start = at;
    }
    &text[start..]
}

fn notice(cut: &Cut, how: &Truncation<'_>) -> String {
    let Cut {
        total_chars: _, omitted_chars, total_lines, omitted_lines, first_omitted_line, last_omitted_line, ..
    } = cut;
    let Truncation { budget, explanation, .. } = how;
    format!(
        "[… {omitted_lines} lines ({omitted_chars} chars) omitted: lines {first_omitted_line}–{last_omitted_line} of \
         {total_lines}; output truncated at {budget} chars. {explanation}]"
    )
}

/// The first salient lines with their numbers; empty if none fits.
fn salient(middle: &str, first_number: usize, space: usize) -> String {
    let frame = SALIENT_TITLE.chars().count() + SALIENT_END.chars().count();
    let Some(mut left) = space.checked_sub(frame) else { return String::new() };
    let mut picked = String::new();
    let matching = middle.lines().enumerate().filter(|(_, line)| SALIENT.is_match(line));
    for (at, line) in matching.take(SALIENT_LINES) {
        let mut shown: String = line.chars().take(SALIENT_WIDTH).collect();
        if shown.len() < line.len() {
            shown.push('…');
        }
        let shown = format!("{}: {shown}\n", first_number + at);
        let Some(less) = left.checked_sub(shown.chars().count()) else { break };
        left = less;
        picked.push_str(&shown);
    }
    if picked.is_empty() { picked } else { format!("{SALIENT_TITLE}{picked}{SALIENT_END}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut_to(text: &str, budget: usize) -> Truncated {
        truncate(text, Truncation { budget, exit: ExitKind::Success, explanation: "It is in /tmp/out.log." })
    }

    fn numbered(count: usize) -> String {
        (1..=count).map(|number| format!("line {number}\n")).collect()
    }

    #[test]
    fn notice_is_exact_and_repeated() {
        let text = numbered(500);
        let Truncated { text: shown, cut } = cut_to(&text, 1000);
        let cut = cut.expect("it does not fit");
        assert_eq!(cut.total_lines, 500);
        let first = format!(
            "[… {} lines ({} chars) omitted: lines {}–{} of 500; output truncated at 1000 chars. It is in /tmp/out.log.]",
            cut.omitted_lines, cut.omitted_chars, cut.first_omitted_line, cut.last_omitted_line
        );
        assert_eq!(shown.matches(&first).count(), 2, "{shown}");
        assert!(shown.ends_with(&first));
        assert!(shown.starts_with("line 1\nline 2\n"));
        assert!(shown.contains("\nline 500\n["));
        assert!(shown.contains(&format!("\nline {}\n[…", cut.first_omitted_line - 1)));
        assert!(shown.contains(&format!("\nline {}\n", cut.last_omitted_line + 1)));
    }

    #[test]
    fn salient_line_is_shown_with_its_number() {
        let text = format!("{}src/main.rs: error: mismatched types\n{}", numbered(400), numbered(400));
        let shown = cut_to(&text, 3000).text;
        assert!(shown.contains("401: src/main.rs: error: mismatched types\n"), "{shown}");
    }

    #[test]
    fn failure_keeps_more_of_the_tail() {
        let text = numbered(5000);
        let length = |ended| {
            let cut = truncate(&text, Truncation { budget: 5000, exit: ended, explanation: "" }).cut.expect("cut");
            (cut.head.len(), cut.tail.len())
        };
        let (head, tail) = length(ExitKind::Failure);
        assert!(tail > 2 * head, "{head} {tail}");
        let (head, tail) = length(ExitKind::Success);
        assert!(head.abs_diff(tail) < 50, "{head} {tail}");
    }

    #[test]
    fn long_line_is_cut_between_graphemes() {
        let text = "e\u{301}".repeat(2000);
        let cut = cut_to(&text, 1500).cut.expect("cut");
        assert!(cut.head.ends_with('\u{301}') && cut.tail.starts_with('e'));
        assert_eq!((cut.total_lines, cut.omitted_lines), (1, 1));
    }

    proptest! {
        #[test]
        fn truncation_invariants_hold(
            text in "([a-zäé\u{301}😀 ]{0,30}\n?){0,60}",
            budget in 0usize..1200,
            badly: bool,
            full: bool,
        ) {
            let how = Truncation {
                budget,
                exit: if badly { ExitKind::Failure } else { ExitKind::Success },
                explanation: if full { "Full output: /o — read_file with offset/limit, or grep it." } else { "" },
            };
            let once = truncate(&text, how);
            let chars = text.chars().count();
            prop_assert!(once.text.chars().count() <= budget);
            prop_assert_eq!(&truncate(&text, how), &once);
            prop_assert_eq!(&truncate(&once.text, how).text, &once.text);
            match &once.cut {
                None => prop_assert_eq!(&once.text, &text),
                Some(cut) => {
                    prop_assert!(chars > budget);
                    prop_assert!(text.starts_with(&cut.head) && text.ends_with(&cut.tail));
                    let kept = cut.head.chars().count() + cut.tail.chars().count();
                    prop_assert_eq!(kept + cut.omitted_chars, chars);
                    prop_assert_eq!(cut.total_chars, chars);
                    prop_assert_eq!(cut.total_lines, text.split_inclusive('\n').count());
                    let kept_lines = (cut.first_omitted_line - 1) + (cut.total_lines - cut.last_omitted_line);
                    prop_assert_eq!(kept_lines + cut.omitted_lines, cut.total_lines);
                    if !cut.head.is_empty() {
                        prop_assert!(once.text.starts_with(&cut.head));
                    }
                    prop_assert!(cut.tail.is_empty() || once.text.contains(&cut.tail));
                }
            }
        }
    }
}
