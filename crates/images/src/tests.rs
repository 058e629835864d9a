//! Unpacks images that the tests build, with the real unpacker. The hostile ones are tested one by
//! one in `unpack`.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tar::EntryType::{Directory, Fifo, Link, Regular, Symlink};
use tar::{Builder, EntryType, Header};
use unpack::{Layer, digest};

use crate::unpacker::unpack_within;
use crate::{ArchiveImage, ImageError, Limits, Owners, Target, Unpacked, cancellation, try_unpacker, unpack_files};

const LIMITS: Limits = Limits { bytes: 64 << 20, entries: 1000 };
const TIMEOUT: Duration = Duration::from_secs(60);

fn target(root: &Path) -> Target<'_> {
    Target { root, owners: Owners::From(0), limits: LIMITS, cancelled: None, cgroup: &[] }
}

/// A directory of a file system with attributes.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory")
}

fn add(archive: &mut Builder<Vec<u8>>, kind: EntryType, path: &str, mode: u32, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(33);
    header.set_gid(44);
    header.set_mtime(1_000_000);
    let size = if matches!(kind, Symlink | Link) { 0 } else { content.len() as u64 };
    header.set_size(size);
    if size == 0 && !content.is_empty() {
        let target = std::str::from_utf8(content).expect("text");
        return archive.append_link(&mut header, path, target).expect("a link");
    }
    archive.append_data(&mut header, path, content).expect("an entry");
}

fn tar(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, path, content) in entries {
        add(&mut archive, *kind, path, 0o644, content.as_bytes());
    }
    archive.into_inner().expect("an archive")
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), bytes).expect("written");
    file
}

/// A `docker save` archive or an OCI layout of these layers, as one file.
fn image(layers: &[Vec<u8>], is_layout: bool, spoilt: bool) -> tempfile::NamedTempFile {
    let architecture = unpack::architecture();
    let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
    let config = json!({
        "os": "linux", "architecture": architecture, "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "config": { "Env": ["A=1", "PATH=/opt/bin:/bin"] },
    })
    .to_string();
    let mut archive = Builder::new(Vec::new());
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", &digest(bytes)[7..]);
    let mut put = |name: &str, bytes: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes).expect("an entry");
    };
    put(&blob(config.as_bytes()), config.as_bytes());
    for layer in layers {
        let mut bytes = layer.clone();
        if spoilt {
            bytes[600] ^= 1;
        }
        put(&blob(layer), &bytes);
    }
    if is_layout {
        let of = |bytes: &[u8]| json!({ "digest": digest(bytes), "size": bytes.len() });
        let layers: Vec<_> = layers.iter().map(|layer| of(layer)).collect();
        let manifest = json!({ "config": of(config.as_bytes()), "layers": layers }).to_string();
        let platform = |name: &str| json!({ "os": "linux", "architecture": name });
        let other = json!({ "digest": "sha256:none", "platform": platform("s390x") });
        let own = json!({ "digest": digest(manifest.as_bytes()), "platform": platform(architecture) });
        put(&blob(manifest.as_bytes()), manifest.as_bytes());
        put("oci-layout", b"{\"imageLayoutVersion\":\"1.0.0\"}");
        put("index.json", json!({ "manifests": [other, own] }).to_string().as_bytes());
    } else {
        let layers: Vec<_> = layers.iter().map(|layer| blob(layer)).collect();
        put("manifest.json", json!([{ "Config": blob(config.as_bytes()), "Layers": layers }]).to_string().as_bytes());
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), archive.into_inner().expect("an archive")).expect("written");
    file
}

#[test]
fn both_kinds_of_archives_hold_the_same_image() {
    let layers = [tar(&[(Regular, "a", "1"), (Regular, "b", "2")]), tar(&[(Regular, ".wh.a", "")])];
    let mut digests = Vec::new();
    for is_layout in [false, true] {
        let file = image(&layers, is_layout, false);
        let found = ArchiveImage::open(file.path()).expect("an image");
        let root = place();
        found.unpack(&target(root.path())).expect("it unpacks");
        assert!(!root.path().join("a").exists() && root.path().join("b").is_file());
        assert_eq!(found.config().env["PATH"], "/opt/bin:/bin");
        digests.push(found.config().digest.clone());
        let spoilt = image(&layers, is_layout, true);
        let refused = ArchiveImage::open(spoilt.path()).and_then(|found| found.unpack(&target(place().path())));
        assert!(refused.is_err(), "a changed byte is found");
    }
    assert_eq!(digests[0], digests[1]);
    let none = tempfile::NamedTempFile::new().expect("a file");
    assert!(matches!(ArchiveImage::open(none.path()), Err(ImageError::Malformed(_))));
    assert!(matches!(ArchiveImage::open(Path::new("/nowhere")), Err(ImageError::Io { .. })));
}

#[test]
fn files_keep_owners_modes_times_and_attributes_of_the_image() {
    let mut archive = Builder::new(Vec::new());
    let capability = [&[1, 0, 0, 2, b'\n'][..], &[0; 15]].concat();
    archive
        .append_pax_extensions([("SCHILY.xattr.security.capability", &capability[..]), ("SCHILY.xattr.user.a", b"b")])
        .expect("an entry");
    add(&mut archive, Regular, "bin/able", 0o755, b"program");
    add(&mut archive, Regular, "bin/sudo", 0o4755, b"program");
    add(&mut archive, Regular, "bin/group", 0o2755, b"program");
    add(&mut archive, Link, "bin/same", 0o644, b"bin/sudo");
    add(&mut archive, Symlink, "link", 0o777, b"/etc/passwd");
    add(&mut archive, Directory, "sticky", 0o1777, b"");
    add(&mut archive, Fifo, "pipe", 0o640, b"");
    add(&mut archive, Regular, "private/file", 0o000, b"x");
    let archive = file(&archive.into_inner().expect("an archive"));
    let root = place();
    let done = unpack_files(archive.path(), &target(root.path())).expect("a tree");
    assert_eq!(done, Unpacked { entries: 8, devices: 0, strangers: 0 });
    let metadata = |path: &str| root.path().join(path).symlink_metadata().expect("it is there");
    for (path, mode) in [("bin/able", 0o755), ("bin/sudo", 0o4755), ("bin/group", 0o2755), ("private/file", 0)] {
        let found = metadata(path);
        let found = (found.uid(), found.gid(), found.mode() & 0o7777, found.mtime());
        assert_eq!(found, (33, 44, mode, 1_000_000), "{path}");
    }
    assert_eq!(metadata("bin/sudo").ino(), metadata("bin/same").ino());
    assert_eq!((metadata("sticky").mode() & 0o7777, metadata("sticky").uid()), (0o1777, 33));
    assert!(metadata("link").is_symlink() && metadata("link").uid() == 33);
    assert!(metadata("pipe").file_type().is_fifo() && metadata("pipe").gid() == 44);
    assert_eq!(metadata("bin").uid(), 0, "a directory that no entry names is root's");
    for (name, expected) in [("security.capability", &capability[..]), ("user.a", b"b")] {
        let mut value = [0; 64];
        let length = rustix::fs::getxattr(root.path().join("bin/able"), name, &mut value[..]).expect("an attribute");
        assert_eq!(&value[..length], expected, "{name}");
    }
}

#[test]
fn bombs_end_the_unpacker_with_a_clear_error() {
    let zipped = |bytes: &mut dyn Read| {
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::copy(bytes, &mut zipped).expect("it compresses");
        file(&zipped.finish().expect("it ends"))
    };
    let large = zipped(&mut std::io::repeat(0).take(200 << 20));
    let refused = unpack_files(large.path(), &target(place().path()));
    assert!(matches!(refused, Err(ImageError::TooLarge(_))), "{refused:?}");

    // Every path of a layer is kept in memory: 12,000 of 4,000 letters are more than this unpacker
    // may use.
    let mut archive = Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let deep = vec!["x".repeat(240); 16].join("/");
    for number in 0..12_000 {
        let mut header = Header::new_gnu();
        header.set_entry_type(Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        archive.append_link(&mut header, format!("{deep}/{number}"), "x").expect("an entry");
    }
    let many = file(&archive.into_inner().and_then(flate2::write::GzEncoder::finish).expect("it ends"));
    let limits = Limits { bytes: 8 << 30, entries: 4_000_000 };
    let unpack = |memory_bytes| {
        let (root, archive) = (place(), fs::File::open(many.path()).expect("our own file"));
        let layers = vec![Layer { file: 0, place: None, diff_id: None }];
        unpack_within(memory_bytes, layers, vec![archive], &Target { limits, ..target(root.path()) })
    };
    let message = unpack(32 << 20).expect_err("it takes too much").to_string();
    assert!(message.contains("more than 32 MiB of memory"), "{message}");
    assert_eq!(unpack(1 << 30).expect("the control: it has enough").entries, 12_000);
}

#[test]
fn it_can_be_started_here() {
    try_unpacker().expect("it answers");
}

/// An archive that does not end: a named pipe with the first bytes of a file.
struct Endless {
    place: tempfile::TempDir,
    _writer: fs::File,
}

impl Endless {
    fn new() -> Self {
        let place = place();
        let path = place.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        let mut writer = fs::File::options().read(true).write(true).open(&path).expect("a pipe");
        let whole = tar(&[(Regular, "half", &"x".repeat(4096))]);
        writer.write_all(&whole[..1024]).expect("a pipe has room");
        Self { place, _writer: writer }
    }

    fn path(&self) -> std::path::PathBuf {
        self.place.path().join("pipe")
    }

    /// The process that reads it, not this one.
    fn reader(&self) -> Pid {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let processes = fs::read_dir("/proc").expect("it is mounted").flatten();
            let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            let mut readers = pids.filter(|pid| {
                let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
                let mut open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
                pid.cast_unsigned() != std::process::id() && open.any(|target| target == self.path())
            });
            if let Some(found) = readers.next().and_then(Pid::from_raw) {
                return found;
            }
            assert!(Instant::now() < deadline, "nothing reads the archive");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn wait_for_file(path: &Path) {
    let deadline = Instant::now() + TIMEOUT;
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_unpacker_that_is_killed_is_an_error_and_no_more() {
    let (endless, root) = (Endless::new(), place());
    std::thread::scope(|scope| {
        let unpacking = scope.spawn(|| unpack_files(&endless.path(), &target(root.path())));
        wait_for_file(&root.path().join("half"));
        kill_process(endless.reader(), Signal::KILL).expect("our own process");
        let message = unpacking.join().expect("no panic").expect_err("it was killed").to_string();
        assert!(message.contains("the process that reads the image was killed"), "{message}");
    });
}

#[test]
fn an_unpacking_that_is_cancelled_ends_at_once() {
    let (endless, root) = (Endless::new(), place());
    let (cancelled, alive) = cancellation().expect("a pipe");
    std::thread::scope(|scope| {
        let unpacking = scope
            .spawn(|| unpack_files(&endless.path(), &Target { cancelled: Some(&cancelled), ..target(root.path()) }));
        wait_for_file(&root.path().join("half"));
        let reader = endless.reader();
        drop(alive);
        let message = unpacking.join().expect("no panic").expect_err("it was cancelled").to_string();
        assert!(message.contains("the build was cancelled"), "{message}");
        let gone = rustix::process::test_kill_process(reader);
        assert_eq!(gone, Err(rustix::io::Errno::SRCH), "the process has ended before the call");
    });
}
