//! The records of a PAX header: `LENGTH NAME=VALUE\n`.
//!
//! A record ends where its length says. Values may hold any byte, line breaks and zero bytes
//! included: file capabilities do.

use crate::error::ImageError;

/// Name and value of every record. The first malformed one ends the iteration.
pub(super) fn records(mut rest: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), ImageError>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((name, value, after)) = split_record(rest) else {
            rest = &[];
            return Some(Err(ImageError::Malformed("a PAX record does not have the length it claims".to_owned())));
        };
        rest = after;
        Some(Ok((name, value)))
    })
}

/// Name and value of the first record, and what follows it.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let digits = std::str::from_utf8(&bytes[..space]).ok()?;
    let length: usize = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    let (record, after) = bytes.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], after))
}
