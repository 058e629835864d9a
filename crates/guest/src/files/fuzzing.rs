//! Forms and ranges, for the fuzz targets.

use std::time::UNIX_EPOCH;

use http::{HeaderMap, HeaderValue, header};

use super::multipart::{FormEvent, Malformed, Multipart};
use super::range::{Selection, select};

pub(crate) fn boundary(content_type: &str) -> Option<String> {
    super::multipart::boundary(content_type)
}

/// File names and contents of a form.
type FormParts = Vec<(Option<String>, Vec<u8>)>;

/// The parts of a form that arrives in chunks of `step` bytes.
pub(crate) fn parts(boundary: &str, form: &[u8], step: usize) -> Result<FormParts, String> {
    let mut parser = Multipart::new(boundary);
    let mut found = FormParts::new();
    let mut is_open = false;
    for chunk in form.chunks(step) {
        let parsed = parser.push::<Malformed>(chunk, |event| {
            match event {
                FormEvent::Part(disposition) => {
                    assert!(!is_open, "a part begins within a part");
                    found.push((disposition.filename, Vec::new()));
                    is_open = true;
                }
                FormEvent::Content(content) => {
                    assert!(is_open && !content.is_empty(), "content outside of a part");
                    found.last_mut().expect("a part is open").1.extend_from_slice(content);
                }
                FormEvent::EndOfPart => assert!(std::mem::replace(&mut is_open, false), "no part is open"),
            }
            Ok(())
        });
        parsed.map_err(|Malformed(why)| why.to_owned())?;
    }
    parser.finish().map_err(|Malformed(why)| why.to_owned())?;
    assert!(!is_open, "a complete form has complete parts");
    Ok(found)
}

/// A selected part lies in a file of `size` bytes.
pub(crate) fn check_range(range: &str, size: u64) {
    let Ok(value) = HeaderValue::from_str(range) else { return };
    for size in [0, 1, size, u64::MAX] {
        let headers = HeaderMap::from_iter([(header::RANGE, value.clone())]);
        if let Selection::Part(offset, length) = select(&headers, UNIX_EPOCH, size) {
            assert!(length > 0 && offset.checked_add(length).is_some_and(|end| end <= size), "{range} of {size}");
        }
    }
}
