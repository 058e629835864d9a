//! Finds the text that an edit names and replaces it, byte for byte.
//!
//! Four tiers, tried in order; the first with a hit decides. Nothing looser is ever applied: a
//! fuzzy match in the wrong place costs more than a turn. Bytes outside the hits are copied.
//!
//! | tier | the text in the file may differ in |
//! |---|---|
//! | exact | nothing |
//! | eol | `\n` and `\r\n` |
//! | line prefix | line numbers that were copied from `read_file` |
//! | trailing blanks | blanks before line ends |

mod pattern;

use std::ops::Range;

use schemars::JsonSchema;
use serde::Serialize;

use crate::encoding::{Encoding, LineEnding, Unencodable};
use pattern::Pattern;

/// The tier that found the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    Exact,
    #[serde(rename = "eol")]
    LineEnding,
    LinePrefix,
    #[serde(rename = "trailing_ws")]
    TrailingBlanks,
}

/// One edit.
#[derive(Debug, Clone, Copy)]
pub struct Edit<'a> {
    pub old: &'a str,
    pub new: &'a str,
    pub replace_all: bool,
}

/// The file after the edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    pub bytes: Vec<u8>,
    pub tier: Tier,
    /// Line of each replacement, in the new file.
    pub lines: Vec<usize>,
    /// Number of lines per replacement.
    pub height: usize,
    /// Line ends of the new text were converted to the file's.
    pub line_ends_mapped: bool,
}

/// Why nothing was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditError {
    /// No tier finds the text.
    Absent,
    /// The first lines of all hits, overlapping ones too.
    Ambiguous { lines: Vec<usize> },
    /// The file's encoding lacks the character.
    Unencodable { letter: char, encoding: Encoding },
    /// The replacement equals the text.
    Same,
}

/// Applies an edit to the bytes of a file.
pub fn apply(file: &[u8], edit: Edit<'_>) -> Result<Edited, EditError> {
    let (encoding, mark) = Encoding::detect(file);
    let attempt = Attempt { file, mark, encoding, edit };
    match attempt.run() {
        // Much of such a file may still be UTF-8, and the model may know it as that.
        Err(EditError::Absent) if encoding == Encoding::Windows1252 && !edit.old.is_ascii() => {
            Attempt { encoding: Encoding::Utf8, ..attempt }.run()
        }
        other => other,
    }
}

struct Attempt<'a> {
    file: &'a [u8],
    /// Length of the byte order mark.
    mark: usize,
    encoding: Encoding,
    edit: Edit<'a>,
}

/// What may differ between the pattern and the file.
#[derive(Clone, Copy)]
struct Freedom {
    line_ends: bool,
    trailing_blanks: bool,
}

const NONE: Freedom = Freedom { line_ends: false, trailing_blanks: false };
const LINE_ENDS: Freedom = Freedom { line_ends: true, trailing_blanks: false };
const BLANKS: Freedom = Freedom { line_ends: true, trailing_blanks: true };

impl Attempt<'_> {
    fn run(&self) -> Result<Edited, EditError> {
        let Edit { old, new, .. } = self.edit;
        if let Some(hits) = self.hits(old, NONE) {
            return self.splice(&hits, new, Tier::Exact);
        }
        if let Some(hits) = self.hits(old, LINE_ENDS) {
            return self.splice(&hits, new, Tier::LineEnding);
        }
        if let Some(bare) = without_line_prefixes(old)
            && let Some(hits) = self.hits(&bare, LINE_ENDS)
        {
            let new = without_line_prefixes(new).unwrap_or_else(|| new.to_owned());
            return self.splice(&hits, &new, Tier::LinePrefix);
        }
        if let Some(hits) = self.hits(old, BLANKS) {
            return self.splice(&hits, new, Tier::TrailingBlanks);
        }
        Err(EditError::Absent)
    }

    /// All positions of `pattern`, overlapping ones too; [`None`] if there is none.
    fn hits(&self, pattern: &str, freedom: Freedom) -> Option<Vec<Range<usize>>> {
        // A text that cannot be encoded is not in the file.
        let pattern = Pattern::new(pattern, self.encoding, freedom)?;
        let found = pattern.find_all(self.file, self.mark);
        (!found.is_empty()).then_some(found)
    }

    fn splice(&self, hits: &[Range<usize>], new: &str, tier: Tier) -> Result<Edited, EditError> {
        if hits.len() > 1 && !self.edit.replace_all {
            return Err(EditError::Ambiguous {
                lines: hits.iter().map(|hit| self.line_number(self.file, hit.start)).collect(),
            });
        }
        let (new, line_ends_mapped) = self.fit_line_ends(new, &hits[0], tier);
        let encode = |text: &str| {
            self.encoding
                .encode(text)
                .map_err(|Unencodable(letter)| EditError::Unencodable { letter, encoding: self.encoding })
        };
        let replacement = encode(&new)?;
        let mut bytes = Vec::with_capacity(self.file.len() + replacement.len());
        let (mut from, mut starts) = (0, Vec::new());
        for hit in hits {
            // An overlapping hit starts inside the previous one, which is already replaced.
            if hit.start < from {
                continue;
            }
            bytes.extend_from_slice(&self.file[from..hit.start]);
            starts.push(bytes.len());
            bytes.extend_from_slice(&replacement);
            from = hit.end;
        }
        bytes.extend_from_slice(&self.file[from..]);
        if bytes == self.file {
            return Err(EditError::Same);
        }
        let lines = starts.iter().map(|start| self.line_number(&bytes, *start)).collect();
        let height = new.trim_end_matches('\n').matches('\n').count() + 1;
        Ok(Edited { bytes, tier, lines, height, line_ends_mapped })
    }

    /// The new text with the line ends of its position.
    fn fit_line_ends(&self, new: &str, first: &Range<usize>, tier: Tier) -> (String, bool) {
        if !new.contains('\n') {
            return (new.to_owned(), false);
        }
        let text = self.encoding.decode(&self.file[self.mark..]);
        let file_ends = LineEnding::detect(&text);
        let wants_crlf = match tier {
            // An exact hit proves the line ends of the text; text without any follows the file.
            Tier::Exact if self.edit.old.contains('\n') => return (new.to_owned(), false),
            Tier::Exact => file_ends == LineEnding::Crlf,
            _ => self.line_end_is_crlf(first.start),
        };
        if !wants_crlf && tier == Tier::Exact {
            return (new.to_owned(), false);
        }
        let plain = new.replace("\r\n", "\n");
        let fitted = if wants_crlf { plain.replace('\n', "\r\n") } else { plain };
        let mapped = fitted != new;
        (fitted, mapped)
    }

    /// Whether the line at a byte ends with CRLF.
    fn line_end_is_crlf(&self, at: usize) -> bool {
        let rest = self.encoding.decode(&self.file[at..]);
        rest.find('\n').is_some_and(|end| rest[..end].ends_with('\r'))
    }

    /// Line number of a byte.
    fn line_number(&self, bytes: &[u8], at: usize) -> usize {
        line_number(self.encoding, bytes, at)
    }
}

/// Line number of a byte, from 1.
pub fn line_number(encoding: Encoding, bytes: &[u8], at: usize) -> usize {
    let before = &bytes[..at];
    let ends = match encoding {
        Encoding::Utf8 | Encoding::Windows1252 => memchr::memchr_iter(b'\n', before).count(),
        Encoding::Utf16Le => before.chunks_exact(2).filter(|unit| *unit == [b'\n', 0]).count(),
        Encoding::Utf16Be => before.chunks_exact(2).filter(|unit| *unit == [0, b'\n']).count(),
    };
    ends + 1
}

/// The text without the line numbers of `read_file`, if every line has one.
fn without_line_prefixes(text: &str) -> Option<String> {
    let (body, end) = match text.strip_suffix('\n') {
        Some(body) => (body, "\n"),
        None => (text, ""),
    };
    let bare = |line: &str| {
        let line = line.trim_start();
        let (number, rest) = line.split_once('\t')?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then(|| rest.to_owned())
    };
    let lines: Vec<String> = body.split('\n').map(bare).collect::<Option<_>>()?;
    Some(lines.join("\n") + end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edit<'a>(old: &'a str, new: &'a str) -> Edit<'a> {
        Edit { old, new, replace_all: false }
    }

    #[track_caller]
    fn check(file: &[u8], old: &str, new: &str, expected: &[u8], tier: Tier) {
        let edited = apply(file, edit(old, new)).expect("it is there once");
        assert_eq!(edited.bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!(edited.tier, tier);
    }

    #[test]
    fn each_tier_allows_only_its_differences() {
        check(b"a\nb\nc\n", "b\n", "x\n", b"a\nx\nc\n", Tier::Exact);
        check(b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", b"x\r\ny\r\nc\r\n", Tier::LineEnding);
        check(b"a\nb\nc\n", "a\r\nb", "x\r\ny", b"x\ny\nc\n", Tier::LineEnding);
        check(b"fn a() {\n}\n", "1\tfn a() {\n2\t}", "1\tfn b() {\n2\t}", b"fn b() {\n}\n", Tier::LinePrefix);
        check(b"a  \nb\t\nc\n", "a\nb\nc", "x", b"x\n", Tier::TrailingBlanks);
    }

    #[test]
    fn mixed_line_ends_elsewhere_are_kept() {
        check(b"a\r\nb\nc\r\nd\n", "b\nc\nd", "x\ny", b"a\r\nx\ny\n", Tier::LineEnding);
        check(b"a\r\nb\nc\r\nd\n", "a\nb", "x\ny", b"x\r\ny\nc\r\nd\n", Tier::LineEnding);
    }

    #[test]
    fn new_lines_follow_crlf() {
        let edited = apply(b"a\r\nb\r\n", edit("b", "b\nc")).expect("there");
        assert_eq!(edited.bytes, b"a\r\nb\r\nc\r\n");
        assert!(edited.line_ends_mapped);
    }

    #[test]
    fn overlapping_hits_are_ambiguous() {
        assert_eq!(apply(b"aaa", edit("aa", "b")), Err(EditError::Ambiguous { lines: vec![1, 1] }));
        assert_eq!(apply(b"x\ny\nx\n", edit("x", "z")), Err(EditError::Ambiguous { lines: vec![1, 3] }));
        let all = apply(b"aaa", Edit { old: "aa", new: "b", replace_all: true }).expect("replaced");
        assert_eq!((all.bytes.as_slice(), all.lines.len()), (&b"ba"[..], 1));
    }

    #[test]
    fn other_encodings_are_kept() {
        check(b"caf\xe9 ol\xe9\n", "café", "thé", b"th\xe9 ol\xe9\n", Tier::Exact);
        assert_eq!(
            apply(b"caf\xe9\n", edit("caf", "→")),
            Err(EditError::Unencodable { letter: '→', encoding: Encoding::Windows1252 })
        );
        let wide = [b"\xff\xfe".as_slice(), &Encoding::Utf16Le.encode("häb\nz\n").expect("Unicode")].concat();
        let edited = apply(&wide, edit("b\n", "→\n")).expect("there");
        assert_eq!(Encoding::Utf16Le.decode(&edited.bytes[2..]), "hä→\nz\n");
        check(b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n", Tier::Exact);
    }

    #[test]
    fn invalid_byte_elsewhere_does_not_hide_utf8() {
        check(b"gr\xc3\xbcn \xff\n", "grün", "blau", b"blau \xff\n", Tier::Exact);
    }

    #[test]
    fn absent_text_is_not_replaced() {
        assert_eq!(apply(b"abc\n", edit("abd", "x")), Err(EditError::Absent));
        assert_eq!(apply(b"  a\n", edit("\ta", "x")), Err(EditError::Absent));
        assert_eq!(apply(b"a\r\nb\r\n", edit("a\nb", "a\nb")), Err(EditError::Same));
    }

    proptest! {
        #[test]
        fn bytes_outside_the_match_never_change(
            before: Vec<u8>, after: Vec<u8>, old in "[a-z]{1,8}(\n[a-z]{1,8}){0,2}", new in "[A-Z\n]{0,12}"
        ) {
            let file = [&before, old.as_bytes(), &after].concat();
            if let Ok(edited) = apply(&file, edit(&old, &new)) {
                // The hit may be elsewhere if it is the only one; the rest is copied in any case.
                prop_assume!(edited.tier == Tier::Exact && !edited.line_ends_mapped && Encoding::detect(&file).0.unit() == 1);
                prop_assert_eq!(edited.bytes, [&before, new.as_bytes(), &after].concat());
            }
        }

        #[test]
        fn reversed_edit_restores_the_original(
            before in "[a-z \r\n]{0,60}", after in "[a-z \r\n]{0,60}", old in "[a-z]{1,8}(\n[a-z]{1,8}){0,2}", new in "[A-Z]{1,8}"
        ) {
            let file = format!("{before}{old}{after}").into_bytes();
            if let Ok(edited) = apply(&file, edit(&old, &new)) {
                prop_assume!(edited.tier == Tier::Exact);
                let back = apply(&edited.bytes, edit(&new, &old));
                prop_assume!(back.as_ref().is_ok_and(|back| !back.line_ends_mapped));
                prop_assert_eq!(back.expect("capitals stand nowhere else").bytes, file);
            }
        }

        #[test]
        fn no_input_panics(file: Vec<u8>, old in ".{0,12}", new in ".{0,12}", replace_all: bool) {
            let _ = apply(&file, Edit { old: &old, new: &new, replace_all });
        }
    }
}
