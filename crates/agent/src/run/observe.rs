//! Prepares results for the model: cleans them and cuts them to the loop's budget.

use std::sync::LazyLock;

use regex::Regex;
use text::{ExitKind, Truncation, collapse_repeats, fold_overwrites, truncate};
use tools::Provenance;

use crate::message::{Part, ToolOutcome, ToolUse};

/// A result that may have been cut.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TruncatedResult {
    pub(super) content: Vec<Part>,
    pub(super) truncated: bool,
}

/// Cuts all texts of a result to `budget` characters in total. `provenance` completes the notice of
/// a text that was not cut before; the notice of an earlier cut stays.
pub(super) fn truncate_result(
    call: &ToolUse,
    content: Vec<Part>,
    is_error: bool,
    provenance: Provenance<'_>,
    budget: usize,
) -> TruncatedResult {
    let mut left = budget;
    let mut truncated = false;
    let content = content
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => {
                let text = if call.name == "bash" { collapse_repeats(&fold_overwrites(&text)) } else { text };
                let fitted = fit(&text, left, is_error, provenance);
                truncated |= fitted.len() < text.len();
                left = left.saturating_sub(fitted.chars().count());
                Part::Text(fitted)
            }
            other => other,
        })
        .collect();
    TruncatedResult { content, truncated }
}

/// Cuts a text but keeps its last lines: notices, and the exit code.
fn fit(text: &str, budget: usize, is_error: bool, provenance: Provenance<'_>) -> String {
    if text.chars().count() <= budget {
        return text.to_owned();
    }
    let (body, footer) = split_footer(text);
    let uncut = reconstruct(body);
    let body_budget = budget.saturating_sub(footer.chars().count() + usize::from(!footer.is_empty()));
    let ended = if is_error { ExitKind::Failure } else { ExitKind::Success };
    let explanation = earlier_explanation(body).map_or_else(|| provenance.explain(), str::to_owned);
    let how = Truncation { budget: body_budget, exit: ended, explanation: &explanation };
    let mut cut = truncate(uncut.as_deref().unwrap_or(body), how).text;
    // The notice states the whole limit, not what the footer leaves of it.
    cut = cut
        .replace(&format!("output truncated at {body_budget} chars"), &format!("output truncated at {budget} chars"));
    if !footer.is_empty() {
        if !cut.ends_with('\n') {
            cut.push('\n');
        }
        cut.push_str(footer);
    }
    cut
}

/// Splits off the last lines in brackets, a few at most.
fn split_footer(text: &str) -> (&str, &str) {
    const MAX_LINES: usize = 8;
    const MAX_BYTES: usize = 2000;
    let mut start = text.len();
    for line in text.split_inclusive('\n').rev().take(MAX_LINES) {
        let shown = line.trim_end();
        let is_note = shown.starts_with('[') && shown.ends_with(']') && !NOTICE.is_match(shown);
        if !is_note || text.len() - (start - line.len()) > MAX_BYTES {
            break;
        }
        start -= line.len();
    }
    text.split_at(start)
}

static NOTICE: LazyLock<Regex> = LazyLock::new(|| {
    let notice = r"(?m)^\[… (\d+) lines \((\d+) chars\) omitted: lines (\d+)–(\d+) of (\d+); output truncated at \d+ chars\. (.*)\]$";
    Regex::new(notice).expect("the expression is constant and tested")
});

/// Rebuilds a placeholder for a text that the dispatcher has cut: head, tail and salient lines at
/// their original positions, blanks elsewhere. A further cut then counts lines and characters of
/// the original.
fn reconstruct(text: &str) -> Option<String> {
    /// Larger placeholders would take too long.
    const MAX: usize = 32 * 1024 * 1024;
    const SALIENT_TITLE: &str = "[Lines of the omitted part that look important:]\n";
    const SALIENT_END: &str = "[… the end of the output follows:]\n";
    let notice = NOTICE.captures(text)?;
    let whole = notice.get(0)?;
    let number = |index: usize| notice.get(index)?.as_str().parse::<usize>().ok();
    let (lines, chars, first) = (number(1)?, number(2)?, number(3)?);
    if chars > MAX || lines > chars + 1 {
        return None;
    }
    let head = &text[..whole.start()];
    let rest = text[whole.end()..].strip_prefix('\n')?;
    let (salient, tail) = match rest.strip_prefix(SALIENT_TITLE).and_then(|rest| rest.split_once(SALIENT_END)) {
        Some((salient, tail)) => (salient, tail),
        None => ("", rest),
    };
    // The notice is repeated at the end.
    let tail = tail.trim_end_matches('\n').strip_suffix(whole.as_str())?;
    let important: Vec<(usize, &str)> = salient
        .lines()
        .filter_map(|line| {
            let (number, line) = line.split_once(": ")?;
            Some((number.parse::<usize>().ok()?.checked_sub(first)?, line))
        })
        .collect();
    // Each line has a newline; the remaining characters are spread from the first line on.
    let kept: usize = important.iter().map(|(_, line)| line.chars().count()).sum();
    let mut blanks = chars.checked_sub(lines + kept)?;
    let mut middle = String::with_capacity(chars);
    let mut important = important.into_iter().peekable();
    for line in 0..lines {
        match important.next_if(|(at, _)| *at == line) {
            Some((_, shown)) => middle.push_str(shown),
            None => {
                let share = blanks.div_ceil((lines - line).max(1));
                middle.extend(std::iter::repeat_n(' ', share));
                blanks -= share;
            }
        }
        middle.push('\n');
    }
    Some(format!("{head}{middle}{tail}"))
}

/// Shrinks the largest results until all fit the budget of a turn.
pub(super) fn fit_batch(results: &mut [(ToolUse, ToolOutcome)], budget: usize) {
    let length = |outcome: &ToolOutcome| {
        outcome.content.iter().filter_map(Part::as_text).map(|text| text.chars().count()).sum::<usize>()
    };
    let mut lengths: Vec<usize> = results.iter().map(|(_, outcome)| length(outcome)).collect();
    if lengths.iter().sum::<usize>() <= budget {
        return;
    }
    // The highest cap under which all fit, so that small results stay whole.
    lengths.sort_unstable();
    let (mut left, mut cap) = (budget, 0);
    for (at, length) in lengths.iter().enumerate() {
        cap = left / (lengths.len() - at);
        if *length > cap {
            break;
        }
        left -= length;
    }
    for (call, outcome) in results.iter_mut().filter(|(_, outcome)| length(outcome) > cap) {
        let content = std::mem::take(&mut outcome.content);
        outcome.content = truncate_result(call, content, outcome.is_error, Provenance::UNSAVED_DOCUMENT, cap).content;
    }
}

/// The explanation of an earlier cut. Its notice is the last line of a cut text; anywhere else it
/// is part of the output.
fn earlier_explanation(text: &str) -> Option<&str> {
    let last = text.trim_end_matches('\n').lines().next_back()?;
    NOTICE.captures(last)?.get(6).map(|explanation| explanation.as_str())
}

/// One line of a result, for display.
pub(super) fn summary(outcome: &ToolOutcome) -> String {
    const WIDTH: usize = 200;
    let text = outcome.text();
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or("(no text)");
    let last = lines.next_back().filter(|line| line.starts_with("[exit "));
    let line = match last {
        Some(exit) => format!("{first} {exit}"),
        None => first.to_owned(),
    };
    line.chars().take(WIDTH).collect()
}

/// The text of a result for watchers: whole, or its beginning and end.
pub(super) fn excerpt(outcome: &ToolOutcome) -> String {
    const MAX: usize = 16 * 1024;
    const SIDE: usize = MAX / 2 - 64;
    let text = outcome.text();
    if text.len() <= MAX {
        return text;
    }
    let (head, tail) = (text.floor_char_boundary(SIDE), text.ceil_char_boundary(text.len() - SIDE));
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    #[test]
    fn excerpt_keeps_both_ends_within_its_limit() {
        let of = |text: &str| {
            excerpt(&ToolOutcome { tool_use_id: "a".into(), content: vec![Part::Text(text.into())], is_error: false })
        };
        assert_eq!(of("short"), "short");
        for letter in ["x", "é", "→", "😀"] {
            let whole = format!("begin{}end", letter.repeat(20_000));
            let shown = of(&whole);
            assert!(shown.len() <= 16 * 1024 && shown.starts_with("begin") && shown.ends_with("end"), "{letter}");
        }
    }

    fn call(name: &str) -> ToolUse {
        ToolUse { id: "a".into(), name: name.into(), input: json!({}), extra: Map::new() }
    }

    fn numbered(count: usize) -> String {
        (1..=count)
            .map(|number| if number == 2500 { "error: here\n".to_owned() } else { format!("line {number}\n") })
            .collect()
    }

    #[test]
    fn second_cut_equals_a_cut_of_the_whole() {
        let whole = numbered(10_000);
        let cut = |text: &str, budget| {
            truncate(text, Truncation { budget, exit: ExitKind::Success, explanation: "It is in /o." }).text
        };
        let by_dispatcher = cut(&whole, 50_000);
        let again = reconstruct(&by_dispatcher).expect("it was cut");
        assert_eq!(again.chars().count(), whole.chars().count());
        assert_eq!(cut(&again, 30_000), cut(&whole, 30_000));
    }

    #[test]
    fn exit_line_stays_last_within_the_limit() {
        for (text, explanation) in [
            (format!("{}[note]\n[exit 1]", numbered(5000)), "The rest was not kept; narrow what is asked for."),
            (
                format!(
                    "{}\n[exit 0]",
                    truncate(
                        &numbered(20_000),
                        Truncation { budget: 49_000, exit: ExitKind::Success, explanation: "Gone." }
                    )
                    .text
                ),
                "Gone.",
            ),
        ] {
            let TruncatedResult { content, truncated } = truncate_result(
                &call("bash"),
                vec![Part::Text(text.clone())],
                true,
                Provenance::UNSAVED_DOCUMENT,
                3000,
            );
            let [Part::Text(shown)] = content.as_slice() else { panic!("one text") };
            assert!(truncated && shown.chars().count() <= 3000, "{}", shown.chars().count());
            assert_eq!(shown.lines().last(), text.lines().last());
            assert!(shown.contains(&format!("output truncated at 3000 chars. {explanation}]")), "{shown}");
        }
    }

    #[test]
    fn progress_bars_are_folded_in_commands_only() {
        let text = "10%\r20%\r30%\n".to_owned() + &"same\n".repeat(9);
        let of = |name: &str| {
            truncate_result(&call(name), vec![Part::Text(text.clone())], false, Provenance::UNSAVED_DOCUMENT, 1000)
                .content
        };
        assert_eq!(of("bash"), [Part::Text("30%\nsame\n[previous line repeated 8 more times]\n".into())]);
        assert_eq!(of("read_file"), [Part::Text(text.clone())]);
    }

    #[test]
    fn largest_results_of_a_batch_shrink_first() {
        let outcome = |length: usize| ToolOutcome {
            tool_use_id: "a".into(),
            content: vec![Part::Text("x".repeat(length))],
            is_error: false,
        };
        let mut batch: Vec<_> = [1000, 9000, 100, 20_000].map(|length| (call("grep"), outcome(length))).into();
        fit_batch(&mut batch, 10_000);
        let lengths: Vec<usize> = batch.iter().map(|(_, outcome)| outcome.text().chars().count()).collect();
        assert_eq!((lengths[0], lengths[2]), (1000, 100));
        assert!(lengths.iter().sum::<usize>() <= 10_000 && lengths[1] > 4000 && lengths[3] > 4000, "{lengths:?}");
    }
}
