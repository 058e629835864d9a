//! Fuzzes archives and manifests that no honest sandbox or store produces: reading neither panics
//! nor holds more than was sent.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::archive;
use crate::entries::{self, Wanted};
use crate::limits::ArchiveLimits;
use crate::manifest::{FilePath, ManifestEntry, ManifestKind};
use crate::spool::Spool;
use secret::EnvValues;

const BLOCK: usize = 512;

/// Counts the entries of an archive, and the bytes of its files.
fn read(compressed: &[u8]) -> std::io::Result<(usize, u64)> {
    let spool = Spool::new(std::sync::Arc::new(std::env::temp_dir()));
    let limits = ArchiveLimits::for_disk(1 << 20);
    let mut entries = 0;
    let contents = archive::read(compressed, &limits, &EnvValues::default(), spool, |_| {
        entries += 1;
        Ok(())
    })?;
    Ok((entries, contents.bytes))
}

fn compressed(archive: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(archive).expect("memory");
    encoder.finish().expect("memory")
}

/// A header with a valid checksum and arbitrary other fields.
fn header() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![Just(b'0'), Just(b'1'), Just(b'2'), Just(b'5'), Just(b'x'), Just(b'g'), any::<u8>()];
    let size = prop_oneof![0_u64..2000, any::<u64>()];
    let damage = vec((0..BLOCK, any::<u8>()), 0..4);
    (kind, "[a/.]{0,10}", size, damage).prop_map(|(kind, path, size, damage)| {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(size);
        for (at, byte) in damage {
            header.as_mut_bytes()[at] = byte;
        }
        header.set_cksum();
        header.as_bytes().to_vec()
    })
}

/// Records of an extended header, some with wrong lengths.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let key =
        prop_oneof![Just("path"), Just("linkpath"), Just("size"), Just("uid"), Just("SCHILY.xattr.user.a"), Just("")];
    let record =
        (any::<u8>(), key, "[a-z0-9=\n]{0,12}").prop_map(|(length, key, value)| format!("{length} {key}={value}\n"));
    vec(record, 1..4).prop_map(|records| {
        let mut block = records.concat().into_bytes();
        block.resize(block.len().next_multiple_of(BLOCK), 0);
        block
    })
}

proptest! {
    #[test]
    fn any_archive_is_read_or_rejected(
        blocks in vec(prop_oneof![header(), records(), Just(vec![0; BLOCK]), Just(vec![7; BLOCK])], 0..12),
        other in vec(any::<u8>(), 0..300),
    ) {
        let blocks = blocks.concat();
        if let Ok((entries, bytes)) = read(&compressed(&blocks)) {
            prop_assert!(entries <= blocks.len() / BLOCK, "no entry without a header");
            prop_assert!(bytes <= blocks.len() as u64, "no byte that was not sent");
        }
        // Anything but a gzip stream is rejected.
        prop_assert!(read(&other).is_err());
    }

    #[test]
    fn damaged_streams_are_rejected(at in any::<usize>(), byte in any::<u8>(), content in vec(any::<u8>(), 0..100)) {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, "a", &content[..]).expect("memory");
        let whole = compressed(&builder.into_inner().expect("memory"));
        let mut damaged = whole.clone();
        // The gzip header contains bytes without meaning.
        let at = 10 + at % (whole.len() - 10);
        damaged[at] = byte;
        let read = read(&damaged);
        prop_assert!(damaged == whole || read.is_err(), "a change at {at} is not seen");
    }

    #[test]
    fn any_manifest_is_read_or_rejected(at in any::<usize>(), text in "[ -~]{0,8}", raw in vec(any::<u8>(), 0..200)) {
        let _ = entries::read(&raw[..], Wanted::Nothing);
        let _ = entries::read(&[b"{\"format\":2,", &raw[..]].concat()[..], Wanted::Nothing);
        let kind = ManifestKind::Symlink { target: FilePath::new(raw.clone()) };
        let entry = ManifestEntry {
            path: FilePath::new(raw),
            mode: 0o644,
            uid: 0,
            gid: 0,
            user: String::new(),
            group: String::new(),
            xattrs: Vec::new(),
            kind,
        };
        let mut json = serde_json::to_string(&entry).expect("it can be written");
        prop_assert_eq!(&serde_json::from_str::<ManifestEntry>(&json).expect("it can be read"), &entry);
        let at = at % json.len();
        if json.is_char_boundary(at) {
            json.insert_str(at, &text);
            let _ = serde_json::from_str::<ManifestEntry>(&json);
        }
    }
}
