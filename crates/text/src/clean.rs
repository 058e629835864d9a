//! Removes what only a terminal understands.

/// Longest operating system command, such as a window title; a longer text is not one.
const MAX_STRING: usize = 4096;

/// Removes ANSI escape codes: colours, cursor movements, window titles, links. Everything else
/// stays, `\r` too. An incomplete sequence loses only its escape character, so that it cannot
/// swallow later text.
pub fn strip_escapes(text: &str) -> String {
    if !text.contains(['\u{1b}', '\u{9b}']) {
        return text.to_owned();
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\u{1b}', '\u{9b}']) {
        clean.push_str(&rest[..at]);
        rest = after_escape(&rest[at..]);
    }
    clean.push_str(rest);
    clean
}

/// The text after the sequence at the start of `text`.
fn after_escape(text: &str) -> &str {
    let mut chars = text.chars();
    let first = chars.next();
    let only_escape = chars.as_str();
    if first == Some('\u{9b}') {
        return after_control(only_escape).unwrap_or(only_escape);
    }
    match chars.next() {
        Some('[') => after_control(chars.as_str()).unwrap_or(only_escape),
        Some(']' | 'P' | 'X' | '^' | '_') => after_string(chars.as_str()).unwrap_or(only_escape),
        // Two more characters select a character set or the like.
        Some(' '..='/') => {
            let end = chars.as_str().trim_start_matches(|c| matches!(c, ' '..='/'));
            let mut end = end.chars();
            if matches!(end.next(), Some('0'..='~')) { end.as_str() } else { only_escape }
        }
        Some('0'..='~') => chars.as_str(),
        _ => only_escape,
    }
}

/// The text after parameters, intermediates and final character of a control sequence.
fn after_control(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c| matches!(c, '0'..='?'));
    let rest = rest.trim_start_matches(|c| matches!(c, ' '..='/'));
    rest.strip_prefix(|c| matches!(c, '@'..='~'))
}

/// The text after a string that ends with BEL or `ESC \`.
fn after_string(text: &str) -> Option<&str> {
    let end = text.find(['\u{7}', '\u{1b}', '\n'])?;
    if end > MAX_STRING {
        return None;
    }
    text[end..].strip_prefix('\u{7}').or_else(|| text[end..].strip_prefix("\u{1b}\\"))
}

/// Each line as a terminal finally shows it, without what `\r` overwrote. Only the agent loop does
/// this, since a spill file keeps the original.
pub fn fold_overwrites(text: &str) -> String {
    if !text.contains('\r') {
        return text.to_owned();
    }
    let mut folded = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (body, end) = match line.strip_suffix("\r\n") {
            Some(body) => (body, "\r\n"),
            None => match line.strip_suffix('\n') {
                Some(body) => (body, "\n"),
                None => (line, ""),
            },
        };
        let mut shown: Vec<char> = Vec::new();
        for piece in body.split('\r') {
            let piece: Vec<char> = piece.chars().collect();
            if piece.len() >= shown.len() {
                shown = piece;
            } else {
                shown[..piece.len()].copy_from_slice(&piece);
            }
        }
        folded.extend(shown);
        folded.push_str(end);
    }
    folded
}

/// Collapses five or more equal consecutive lines into one and a count.
pub fn collapse_repeats(text: &str) -> String {
    const FEWEST: usize = 5;
    let mut collapsed = String::with_capacity(text.len());
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut at = 0;
    while at < lines.len() {
        let same = lines[at..].iter().take_while(|line| **line == lines[at]).count();
        if same >= FEWEST {
            collapsed.push_str(lines[at]);
            collapsed.push_str(&format!("[previous line repeated {} more times]\n", same - 1));
        } else {
            lines[at..at + same].iter().for_each(|line| collapsed.push_str(line));
        }
        at += same;
    }
    collapsed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(strip_escapes(text), expected);
    }

    #[test]
    fn escape_codes_are_removed() {
        check("\u{1b}[1;31merror\u{1b}[0m: no", "error: no");
        check("\u{1b}]0;title\u{7}x", "x");
        check("\u{1b}]8;;http://a\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link");
        check("\u{1b}(Ba\u{1b}=b\u{1b}M", "ab");
        check("\u{9b}2Kx", "x");
        check("10%\r100%\n", "10%\r100%\n");
        check("a\tb", "a\tb");
    }

    #[test]
    fn incomplete_escape_keeps_the_text() {
        check("\u{1b}]0;title that never ends\nnext line", "]0;title that never ends\nnext line");
        check("end\u{1b}", "end");
        check("\u{1b}[31", "[31");
        check("\u{1b}[äb", "[äb");
    }

    #[test]
    fn overwrites_fold_as_in_a_terminal() {
        assert_eq!(fold_overwrites(" 10%\r 50%\r100%\ndone\r\n"), "100%\ndone\r\n");
        assert_eq!(fold_overwrites("abcdef\rxy\n"), "xycdef\n");
    }

    #[test]
    fn repeated_lines_are_collapsed() {
        assert_eq!(collapse_repeats(&"y\n".repeat(7)), "y\n[previous line repeated 6 more times]\n");
        assert_eq!(collapse_repeats("y\ny\ny\ny\n"), "y\ny\ny\ny\n");
    }

    proptest! {
        #[test]
        fn text_without_escapes_is_unchanged(text in "[^\u{1b}\u{9b}]{0,200}") {
            prop_assert_eq!(strip_escapes(&text), text);
        }

        #[test]
        fn stripping_leaves_no_escape(text in "[\u{1b}\u{9b}\u{7}\\[\\];0-9a-zä\n ]{0,80}") {
            let left = strip_escapes(&text).contains(['\u{1b}', '\u{9b}']);
            prop_assert!(!left);
        }
    }
}
