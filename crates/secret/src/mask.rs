//! Masks the values of a workspace's variables in all output that is shown, stored or sent to a
//! model.
//!
//! A value is masked verbatim and in the forms in which programs repeat it: escaped for JSON,
//! percent-encoded, in base64 at any offset, and line by line when it has several lines.
//! Overlapping occurrences are masked together, so that no end of one remains visible.
//!
//! Masking a plain value everywhere would destroy the text: a port, `true`, `production`, and any
//! value of fewer than four bytes ([`is_plain`]). Plain values are masked
//! only after their name, as in `NAME=value`, so they must not be used for secrets.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use crate::plain::is_plain;

/// Replaces a masked value.
pub const HIDDEN: &str = "***";
/// The fewest bytes of a part of a value (a line, an encoded form) that is masked on its own.
const SHORTEST_PART: usize = 8;

/// Masks values in texts. Cheap to clone.
#[derive(Clone, Default)]
pub struct Mask(Option<Arc<Patterns>>);

struct Patterns {
    texts: Vec<Vec<u8>>,
    /// For each text, how many of its first bytes stay visible.
    shown: Vec<usize>,
    finder: AhoCorasick,
}

impl Mask {
    /// Masks these values.
    pub fn new<V: AsRef<str>>(values: impl IntoIterator<Item = V>) -> Self {
        let mut forms = BTreeMap::new();
        for value in values {
            add_forms(value.as_ref(), &mut forms);
        }
        Self::from_forms(forms)
    }

    /// Masks the values of these variables; plain ones only after their name.
    pub fn for_variables<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        let mut forms = BTreeMap::new();
        for (name, value) in variables {
            add_forms(value, &mut forms);
            let value = trimmed(value);
            if !value.is_empty() && is_plain(value) {
                for before in [format!("{name}="), format!("{name}=\""), format!("{name}='")] {
                    forms.insert(format!("{before}{value}"), before.len());
                }
            }
        }
        Self::from_forms(forms)
    }

    fn from_forms(forms: Forms) -> Self {
        if forms.is_empty() {
            return Self(None);
        }
        let (texts, shown): (Vec<Vec<u8>>, Vec<usize>) =
            forms.into_iter().map(|(text, shown)| (text.into_bytes(), shown)).unzip();
        // Fails only beyond two billion states, which no environment can carry.
        let finder = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&texts);
        Self(finder.ok().map(|finder| Arc::new(Patterns { texts, shown, finder })))
    }

    /// Whether no text would be changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Replaces all values in the text by [`HIDDEN`].
    pub fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let Some(patterns) = &self.0 else { return Cow::Borrowed(text) };
        let hidden = patterns.occurrences(text.as_bytes());
        if hidden.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut shown = String::with_capacity(text.len());
        let mut from = 0;
        for Range { start, end } in hidden {
            // Patterns match whole characters, so these are character boundaries.
            shown.push_str(&text[from..start]);
            shown.push_str(HIDDEN);
            from = end;
        }
        shown.push_str(&text[from..]);
        Cow::Owned(shown)
    }

    /// Masks all strings of a JSON value, including keys.
    pub fn mask_json(&self, value: &mut serde_json::Value) {
        use serde_json::Value;
        if self.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Cow::Owned(masked) = self.mask(text) {
                    *text = masked;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_json(item)),
            Value::Object(fields) => {
                let taken = std::mem::take(fields);
                fields.extend(taken.into_iter().map(|(name, mut value)| {
                    self.mask_json(&mut value);
                    (self.mask(&name).into_owned(), value)
                }));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Masks output that arrives in chunks, which may split a value.
    pub fn stream(&self) -> MaskStream {
        MaskStream { mask: self.clone(), held: Vec::new(), covered: 0 }
    }
}

/// Omits the values.
impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mask").field("patterns", &self.0.as_ref().map_or(0, |it| it.texts.len())).finish()
    }
}

/// Masks output that arrives in chunks: a possible start of a value is held back until more
/// arrives.
///
/// The concatenated output equals [`Mask::mask`] of the whole input.
#[derive(Debug)]
pub struct MaskStream {
    mask: Mask,
    held: Vec<u8>,
    /// How many bytes of `held` belong to an occurrence for which [`HIDDEN`] was already emitted.
    covered: usize,
}

impl MaskStream {
    /// The output that is safe to show after this chunk.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let Some(patterns) = self.mask.0.clone() else { return piece.to_vec() };
        self.held.extend_from_slice(piece);
        let keep_from = self.held.len() - patterns.open_end(&self.held);
        self.release(&patterns, keep_from)
    }

    /// The rest, at the end of the input.
    pub fn finish(mut self) -> Vec<u8> {
        let Some(patterns) = self.mask.0.clone() else { return Vec::new() };
        let all = self.held.len();
        self.release(&patterns, all)
    }

    /// Emits what precedes `keep_from`.
    fn release(&mut self, patterns: &Patterns, keep_from: usize) -> Vec<u8> {
        let mut shown = Vec::with_capacity(keep_from);
        let mut from = 0;
        let mut occurrences = patterns.occurrences(&self.held);
        if self.covered > 0 {
            // The occurrence already emitted extends over all that overlap it.
            let mut end = self.covered;
            occurrences.retain(|it| {
                let joined = it.start < end;
                if joined {
                    end = end.max(it.end);
                }
                !joined
            });
            from = end;
        }
        for Range { start, end } in occurrences {
            if start >= keep_from {
                break;
            }
            shown.extend_from_slice(&self.held[from..start]);
            shown.extend_from_slice(HIDDEN.as_bytes());
            from = end;
        }
        if from < keep_from {
            shown.extend_from_slice(&self.held[from..keep_from]);
        }
        self.covered = from.saturating_sub(keep_from);
        self.held.drain(..keep_from);
        shown
    }
}

impl Patterns {
    /// The ranges to mask, in order, with overlapping ones merged.
    fn occurrences(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut joined: Vec<Range<usize>> = Vec::new();
        // Matches are ordered by their ends.
        for found in self.finder.find_overlapping_iter(text) {
            let mut found = found.start() + self.shown[found.pattern().as_usize()]..found.end();
            while let Some(last) = joined.last()
                && last.end > found.start
            {
                found.start = found.start.min(last.start);
                joined.pop();
            }
            joined.push(found);
        }
        joined
    }

    /// How many bytes at the end of `text` may be the start of a value.
    fn open_end(&self, text: &[u8]) -> usize {
        let longest = self.texts.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1).min(text.len());
        let begins = |length: &usize| {
            let end = &text[text.len() - length..];
            self.texts.iter().any(|pattern| pattern.len() > *length && pattern.starts_with(end))
        };
        (1..=longest).rev().find(begins).unwrap_or(0)
    }
}

/// Texts to find, and how many of the first bytes of each stay visible.
type Forms = BTreeMap<String, usize>;

/// Strips the final line break that a value read from a file often has.
fn trimmed(value: &str) -> &str {
    value.trim_matches(['\r', '\n'])
}

fn add_forms(value: &str, texts: &mut Forms) {
    let value = trimmed(value);
    if is_plain(value) {
        return;
    }
    // Programs print keys and certificates with a prefix before each line.
    let lines = value.lines().filter(|line| line.len() >= SHORTEST_PART && *line != value);
    for text in std::iter::once(value).chain(lines) {
        texts.insert(text.to_owned(), 0);
        let json = serde_json::Value::from(text).to_string();
        texts.insert(json[1..json.len() - 1].to_owned(), 0);
        texts.insert(percent_encoded(text), 0);
    }
    let base64 = base64_forms(value.as_bytes()).filter(|form| form.len() >= SHORTEST_PART);
    texts.extend(base64.map(|form| (form, 0)));
}

/// Percent-encodes as in a query or the user part of a URL.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// The substrings that every base64 text containing the value contains, in either alphabet. The
/// value may start at any of three offsets in a group, and its first and last digits may carry bits
/// of neighbouring bytes.
fn base64_forms(value: &[u8]) -> impl Iterator<Item = String> {
    (0..3_usize).flat_map(move |before| {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(value);
        [STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|alphabet| {
            let text = alphabet.encode(&bytes);
            let first = (before * 8).div_ceil(6);
            let last = bytes.len() * 8 / 6;
            text[first..last].to_owned()
        })
    })
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(values: &[&str], text: &str, expected: &str) {
        let mask = Mask::new(values);
        assert_eq!(mask.mask(text), expected);
    }

    #[test]
    fn values_are_masked_at_any_position() {
        check(&["hunter22"], "pw=hunter22, again hunter22!", "pw=***, again ***!");
        check(&["secret", "secretlonger"], "a secretlonger b secret", "a *** b ***");
        check(&["abcdef", "defghi"], "xabcdefghix", "x***x");
        check(&["schlüssel"], "der schlüssel ä", "der *** ä");
        check(&[], "nothing", "nothing");
    }

    #[test]
    fn plain_values_are_masked_only_after_their_name() {
        check(
            &["3000", "abc", "true", "Production", ""],
            "abc on 3000: true production",
            "abc on 3000: true production",
        );
        check(&["300012", "30a0", "truest"], "300012 30a0 truest", "*** *** ***");
        let mask = Mask::for_variables([("PIN", "42"), ("PORT", "3000\n"), ("TOKEN", "hunter22"), ("NONE", "")]);
        let text = "PIN=42 'PIN=\"42\"' declare -x PIN='42'; 42 hunter22 NONE= PORT=3000 localhost:3000";
        let shown = "PIN=*** 'PIN=\"***\"' declare -x PIN='***'; 42 *** NONE= PORT=*** localhost:3000";
        assert_eq!(mask.mask(text), shown);
        let mut stream = mask.stream();
        let mut shown: Vec<u8> = text.bytes().flat_map(|byte| stream.push(&[byte])).collect();
        shown.extend(stream.finish());
        assert_eq!(String::from_utf8(shown).expect("text"), mask.mask(text), "in pieces, too");
    }

    #[test]
    fn encoded_forms_are_masked() {
        let value = "pa\"ss w/ö\\rd";
        let mask = Mask::new([value]);
        let json = serde_json::json!({ "env": value, value: [value] });
        let hidden = serde_json::json!({ "env": HIDDEN, HIDDEN: [HIDDEN] });
        let text = json.to_string();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&mask.mask(&text)).expect("still JSON"), hidden);
        let mut masked = json;
        mask.mask_json(&mut masked);
        assert_eq!(masked, hidden);
        assert_eq!(mask.mask("x=pa%22ss%20w%2F%C3%B6%5Crd&y"), "x=***&y");
        let basic = STANDARD.encode(format!("user:{value}"));
        assert!(mask.mask(&basic).contains(HIDDEN), "{basic}");
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n";
        check(&[key], "  1 MIIEvQIBADANBg\n  2 kqhkiG9w0BAQEF", "  1 ***\n  2 ***");
    }

    #[test]
    fn debug_shows_no_value() {
        let mask = Mask::new(["hunter22"]);
        assert!(!format!("{mask:?} {:?}", mask.stream()).contains("hunter"));
    }

    /// Texts of few letters, so that values overlap themselves and each other.
    fn tight() -> impl Strategy<Value = String> {
        proptest::collection::vec(prop_oneof![Just('a'), Just('b'), Just('é'), Just('"')], 0..60)
            .prop_map(|letters| letters.into_iter().collect())
    }

    proptest! {
        #[test]
        fn no_value_remains(values in proptest::collection::vec("[ab\u{e9}\"]{4,9}", 1..4), text in tight()) {
            let masked = Mask::new(&values).mask(&text).into_owned();
            for value in &values {
                prop_assert!(!masked.contains(value.as_str()), "{value:?} is in {masked:?}");
            }
        }

        #[test]
        fn chunks_are_masked_like_the_whole(
            values in proptest::collection::vec("[ab\u{e9}\"]{4,9}", 0..4),
            text in tight(),
            cuts in proptest::collection::vec(0_usize..8, 0..40),
        ) {
            let mask = Mask::new(&values);
            let mut stream = mask.stream();
            let (mut shown, mut rest) = (Vec::new(), text.as_bytes());
            for cut in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                shown.extend(stream.push(piece));
                rest = more;
            }
            shown.extend(stream.push(rest));
            shown.extend(stream.finish());
            prop_assert_eq!(String::from_utf8(shown).expect("whole characters"), mask.mask(&text));
        }

        #[test]
        fn base64_is_masked_at_every_offset(before in ".{0,8}", value in "[a-zA-Z0-9+/=_-]{10,40}", after in ".{0,8}") {
            let mask = Mask::new([&value]);
            for text in [STANDARD.encode(format!("{before}{value}{after}")), URL_SAFE_NO_PAD.encode(format!("{before}{value}{after}"))] {
                prop_assert!(mask.mask(&text).contains(HIDDEN), "{text}");
            }
        }
    }
}
