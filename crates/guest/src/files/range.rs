//! Conditional and range requests. The modification time in whole seconds identifies the version of
//! a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::{HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE};

/// Which part of the file to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selection {
    Whole,
    /// Offset and length.
    Part(u64, u64),
    NotModified,
    PreconditionFailed,
    Unsatisfiable,
}

pub(super) fn select(headers: &HeaderMap, modified: SystemTime, size: u64) -> Selection {
    let modified = seconds(modified);
    let date = |name: HeaderName| -> Option<u64> {
        let text = headers.get(name)?.to_str().ok()?;
        httpdate::parse_http_date(text).ok().map(seconds)
    };
    if date(IF_UNMODIFIED_SINCE).is_some_and(|date| modified > date) {
        return Selection::PreconditionFailed;
    }
    // We send no entity tags, so none can match, and the header disables the date check.
    if !headers.contains_key(IF_NONE_MATCH) && date(IF_MODIFIED_SINCE).is_some_and(|date| modified <= date) {
        return Selection::NotModified;
    }
    if headers.contains_key(IF_RANGE) && date(IF_RANGE) != Some(modified) {
        return Selection::Whole;
    }
    headers.get(RANGE).and_then(|value| value.to_str().ok()).map_or(Selection::Whole, |range| parse(range, size))
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Supports a single range; several or invalid ranges get the whole file, as RFC 9110 permits.
fn parse(range: &str, size: u64) -> Selection {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-')) else {
        return Selection::Whole;
    };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), _) if first >= size && (last.trim().is_empty() || last.trim().parse::<u64>().is_ok()) => {
            Selection::Unsatisfiable
        }
        (Ok(first), Ok(last)) if first <= last => Selection::Part(first, last.min(size - 1) - first + 1),
        (Ok(first), Err(_)) if last.trim().is_empty() => Selection::Part(first, size - first),
        (Err(_), Ok(length)) if first.trim().is_empty() => {
            if length == 0 || size == 0 {
                Selection::Unsatisfiable
            } else {
                let length = length.min(size);
                Selection::Part(size - length, length)
            }
        }
        _ => Selection::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_rfc_9110() {
        let cases = [
            ("bytes=0-3", 10, Selection::Part(0, 4)),
            ("bytes=4-", 10, Selection::Part(4, 6)),
            ("bytes=-3", 10, Selection::Part(7, 3)),
            ("bytes=-30", 10, Selection::Part(0, 10)),
            ("bytes=5-100", 10, Selection::Part(5, 5)),
            ("bytes=10-", 10, Selection::Unsatisfiable),
            ("bytes=10-20", 10, Selection::Unsatisfiable),
            ("bytes=-0", 10, Selection::Unsatisfiable),
            ("bytes=0-0", 0, Selection::Unsatisfiable),
            ("bytes=3-2", 10, Selection::Whole),
            ("bytes=0-1,4-5", 10, Selection::Whole),
            ("bytes=a-b", 10, Selection::Whole),
            ("lines=0-1", 10, Selection::Whole),
        ];
        for (range, size, expected) in cases {
            assert_eq!(parse(range, size), expected, "{range} of {size}");
        }
    }
}
