//! File metadata: `X-Metadata-*` headers stored as extended attributes.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::Path;

use http::HeaderMap;
use protocol::headers::METADATA_PREFIX;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;

use crate::http::HttpError;

const ATTRIBUTE_PREFIX: &str = "user.e2b.";
const MAX_KEY_BYTES: usize = 246;
/// Limit of attribute names and values together.
const MAX_SET_BYTES: usize = 4096;

pub(crate) type Metadata = BTreeMap<String, String>;

/// Parses the metadata of a request.
pub(super) fn from_headers(headers: &HeaderMap) -> Result<Metadata, HttpError> {
    let mut metadata = Metadata::new();
    let mut total = 0;
    for (name, value) in headers {
        // Header names arrive in lower case.
        let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) else { continue };
        let bad = |what: &str| HttpError::bad_request(format!("metadata '{key}' {what}"));
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(bad("has a key of the wrong length"));
        }
        let printable = value.as_bytes().iter().all(|byte| (0x20..0x7f).contains(byte));
        let value = value.to_str().ok().filter(|_| printable).ok_or_else(|| bad("is not printable ASCII"))?;
        total += ATTRIBUTE_PREFIX.len() + key.len() + value.len();
        if total > MAX_SET_BYTES {
            return Err(HttpError::bad_request(format!("metadata is larger than {MAX_SET_BYTES} bytes")));
        }
        metadata.insert(key.to_owned(), value.to_owned());
    }
    Ok(metadata)
}

/// Sets the metadata of an open file to exactly `wanted`. Changes only attributes that differ,
/// because each change is an event for watchers. Returns the stored metadata: empty where the file
/// system has no attributes.
pub(super) fn replace(file: impl AsFd, wanted: &Metadata) -> Result<Metadata, Errno> {
    let file = file.as_fd();
    let result = (|| {
        for name in names(|buffer| flistxattr(file, buffer)) {
            if !wanted.contains_key(attribute_key(&name)) {
                fremovexattr(file, &name)?;
            }
        }
        for (key, value) in wanted {
            let name = attribute(key);
            let current = read_value(|buffer| fgetxattr(file, &name, buffer));
            if current.as_deref() != Some(value.as_bytes()) {
                fsetxattr(file, &name, value.as_bytes(), XattrFlags::empty())?;
            }
        }
        Ok(wanted.clone())
    })();
    match result {
        Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(Metadata::new()),
        other => other,
    }
}

/// Reads the metadata of a file; skips values that are not text.
pub(crate) fn read(path: &Path) -> Metadata {
    let mut metadata = Metadata::new();
    for name in names(|buffer| listxattr(path, buffer)) {
        let value = read_value(|buffer| getxattr(path, &name, buffer));
        if let Some(value) = value.and_then(|value| String::from_utf8(value).ok()) {
            metadata.insert(attribute_key(&name).to_owned(), value);
        }
    }
    metadata
}

fn attribute(key: &str) -> CString {
    CString::new(format!("{ATTRIBUTE_PREFIX}{key}")).expect("keys of metadata hold no NUL: they came from a header")
}

fn attribute_key(attribute: &CString) -> &str {
    attribute.to_str().ok().and_then(|name| name.strip_prefix(ATTRIBUTE_PREFIX)).unwrap_or_default()
}

/// Lists the names of our attributes; empty on errors.
fn names(mut list: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Vec<CString> {
    read_value(&mut list)
        .unwrap_or_default()
        .split_inclusive(|byte| *byte == 0)
        .filter(|name| name.starts_with(ATTRIBUTE_PREFIX.as_bytes()) && name.len() > ATTRIBUTE_PREFIX.len() + 1)
        .filter_map(|name| CString::from_vec_with_nul(name.to_vec()).ok())
        .filter(|name| name.to_str().is_ok())
        .collect()
}

/// Reads into a buffer that usually suffices, then into one of the maximum size.
fn read_value(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Option<Vec<u8>> {
    /// The kernel's limit of names and values.
    const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;
    for size in [1024, MAX_ATTRIBUTE_BYTES] {
        let mut buffer = vec![0; size];
        match read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Some(buffer);
            }
            Err(Errno::RANGE) => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a header name");
            map.insert(name, http::HeaderValue::from_bytes(value.as_bytes()).expect("a header value"));
        }
        map
    }

    #[test]
    fn metadata_keys_are_lower_case() {
        let found = from_headers(&headers(&[("X-Metadata-Author", "ann"), ("X-Other", "1")])).expect("valid");
        assert_eq!(found, Metadata::from([("author".into(), "ann".into())]));
    }

    #[test]
    fn limits_are_enforced() {
        assert!(from_headers(&headers(&[("x-metadata-a", "\u{e9}")])).is_err());
        assert!(from_headers(&headers(&[("x-metadata-a", "tab\there")])).is_err());
        assert!(from_headers(&headers(&[(&format!("x-metadata-{}", "k".repeat(246)), "v")])).is_ok());
        assert!(from_headers(&headers(&[(&format!("x-metadata-{}", "k".repeat(247)), "v")])).is_err());
        assert!(from_headers(&headers(&[("x-metadata-a", &"v".repeat(4096 - 10))])).is_ok());
        assert!(from_headers(&headers(&[("x-metadata-a", &"v".repeat(4096 - 9))])).is_err());
    }
}
