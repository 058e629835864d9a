//! A text to find in the bytes of a file, within the freedom of a tier.

use std::ops::Range;

use super::Freedom;
use crate::encoding::Encoding;

/// A text as encoded lines; a line end is between two of them.
pub(super) struct Pattern {
    lines: Vec<Vec<u8>>,
    freedom: Freedom,
    unit: usize,
    newline: Vec<u8>,
    crlf: Vec<u8>,
    blanks: Vec<Vec<u8>>,
}

impl Pattern {
    pub(super) fn new(text: &str, encoding: Encoding, freedom: Freedom) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let encode = |text: &str| encoding.encode(text).ok();
        let lines: Vec<String> = if freedom.line_ends {
            let plain = text.replace("\r\n", "\n");
            let last = plain.matches('\n').count();
            let cut = |(at, line): (usize, &str)| {
                // The last line may be part of a longer one in the file, so its blanks count.
                if freedom.trailing_blanks && at < last { line.trim_end_matches([' ', '\t']) } else { line }.to_owned()
            };
            plain.split('\n').enumerate().map(cut).collect()
        } else {
            vec![text.to_owned()]
        };
        if lines.iter().all(String::is_empty) && freedom.trailing_blanks {
            return None; // Blank lines alone would be found everywhere.
        }
        Some(Self {
            lines: lines.iter().map(|line| encode(line)).collect::<Option<_>>()?,
            freedom,
            unit: encoding.unit(),
            newline: encode("\n")?,
            crlf: encode("\r\n")?,
            blanks: vec![encode(" ")?, encode("\t")?],
        })
    }

    pub(super) fn find_all(&self, file: &[u8], mark: usize) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut from = mark;
        while let Some(start) = self.next_start(file, mark, from) {
            if let Some(end) = self.matches_at(file, start) {
                found.push(start..end);
            }
            from = start + self.unit;
        }
        found
    }

    /// The next position of the first line with content.
    fn next_start(&self, file: &[u8], mark: usize, from: usize) -> Option<usize> {
        let first = self.lines.first()?;
        if first.is_empty() {
            // The pattern begins with a line end.
            return (from..file.len()).step_by(self.unit).find(|at| {
                file[*at..].starts_with(&self.newline)
                    || file[*at..].starts_with(&self.crlf)
                    || self.freedom.trailing_blanks && self.blanks.iter().any(|blank| file[*at..].starts_with(blank))
            });
        }
        let mut from = from;
        loop {
            let at = from + memchr::memmem::find(file.get(from..)?, first)?;
            if (at - mark).is_multiple_of(self.unit) {
                return Some(at);
            }
            from = at + 1;
        }
    }

    fn matches_at(&self, file: &[u8], start: usize) -> Option<usize> {
        let mut at = start;
        for (number, line) in self.lines.iter().enumerate() {
            if number > 0 {
                at = self.after_line_end(file, at)?;
            }
            at += file.get(at..)?.starts_with(line).then_some(line.len())?;
        }
        Some(at)
    }

    fn after_line_end(&self, file: &[u8], at: usize) -> Option<usize> {
        let mut at = at;
        if self.freedom.trailing_blanks {
            while let Some(blank) = self.blanks.iter().find(|blank| file[at..].starts_with(blank)) {
                at += blank.len();
            }
        }
        if file[at..].starts_with(&self.crlf) {
            Some(at + self.crlf.len())
        } else if file[at..].starts_with(&self.newline) {
            Some(at + self.newline.len())
        } else {
            None
        }
    }
}
