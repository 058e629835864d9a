//! Results on their way to the model: cleaned, cut to the loop's own budget, and fitted together.

use std::sync::LazyLock;

use regex::Regex;
use tools::text::{Ended, Provenance, Truncation, collapse_repeats, fold_overwrites, truncate};

use crate::message::{Part, ToolOutcome, ToolUse};

/// A result that may have been cut.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shaped {
    pub(super) content: Vec<Part>,
    pub(super) truncated: bool,
}

/// Cuts all texts of a result to `budget` characters together. `provenance` completes the notice about a text that was not
/// cut before; one that was keeps what its notice says.
pub(super) fn shape(
    call: &ToolUse,
    content: Vec<Part>,
    is_error: bool,
    provenance: Provenance<'_>,
    budget: usize,
) -> Shaped {
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
    Shaped { content, truncated }
}

/// Cuts a text, but not its last lines: notices, and how a command ended.
fn fit(text: &str, budget: usize, is_error: bool, provenance: Provenance<'_>) -> String {
    if text.chars().count() <= budget {
        return text.to_owned();
    }
    let (body, foot) = split_foot(text);
    let uncut = uncut(body);
    let room = budget.saturating_sub(foot.chars().count() + usize::from(!foot.is_empty()));
    let ended = if is_error { Ended::Badly } else { Ended::Well };
    let explanation = earlier_explanation(body).map_or_else(|| provenance.explain(), str::to_owned);
    let how = Truncation { budget: room, ended, explanation: &explanation };
    let mut cut = truncate(uncut.as_deref().unwrap_or(body), how).text;
    // The model is told the limit, not what the last lines left of it.
    cut = cut.replace(&format!("output truncated at {room} chars"), &format!("output truncated at {budget} chars"));
    if !foot.is_empty() {
        if !cut.ends_with('\n') {
            cut.push('\n');
        }
        cut.push_str(foot);
    }
    cut
}

/// Lines in brackets at the end, a few at most.
fn split_foot(text: &str) -> (&str, &str) {
    const MOST_LINES: usize = 8;
    const MOST_BYTES: usize = 2000;
    let mut start = text.len();
    for line in text.split_inclusive('\n').rev().take(MOST_LINES) {
        let shown = line.trim_end();
        let is_note = shown.starts_with('[') && shown.ends_with(']') && !NOTICE.is_match(shown);
        if !is_note || text.len() - (start - line.len()) > MOST_BYTES {
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

/// What stands in for a text that the dispatcher has cut: its head and tail are what they were, the important lines are at
/// their numbers, and blanks fill the rest, so that a further cut counts in lines and characters of the whole.
fn uncut(text: &str) -> Option<String> {
    /// More would take longer than it is worth.
    const MOST: usize = 32 * 1024 * 1024;
    const SALIENT_TITLE: &str = "[Lines of the omitted part that look important:]\n";
    const SALIENT_END: &str = "[… the end of the output follows:]\n";
    let notice = NOTICE.captures(text)?;
    let whole = notice.get(0)?;
    let number = |index: usize| notice.get(index)?.as_str().parse::<usize>().ok();
    let (lines, chars, first) = (number(1)?, number(2)?, number(3)?);
    if chars > MOST || lines > chars + 1 {
        return None;
    }
    let head = &text[..whole.start()];
    let rest = text[whole.end()..].strip_prefix('\n')?;
    let (salient, tail) = match rest.strip_prefix(SALIENT_TITLE).and_then(|rest| rest.split_once(SALIENT_END)) {
        Some((salient, tail)) => (salient, tail),
        None => ("", rest),
    };
    // The notice stands again at the end.
    let tail = tail.trim_end_matches('\n').strip_suffix(whole.as_str())?;
    let important: Vec<(usize, &str)> = salient
        .lines()
        .filter_map(|line| {
            let (number, line) = line.split_once(": ")?;
            Some((number.parse::<usize>().ok()?.checked_sub(first)?, line))
        })
        .collect();
    // Each line has its end; what else there was is spread from the first line on.
    let said: usize = important.iter().map(|(_, line)| line.chars().count()).sum();
    let mut blanks = chars.checked_sub(lines + said)?;
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
    // The highest cap under which all fit: the small ones stay whole.
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
        outcome.content = shape(call, content, outcome.is_error, Provenance::UNSAVED_DOCUMENT, cap).content;
    }
}

/// What the notice of an earlier cut says about the omitted part. It is the last line of a text that was cut; elsewhere it
/// is part of the output.
fn earlier_explanation(text: &str) -> Option<&str> {
    let last = text.trim_end_matches('\n').lines().next_back()?;
    NOTICE.captures(last)?.get(6).map(|explanation| explanation.as_str())
}

/// One line of a result, for people.
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

/// The text of a result for those who watch: whole, or its beginning and its end.
pub(super) fn excerpt(outcome: &ToolOutcome) -> String {
    const MOST: usize = 16 * 1024;
    const SIDE: usize = MOST / 2 - 64;
    let text = outcome.text();
    if text.len() <= MOST {
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
    fn an_excerpt_keeps_both_ends_and_its_limit() {
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
    fn a_second_cut_is_the_cut_of_the_whole() {
        let whole = numbered(10_000);
        let cut = |text: &str, budget| {
            truncate(text, Truncation { budget, ended: Ended::Well, explanation: "It is in /o." }).text
        };
        let by_dispatcher = cut(&whole, 50_000);
        let again = uncut(&by_dispatcher).expect("it was cut");
        assert_eq!(again.chars().count(), whole.chars().count());
        assert_eq!(cut(&again, 30_000), cut(&whole, 30_000));
    }

    #[test]
    fn the_exit_line_stays_last_and_the_limit_is_kept() {
        for (text, explanation) in [
            (format!("{}[note]\n[exit 1]", numbered(5000)), "The rest was not kept; narrow what is asked for."),
            (
                format!(
                    "{}\n[exit 0]",
                    truncate(
                        &numbered(20_000),
                        Truncation { budget: 49_000, ended: Ended::Well, explanation: "Gone." }
                    )
                    .text
                ),
                "Gone.",
            ),
        ] {
            let Shaped { content, truncated } =
                shape(&call("bash"), vec![Part::Text(text.clone())], true, Provenance::UNSAVED_DOCUMENT, 3000);
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
            shape(&call(name), vec![Part::Text(text.clone())], false, Provenance::UNSAVED_DOCUMENT, 1000).content
        };
        assert_eq!(of("bash"), [Part::Text("30%\nsame\n[previous line repeated 8 more times]\n".into())]);
        assert_eq!(of("read_file"), [Part::Text(text.clone())]);
    }

    #[test]
    fn the_largest_of_a_batch_shrink_first() {
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
