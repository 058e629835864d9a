//! Explains why the text of an edit is not in the file. It only explains: nothing is ever applied
//! because of it.

use similar::TextDiff;

/// Least similarity of a part of the file that is shown.
const LIKENESS: f32 = 0.6;
/// Limits of the work that an explanation is worth.
const MAX_LINES: usize = 20_000;
const MAX_CANDIDATES: usize = 400;
const MAX_SHOWN: usize = 20;

/// One or more sentences; empty if there is no explanation. `prefix` numbers lines as `read_file`
/// does.
pub(crate) fn explain(text: &str, old: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let wanted = old.replace("\r\n", "\n");
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > MAX_LINES || wanted.trim().is_empty() {
        return String::new();
    }
    if wanted.ends_with('\n') && !text.ends_with('\n') && text.ends_with(wanted.trim_end_matches('\n')) {
        return "old_string ends with a newline but the file does not. Leave the last newline out.".to_owned();
    }
    let unescaped = wanted.replace("\\n", "\n").replace("\\t", "\t").replace("\\\"", "\"");
    if unescaped != wanted && text.contains(&unescaped) {
        return "old_string has escape sequences (\\n, \\t, \\\") where the file has the characters themselves. Send the text \
                unescaped."
            .to_owned();
    }
    let Some((at, height)) = nearest(&lines, &wanted) else { return String::new() };
    let piece = &lines[at..at + height];
    let class = difference(&piece.join("\n"), wanted.trim_end_matches('\n'));
    let shown: Vec<String> =
        piece.iter().take(MAX_SHOWN).enumerate().map(|(n, line)| format!("{}\t{line}", at + n + 1)).collect();
    format!("The nearest text is at line {}{class}:\n{}", at + 1, shown.join("\n"))
}

/// The part of the file most similar to the text: its first line from 0, and its height.
fn nearest(lines: &[&str], wanted: &str) -> Option<(usize, usize)> {
    let wanted = wanted.trim_end_matches('\n');
    let height = wanted.lines().count().clamp(1, lines.len().max(1));
    if lines.is_empty() {
        return None;
    }
    let last = lines.len() - height;
    // Parts that share a line with the text, ignoring blanks, come first; without any, all are
    // compared.
    let plain = |line: &str| normalize_confusables(line);
    let parts: Vec<String> = wanted.lines().map(plain).filter(|line| !line.is_empty()).collect();
    let mut starts: Vec<usize> = (0..=last)
        .filter(|start| lines[*start..*start + height].iter().any(|line| parts.contains(&plain(line))))
        .collect();
    if starts.is_empty() {
        starts = (0..=last).collect();
    }
    let letters = wanted.chars().count();
    let likeness = |start: usize| {
        let piece = lines[start..start + height].join("\n");
        if piece.chars().count() > 4 * letters + 80 {
            return 0.0;
        }
        TextDiff::from_chars(piece.as_str(), wanted).ratio()
    };
    // Comparing lines is cheap; characters are compared only for the best candidates.
    let cheap = |start: usize| {
        let same = lines[start..start + height].iter().zip(wanted.lines());
        same.map(|(a, b)| common(a, b)).sum::<usize>()
    };
    if starts.len() > MAX_CANDIDATES {
        starts.sort_by_key(|start| std::cmp::Reverse(cheap(*start)));
        starts.truncate(MAX_CANDIDATES);
        starts.sort_unstable();
    }
    let mut best: Option<(usize, f32)> = None;
    for start in starts {
        let like = likeness(start);
        if like >= LIKENESS && best.is_none_or(|(_, known)| like > known) {
            best = Some((start, like));
        }
    }
    best.map(|(start, _)| (start, height))
}

/// Number of first and last characters that two lines share, ignoring blanks.
fn common(a: &str, b: &str) -> usize {
    let (a, b) = (a.trim(), b.trim());
    let front = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    let back = a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).count();
    front + back
}

/// The text with one form for characters that are easily confused.
fn normalize_confusables(text: &str) -> String {
    let one_form = |letter: char| match letter {
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{2032}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{2033}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{a0}' | '\u{202f}' | '\u{2009}' | '\t' => ' ',
        other => other,
    };
    text.chars().map(one_form).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The kind of difference between a part of the file and the wanted text.
fn difference(file: &str, wanted: &str) -> &'static str {
    let without_indent = |text: &str| text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
    let without_blanks = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    if without_indent(file) == without_indent(wanted) {
        let tabs = file.lines().any(|line| line.starts_with('\t'));
        if tabs && !wanted.lines().any(|line| line.starts_with('\t')) {
            ", which differs in indentation (the file has tabs)"
        } else if !tabs && wanted.lines().any(|line| line.starts_with('\t')) {
            ", which differs in indentation (the file has spaces)"
        } else {
            ", which differs in indentation"
        }
    } else if without_blanks(file) == without_blanks(wanted) {
        ", which differs in white space inside the lines"
    } else if normalize_confusables(file) == normalize_confusables(wanted) {
        ", which differs in typographic characters (quotes, dashes or special spaces)"
    } else if file.to_lowercase() == wanted.to_lowercase() {
        ", which differs in upper and lower case"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, old: &str, expected: &str) {
        let explanation = explain(text, old);
        assert!(explanation.contains(expected), "{explanation:?} does not say {expected:?}");
    }

    #[test]
    fn kind_of_difference_is_named() {
        check(
            "fn a() {\n\tlet x = 1;\n}\n",
            "    let x = 1;",
            "at line 2, which differs in indentation (the file has tabs)",
        );
        check("a\n  b = 1\n", "\tb = 1", "the file has spaces");
        check("let a  =  1;\n", "let a = 1;", "white space inside the lines");
        check("say “hi”\n", "say \"hi\"", "typographic");
        check("let Value = 1;\n", "let value = 1;", "upper and lower case");
        check("a\nb\n", "a\\nb", "Send the text unescaped");
        check("a\nlast", "last\n", "the file does not");
        check("x\nfn compute(a: u32) {}\ny\n", "fn compute(b: u32) {}", "at line 2:\n2\tfn compute(a: u32) {}");
    }

    #[test]
    fn no_similar_text_gives_no_explanation() {
        assert_eq!(explain("alpha\nbeta\n", "completely different text of no likeness"), "");
        assert_eq!(explain("", "x"), "");
        assert_eq!(explain("a\n", "  \n"), "");
    }
}
