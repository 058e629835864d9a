//! A file of a volume that is written while calls of the disk fail: its whole old content or its
//! whole new one is there, and the next write succeeds. Renames go to the kernel without libc and
//! are not reached.

use std::fs;
use std::io::Write as _;

use sandbar_engine::volume::{ContentError, Owner, VolumeDirectory};
use testing::{DISK_FAULTS, FaultyDisk};

const OLD: &[u8] = b"the old content";
const NEW: &[u8] = b"the new content, which is longer";

fn write(volume: &VolumeDirectory, content: &[u8]) -> Result<(), ContentError> {
    let staged = volume.stage()?;
    for piece in content.chunks(9) {
        staged.file().write_all(piece)?;
    }
    let path = "/above/file".parse().expect("a path");
    let owner = Owner { uid: None, gid: None, mode: None };
    volume.place(&staged, &path, owner, true).map(drop)
}

#[test]
fn failed_calls_leave_whole_files_in_volumes() {
    FaultyDisk::run("child_writes_into_a_volume");
}

#[test]
#[ignore = "run by failed_calls_leave_whole_files_in_volumes"]
fn child_writes_into_a_volume() {
    let Some(disk) = FaultyDisk::of_child() else { return };
    let directory = disk.path().join("volume");
    fs::create_dir(&directory).expect("the disk works");
    let volume = VolumeDirectory::create(&directory).expect("the disk works");
    let file = directory.join("files/above/file");
    for fault in DISK_FAULTS {
        let mut points = 0;
        for skip in FaultyDisk::skips(1) {
            let situation = format!("{}, after {skip} calls", fault.name);
            write(&volume, OLD).expect("the disk works");
            disk.arm(fault, skip);
            let written = write(&volume, NEW);
            let was_hit = disk.disarm();
            let found = fs::read(&file).expect("there is a file");
            match written {
                Ok(()) => assert!(found == NEW, "{situation}: acknowledged and not there"),
                Err(_) => assert!(found == OLD || found == NEW, "{situation}: a part of the content"),
            }
            write(&volume, NEW).expect("the disk works again");
            assert_eq!(fs::read(&file).expect("there is a file"), NEW, "{situation}");
            let staged = fs::read_dir(directory.join("staging")).expect("a directory").count();
            assert_eq!(staged, 0, "{situation}: something is left");
            if !was_hit {
                break;
            }
            points += 1;
        }
        // The pieces and the sync of the file.
        assert!(points > NEW.len() / 9, "{}: only {points} calls were reached", fault.name);
    }
}
