//! Detects values of an environment in files that are stored in plain text and for long.
//!
//! Only values that look like secrets are searched for: many files legitimately contain a short
//! word or the URL of a service, and rejecting those saves would lose work. They are found verbatim
//! and as programs write them: escaped for JSON or for a URL, in hexadecimal, and in base64, also
//! within a longer text (`Basic` credentials). Compressed, encrypted or split values are not
//! found: the caller inflates what it can.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::plain::is_plain;

/// Shorter values are never searched for, whatever the name of their variable.
const SHORTEST: usize = 8;
/// The minimum for variables whose names do not indicate a secret.
const SHORTEST_UNNAMED: usize = 16;
/// All characters except those that URLs leave unescaped.
const URL_ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Shorter base64 texts match too many other texts.
const SHORTEST_BASE64: usize = 10;

/// Parts of the names of variables that hold secrets.
const SECRET_NAMES: [&str; 8] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "PRIVATE", "COOKIE"];

/// Values that no stored file may contain. Cheap to clone.
#[derive(Clone, Default)]
pub struct EnvValues(Option<Arc<Finder>>);

struct Finder {
    names: Vec<String>,
    /// For each text searched for, the index of its variable's name.
    variables: Vec<usize>,
    longest: usize,
    finder: AhoCorasick,
}

impl EnvValues {
    /// Selects the values that look like secrets.
    pub fn for_variables<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        let secrets = variables.into_iter().map(|(name, value)| (name, value.trim_matches(['\r', '\n'])));
        let (names, values): (Vec<String>, Vec<&str>) = secrets
            .filter(|(name, value)| is_secret(name, value))
            .map(|(name, value)| (name.to_owned(), value))
            .unzip();
        let texts = values
            .iter()
            .enumerate()
            .flat_map(|(place, value)| encodings(value).into_iter().map(move |text| (place, text)));
        let (variables, texts): (Vec<usize>, Vec<String>) = texts.unzip();
        let longest = texts.iter().map(String::len).max().unwrap_or_default();
        // Fails only beyond two billion states, which no environment can reach.
        let finder = AhoCorasick::new(&texts).ok().filter(|_| !texts.is_empty());
        Self(finder.map(|finder| Arc::new(Finder { names, variables, longest, finder })))
    }

    /// Whether there is nothing to search for.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Starts the search of one file.
    pub fn search(&self) -> ValueSearch<'_> {
        ValueSearch { finder: self.0.as_deref(), held: Vec::new(), found: BTreeSet::new() }
    }
}

/// Omits the values.
impl fmt::Debug for EnvValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnvValues").field(&self.0.as_ref().map_or(&[][..], |finder| &finder.names)).finish()
    }
}

/// The search of one file, whose content arrives in chunks that may split a value.
pub struct ValueSearch<'v> {
    finder: Option<&'v Finder>,
    /// The end of the input so far, in which a value may start.
    held: Vec<u8>,
    found: BTreeSet<usize>,
}

impl ValueSearch<'_> {
    pub fn push(&mut self, piece: &[u8]) {
        let Some(Finder { longest, finder, variables, .. }) = self.finder else { return };
        let keep = longest - 1;
        // Searches the boundary first, so that the chunk itself need not be copied.
        self.held.extend_from_slice(&piece[..piece.len().min(keep)]);
        self.found.extend(finder.find_iter(&self.held).map(|found| variables[found.pattern().as_usize()]));
        self.found.extend(finder.find_iter(piece).map(|found| variables[found.pattern().as_usize()]));
        if piece.len() >= keep {
            self.held.clear();
            self.held.extend_from_slice(&piece[piece.len() - keep..]);
        } else {
            self.held.drain(..self.held.len().saturating_sub(keep));
        }
    }

    /// The variables whose values were found.
    pub fn finish(self) -> Vec<String> {
        let Some(Finder { names, .. }) = self.finder else { return Vec::new() };
        self.found.into_iter().map(|place| names[place].clone()).collect()
    }
}

/// The forms in which programs write a value.
fn encodings(value: &str) -> BTreeSet<String> {
    let json = serde_json::to_string(value).expect("a text can be written as JSON");
    let url = utf8_percent_encode(value, URL_ESCAPED).to_string();
    // Only the hexadecimal digits of an escape have two forms.
    let lower = url.split('%').enumerate().map(|(place, part)| match part.split_at_checked(2) {
        Some((digits, rest)) if place > 0 => format!("%{}{rest}", digits.to_ascii_lowercase()),
        _ => part.to_owned(),
    });
    let hex = hex::encode(value);
    let lower: String = lower.collect();
    let mut texts = BTreeSet::from([value.to_owned(), json[1..json.len() - 1].to_owned()]);
    texts.extend([hex.to_ascii_uppercase(), hex]);
    texts.extend([url.replace("%20", "+"), lower.replace("%20", "+"), url, lower]);
    // The digits depend on the offset of the value; those at its ends also on neighbouring bytes.
    for before in 0..3_usize {
        let encoded = BASE64_STANDARD_NO_PAD.encode([&vec![0; before][..], value.as_bytes()].concat());
        let (begin, end) = ((before * 8).div_ceil(6), (before + value.len()) * 8 / 6);
        let whole = encoded[begin..end].to_owned();
        if whole.len() >= SHORTEST_BASE64 {
            texts.insert(whole.replace('+', "-").replace('/', "_"));
            texts.insert(whole);
        }
    }
    texts
}

/// Whether a value must stay out of archives: its variable's name says so, or it looks like a key
/// or password.
fn is_secret(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    if value.len() < SHORTEST || is_plain(value) {
        return false;
    }
    let named = SECRET_NAMES.iter().any(|part| name.contains(part));
    let has = |is: fn(&u8) -> bool| value.as_bytes().iter().any(is);
    // One key in 64 of base64 begins like a path.
    let is_encoded = has(u8::is_ascii_digit)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_uppercase)
        && !has(|byte| b".~-_".contains(byte));
    if is_place(value) && !(named && value.starts_with('/') && is_encoded) {
        return false;
    }
    let random = has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic) && !has(u8::is_ascii_whitespace);
    named || (value.len() >= SHORTEST_UNNAMED && random)
}

/// Whether the value is a path, or a URL without a password.
fn is_place(value: &str) -> bool {
    match value.split_once("://") {
        Some((_, rest)) => !rest.split('/').next().unwrap_or_default().contains('@') && !rest.contains('?'),
        None => value.starts_with(['/', '~']) || value.starts_with("./"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_searched_for_and_settings_are_not() {
        let check =
            |name: &str, value: &str, wanted: bool| assert_eq!(is_secret(name, value), wanted, "{name}={value}");
        check("API_TOKEN", "the-hidden-value", true);
        check("OPENAI_API_KEY", "sk-abc12345", true);
        check("DB", "postgres://me:hidden1@host/db", true);
        check("ANYTHING", "x9f8a7b6c5d4e3f2a1", true);
        check("PEM", "-----BEGIN KEY-----\nabc", false);
        check("PRIVATE_KEY", "-----BEGIN KEY-----\nabc", true);
        check("API_URL", "https://api.example.com/v1", false);
        check("KEY_FILE", "/home/user/key.pem", false);
        check("AWS_SECRET_ACCESS_KEY", "/Jalr8utnFEMIbPxRfiCYzEXAMPLEK3Ybc", true);
        check("GIT_ASKPASS", "/usr/lib/git-core/askpass2", false);
        check("TOKEN", "short", false);
        check("NODE_ENV", "production", false);
        check("GREETING", "hello to all of you", false);
    }

    #[test]
    fn values_are_found_across_chunk_boundaries() {
        let values =
            EnvValues::for_variables([("A_KEY", "0123456789"), ("B_TOKEN", "abcdefghijklmnop"), ("PORT", "3000")]);
        let text = b"3000 xx0123456789yy abcdefghijklmno abcdefghijklmnop".repeat(2);
        for size in [1, 2, 3, 7, 9, 10, 15, 16, 17, 1000] {
            let mut search = values.search();
            text.chunks(size).for_each(|piece| search.push(piece));
            assert_eq!(search.finish(), ["A_KEY", "B_TOKEN"], "{size}");
        }
        let mut search = values.search();
        [&b"01234"[..], b"", b"5678", b"_9"].iter().for_each(|piece| search.push(piece));
        assert_eq!(search.finish(), [""; 0]);
        let nothing = EnvValues::default();
        let mut none = nothing.search();
        none.push(b"0123456789");
        assert_eq!(none.finish(), [""; 0]);
    }

    #[test]
    fn encoded_values_are_found() {
        let value = "p\"ss w\u{f6}rd/1+2?3";
        let values = EnvValues::for_variables([("DB_PASSWORD", value), ("OTHER_KEY", "another-value-1")]);
        let found = |text: &str| {
            let mut search = values.search();
            search.push(text.as_bytes());
            !search.finish().is_empty()
        };
        let encode = |text: &str| BASE64_STANDARD_NO_PAD.encode(text);
        assert!(found(value) && found(&serde_json::json!({ "a": value }).to_string()));
        assert!(found("x=p%22ss%20w%C3%B6rd%2F1%2B2%3F3&y") && found("x=p%22ss+w%c3%b6rd%2f1%2b2%3f3"));
        for user in ["", "m", "me", "you", "admin"] {
            let credentials = encode(&format!("{user}:{value}@more"));
            assert!(found(&format!("Basic {credentials}")), "{user}");
            assert!(found(&credentials.replace('+', "-").replace('/', "_")), "{user}");
        }
        let hex = hex::encode(value);
        assert!(found(&hex) && found(&hex.to_uppercase()));
        assert!(!found("p\"ss w\u{f6}rd") && !found(&encode("another value of no variable")));
    }
}
