//! The pool against the real kernel: the tests fail without root, loop devices and btrfs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use sandbar_engine::pool::{Pool, PoolError, PoolKind};
use testing::{SOON, eventually};

const MIB: u64 = 1 << 20;
const IMAGE: u64 = 4 << 30;

/// A data directory that is deleted on drop, with everything mounted in it.
struct Data(tempfile::TempDir);

impl Data {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn pool(&self) -> Pool {
        Pool::open(self.path(), IMAGE).expect("the pool opens")
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        for point in ["pool", "other", "host/pool", "host", ""] {
            // Nothing is mounted there unless a test failed half-way.
            let _ = rustix::mount::unmount(self.path().join(point), UnmountFlags::DETACH);
        }
    }
}

/// Writes until the disk refuses; returns the number of bytes written and the error.
fn fill(path: &Path, at_most: u64) -> (u64, Option<io::Error>) {
    let mut file = File::create(path).expect("a file can be made");
    let block = vec![7; MIB as usize];
    let mut written = 0;
    while written < at_most {
        match file.write_all(&block).and_then(|()| file.sync_data()) {
            Ok(()) => written += MIB,
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Syncs the pool and wakes its cleaner, which would otherwise wait for half a minute.
fn sync(data: &Path) {
    let synced = Command::new("btrfs").args(["filesystem", "sync"]).arg(data.join("pool")).status();
    assert!(synced.unwrap().success());
}

fn loop_devices_of(data: &Path) -> usize {
    let image = data.join("pool.img");
    let devices = fs::read_dir("/sys/block").expect("the list of disks").flatten();
    let files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| Path::new(file.trim()) == image).count()
}

#[test]
fn a_volume_is_limited_without_affecting_its_neighbour() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    assert_eq!((pool.kind(), pool.shortcoming()), (PoolKind::LoopBtrfs, None));
    let (small, other) =
        (pool.create_volume("small", 64 * MIB).unwrap(), pool.create_volume("other", 256 * MIB).unwrap());
    assert!(small.is_limit_hard());

    let (written, refusal) = fill(&small.path().join("file"), 256 * MIB);
    assert_eq!(refusal.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT));
    assert!((56 * MIB..=64 * MIB).contains(&written), "{written} bytes were taken");
    assert!((written..=64 * MIB).contains(&small.used_bytes().unwrap()), "{} counted", small.used_bytes().unwrap());

    let (written, refusal) = fill(&other.path().join("file"), 128 * MIB);
    assert!(refusal.is_none(), "{refusal:?} after {written}");

    fs::remove_file(small.path().join("file")).unwrap();
    let (_, refusal) = fill(&small.path().join("file"), 32 * MIB);
    assert!(refusal.is_none(), "deleting must make room: {refusal:?}");

    small.set_limit(128 * MIB).unwrap();
    let (written, refusal) = fill(&small.path().join("file"), 100 * MIB);
    assert!(refusal.is_none(), "the limit was raised: {refusal:?} after {written}");
    assert_eq!(small.limit_bytes(), 128 * MIB);
}

#[test]
fn what_is_written_counts_before_it_is_on_disk() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    let volume = pool.create_volume("box", 64 * MIB).unwrap();
    fs::write(volume.path().join("file"), vec![1; 10 * MIB as usize]).unwrap();
    let used = volume.used_bytes().unwrap();
    assert!((10 * MIB..12 * MIB).contains(&used), "{used} counted");
}

#[test]
fn volumes_outlive_the_pool_and_the_image_is_attached_once() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    let volume = pool.create_volume("kept", 64 * MIB).unwrap();
    fs::write(volume.path().join("file"), "content").unwrap();
    assert_eq!(loop_devices_of(data.path()), 1);

    // A running sandbox has a second mount elsewhere, which keeps the device attached when the
    // server ends.
    let other = data.path().join("other");
    fs::create_dir(&other).unwrap();
    rustix::mount::mount_bind(data.path().join("pool"), &other).unwrap();
    drop((volume, pool));
    assert!(!data.path().join("pool/kept").exists(), "the pool's own mount is undone");
    assert_eq!(loop_devices_of(data.path()), 1);

    let pool = data.pool();
    assert_eq!(loop_devices_of(data.path()), 1, "the device that has the image is used again");
    assert_eq!(pool.list().unwrap(), ["kept"]);
    let volume = pool.open_volume("kept", 32 * MIB).unwrap();
    assert_eq!(fs::read_to_string(volume.path().join("file")).unwrap(), "content");
    fs::write(volume.path().join("new"), "new").unwrap();
    assert_eq!(fs::read_to_string(other.join("kept/new")).unwrap(), "new", "both are one file system");
    let (_, refusal) = fill(&volume.path().join("big"), 64 * MIB);
    assert_eq!(refusal.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT), "opening sets the limit");

    let again = data.pool();
    drop(again);
    assert!(data.path().join("pool/kept").exists(), "a pool opened twice is unmounted only by the one that mounted it");

    drop((volume, pool));
    rustix::mount::unmount(&other, UnmountFlags::DETACH).unwrap();
    eventually("the loop device's end", SOON, || loop_devices_of(data.path()) == 0);
}

#[test]
fn removing_gives_the_space_back_to_the_host() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    let allocated = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(data.path().join("pool.img")).unwrap().blocks() * 512
    };
    let volume = pool.create_volume("gone", 512 * MIB).unwrap();
    assert!(fill(&volume.path().join("file"), 256 * MIB).1.is_none());
    let before = allocated();
    assert!(before > 256 * MIB);
    drop(volume);
    pool.remove("gone").unwrap();
    assert!(pool.list().unwrap().is_empty());
    pool.remove("gone").expect("absent is success");
    sync(data.path());
    eventually("the return of the space", SOON, || allocated() < before - 200 * MIB);
}

#[test]
fn no_quota_group_is_left_when_volumes_are_gone() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    let groups = || -> Vec<String> {
        let shown = Command::new("btrfs").args(["qgroup", "show"]).arg(data.path().join("pool")).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        let ids = text.lines().filter_map(|line| line.split_whitespace().next()).filter(|id| id.starts_with("0/"));
        ids.filter(|id| *id != "0/5").map(str::to_owned).collect()
    };
    for name in ["a", "b", "c"] {
        let volume = pool.create_volume(name, 64 * MIB).unwrap();
        fs::write(volume.path().join("file"), vec![1; MIB as usize]).unwrap();
    }
    assert_eq!(groups().len(), 3);
    for name in ["a", "b", "c"] {
        pool.remove(name).unwrap();
    }
    eventually("the end of the quota groups", SOON, || {
        sync(data.path());
        pool.create_volume("d", MIB).unwrap();
        pool.remove("d").unwrap();
        // The group of the volume removed last waits for the next removal.
        groups().len() <= 1
    });
}

#[test]
fn a_damaged_image_is_an_error_and_stays_as_it_is() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    drop(data.pool());
    eventually("the loop device's end", SOON, || loop_devices_of(data.path()) == 0);
    let image = fs::OpenOptions::new().read(true).write(true).open(data.path().join("pool.img")).unwrap();
    let superblock = 64 << 10;
    let mut good = [0; 4096];
    image.read_exact_at(&mut good, superblock).unwrap();
    let mut wrong_sum = good;
    wrong_sum[0x90] ^= 0xff;
    for bad in [[0; 4096], wrong_sum] {
        image.write_all_at(&bad, superblock).unwrap();
        let error = Pool::open(data.path(), IMAGE).expect_err("it is damaged");
        assert!(matches!(&error, PoolError::Unmountable { image, .. } if image.ends_with("pool.img")), "{error:?}");
        assert!(error.to_string().contains("left untouched"), "{error}");
        let mut now = [1; 4096];
        image.read_exact_at(&mut now, superblock).unwrap();
        assert_eq!(now, bad);
        eventually("the loop device's end", SOON, || loop_devices_of(data.path()) == 0);
    }
    image.write_all_at(&good, superblock).unwrap();
    assert_eq!(data.pool().kind(), PoolKind::LoopBtrfs);
}

#[test]
fn an_unfinished_image_is_made_again() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    fs::write(data.path().join("pool.img.new"), "half an image").unwrap();
    assert_eq!(data.pool().kind(), PoolKind::LoopBtrfs);
    assert!(!data.path().join("pool.img.new").exists());
}

#[test]
fn directories_stand_in_where_no_image_can_be_had() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = Pool::open(data.path(), MIB).unwrap();
    assert_eq!(pool.kind(), PoolKind::Directory);
    assert!(pool.shortcoming().is_some_and(|why| why.contains("too few")), "{:?}", pool.shortcoming());
    let volume = pool.create_volume("box", MIB).unwrap();
    assert!(!volume.is_limit_hard());
    fs::create_dir(volume.path().join("inner")).unwrap();
    fs::write(volume.path().join("inner/file"), vec![1; 3 * MIB as usize]).unwrap();
    fs::hard_link(volume.path().join("inner/file"), volume.path().join("link")).unwrap();
    let used = volume.used_bytes().unwrap();
    assert!((3 * MIB..4 * MIB).contains(&used), "{used} counted");
    drop(pool);

    // Existing volumes decide, so that no sandbox loses its files when btrfs becomes available.
    let pool = data.pool();
    assert_eq!(pool.kind(), PoolKind::Directory);
    assert_eq!(pool.list().unwrap(), ["box"]);
    pool.remove("box").unwrap();
    drop(pool);
    assert_eq!(data.pool().kind(), PoolKind::LoopBtrfs);
}

#[test]
fn a_btrfs_host_is_used_as_it_is_only_if_its_quotas_are_on() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    // A btrfs for the data directory, made by another pool.
    let outer = data.pool();
    let host = outer.create_volume("host", 3 << 30).unwrap();
    let pool = Pool::open(host.path(), IMAGE).unwrap();
    assert_eq!(pool.kind(), PoolKind::NativeBtrfs);
    let volume = pool.create_volume("box", 16 * MIB).unwrap();
    let (_, refusal) = fill(&volume.path().join("file"), 64 * MIB);
    assert_eq!(refusal.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT));
    drop(volume);
    pool.remove("box").unwrap();
    assert!(!host.path().join("volumes/box").exists());
    drop(pool);

    let off = Command::new("btrfs").args(["quota", "disable"]).arg(data.path().join("pool")).status().unwrap();
    assert!(off.success());
    let pool = Pool::open(host.path(), IMAGE / 4).unwrap();
    assert_eq!(pool.kind(), PoolKind::LoopBtrfs);
    let flags = Command::new("lsattr").arg(host.path().join("pool.img")).output().unwrap();
    let flags = String::from_utf8(flags.stdout).unwrap();
    assert!(flags.split_whitespace().next().is_some_and(|flags| flags.contains('C')), "not copy-on-write: {flags}");
    let volume = pool.create_volume("box", 16 * MIB).unwrap();
    let (_, refusal) = fill(&volume.path().join("file"), 64 * MIB);
    assert_eq!(refusal.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT));
}

#[test]
fn sandboxes_cannot_fill_the_host() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let host: PathBuf = data.path().join("host");
    fs::create_dir(&host).unwrap();
    rustix::mount::mount("tmpfs", &host, "tmpfs", MountFlags::empty(), c"size=1300m").unwrap();
    let pool = Pool::open(&host, IMAGE).unwrap();
    assert!(pool.free_bytes().unwrap() <= 1300 * MIB, "never more than the host has");
    let (one, two) = (pool.create_volume("one", 2 << 30).unwrap(), pool.create_volume("two", 2 << 30).unwrap());

    // 1 GiB is kept free, so both volumes together have 276 MiB.
    assert!(fill(&one.path().join("file"), 100 * MIB).1.is_none());
    let (written, refusal) = fill(&two.path().join("file"), 1024 * MIB);
    assert_eq!(refusal.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT));
    assert!((120 * MIB..=176 * MIB).contains(&written), "{written} bytes were taken");

    // Other programs fill the host: no new volumes, no more bytes in existing ones, whose files
    // stay usable.
    fs::remove_file(two.path().join("file")).unwrap();
    let ballast = vec![1; 260 * MIB as usize];
    fs::write(host.join("ballast"), &ballast).unwrap();
    pool.guard().unwrap();
    let error = pool.create_volume("three", MIB).expect_err("less than the reserve is left");
    assert!(matches!(error, PoolError::NoSpace { .. }), "{error:?}");
    pool.open_volume("one", 2 << 30).expect("what exists can still be opened");
    let (_, refusal) = fill(&two.path().join("file"), 300 * MIB);
    assert_eq!(refusal.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT));
    fs::remove_file(two.path().join("file")).unwrap();

    fs::remove_file(host.join("ballast")).unwrap();
    eventually("the return of what was deleted", SOON, || {
        pool.guard().unwrap();
        pool.create_volume("three", MIB).is_ok()
    });
    assert!(fill(&two.path().join("file"), 100 * MIB).1.is_none());
    drop((one, two, pool));
    rustix::mount::unmount(&host, UnmountFlags::DETACH).unwrap();
}

#[test]
fn names_cannot_leave_the_pool() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    for name in ["", ".", "..", "a/b", "../pool.img", ".hidden", "a\0b"] {
        assert!(matches!(pool.create_volume(name, MIB), Err(PoolError::InvalidName(_))), "{name:?}");
        assert!(matches!(pool.remove(name), Err(PoolError::InvalidName(_))), "{name:?}");
    }
}

#[test]
fn a_copy_is_whole_quick_and_limited_by_itself() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    let source = pool.create_volume("source", 64 * MIB).unwrap();
    let (written, refusal) = fill(&source.path().join("big"), 40 * MIB);
    assert!(refusal.is_none() && written == 40 * MIB);
    fs::write(source.path().join("small"), "before").unwrap();
    pool.commit().unwrap();
    let copy = pool.copy("source", "copy", 64 * MIB).unwrap();
    assert_eq!(fs::metadata(copy.path().join("big")).unwrap().len(), 40 * MIB);
    fs::write(source.path().join("small"), "after").unwrap();
    assert_eq!(fs::read_to_string(copy.path().join("small")).unwrap(), "before");

    assert!(pool.copy("source", "copy", MIB).is_err(), "the name is taken");
    assert!(pool.copy("nobody", "other", MIB).is_err());
    assert!(pool.copy("source", "../other", MIB).is_err());
    assert_eq!(pool.list().unwrap(), ["copy", "source"]);

    let (more, refusal) = fill(&copy.path().join("more"), 128 * MIB);
    assert!(refusal.is_some() && (48 * MIB..80 * MIB).contains(&more), "{more}: a limit of its own");
    // The copy pins blocks of the source: without an allowance, the source could not replace its
    // own files.
    source.set_allowance(40 * MIB).unwrap();
    fs::remove_file(source.path().join("big")).unwrap();
    let (written, refusal) = fill(&source.path().join("new"), 48 * MIB);
    assert!(refusal.is_none(), "{written}: {refusal:?}");
    pool.remove("source").unwrap();
    assert_eq!(fs::metadata(copy.path().join("big")).unwrap().len(), 40 * MIB, "a copy outlives its source");
}

#[test]
fn opening_or_copying_never_creates_a_missing_volume() {
    testing::needs_root!("it mounts btrfs");
    let (loop_data, directory_data) = (Data::new(), Data::new());
    for pool in [loop_data.pool(), Pool::open(directory_data.path(), MIB).unwrap()] {
        for error in [
            pool.open_volume("absent", MIB).expect_err("there is none"),
            pool.copy("absent", "copy", MIB).expect_err("there is none"),
            pool.move_to_trash("absent").expect_err("there is none"),
            pool.take_from_trash("absent").expect_err("there is none"),
        ] {
            assert!(matches!(&error, PoolError::Missing { name, .. } if name == "absent"), "{error:?}");
        }
        assert_eq!(pool.list().unwrap(), [""; 0]);
        pool.create_volume("box", MIB).unwrap();
        assert!(pool.create_volume("box", MIB).is_err(), "a create makes a new one or none");
    }
}

#[test]
fn the_trash_keeps_volumes_with_what_was_known_of_them() {
    testing::needs_root!("it mounts btrfs");
    let (loop_data, directory_data) = (Data::new(), Data::new());
    for (data, bytes) in [(&loop_data, IMAGE), (&directory_data, MIB)] {
        let pool = Pool::open(data.path(), bytes).unwrap();
        let kind = pool.kind();
        let volume = pool.create_volume("box", 16 * MIB).unwrap();
        fs::write(volume.path().join("file"), vec![7; MIB as usize]).unwrap();
        let note = serde_json::json!({ "kind": "sandbox", "id": "box" });
        pool.write_note("box", &note).unwrap();
        drop(volume);
        pool.move_to_trash("box").unwrap();
        assert_eq!(pool.list().unwrap(), [""; 0]);
        assert_eq!(pool.note("box"), None);
        drop(pool);

        let pool = Pool::open(data.path(), bytes.max(IMAGE)).unwrap();
        assert_eq!(pool.kind(), kind, "what is in the trash decides, too");
        let trash = pool.trash().unwrap();
        assert_eq!(trash.len(), 1);
        assert_eq!((trash[0].files.as_str(), trash[0].note.as_ref()), ("box", Some(&note)));
        assert!(trash[0].bytes.is_some_and(|bytes| bytes >= MIB), "{trash:?}");
        assert!(trash[0].since.elapsed().is_ok_and(|age| age < Duration::from_secs(600)), "{trash:?}");
        assert_eq!(trash[0].watched, Duration::ZERO);
        pool.record_watched("box", Duration::from_secs(90)).unwrap();
        let found = pool.trash().unwrap().remove(0);
        assert_eq!((found.watched, found.since), (Duration::from_secs(90), trash[0].since));
        assert_eq!(found.note.as_ref(), Some(&note));
        pool.record_watched("absent", Duration::ZERO).expect_err("it is not in the trash");

        pool.create_volume("box", MIB).unwrap();
        pool.take_from_trash("box").expect_err("another volume has its name");
        pool.remove("box").unwrap();
        pool.take_from_trash("box").unwrap();
        assert_eq!(pool.note("box"), Some(note));
        let volume = pool.open_volume("box", 16 * MIB).unwrap();
        assert_eq!(fs::metadata(volume.path().join("file")).unwrap().len(), MIB);
        assert!(pool.trash().unwrap().is_empty());

        drop(volume);
        pool.move_to_trash("box").unwrap();
        pool.create_volume("box", MIB).unwrap();
        pool.move_to_trash("box").expect("two of one name have room");
        let names = || pool.trash().unwrap().into_iter().map(|trashed| trashed.files.to_string()).collect::<Vec<_>>();
        assert_eq!(names(), ["box", "boxx2"], "the newest has the name itself");
        pool.take_from_trash("boxx2").unwrap();
        assert_eq!(fs::metadata(pool.path_of("boxx2").join("file")).unwrap().len(), MIB);
        pool.delete_from_trash("box").unwrap();
        pool.delete_from_trash("box").expect("absent is success");
        assert_eq!(names(), [""; 0]);
    }
}

/// Mounts an ext4 in a sparse file at `host`.
fn small_ext4(data: &Data, bytes: u64) -> PathBuf {
    let (image, host) = (data.path().join("host.img"), data.path().join("host"));
    File::create(&image).unwrap().set_len(bytes).unwrap();
    fs::create_dir(&host).unwrap();
    assert!(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status().unwrap().success());
    assert!(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&host).status().unwrap().success());
    host
}

/// Allocates every block of the file system, including those reserved for root.
fn take_all(file: &Path) {
    let free = rustix::fs::statvfs(file.parent().unwrap()).unwrap();
    let mut file = File::create(file).unwrap();
    // At once, as a careless program does; the rest in pieces.
    let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free.f_bavail * free.f_frsize);
    file.seek(SeekFrom::End(0)).unwrap();
    for size in [16 << 20, 1 << 20, 4096_usize] {
        let block = vec![9; size];
        while file.write_all(&block).is_ok() {}
    }
    // Fails because the disk is full, as intended.
    let _ = file.sync_all();
}

#[test]
fn a_host_that_others_fill_does_not_abort_the_pool() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let host = small_ext4(&data, 2 << 30);
    let pool = Pool::open(&host, IMAGE).unwrap();
    assert!(host.join("pool.reserve").metadata().unwrap().len() >= 30 * MIB, "a reserve was taken");
    let volume = pool.create_volume("box", 1 << 30).unwrap();
    fs::write(volume.path().join("synced"), "kept").unwrap();
    pool.commit().unwrap();
    pool.guard().unwrap();

    take_all(&host.join("filler"));
    for number in 0..2000 {
        // The write may fail: what counts is that the file system stays usable.
        let _ = fs::write(volume.path().join(format!("file-{number}")), vec![3; 20_000]);
    }
    assert!(pool.commit().is_err(), "who wants to be sure is told");
    assert_eq!(pool.fault(), None);
    pool.guard().unwrap();
    assert!(!host.join("pool.reserve").exists(), "the reserve was given up");

    fs::remove_file(host.join("filler")).unwrap();
    pool.guard().unwrap();
    assert!(host.join("pool.reserve").exists(), "and taken again");
    assert!(fill(&volume.path().join("after"), 20 * MIB).1.is_none());
    pool.commit().unwrap();
    assert_eq!(fs::read_to_string(volume.path().join("synced")).unwrap(), "kept");
    drop((volume, pool));
    rustix::mount::unmount(&host, UnmountFlags::DETACH).unwrap();
}

/// Writes more metadata than a new btrfs of mkfs has room for. The writes may fail.
fn write_metadata(volume: &Path, first: u32) {
    for number in first..first + 20_000 {
        let _ = fs::write(volume.join(format!("{number:0>200}")), "");
    }
}

#[test]
fn a_host_that_is_full_before_the_guard_runs_aborts_no_pool() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let host = small_ext4(&data, 2 << 30);
    let pool = Pool::open(&host, IMAGE).unwrap();
    let volume = pool.create_volume("box", 1 << 30).unwrap();
    take_all(&host.join("filler"));
    write_metadata(volume.path(), 0);
    let _ = pool.commit();
    assert_eq!(pool.fault(), None);
    drop((volume, pool));
    rustix::mount::unmount(&host, UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_failing_disk_is_reported_and_loses_nothing_committed() {
    testing::needs_root!("it mounts btrfs");
    let mut disk = testing::Disk::new(3 << 30);
    let data = disk.path().join("data");
    let pool = Pool::open(&data, IMAGE).unwrap();
    let volume = pool.create_volume("box", 1 << 30).unwrap();
    fs::write(volume.path().join("committed"), "kept").unwrap();
    pool.commit().unwrap();
    assert_eq!(pool.fault(), None);

    disk.fail();
    fs::write(volume.path().join("lost"), "in memory only").unwrap();
    assert!(pool.commit().is_err(), "who wants to be sure is told");
    let fault = pool.fault().expect("the kernel has aborted the file system");
    assert!(fault.path.ends_with("pool") && fault.cause.contains("sandbar up"), "{fault}");
    assert!(matches!(pool.create_volume("other", MIB), Err(PoolError::ReadOnly(_))));
    assert_eq!(fs::read_to_string(volume.path().join("committed")).unwrap(), "kept", "reading works");
    drop((volume, pool));

    disk.repair();
    let pool = Pool::open(&data, IMAGE).unwrap();
    assert_eq!(pool.fault(), None);
    assert_eq!(fs::read_to_string(pool.path_of("box").join("committed")).unwrap(), "kept");
    pool.create_volume("other", MIB).unwrap();
    pool.commit().unwrap();
}

fn btrfs(arguments: &[&str], path: &Path) {
    let done = Command::new("btrfs").args(arguments).arg(path).output().expect("btrfs-progs");
    assert!(done.status.success(), "{arguments:?} {}: {}", path.display(), String::from_utf8_lossy(&done.stderr));
}

fn make_subvolume(path: &Path) {
    btrfs(&["subvolume", "create"], path);
}

/// Makes nested directories below `parent`, deeper than a path can name. Returns the deepest.
fn make_deep(parent: &Path, levels: usize) -> File {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let mut directory = File::open(parent).unwrap();
    for _ in 0..levels {
        mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = openat(&directory, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap().into();
    }
    directory
}

#[test]
fn subvolumes_inside_a_shared_volume_count_and_go_with_it() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    let volume = pool.create_shared_volume("shared", 64 * MIB).unwrap();
    let inside = volume.path().join("inside");
    make_subvolume(&inside);
    make_subvolume(&inside.join("deeper"));
    let (written, refusal) = fill(&inside.join("deeper/file"), 256 * MIB);
    assert_eq!(refusal.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT), "after {written}");
    assert!(written <= 64 * MIB, "{written} bytes were taken");
    assert!(volume.used_bytes().unwrap() >= written);
    // A neighbour has its own limit.
    let other = pool.create_shared_volume("other", 64 * MIB).unwrap();
    assert!(fill(&other.path().join("file"), 32 * MIB).1.is_none());
    // A higher limit applies to the whole tree, too.
    volume.set_limit(128 * MIB).unwrap();
    assert!(fill(&inside.join("more"), 32 * MIB).1.is_none());

    pool.remove("shared").unwrap();
    assert_eq!(pool.list().unwrap(), ["other"]);
    pool.remove("other").unwrap();
    let groups = || {
        let shown = Command::new("btrfs").args(["qgroup", "show"]).arg(data.path().join("pool")).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        text.lines().filter_map(|line| line.split_whitespace().next()).filter(|id| id.starts_with("1/")).count()
    };
    eventually("only the group of all volumes is left", SOON, || {
        sync(data.path());
        for name in ["a", "b"] {
            pool.create_volume(name, MIB).unwrap();
            pool.remove(name).unwrap();
        }
        groups() == 1
    });
}

#[test]
fn nested_subvolumes_of_an_older_version_count_once_opened() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    // As older versions created it.
    let volume = pool.create_volume("old", 64 * MIB).unwrap();
    make_subvolume(&volume.path().join("inside"));
    let (written, refusal) = fill(&volume.path().join("inside/file"), 96 * MIB);
    assert!(refusal.is_none(), "the control: without a group above it nothing limits it: {refusal:?} after {written}");
    drop(volume);
    pool.count_nested("old").unwrap();
    pool.count_nested("old").unwrap();
    let volume = pool.open_volume("old", 64 * MIB).unwrap();
    assert!(volume.used_bytes().unwrap() >= 96 * MIB, "{} counted", volume.used_bytes().unwrap());
    for path in ["file", "inside/more"] {
        let refusal = fs::write(volume.path().join(path), vec![1; MIB as usize]).unwrap_err();
        assert_eq!(refusal.raw_os_error(), Some(libc::EDQUOT), "{path}");
    }
    drop(pool);
    let pool = data.pool();
    pool.count_nested("old").unwrap();
    pool.open_volume("old", 256 * MIB).unwrap();
    assert!(fill(&data.path().join("pool/old/inside/more"), 16 * MIB).1.is_none());
}

#[test]
fn a_volume_is_removed_whatever_is_nested_in_it() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    let volume = pool.create_shared_volume("box", 512 * MIB).unwrap();
    let inside = volume.path().join("inside");
    make_subvolume(&inside);
    fs::create_dir(inside.join("locked")).unwrap();
    make_subvolume(&inside.join("locked/deeper"));
    fs::write(inside.join("locked/deeper/file"), "content").unwrap();
    // Deeper than the longest path: no call that takes a path reaches it.
    let deep = make_deep(volume.path(), 2500);
    let deep_path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&deep)));
    let made = Command::new("btrfs").args(["subvolume", "create", "far"]).current_dir(&deep_path).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    for (flags, path) in [("+i", "locked/deeper/file"), ("+a", "locked")] {
        let done = Command::new("chattr").arg(flags).arg(inside.join(path)).status().unwrap();
        assert!(done.success());
    }
    for path in ["locked/deeper", ""] {
        let path = inside.join(path);
        let done = Command::new("btrfs").args(["property", "set"]).arg(&path).args(["ro", "true"]).status().unwrap();
        assert!(done.success());
    }
    // Full, so that not even a flag can be changed.
    volume.set_limit(MIB).unwrap();
    drop((deep, volume));
    pool.remove("box").unwrap();
    assert_eq!(
        fs::read_dir(data.path().join("pool")).unwrap().flatten().filter(|entry| entry.file_name() == "box").count(),
        0
    );

    // The same from the trash.
    let volume = pool.create_volume("trashed", 64 * MIB).unwrap();
    make_subvolume(&volume.path().join("inside"));
    drop(volume);
    pool.move_to_trash("trashed").unwrap();
    pool.delete_from_trash("trashed").unwrap();
    assert_eq!(pool.trash().unwrap(), []);
}

#[test]
fn a_pool_opens_whatever_lies_beside_its_volumes() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    pool.create_volume("kept", 64 * MIB).unwrap();
    let root = data.path().join("pool");
    fs::write(root.join("file"), "").unwrap();
    std::os::unix::fs::symlink("/nowhere", root.join("link")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    assert!(Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
    fs::create_dir(root.join("directory")).unwrap();
    fs::write(root.join(".trash"), "no directory").unwrap();
    make_subvolume(&root.join(".backup-kept"));
    drop((pool, socket));
    let pool = data.pool();
    assert_eq!(pool.list().unwrap(), ["directory", "kept"]);
    for name in ["file", "link", "socket", "pipe", "directory", "absent"] {
        pool.remove(name).unwrap();
        assert!(root.join(name).symlink_metadata().is_err(), "{name}");
    }
    pool.remove_frozen_copies().unwrap();
    assert!(!root.join(".backup-kept").exists() && root.join("kept").is_dir());
}

/// Where volumes are directories, a tree of any depth is removed without recursion.
#[test]
fn a_directory_is_removed_however_deep_and_locked_it_is() {
    testing::needs_root!("it mounts btrfs");
    // In memory: tens of thousands of directories take minutes on a busy disk.
    let data = Data(tempfile::tempdir_in("/dev/shm").unwrap());
    fs::create_dir_all(data.path().join("volumes/old")).unwrap();
    let pool = Pool::open(data.path(), IMAGE).unwrap();
    assert_eq!(pool.kind(), PoolKind::Directory);
    let volume = pool.create_volume("box", 64 * MIB).unwrap();
    make_deep(volume.path(), 30_000);
    fs::create_dir_all(volume.path().join("locked/inner")).unwrap();
    fs::write(volume.path().join("locked/file"), "content").unwrap();
    std::os::unix::fs::symlink(data.path(), volume.path().join("locked/link")).unwrap();
    for (flags, path) in [("+i", "locked/file"), ("+a", "locked")] {
        let done = Command::new("chattr").arg(flags).arg(volume.path().join(path)).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    drop(volume);
    pool.remove("box").unwrap();
    assert_eq!(pool.list().unwrap(), ["old"]);
}

#[test]
fn spares_are_taken_settled_and_removed() {
    testing::needs_root!("it mounts btrfs");
    let data = Data::new();
    let pool = data.pool();
    pool.create_volume("template", 16 * MIB).unwrap();
    fs::write(pool.path_of("template").join("file"), "of the template").unwrap();
    for name in ["taken", "unused"] {
        pool.create_spare(name, 16 * MIB).unwrap();
    }
    for name in ["copy", "undone"] {
        pool.copy_to_spare("template", name, 16 * MIB).unwrap();
    }
    assert_eq!(pool.list().unwrap(), ["template"], "no sandbox has them yet");
    assert!(pool.take_spare("taken").unwrap() && pool.take_spare("copy").unwrap());
    assert!(!pool.take_spare("taken").unwrap(), "only once");
    let copy = fs::read_to_string(pool.path_of("copy").join("file")).unwrap();
    assert_eq!(copy, "of the template");
    // Its limit is the one that its sandbox sets.
    let volume = pool.open_volume("taken", 32 * MIB).unwrap();
    let (written, refused) = fill(&volume.path().join("big"), 64 * MIB);
    assert!(refused.is_some() && (24 * MIB..=32 * MIB).contains(&written), "{written}");
    assert!(pool.spares_are_of_this_boot());
    drop(pool);
    // The next server: a record names `undone`, whose rename did not reach the disk.
    let pool = data.pool();
    assert!(pool.place_spare("undone").unwrap());
    assert_eq!(fs::read_to_string(pool.path_of("undone").join("file")).unwrap(), "of the template");
    pool.remove_spare("unused").unwrap();
    pool.remove_spare("unused").expect("absent is success");
    assert!(pool.spares().unwrap().is_empty());
    assert_eq!(pool.list().unwrap(), ["copy", "taken", "template", "undone"]);
}
