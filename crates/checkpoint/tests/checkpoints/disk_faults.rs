//! A directory store on a disk whose calls fail at any point: an object is its whole old content or
//! its whole new one, what was acknowledged is there, and the next try succeeds.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use object_store::path::Path as Key;
use sandbar_checkpoint::{ObjectStoreError, Objects};
use testing::{DISK_FAULTS, DiskFault, FaultyDisk};

const FOLDER: &str = "folder";
const KEY: &str = "folder/object";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Put,
    Create,
    Upload,
    Delete,
}

impl Change {
    /// Whether there is an object before the change.
    fn replaces(self) -> bool {
        self != Self::Create
    }

    async fn apply(self, objects: &Objects, content: &Bytes) -> Result<(), ObjectStoreError> {
        let key = Key::from(KEY);
        match self {
            Self::Put => objects.put(&key, content.clone()).await,
            Self::Create => objects.create(&key, content.clone()).await,
            Self::Delete => objects.delete(&key).await,
            Self::Upload => {
                let mut upload = objects.upload(key);
                match upload.push(content).await {
                    Ok(()) => upload.finish().await,
                    Err(error) => {
                        upload.abort().await;
                        Err(error)
                    }
                }
            }
        }
    }
}

/// The object as another process reads it.
async fn find(directory: &Path) -> Option<Bytes> {
    let objects = Objects::disk(directory).expect("the disk works");
    match objects.get(&Key::from(KEY)).await {
        Ok(content) => Some(content),
        Err(ObjectStoreError::NotFound { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn failed_calls_of_a_directory_leave_whole_objects() {
    FaultyDisk::run("disk_faults::child_changes_objects");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by failed_calls_of_a_directory_leave_whole_objects"]
async fn child_changes_objects() {
    let Some(disk) = FaultyDisk::of_child() else { return };
    for change in [Change::Put, Change::Create, Change::Upload, Change::Delete] {
        for fault in DISK_FAULTS {
            let mut points = 0;
            for skip in FaultyDisk::skips(1) {
                if !change_with_fault(&disk, change, fault, skip).await {
                    break;
                }
                points += 1;
            }
            println!("{change:?}, {}: {points} points", fault.name);
            assert!(points > 0, "{change:?}, {}: no call was reached", fault.name);
        }
    }
}

/// Makes the change while calls fail after `skip` ones. Returns whether a call failed.
async fn change_with_fault(disk: &FaultyDisk, change: Change, fault: DiskFault, skip: usize) -> bool {
    let situation = format!("{change:?}, {}, after {skip} calls", fault.name);
    // An upload of several parts.
    let size = if change == Change::Upload { 11 << 20 } else { 3 << 10 };
    let (old, new) = (Bytes::from(vec![1; 2 << 10]), Bytes::from(vec![2; size]));
    let directory = disk.path().join("objects");
    let objects = Objects::disk(&directory).expect("the disk works");
    objects.conditional_puts().await.expect("it can be probed");
    if change.replaces() {
        objects.put(&Key::from(KEY), old.clone()).await.expect("the disk works");
    }
    disk.arm(fault, skip);
    let changed = change.apply(&objects, &new).await;
    let was_hit = disk.disarm();
    let before = change.replaces().then_some(old);
    let after = (change != Change::Delete).then_some(new.clone());
    let found = find(&directory).await;
    match changed {
        Ok(()) => assert!(found == after, "{situation}: acknowledged and not there"),
        Err(_) => assert!(found == before || found == after, "{situation}: neither the old nor the new content"),
    }
    change.apply(&objects, &new).await.unwrap_or_else(|error| panic!("{situation}: the next try fails: {error:?}"));
    assert!(find(&directory).await == after, "{situation}: after the next try");
    objects.sweep(&Key::from(FOLDER)).await.expect("the disk works");
    let names = fs::read_dir(directory.join(FOLDER)).expect("a directory").count();
    assert_eq!(names, usize::from(after.is_some()), "{situation}: something is left");
    fs::remove_dir_all(&directory).expect("the disk works");
    was_hit
}
