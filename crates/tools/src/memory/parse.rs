//! Parses command lines for the small shell. Unsupported syntax is a syntax error.

/// A list of commands.
#[derive(Debug, Clone, Default)]
pub(super) struct Script {
    pub(super) items: Vec<Item>,
}

/// A pipeline, and when it runs.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) when: When,
    pub(super) pipeline: Vec<Command>,
    pub(super) background: bool,
    /// Source text.
    pub(super) source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Success,
    Failure,
}

#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) what: What,
    pub(super) redirections: Vec<Redirection>,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Words(Vec<Word>),
    Group(Script),
}

#[derive(Debug, Clone)]
pub(super) enum Redirection {
    /// Descriptor, path, whether to append.
    Out(u8, Word, bool),
    /// `2>&1`.
    ErrToOut,
    /// `1>&2`.
    OutToErr,
    /// `&>`.
    Both(Word),
    In(Word),
    Here(String),
}

/// A word: pieces that are joined after variable expansion.
pub(super) type Word = Vec<Piece>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Variable(String),
}

/// A syntax error, in bash's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Syntax(pub(super) String);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(Word, bool),
    Operator(&'static str),
    Here(String),
    Line,
}

pub(super) fn parse(text: &str) -> Result<Script, Syntax> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    let script = parser.script(false)?;
    match parser.peek() {
        None => Ok(script),
        Some(token) => Err(unexpected(token)),
    }
}

fn unexpected(token: &(Token, String)) -> Syntax {
    Syntax(format!("bash: eval: line 1: syntax error near unexpected token `{}'", token.1))
}

const OPERATORS: [&str; 16] =
    ["&&", "||", "2>&1", "1>&2", ">&2", "&>", "2>>", ">>", "2>", "<<", "|", ";", "&", ">", "<", "("];

fn tokens(text: &str) -> Result<Vec<(Token, String)>, Syntax> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut pending: Vec<String> = Vec::new();
    'outer: loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if rest.is_empty() {
            break;
        }
        if let Some(after) = rest.strip_prefix("\\\n") {
            rest = after;
            continue;
        }
        if rest.starts_with('#') {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
            continue;
        }
        if let Some(after) = rest.strip_prefix('\n') {
            rest = after;
            tokens.push((Token::Line, "newline".to_owned()));
            for mark in pending.drain(..) {
                let (body, after) = here(rest, &mark);
                let place = tokens.iter_mut().find(|(token, _)| *token == Token::Here(format!("\0{mark}")));
                if let Some(place) = place {
                    place.0 = Token::Here(body);
                }
                rest = after;
            }
            continue;
        }
        for operator in OPERATORS.iter().chain(&[")"]) {
            if let Some(after) = rest.strip_prefix(operator) {
                rest = after;
                if *operator == "<<" {
                    let (word, after) = word(rest.trim_start_matches([' ', '\t', '-']))?;
                    let mark: String = word
                        .iter()
                        .map(|piece| match piece {
                            Piece::Text(text) => text.as_str(),
                            Piece::Variable(name) => name.as_str(),
                        })
                        .collect();
                    rest = after;
                    tokens.push((Token::Here(format!("\0{mark}")), "<<".into()));
                    pending.push(mark);
                } else {
                    tokens.push((Token::Operator(operator), (*operator).to_owned()));
                }
                continue 'outer;
            }
        }
        let quoted = rest.starts_with(['\'', '"']);
        let before = rest;
        let (word, after) = word(rest)?;
        rest = after;
        tokens.push((Token::Word(word, quoted), before[..before.len() - after.len()].to_owned()));
    }
    // A here-document without its end has no content.
    for (token, _) in &mut tokens {
        if matches!(token, Token::Here(body) if body.starts_with('\0')) {
            *token = Token::Here(String::new());
        }
    }
    Ok(tokens)
}

/// The lines up to the delimiter, and what follows it.
fn here<'a>(text: &'a str, mark: &str) -> (String, &'a str) {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches('\n') == mark {
            return (text[..at].to_owned(), &text[at + line.len()..]);
        }
        at += line.len();
    }
    let body = if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
    (body, "")
}

fn word(text: &str) -> Result<(Word, &str), Syntax> {
    let mut pieces: Word = Vec::new();
    let push = |pieces: &mut Word, letter: char| match pieces.last_mut() {
        Some(Piece::Text(text)) => text.push(letter),
        _ => pieces.push(Piece::Text(letter.to_string())),
    };
    let mut rest = text;
    let mut in_double = false;
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        match letter {
            '"' => {
                in_double = !in_double;
                if pieces.is_empty() {
                    pieces.push(Piece::Text(String::new()));
                }
                rest = after;
            }
            '\'' if !in_double => {
                let end = after.find('\'').ok_or_else(|| unclosed('\''))?;
                if pieces.is_empty() || !matches!(pieces.last(), Some(Piece::Text(_))) {
                    pieces.push(Piece::Text(String::new()));
                }
                after[..end].chars().for_each(|letter| push(&mut pieces, letter));
                rest = &after[end + 1..];
            }
            '\\' => {
                let next = after.chars().next();
                match next {
                    Some('\n') => rest = &after[1..],
                    Some(next) if !in_double || "\"\\$`".contains(next) => {
                        push(&mut pieces, next);
                        rest = &after[next.len_utf8()..];
                    }
                    _ => {
                        push(&mut pieces, '\\');
                        rest = after;
                    }
                }
            }
            '$' => {
                let (name, after) = variable(after);
                match name {
                    Some(name) => pieces.push(Piece::Variable(name)),
                    None => push(&mut pieces, '$'),
                }
                rest = after;
            }
            '~' if !in_double
                && pieces.is_empty()
                && (after.is_empty() || after.starts_with(['/', ' ', '\n', ';'])) =>
            {
                pieces.push(Piece::Variable("HOME".into()));
                rest = after;
            }
            ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' if !in_double => break,
            letter => {
                push(&mut pieces, letter);
                rest = after;
            }
        }
    }
    if in_double {
        return Err(unclosed('"'));
    }
    Ok((pieces, rest))
}

fn unclosed(quote: char) -> Syntax {
    Syntax(format!("bash: eval: line 1: unexpected EOF while looking for matching `{quote}'"))
}

fn variable(text: &str) -> (Option<String>, &str) {
    if let Some(inside) = text.strip_prefix('{')
        && let Some(end) = inside.find('}')
    {
        return (Some(inside[..end].to_owned()), &inside[end + 1..]);
    }
    if let Some(letter) = text.chars().next().filter(|letter| "?$!#".contains(*letter)) {
        return (Some(letter.to_string()), &text[1..]);
    }
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(text.len());
    if end == 0 { (None, text) } else { (Some(text[..end].to_owned()), &text[end..]) }
}

struct Parser<'a> {
    tokens: &'a [(Token, String)],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&(Token, String)> {
        self.tokens.get(self.at)
    }

    fn takes(&mut self, operator: &str) -> bool {
        let found = matches!(self.peek(), Some((Token::Operator(known), _)) if *known == operator);
        self.at += usize::from(found);
        found
    }

    fn script(&mut self, inside: bool) -> Result<Script, Syntax> {
        let mut script = Script::default();
        let mut when = When::Always;
        loop {
            while matches!(self.peek(), Some((Token::Line, _))) {
                self.at += 1;
            }
            match self.peek() {
                None => break,
                Some((Token::Operator(")"), _)) if inside => break,
                Some(_) => {}
            }
            let start = self.at;
            let mut pipeline = vec![self.command()?];
            while self.takes("|") {
                while matches!(self.peek(), Some((Token::Line, _))) {
                    self.at += 1;
                }
                pipeline.push(self.command()?);
            }
            let source =
                self.tokens[start..self.at].iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" ");
            let background = self.takes("&");
            script.items.push(Item { when, pipeline, background, source });
            when = match self.peek() {
                Some((Token::Operator("&&"), _)) => When::Success,
                Some((Token::Operator("||"), _)) => When::Failure,
                Some((Token::Operator(";") | Token::Line, _)) => When::Always,
                _ if background => {
                    when = When::Always;
                    continue;
                }
                _ => break,
            };
            self.at += 1;
        }
        Ok(script)
    }

    fn command(&mut self) -> Result<Command, Syntax> {
        let mut words = Vec::new();
        let mut redirections = Vec::new();
        let mut group = None;
        if self.takes("(") {
            let inner = self.script(true)?;
            if !self.takes(")") {
                return Err(Syntax("bash: eval: line 2: syntax error: unexpected end of file".into()));
            }
            group = Some(inner);
        }
        while let Some((token, text)) = self.peek().cloned() {
            match token {
                Token::Word(word, _) if group.is_none() => {
                    self.at += 1;
                    words.push(word);
                }
                Token::Here(body) => {
                    self.at += 1;
                    redirections.push(Redirection::Here(body));
                }
                Token::Operator("2>&1") => {
                    self.at += 1;
                    redirections.push(Redirection::ErrToOut);
                }
                Token::Operator(">&2" | "1>&2") => {
                    self.at += 1;
                    redirections.push(Redirection::OutToErr);
                }
                Token::Operator(operator @ (">" | ">>" | "2>" | "2>>" | "<" | "&>")) => {
                    self.at += 1;
                    let Some((Token::Word(word, _), _)) = self.peek().cloned() else {
                        return Err(unexpected(self.peek().unwrap_or(&(Token::Line, "newline".into()))));
                    };
                    self.at += 1;
                    redirections.push(match operator {
                        ">" => Redirection::Out(1, word, false),
                        ">>" => Redirection::Out(1, word, true),
                        "2>" => Redirection::Out(2, word, false),
                        "2>>" => Redirection::Out(2, word, true),
                        "&>" => Redirection::Both(word),
                        _ => Redirection::In(word),
                    });
                }
                _ if words.is_empty() && redirections.is_empty() && group.is_none() => {
                    return Err(unexpected(&(token, text)));
                }
                _ => break,
            }
        }
        let what = group.map_or(What::Words(words), What::Group);
        Ok(Command { what, redirections })
    }
}
