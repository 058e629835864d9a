//! What the fuzz targets call: archives of images, and layers. Each function panics when a property
//! is violated.

use std::fs::File;
use std::path::Path;

use crate::archive::read_contents;
use crate::layer;
use crate::tree::{Limits, Owners, Tree};

const LIMITS: Limits = Limits { bytes: 1 << 20, entries: 1000 };

/// An archive of an image: what it names lies in the archive's own digests.
///
/// # Panics
/// When a property is violated.
pub fn check_archive(file: File) {
    if let Ok(contents) = read_contents(file) {
        assert_eq!(contents.layers.len(), contents.config.diff_ids.len());
        contents.config.check().expect("the digest was made here");
    }
}

/// A layer that is unpacked into `root`, an empty directory, within limits. Returns whether it was
/// unpacked.
///
/// # Panics
/// When a property is violated.
pub fn check_layer(content: &[u8], root: &Path) -> bool {
    let directory = File::open(root).expect("the caller made it");
    let mut tree = Tree::new(directory.into(), Owners::Ours, LIMITS);
    let applied = layer::apply(content, "a layer", None, &mut tree).is_ok();
    // As a layer, whose whiteouts delete: the digest is compared after all of it was applied.
    let deleted = layer::apply(content, "a layer", Some("sha256:0"), &mut tree);
    assert!(deleted.is_err(), "no content has this digest");
    assert!(tree.done().entries <= 2 * (LIMITS.entries + 1), "{} entries", tree.done().entries);
    applied
}
