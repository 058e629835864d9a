//! What the fuzz targets call: archives that a sandbox sends, manifests that a store returns. Each
//! function panics when a property is violated.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::archive;
use crate::entries::{self, Wanted};
use crate::limits::ArchiveLimits;
use crate::manifest::ManifestEntry;
use crate::spool::Spool;
use secret::EnvValues;

/// A compressed archive whose inflated length is `inflated`: no entry without a block, no byte that
/// was not sent, and every entry survives a manifest. Returns whether it was read.
///
/// # Panics
/// When a property is violated.
pub fn check_archive(compressed: &[u8], inflated: usize) -> bool {
    const BLOCK: usize = 512;
    let spool = || Spool::new(Arc::new(PathBuf::from("/nonexistent")));
    let limits = ArchiveLimits { inflated_bytes: 8 << 20, ..ArchiveLimits::for_disk(0) };
    let values = EnvValues::for_variables([("TOKEN", "s3cr3t-value")]);
    let mut listed = Vec::new();
    let read = archive::read(compressed, &limits, &values, spool(), |entry| {
        let line = serde_json::to_vec(entry)?;
        assert!(line.len() as u64 <= entries::LONGEST_LINE, "a line of {} bytes", line.len());
        let again: ManifestEntry = serde_json::from_slice(&line).expect("an entry that was written is read");
        assert_eq!(&again, entry);
        listed.push(again);
        Ok(())
    });
    assert!(listed.len() <= inflated / BLOCK, "{} entries in {inflated} bytes", listed.len());
    let Ok(contents) = read else { return false };
    assert!(contents.bytes <= inflated as u64, "{} bytes of files in {inflated}", contents.bytes);
    for entry in listed.iter().take(1) {
        let found = archive::find(compressed, &limits, entry.path.as_bytes(), BLOCK).expect("it was read before");
        assert_eq!(found.is_some(), matches!(entry.kind, crate::ManifestKind::File { .. }), "{entry:?}");
    }
    true
}

/// A manifest: all ways to read it agree.
///
/// # Panics
/// When a property is violated.
pub fn check_manifest(bytes: &[u8]) {
    let mut seen = 0;
    let mut take = |entry: ManifestEntry| {
        let line = serde_json::to_vec(&entry).expect("an entry is written");
        assert_eq!(serde_json::from_slice::<ManifestEntry>(&line).expect("an entry that was written is read"), entry);
        seen += 1;
        ControlFlow::Continue(())
    };
    let each = entries::read(bytes, Wanted::Each(&mut take));
    let none = entries::read(bytes, Wanted::Nothing);
    if let Ok(manifest) = each {
        assert_eq!(seen, manifest.listing.entries);
        assert_eq!(none.expect("its entries were read before"), manifest);
    }
}
