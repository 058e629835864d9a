//! Archives. Mutation rarely hits a checksum, so most inputs are repaired before they are read: the
//! first byte says how.

use std::io::{Seek, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

const BLOCK: usize = 512;
/// Where a header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Splits the first byte from an input.
fn split(bytes: &[u8]) -> (u8, &[u8]) {
    bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest))
}

/// Gives every block that follows another's content a valid checksum, as if it were a header. An
/// archive ends where its sizes say, so all but headers are contents then.
fn repair(bytes: &[u8]) -> Vec<u8> {
    let mut archive = bytes.to_vec();
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    let mut at = 0;
    while let Some(block) = archive.get_mut(at..at + BLOCK) {
        at += BLOCK;
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        block[CHECKSUM].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = tar::Header::from_byte_slice(block).entry_size().unwrap_or(0);
        at += usize::try_from(size).map_or(0, |size| size.min(archive.len()).next_multiple_of(BLOCK));
    }
    archive
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// An archive that a sandbox sends for a checkpoint.
pub(crate) fn check_checkpoint(bytes: &[u8]) {
    let (how, rest) = split(bytes);
    if how % 8 == 0 {
        // Deflate makes at most 1032 bytes of one.
        checkpoint::fuzzing::check_archive(rest, 1032 * rest.len());
        return;
    }
    let mut archive = repair(rest);
    archive.resize(archive.len() + 2 * BLOCK, 0);
    checkpoint::fuzzing::check_archive(&compress(&archive), archive.len());
}

/// An archive of an image.
pub(crate) fn check_image(bytes: &[u8]) {
    let (how, rest) = split(bytes);
    let archive = if how % 8 == 0 { rest.to_vec() } else { repair(rest) };
    let mut file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
    file.write_all(&archive).expect("memory");
    file.rewind().expect("it is a file");
    unpack::fuzzing::check_archive(file);
}

/// A layer of an image: nothing outside of its tree changes.
pub(crate) fn check_layer(bytes: &[u8]) {
    const OUTSIDE: &str = "written before";
    let (how, rest) = split(bytes);
    let content = match how % 8 {
        0 => rest.to_vec(),
        1 => compress(&repair(rest)),
        _ => repair(rest),
    };
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let (root, outside) = (directory.path().join("root"), directory.path().join("passwd"));
    std::fs::create_dir(&root).expect("an empty directory");
    std::fs::write(&outside, OUTSIDE).expect("memory");
    unpack::fuzzing::check_layer(&content, &root);
    assert_eq!(std::fs::read_to_string(&outside).expect("it stays"), OUTSIDE);
    let names = std::fs::read_dir(directory.path()).expect("it stays").count();
    assert_eq!(names, 2, "nothing is made beside the tree");
    make_removable(&root);
}

/// Lets the owner remove a tree whose modes the layer chose.
fn make_removable(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        return;
    }
    let _ = std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700));
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_removable(&entry.path());
        }
    }
}
