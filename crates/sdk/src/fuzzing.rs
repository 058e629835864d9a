//! What the fuzz targets call: streams of a daemon. Each function panics when a property is
//! violated.

use crate::transport::connect::{MAX_HELD_BYTES, take_all};

/// A stream of Connect envelopes: the same messages result for any chunks, and little is held.
///
/// # Panics
/// When a property is violated.
pub fn check_stream(bytes: &[u8]) {
    let (whole, failed, _) = take_all(&[bytes]);
    for size in [1, 3, 5, 6, 64] {
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        let (cut, failed_cut, most) = take_all(&chunks);
        assert_eq!((&whole, failed), (&cut, failed_cut), "in chunks of {size}");
        assert!(most <= MAX_HELD_BYTES, "{most} bytes are held");
    }
    let payloads: usize = whole.iter().map(|(_, payload)| payload.len()).sum();
    assert!(payloads <= bytes.len(), "no byte that was not sent");
}
