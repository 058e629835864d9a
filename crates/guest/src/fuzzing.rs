//! What the fuzz targets call: forms, ranges, messages of clients. Each function panics when a
//! property is violated.

use buffa::Message;
use protocol::rpc::{filesystem, process};

use crate::files::fuzzing::{check_range, parts};

/// A content type and a form, separated by a line break: the same parts result for any chunks.
///
/// # Panics
/// When a property is violated.
pub fn check_form(bytes: &[u8]) {
    let (kind, form) = bytes.iter().position(|byte| *byte == b'\n').map_or((bytes, bytes), |end| bytes.split_at(end));
    let boundary = crate::files::fuzzing::boundary(&String::from_utf8_lossy(kind));
    let boundary = boundary.unwrap_or_else(|| "XX".to_owned());
    let whole = parts(&boundary, form, form.len().max(1));
    for step in [1, 2, 3, 7, 64] {
        assert_eq!(parts(&boundary, form, step), whole, "in steps of {step}");
    }
    if let Ok(parts) = whole {
        assert!(parts.iter().map(|(_, content)| content.len()).sum::<usize>() <= form.len());
    }
    check_range(&String::from_utf8_lossy(kind), form.len() as u64);
}

/// A message of a call: what it decodes to survives encoding.
///
/// # Panics
/// When a property is violated.
pub fn check_message(bytes: &[u8]) {
    check_one::<process::StartRequest>(bytes);
    check_one::<process::ConnectRequest>(bytes);
    check_one::<process::StreamInputRequest>(bytes);
    check_one::<process::UpdateRequest>(bytes);
    check_one::<filesystem::MoveRequest>(bytes);
    check_one::<filesystem::ListDirRequest>(bytes);
}

fn check_one<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(message) = M::decode_from_slice(bytes) else { return };
    let encoded = message.encode_to_vec();
    let again = M::decode_from_slice(&encoded).expect("a message that was encoded is decoded");
    assert_eq!(again.encode_to_vec(), encoded);
}
