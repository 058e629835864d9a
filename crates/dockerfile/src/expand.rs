//! Expands variables in words: `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME:+other}`,
//! `${NAME-default}`, `${NAME+other}`. Removes quotes and escapes, as Docker does.

use std::ops::Range;

/// Nesting of defaults (`${A:-${B:-…}}`) that is followed; real Dockerfiles have one or two.
const MAX_DEPTH: usize = 16;
/// The kernel passes no longer argument or variable to a program (`MAX_ARG_STRLEN`).
const MAX_VALUE_BYTES: usize = 128 << 10;

/// Result of a variable lookup.
#[derive(Clone, Copy)]
pub(crate) enum Value<'v> {
    Set(&'v str),
    /// Declared without a value.
    Unset,
    /// Not declared in the file; the image may define it.
    Unknown,
}

/// How to treat a variable that only the image may define.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownVariable {
    /// Keep the reference for the server, and escape all other dollar signs.
    Keep,
    /// Fail, unless the reference has a default.
    Reject,
}

/// Byte range in the word, and the message.
type ExpandError = (Range<usize>, String);

/// Expands the variables of a word and removes its quotes and escapes.
pub(crate) fn expand<'v>(
    word: &str,
    escape: char,
    unknown: UnknownVariable,
    lookup: &dyn Fn(&str) -> Value<'v>,
) -> Result<String, ExpandError> {
    let mut expansion = Expansion { word, at: 0, escape, unknown, lookup, result: String::new(), depth: 0 };
    expansion.run(None)?;
    Ok(expansion.result)
}

struct Expansion<'a, 'v> {
    word: &'a str,
    at: usize,
    escape: char,
    unknown: UnknownVariable,
    lookup: &'a dyn Fn(&str) -> Value<'v>,
    result: String,
    /// How many variables this is within.
    depth: usize,
}

impl Expansion<'_, '_> {
    fn peek(&self) -> Option<char> {
        self.word[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        Some(character)
    }

    fn push(&mut self, character: char) {
        if character == '$' && self.unknown == UnknownVariable::Keep {
            self.result.push('\\');
        }
        self.result.push(character);
    }

    fn push_all(&mut self, text: &str) {
        text.chars().for_each(|character| self.push(character));
    }

    /// Expands until the end of the word, or through the first unquoted `end`. Returns whether it
    /// found `end`.
    fn run(&mut self, end: Option<char>) -> Result<bool, ExpandError> {
        let mut in_quotes = false;
        while let Some(character) = self.next() {
            match character {
                _ if Some(character) == end && !in_quotes => return Ok(true),
                '\'' if !in_quotes => {
                    while let Some(inner) = self.next().filter(|inner| *inner != '\'') {
                        self.push(inner);
                    }
                }
                '"' => in_quotes = !in_quotes,
                _ if character == self.escape => match self.peek() {
                    // Within double quotes the escape applies only to these characters.
                    Some(next) if !in_quotes || next == '"' || next == '$' || next == self.escape => {
                        self.next();
                        self.push(next);
                    }
                    _ => self.push(character),
                },
                '$' => self.variable()?,
                other => self.push(other),
            }
        }
        Ok(false)
    }

    fn variable(&mut self) -> Result<(), ExpandError> {
        let start = self.at - 1;
        let braced = self.peek() == Some('{');
        if braced {
            self.next();
        }
        let name_start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.next();
        }
        let name = &self.word[name_start..self.at];
        if !braced {
            match name {
                "" => self.push('$'),
                name => self.substitute(name, start, None)?,
            }
            return Ok(());
        }
        if name.is_empty() {
            return Err((start..self.at, "a name is missing after ${".to_owned()));
        }
        let rest = &self.word[self.at..];
        let operation = ["}", ":-", ":+", "-", "+"].into_iter().find(|operation| rest.starts_with(operation));
        let Some(operation) = operation else {
            let message = "only ${NAME}, ${NAME:-default} and ${NAME:+other} are understood".to_owned();
            return Err((start..self.at + rest.chars().next().map_or(0, char::len_utf8), message));
        };
        self.at += operation.len();
        if operation == "}" {
            return self.substitute(name, start, None);
        }
        if self.depth == MAX_DEPTH {
            return Err((start..self.at, format!("more than {MAX_DEPTH} variables are within each other")));
        }
        let mut inner = Expansion { result: String::new(), depth: self.depth + 1, ..*self };
        if !inner.run(Some('}'))? {
            return Err((start..self.word.len(), "this variable has no closing brace".to_owned()));
        }
        let (at, other) = (inner.at, inner.result);
        self.at = at;
        self.substitute(name, start, Some((operation, other)))
    }

    fn substitute(&mut self, name: &str, start: usize, operation: Option<(&str, String)>) -> Result<(), ExpandError> {
        self.insert(name, start, operation)?;
        // A value that is used twice doubles, and so does the next one.
        if self.result.len() > MAX_VALUE_BYTES {
            let message =
                format!("with this variable it has more than {MAX_VALUE_BYTES} bytes, which no program can get");
            return Err((start..self.at, message));
        }
        Ok(())
    }

    fn insert(&mut self, name: &str, start: usize, operation: Option<(&str, String)>) -> Result<(), ExpandError> {
        let value = match (self.lookup)(name) {
            Value::Set(value) => Some(value),
            Value::Unset => None,
            Value::Unknown if self.unknown == UnknownVariable::Keep => {
                match operation {
                    None => self.result.push_str(&format!("${{{name}}}")),
                    Some((operation, other)) => {
                        let colon = if operation.starts_with(':') { "" } else { ":" };
                        self.result.push_str(&format!("${{{name}{colon}{operation}{other}}}"));
                    }
                }
                return Ok(());
            }
            Value::Unknown if operation.is_none() => {
                let message = format!(
                    "${name} is no ARG or ENV of this stage; variables of the image can be used in ENV, WORKDIR and RUN only"
                );
                return Err((start..self.at, message));
            }
            Value::Unknown => None,
        };
        let counts = |value: &str, operation: &str| !operation.starts_with(':') || !value.is_empty();
        match operation {
            None => self.push_all(value.unwrap_or_default()),
            Some((operation, other)) => {
                let value = value.filter(|value| counts(value, operation));
                // The expanded default is already escaped.
                match (operation.ends_with('-'), value) {
                    (true, Some(value)) => self.push_all(value),
                    (true, None) | (false, Some(_)) => self.result.push_str(&other),
                    (false, None) => {}
                }
            }
        }
        Ok(())
    }
}
