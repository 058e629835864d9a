//! Splits a joined line into words, separated by whitespace and grouped by quotes; parses JSON
//! lists.

use std::ops::Range;

/// A part of a line with its quotes and escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// Position in the line.
    pub(crate) at: Range<usize>,
}

/// Splits at whitespace outside of quotes.
pub(crate) fn split(line: &str, escape: char) -> Result<Vec<Word>, (Range<usize>, String)> {
    let mut words: Vec<Word> = Vec::new();
    let (mut start, mut quote): (Option<usize>, Option<(char, usize)>) = (None, None);
    let mut characters = line.char_indices();
    while let Some((at, character)) = characters.next() {
        match quote {
            None if character.is_whitespace() => {
                if let Some(start) = start.take() {
                    words.push(Word { text: line[start..at].to_owned(), at: start..at });
                }
                continue;
            }
            None if matches!(character, '"' | '\'') => quote = Some((character, at)),
            Some((open, _)) if open == character => quote = None,
            _ => {}
        }
        start.get_or_insert(at);
        // Within single quotes nothing is escaped.
        if character == escape && !matches!(quote, Some(('\'', _))) {
            characters.next();
        }
    }
    if let Some((_, at)) = quote {
        return Err((at..at + 1, "this quote has no end".to_owned()));
    }
    words.extend(start.map(|start| Word { text: line[start..].to_owned(), at: start..line.len() }));
    Ok(words)
}

/// Parses a JSON list of strings; [`None`] when the line is a shell command.
pub(crate) fn parse_json_list(line: &str) -> Option<Vec<String>> {
    let mut rest = line.trim().strip_prefix('[')?.trim_start();
    let mut found = Vec::new();
    if let Some(after) = rest.strip_prefix(']') {
        return after.is_empty().then_some(found);
    }
    loop {
        let (text, after) = parse_json_string(rest)?;
        found.push(text);
        rest = after.trim_start();
        if let Some(after) = rest.strip_prefix(',') {
            rest = after.trim_start();
        } else {
            return rest.strip_prefix(']')?.is_empty().then_some(found);
        }
    }
}

fn parse_json_string(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let (mut value, mut characters) = (String::new(), inner.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &inner[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                same @ ('"' | '\\' | '/') => same,
                'u' => {
                    let digits: String = characters.by_ref().take(4).map(|(_, digit)| digit).collect();
                    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                }
                _ => return None,
            }),
            control if control < ' ' => return None,
            other => value.push(other),
        }
    }
    None
}

/// Quotes a text as one shell word.
pub(crate) fn shell_quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r#"'"'"'"#))
}
