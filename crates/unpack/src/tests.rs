//! Images of the tests' own making, honest and hostile.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use tar::EntryType::{Block, Char, Directory, Link, Regular, Symlink};
use tar::{Builder, EntryType, Header};

use crate::archive::read_contents;
use crate::config::digest;
use crate::layer;
use crate::tree::{Owners, Tree};
use crate::{Contents, ImageError, Limits};

const LIMITS: Limits = Limits { bytes: 1 << 20, entries: 1000 };

/// An entry with exactly this path: the builder's own way refuses the bad ones.
fn add(archive: &mut Builder<Vec<u8>>, kind: EntryType, path: &str, content: &str) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(if kind == Directory { 0o755 } else { 0o4755 });
    header.set_uid(1000);
    header.set_gid(70000);
    header.set_mtime(1_000_000);
    let bytes = header.as_old_mut();
    bytes.name[..path.len()].copy_from_slice(path.as_bytes());
    let is_link = matches!(kind, Symlink | Link);
    if is_link {
        bytes.linkname[..content.len()].copy_from_slice(content.as_bytes());
    }
    let content = if is_link || kind == Directory { "" } else { content };
    header.set_size(content.len() as u64);
    header.set_cksum();
    archive.append(&header, content.as_bytes()).expect("an entry");
}

fn tar(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, path, content) in entries {
        add(&mut archive, *kind, path, content);
    }
    archive.into_inner().expect("an archive")
}

fn tree(root: &Path, limits: Limits) -> Tree {
    Tree::new(fs::File::open(root).expect("a directory").into(), Owners::From(0), limits)
}

fn open(path: &Path) -> Result<Contents, ImageError> {
    read_contents(fs::File::open(path).expect("a file"))
}

fn apply(root: &Path, layers: &[Vec<u8>]) -> Result<crate::Unpacked, ImageError> {
    let mut tree = tree(root, LIMITS);
    for content in layers {
        let diff_id = digest(content);
        layer::apply(&content[..], "a layer", Some(&diff_id), &mut tree)?;
    }
    Ok(tree.done())
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn layers_add_replace_and_delete() {
    let root = tempfile::tempdir().expect("a directory");
    let first = tar(&[
        (Directory, "etc/", ""),
        (Regular, "./etc/a", "one"),
        (Regular, "etc/b", "two"),
        (Regular, "d/old", "x"),
        (Regular, "d/sub/old", "x"),
        (Regular, "file-then-directory", "x"),
        (Symlink, "lib", "usr/lib"),
        (Directory, "usr/lib", ""),
        (Link, "etc/hard", "etc/a"),
        (Char, "dev/null", ""),
    ]);
    let second = tar(&[
        (Regular, "etc/.wh.b", ""),
        (Regular, "d/new", "kept"),
        (Regular, "d/sub/new", "kept"),
        (Regular, "d/.wh..wh..opq", ""),
        (Regular, "lib/through", "the link"),
        (Directory, "file-then-directory", ""),
        (Regular, "file-then-directory/x", "y"),
        (Regular, "none/.wh.gone", ""),
    ]);
    let done = apply(root.path(), &[first, second]).expect("an image");
    let at = |path: &str| root.path().join(path);
    assert_eq!((done.devices, done.strangers > 0), (1, true));
    assert_eq!((text(&at("etc/a")).as_str(), text(&at("etc/hard")).as_str()), ("one", "one"));
    assert_eq!(fs::metadata(at("etc/a")).expect("a file").ino(), fs::metadata(at("etc/hard")).expect("a link").ino());
    assert!(!at("etc/b").exists() && !at("d/old").exists() && !at("d/sub/old").exists() && !at("none").exists());
    assert_eq!((text(&at("d/new")), text(&at("d/sub/new"))), ("kept".to_owned(), "kept".to_owned()));
    assert_eq!(text(&at("usr/lib/through")), "the link");
    assert_eq!(text(&at("file-then-directory/x")), "y");
    let made = fs::metadata(at("etc/a")).expect("a file");
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777, made.mtime()), (1000, 65534, 0o4755, 1_000_000));
}

#[test]
fn nothing_leads_out_of_the_tree() {
    let outside = tempfile::tempdir().expect("a directory");
    let secret = outside.path().join("secret");
    fs::write(&secret, "untouched").expect("a file");
    let away = outside.path().to_str().expect("text");
    let climb = format!("../../../../../../../../{away}");
    for entries in [
        &[(Regular, "../secret", "x")][..],
        &[(Regular, "a/../../secret", "x")],
        &[(Char, "x", "")],
        &[(Block, "etc/sda", "")],
        &[(Link, "x", "../secret")],
        &[(Regular, ".wh...", "")],
    ] {
        let root = tempfile::tempdir().expect("a directory");
        let refused = apply(root.path(), &[tar(entries)]);
        assert!(matches!(refused, Err(ImageError::Hostile(_))), "{entries:?}: {refused:?}");
    }
    // Through links that an earlier entry made: they lead to a place of the same name inside.
    for link in [away, &climb] {
        let root = tempfile::tempdir().expect("a directory");
        let entries = [
            (Symlink, "out", link),
            (Regular, "out/secret", "inside"),
            (Regular, "out/.wh.secret", ""),
            (Directory, "out/deep/er", ""),
        ];
        // The link may lead nowhere inside, which is an error; outside nothing happens either way.
        let _ = apply(root.path(), &[tar(&entries)]);
        assert_eq!(text(&secret), "untouched", "{link}");
        assert_eq!(fs::read_dir(outside.path()).expect("it is there").count(), 1, "{link}");
    }
    let root = tempfile::tempdir().expect("a directory");
    let whole = secret.to_str().expect("text");
    apply(root.path(), &[tar(&[(Symlink, "x", whole), (Regular, "x", "replaces the link")])]).expect("an image");
    assert_eq!((text(&secret).as_str(), text(&root.path().join("x")).as_str()), ("untouched", "replaces the link"));
    let absolute = apply(root.path(), &[tar(&[(Regular, "/etc/absolute", "inside")])]);
    assert!(absolute.is_ok() && root.path().join("etc/absolute").is_file() && !Path::new("/etc/absolute").exists());
    // A hard link to a link stays one, and does not follow it.
    let linked = apply(root.path(), &[tar(&[(Symlink, "l", whole), (Link, "m", "l")])]);
    assert!(linked.is_ok() && root.path().join("m").symlink_metadata().is_ok_and(|found| found.is_symlink()));
}

#[test]
fn bombs_are_bounded() {
    let root = || tempfile::tempdir().expect("a directory");
    let large = "x".repeat(2 << 20);
    let refused = apply(root().path(), &[tar(&[(Regular, "large", &large)])]);
    assert!(matches!(refused, Err(ImageError::TooLarge(_))), "{refused:?}");
    // The same in two layers, each of which would fit, and compressed to nothing.
    let half = "x".repeat(600 << 10);
    let layers = [tar(&[(Regular, "a", &half)]), tar(&[(Regular, "a", &half)])];
    let refused = apply(root().path(), &layers);
    assert!(matches!(refused, Err(ImageError::TooLarge(_))), "{refused:?}");
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    zipped.write_all(&tar(&[(Regular, "large", &large)])).expect("it compresses");
    let zipped = zipped.finish().expect("it ends");
    let refused = layer::apply(&zipped[..], "the archive", None, &mut tree(root().path(), LIMITS));
    assert!(matches!(refused, Err(ImageError::TooLarge(_))), "{refused:?}");
    let names: Vec<String> = (0..1001).map(|number| format!("f{number}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (Regular, name.as_str(), "")).collect();
    let refused = apply(root().path(), &[tar(&entries)]);
    assert!(matches!(refused, Err(ImageError::TooMany(_))), "{refused:?}");
    // A header that would be held in memory.
    let mut archive = Builder::new(Vec::new());
    add(&mut archive, EntryType::XHeader, "pax", &"x".repeat(2 << 20));
    let mut tree = tree(root().path(), Limits { bytes: 1 << 30, entries: 10 });
    let refused = layer::apply(&archive.into_inner().expect("an archive")[..], "a layer", None, &mut tree);
    assert!(matches!(refused, Err(ImageError::Hostile(_))), "{refused:?}");
}

#[test]
fn an_index_within_an_index_must_be_what_its_digest_says() {
    let inner = json!({ "manifests": [] }).to_string();
    let named = json!({ "mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest(inner.as_bytes()) });
    let open_with = |content: &str| {
        let mut archive = Builder::new(Vec::new());
        let outer = json!({ "manifests": [named] }).to_string();
        let blob = format!("blobs/sha256/{}", &digest(inner.as_bytes())[7..]);
        for (name, bytes) in [(blob.as_str(), content.as_bytes()), ("index.json", outer.as_bytes())] {
            let mut header = Header::new_gnu();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes).expect("an entry");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), archive.into_inner().expect("an archive")).expect("written");
        open(file.path())
    };
    assert!(matches!(open_with(&inner), Err(ImageError::Malformed(_))), "it is read, and has nothing for this machine");
    assert!(matches!(open_with(&format!("{inner} ")), Err(ImageError::Digest { .. })));
}

#[test]
fn attributes_that_programs_use_are_kept() {
    let mut archive = Builder::new(Vec::new());
    let record = |name: &str| {
        let rest = format!(" SCHILY.xattr.{name}=v\n");
        let length = rest.len() + 2;
        format!("{length}{rest}")
    };
    let pax = ["user.kept", "user.overlay.opaque", "trusted.overlay.opaque"].map(record).join("");
    add(&mut archive, EntryType::XHeader, "pax", &pax);
    add(&mut archive, Regular, "file", "x");
    let root = tempfile::tempdir_in("/var/tmp").expect("a directory");
    apply(root.path(), &[archive.into_inner().expect("an archive")]).expect("an image");
    let mut names = vec![0; 256];
    let length = rustix::fs::listxattr(root.path().join("file"), &mut names[..]).expect("attributes");
    let names = String::from_utf8_lossy(&names[..length]).into_owned();
    assert!(names.contains("user.kept") && !names.contains("overlay"), "{names:?}");
}

/// A PAX record: its length, which counts its own digits, then name and value.
fn pax_record(name: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", name.as_bytes(), b"=", value, b"\n"].concat();
    let length = (1..).find(|digits| (rest.len() + digits).to_string().len() == *digits).expect("some length fits");
    [(rest.len() + length).to_string().as_bytes(), &rest].concat()
}

/// An archive of one file with these PAX records before it.
fn with_pax(records: &[u8]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_path("pax").expect("a short name");
    header.set_size(records.len() as u64);
    header.set_cksum();
    archive.append(&header, records).expect("an entry");
    add(&mut archive, Regular, "file", "x");
    archive.into_inner().expect("an archive")
}

#[test]
fn a_record_goes_by_its_length_and_may_hold_line_breaks() {
    // CAP_DAC_OVERRIDE and CAP_FOWNER, permitted and effective: bits 1 and 3, a line break.
    let capability = [&[1, 0, 0, 2, b'\n'][..], &[0; 15]].concat();
    let records = [
        pax_record("SCHILY.xattr.security.capability", &capability),
        pax_record("SCHILY.xattr.user.lines", b"a\n12 user=b\n\n"),
        pax_record("mtime", b"77.5"),
    ];
    let root = tempfile::tempdir_in("/var/tmp").expect("a directory");
    apply(root.path(), &[with_pax(&records.concat())]).expect("an image");
    let file = root.path().join("file");
    for (name, expected) in [("security.capability", &capability[..]), ("user.lines", b"a\n12 user=b\n\n")] {
        let mut value = vec![0; 256];
        let length = rustix::fs::getxattr(&file, name, &mut value[..]).expect("the attribute");
        assert_eq!(&value[..length], expected, "{name}");
    }
    assert_eq!(fs::metadata(&file).expect("a file").mtime(), 77);
}

#[test]
fn records_that_lie_about_their_length_are_refused() {
    for records in [
        &b"9 mtime=7"[..],
        b"999 mtime=7\n",
        b"0 mtime=7\n",
        b"x mtime=7\n",
        b"11 mtime 7x\n",
        b"10 mtime=77\n",
        b"12345678901234567890123 a=b\n",
        b"12",
    ] {
        let root = tempfile::tempdir().expect("a directory");
        let refused = apply(root.path(), &[with_pax(records)]);
        assert!(matches!(refused, Err(ImageError::Malformed(_))), "{records:?}: {refused:?}");
    }
}

/// Headers whose checksums are right, with names, links and sizes that try to lead out of the tree
/// or to its limits.
fn hostile_entry() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        Just(b'0'),
        Just(b'1'),
        Just(b'2'),
        Just(b'3'),
        Just(b'5'),
        Just(b'6'),
        Just(b'x'),
        Just(b'L'),
        any::<u8>()
    ];
    let part = prop_oneof![
        Just(".."),
        Just("."),
        Just("a"),
        Just("b"),
        Just("dev"),
        Just(".wh.a"),
        Just(".wh..wh..opq"),
        Just("")
    ];
    let path = vec(part, 0..5).prop_map(|parts| parts.join("/"));
    let size = prop_oneof![Just(0_u64), 0_u64..1200, any::<u64>()];
    let damage = vec((0_usize..512, any::<u8>()), 0..3);
    (kind, path.clone(), path, size, damage, vec(any::<u8>(), 0..3)).prop_map(
        |(kind, path, link, size, damage, fill)| {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(EntryType::new(kind));
            header.set_mode(0o755);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(size);
            for (at, byte) in damage {
                header.as_mut_bytes()[at] = byte;
            }
            header.set_cksum();
            let content: Vec<u8> = fill.iter().flat_map(|byte| [*byte; 512]).collect();
            [header.as_bytes().to_vec(), content].concat()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn hostile_layers_stay_in_their_tree(
        layers in vec(vec(hostile_entry(), 0..8).prop_map(|entries| entries.concat()), 1..3),
        other in vec(any::<u8>(), 0..100),
        magic in prop_oneof![Just(&[][..]), Just(&[0x1f, 0x8b, 8][..]), Just(&[0x28, 0xb5, 0x2f, 0xfd][..])],
    ) {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("root");
        fs::create_dir(&root).expect("a directory");
        fs::write(place.path().join("a"), "outside").expect("a file");
        // Refused or not: nothing panics, and nothing is changed outside.
        let _ = apply(&root, &layers);
        let _ = apply(&root, &[[magic, &other].concat()]);
        prop_assert_eq!(text(&place.path().join("a")), "outside");
        prop_assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 2);
    }
}
