//! Splits the text into instructions: joins continued lines, drops comments, attaches
//! here-documents. Every byte of a joined line records its position in the file.

use std::ops::Range;

/// One instruction.
#[derive(Debug)]
pub(crate) struct Instruction {
    /// In upper case.
    pub(crate) keyword: String,
    /// Position of the keyword in the file.
    pub(crate) at: Range<usize>,
    pub(crate) rest: Text,
    pub(crate) documents: Vec<Document>,
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    /// Position of its marker (`<<EOF`) in the file.
    pub(crate) at: Range<usize>,
    /// Position of its marker in the joined line.
    pub(crate) mark: Range<usize>,
    pub(crate) delimiter: String,
    pub(crate) body: String,
}

/// A joined line.
#[derive(Debug, Default, Clone)]
pub(crate) struct Text {
    pub(crate) line: String,
    /// File position of each byte, and one more for the end.
    places: Vec<usize>,
}

impl Text {
    /// Maps a range of the line to a range of the file.
    pub(crate) fn place(&self, part: &Range<usize>) -> Range<usize> {
        let at = |index: usize| self.places.get(index).or(self.places.last()).copied().unwrap_or(0);
        let start = at(part.start);
        if part.is_empty() { start..start } else { start..at(part.end - 1) + 1 }
    }

    fn push(&mut self, piece: &str, at: usize) {
        self.line.push_str(piece);
        self.places.pop();
        self.places.extend(at..=at + piece.len());
    }

    /// Trims whitespace at both ends.
    fn trim(mut self) -> Self {
        let end = self.line.trim_end().len();
        self.line.truncate(end);
        self.places.truncate(end + 1);
        let start = self.line.len() - self.line.trim_start().len();
        self.line.drain(..start);
        self.places.drain(..start);
        self
    }
}

/// Returns all instructions, and the escape character that continues lines. The error is a position
/// and a message.
pub(crate) fn scan(text: &str) -> Result<(Vec<Instruction>, char), (Range<usize>, String)> {
    let escape = escape_character(text)?;
    let mut lines = Lines { text, at: if text.starts_with('\u{feff}') { 3 } else { 0 } };
    let mut found = Vec::new();
    while let Some((at, line)) = lines.next() {
        if line.trim().is_empty() || is_comment(line) {
            continue;
        }
        let joined = lines.join(at, line, escape).trim();
        let length = joined.line.find(char::is_whitespace).unwrap_or(joined.line.len());
        let (keyword, place) = (joined.line[..length].to_uppercase(), joined.place(&(0..length)));
        let rest = Text { line: joined.line[length..].to_owned(), places: joined.places[length..].to_vec() }.trim();
        let mut documents = Vec::new();
        if matches!(keyword.as_str(), "RUN" | "COPY" | "ADD") && !rest.line.starts_with('[') {
            for Mark { mark, delimiter, strip_tabs } in find_heredocs(&rest.line) {
                let at = rest.place(&mark);
                let unfinished = || (at.clone(), format!("this here-document has no end: no line is '{delimiter}'"));
                let body = lines.document(&delimiter, strip_tabs).ok_or_else(unfinished)?;
                documents.push(Document { at, mark, delimiter, body });
            }
        }
        found.push(Instruction { keyword, at: place, rest, documents });
    }
    Ok((found, escape))
}

/// Reads the parser directive `# escape=\`` from the leading comments.
fn escape_character(text: &str) -> Result<char, (Range<usize>, String)> {
    let mut lines = Lines { text, at: 0 };
    while let Some((at, line)) = lines.next() {
        let directive =
            line.trim_start_matches('\u{feff}').trim().strip_prefix('#').and_then(|rest| rest.split_once('='));
        let Some((name, value)) = directive else { break };
        if name.trim().eq_ignore_ascii_case("escape") {
            return match value.trim() {
                "\\" => Ok('\\'),
                "`" => Ok('`'),
                _ => Err((at..at + line.len(), "the escape character must be \\ or `".to_owned())),
            };
        }
    }
    Ok('\\')
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

struct Lines<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lines<'a> {
    /// The next line without its line ending, and its offset.
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let (start, rest) = (self.at, self.text.get(self.at..)?);
        if rest.is_empty() {
            return None;
        }
        let length = rest.find('\n');
        self.at += length.map_or(rest.len(), |length| length + 1);
        Some((start, rest[..length.unwrap_or(rest.len())].trim_end_matches('\r')))
    }

    /// Joins a line with its continuations. Comments and empty lines between them are skipped.
    fn join(&mut self, at: usize, line: &str, escape: char) -> Text {
        let mut joined = Text { line: String::new(), places: vec![at] };
        let (mut at, mut line) = (at, line);
        loop {
            let Some(kept) = line.trim_end().strip_suffix(escape) else {
                joined.push(line, at);
                return joined;
            };
            joined.push(kept, at);
            loop {
                let Some(next) = self.next() else { return joined };
                if !next.1.trim().is_empty() && !is_comment(next.1) {
                    (at, line) = next;
                    break;
                }
            }
        }
    }

    fn document(&mut self, delimiter: &str, strip_tabs: bool) -> Option<String> {
        let mut body = String::new();
        loop {
            let (_, line) = self.next()?;
            let line = if strip_tabs { line.trim_start_matches('\t') } else { line };
            if line == delimiter {
                return Some(body);
            }
            body.push_str(line);
            body.push('\n');
        }
    }
}

struct Mark {
    mark: Range<usize>,
    delimiter: String,
    strip_tabs: bool,
}

/// Finds here-document markers: `<<NAME`, `<<-NAME`, `<<"NAME"`, at the start of a word or after a
/// file descriptor number, outside of quotes.
fn find_heredocs(line: &str) -> Vec<Mark> {
    let mut found = Vec::new();
    let (mut quote, mut before, mut at) = (None, ' ', 0);
    while let Some(character) = line[at..].chars().next() {
        match (quote, character) {
            (None, '\\') => at += line[at + 1..].chars().next().map_or(0, char::len_utf8),
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            (None, '<') if line[at..].starts_with("<<") && (before.is_whitespace() || before.is_ascii_digit()) => {
                if let Some((delimiter, strip_tabs, length)) = delimiter(&line[at + 2..]) {
                    found.push(Mark { mark: at..at + 2 + length, delimiter, strip_tabs });
                    at += 1 + length;
                }
            }
            _ => {}
        }
        before = character;
        at += character.len_utf8();
    }
    found
}

/// Parses the text after `<<`: the delimiter, whether tabs are stripped, and the length in bytes.
fn delimiter(text: &str) -> Option<(String, bool, usize)> {
    let strip_tabs = text.starts_with('-');
    let word = &text[usize::from(strip_tabs)..];
    let quote = word.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let inner = &word[quote.map_or(0, char::len_utf8)..];
    let length = inner.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(inner.len());
    let closed = quote.is_none_or(|quote| inner[length..].starts_with(quote));
    let named = inner.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let quotes = if quote.is_some() { 2 } else { 0 };
    (closed && named).then(|| (inner[..length].to_owned(), strip_tabs, usize::from(strip_tabs) + quotes + length))
}
