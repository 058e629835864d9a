//! Splits source text into comments, strings and names.
//!
//! The scanner knows just enough of each language to tell these apart. It does not parse: a piece
//! that spans lines is reported once per line, so that every finding has a line number.

/// The languages of the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Rust,
    /// TypeScript and JavaScript, with and without JSX.
    Script,
    Python,
    /// Shell, TOML and YAML: only the comments behind `#` are read.
    Hash,
    Markdown,
}

impl Language {
    /// The language of a file by its name; `None` for files that are not checked.
    pub fn from_path(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.') {
            Some((_, "rs")) => Some(Self::Rust),
            Some((_, "ts" | "tsx" | "mjs" | "js")) => Some(Self::Script),
            Some((_, "py")) => Some(Self::Python),
            Some((_, "toml" | "yaml" | "yml" | "sh")) => Some(Self::Hash),
            Some((_, "md")) => Some(Self::Markdown),
            None if name == "dev" => Some(Self::Hash),
            _ => None,
        }
    }
}

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A comment or a docstring.
    Comment,
    /// The content of a string literal.
    Text,
    /// An identifier.
    Name,
    /// A line of a document.
    Document,
}

/// A comment, string or name, at most one line long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub line: usize,
    pub kind: Kind,
    pub text: String,
}

/// All pieces of `text` in their order.
pub fn scan(language: Language, text: &str) -> Vec<Piece> {
    match language {
        Language::Markdown => scan_markdown(text),
        Language::Hash => scan_hash(text),
        _ => Scanner { chars: text.chars().collect(), at: 0, line: 1, pieces: Vec::new(), language }.run(),
    }
}

/// Replaces code between backticks by spaces, since it quotes names that are checked where they are
/// defined, or strings that travel.
pub fn without_code(text: &str) -> String {
    let mut inside = false;
    text.chars()
        .map(|c| {
            if c == '`' {
                inside = !inside;
                ' '
            } else if inside {
                ' '
            } else {
                c
            }
        })
        .collect()
}

fn scan_markdown(text: &str) -> Vec<Piece> {
    let mut fenced = false;
    let mut pieces = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            pieces.push(Piece { line: index + 1, kind: Kind::Document, text: line.to_owned() });
        }
    }
    pieces
}

fn scan_hash(text: &str) -> Vec<Piece> {
    let comment_of = |line: &str| {
        let line = line.trim_start();
        if line.starts_with('#') { Some(line.to_owned()) } else { line.find(" # ").map(|at| line[at..].to_owned()) }
    };
    text.lines()
        .enumerate()
        .filter_map(|(index, line)| comment_of(line).map(|text| Piece { line: index + 1, kind: Kind::Comment, text }))
        .collect()
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    line: usize,
    pieces: Vec<Piece>,
    language: Language,
}

impl Scanner {
    fn run(mut self) -> Vec<Piece> {
        while let Some(c) = self.peek(0) {
            match (self.language, c) {
                (Language::Rust | Language::Script, '/') if self.peek(1) == Some('/') => self.line_comment(),
                (Language::Rust | Language::Script, '/') if self.peek(1) == Some('*') => self.block_comment(),
                (Language::Python, '#') => self.line_comment(),
                (Language::Python, '"' | '\'') if self.peek(1) == Some(c) && self.peek(2) == Some(c) => {
                    self.until(&[c, c, c], 3, Kind::Comment);
                }
                (Language::Rust, 'r' | 'b' | 'c') if self.raw_string() => {}
                (Language::Rust, '"') => self.string('"', true),
                (Language::Rust, '\'') => self.char_or_lifetime(),
                (Language::Script, '`') => self.string('`', true),
                (Language::Script | Language::Python, '"' | '\'') => self.string(c, false),
                _ if c.is_alphabetic() || c == '_' => self.name(),
                _ if c.is_ascii_digit() => self.number(),
                _ => self.step(),
            }
        }
        self.pieces
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn step(&mut self) {
        if self.peek(0) == Some('\n') {
            self.line += 1;
        }
        self.at += 1;
    }

    fn starts_with(&self, end: &[char]) -> bool {
        self.chars[self.at..].starts_with(end)
    }

    fn push(&mut self, kind: Kind, text: &mut String) {
        if !text.is_empty() {
            self.pieces.push(Piece { line: self.line, kind, text: std::mem::take(text) });
        }
    }

    fn line_comment(&mut self) {
        let mut text = String::new();
        while let Some(c) = self.peek(0).filter(|c| *c != '\n') {
            text.push(c);
            self.at += 1;
        }
        self.push(Kind::Comment, &mut text);
    }

    /// Rust nests block comments, the others do not.
    fn block_comment(&mut self) {
        let mut depth = 0;
        let mut text = String::new();
        while let Some(c) = self.peek(0) {
            if self.starts_with(&['/', '*']) && (depth == 0 || self.language == Language::Rust) {
                depth += 1;
                self.at += 2;
            } else if self.starts_with(&['*', '/']) {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    break;
                }
            } else {
                if c == '\n' {
                    self.push(Kind::Comment, &mut text);
                } else {
                    text.push(c);
                }
                self.step();
            }
        }
        self.push(Kind::Comment, &mut text);
    }

    /// Reads up to `end`, past an opening of `skip` characters, without escapes.
    fn until(&mut self, end: &[char], skip: usize, kind: Kind) {
        self.at += skip;
        let mut text = String::new();
        while let Some(c) = self.peek(0) {
            if self.starts_with(end) {
                self.at += end.len();
                break;
            }
            if c == '\n' {
                self.push(kind, &mut text);
            } else {
                text.push(c);
            }
            self.step();
        }
        self.push(kind, &mut text);
    }

    /// Reads a Rust string with a prefix (`r"`, `br#"`, `c"`); false when there is none here.
    fn raw_string(&mut self) -> bool {
        let mut ahead = 0;
        while matches!(self.peek(ahead), Some('r' | 'b' | 'c')) && ahead < 2 {
            ahead += 1;
        }
        let raw = (0..ahead).any(|i| self.peek(i) == Some('r'));
        let mut hashes = 0;
        while raw && self.peek(ahead + hashes) == Some('#') {
            hashes += 1;
        }
        match self.peek(ahead + hashes) {
            Some('"') if raw => {
                let mut end = vec!['"'];
                end.extend(std::iter::repeat_n('#', hashes));
                self.until(&end, ahead + hashes + 1, Kind::Text);
                true
            }
            Some('"') => {
                self.at += ahead;
                self.string('"', true);
                true
            }
            Some('\'') if ahead == 1 && self.peek(0) == Some('b') => {
                self.at += 1;
                self.char_or_lifetime();
                true
            }
            _ => false,
        }
    }

    /// Reads a string with escapes. One that may not span lines ends with its line, so that an
    /// apostrophe in the text of a page swallows no more than the rest of the line.
    fn string(&mut self, quote: char, spans_lines: bool) {
        self.at += 1;
        let mut text = String::new();
        while let Some(c) = self.peek(0) {
            if c == quote || (c == '\n' && !spans_lines) {
                self.push(Kind::Text, &mut text);
                self.step();
                return;
            }
            if c == '\\' {
                self.step();
                if self.peek(0).is_some_and(|c| c != '\n') {
                    text.push(' ');
                    self.at += 1;
                    continue;
                }
            }
            match self.peek(0) {
                Some('\n') => self.push(Kind::Text, &mut text),
                Some(c) => text.push(c),
                None => break,
            }
            self.step();
        }
        self.push(Kind::Text, &mut text);
    }

    fn char_or_lifetime(&mut self) {
        let is_char = self.peek(1) == Some('\\') || self.peek(2) == Some('\'');
        self.at += 1;
        if is_char {
            while let Some(c) = self.peek(0) {
                self.step();
                match c {
                    '\\' => self.step(),
                    '\'' => break,
                    _ => {}
                }
            }
        }
    }

    fn name(&mut self) {
        let mut text = String::new();
        while let Some(c) = self.peek(0).filter(|c| c.is_alphanumeric() || *c == '_') {
            text.push(c);
            self.at += 1;
        }
        self.push(Kind::Name, &mut text);
    }

    /// Skips a number with its suffix, so that `0b1` is not read as a name.
    fn number(&mut self) {
        while self.peek(0).is_some_and(|c| c.is_alphanumeric() || c == '_') {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(language: Language, text: &str) -> Vec<(usize, Kind, String)> {
        scan(language, text).into_iter().map(|p| (p.line, p.kind, p.text)).collect()
    }

    #[test]
    fn rust_is_split_into_names_strings_and_comments() {
        let text = "let a = \"b // c\"; // d\n/* e /* f */ g */ let h = r#\"i\"j\"#;\n'k' 'l: b'\\'' m";
        assert_eq!(
            pieces(Language::Rust, text),
            [
                (1, Kind::Name, "let".into()),
                (1, Kind::Name, "a".into()),
                (1, Kind::Text, "b // c".into()),
                (1, Kind::Comment, "// d".into()),
                (2, Kind::Comment, " e  f  g ".into()),
                (2, Kind::Name, "let".into()),
                (2, Kind::Name, "h".into()),
                (2, Kind::Text, "i\"j".into()),
                (3, Kind::Name, "l".into()),
                (3, Kind::Name, "m".into()),
            ]
        );
    }

    #[test]
    fn strings_over_lines_are_reported_per_line() {
        let text = "\"a\nb\\\n  c\" d";
        let lines: Vec<_> = pieces(Language::Rust, text).into_iter().map(|(line, ..)| line).collect();
        assert_eq!(lines, [1, 2, 3, 3]);
    }

    #[test]
    fn docstrings_of_python_are_comments() {
        let text = "def f():\n    \"\"\"a\n    b\"\"\"\n    return 'c'  # d\n";
        let found = pieces(Language::Python, text);
        assert!(found.contains(&(2, Kind::Comment, "a".into())));
        assert!(found.contains(&(3, Kind::Comment, "    b".into())));
        assert!(found.contains(&(4, Kind::Text, "c".into())));
        assert!(found.contains(&(4, Kind::Comment, "# d".into())));
    }

    #[test]
    fn an_apostrophe_in_a_page_ends_with_its_line() {
        let found = pieces(Language::Script, "<p>It's</p>\n// b\n`c\n${d}`");
        assert!(found.contains(&(2, Kind::Comment, "// b".into())));
        assert!(found.contains(&(4, Kind::Text, "${d}".into())));
    }

    #[test]
    fn code_blocks_of_documents_are_skipped() {
        let found = pieces(Language::Markdown, "a\n```\nb\n```\nc `d` e");
        assert_eq!(found, [(1, Kind::Document, "a".into()), (5, Kind::Document, "c `d` e".into())]);
        assert_eq!(without_code("c `d` e"), "c     e");
    }

    #[test]
    fn comments_behind_a_hash_are_found() {
        let found = pieces(Language::Hash, "# a\nb=${#c} # d\ne='#f'\n");
        assert_eq!(found, [(1, Kind::Comment, "# a".into()), (2, Kind::Comment, " # d".into())]);
    }
}
