//! A write that fails at any call leaves the whole old file or the whole new one, and does not keep
//! the next write from succeeding.

use std::fs;

use testing::{DISK_FAULTS, FaultyDisk};

const OLD: &[u8] = b"the old content";
const NEW: &[u8] = b"the new content, which is longer";

#[test]
fn failed_calls_leave_a_whole_file() {
    FaultyDisk::run("child_writes_a_file");
}

#[test]
#[ignore = "run by failed_calls_leave_a_whole_file"]
fn child_writes_a_file() {
    let Some(disk) = FaultyDisk::of_child() else { return };
    for fault in DISK_FAULTS {
        let mut points = 0;
        for skip in FaultyDisk::skips(1) {
            let situation = format!("{}, after {skip} calls", fault.name);
            let file = disk.path().join("file");
            sandbar_durable::write(&file, OLD, 0o600).expect("the disk works");
            disk.arm(fault, skip);
            let written = sandbar_durable::write(&file, NEW, 0o600);
            let was_hit = disk.disarm();
            let found = fs::read(&file).expect("there is a file");
            match written {
                Ok(()) => assert!(found == NEW, "{situation}: acknowledged and not there"),
                Err(_) => assert!(found == OLD || found == NEW, "{situation}: a part of the content"),
            }
            sandbar_durable::write(&file, NEW, 0o600).expect("the disk works again");
            assert_eq!(fs::read(&file).expect("there is a file"), NEW, "{situation}");
            assert_eq!(fs::read_dir(disk.path()).expect("a directory").count(), 1, "{situation}: a draft is left");
            if !was_hit {
                break;
            }
            points += 1;
        }
        assert!(points >= 4, "{}: write, sync, rename and sync of the directory: {points} points", fault.name);
    }
}
