//! A sandbox at its process limit: the guest survives, serves files, and reports the limit.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use testing::{SOON, eventually};

use crate::common::TestGuest;

/// A cgroup that limits processes; removed on drop, after its processes have ended.
struct Pids(PathBuf);

impl Pids {
    fn new(name: &str) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let root = if v1.is_dir() { v1 } else { Path::new("/sys/fs/cgroup") };
        if root != v1 {
            fs::write(root.join("cgroup.subtree_control"), "+pids").expect("control groups that count processes");
        }
        let group = root.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&group).expect("tests run as root, with control groups");
        Self(group)
    }

    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("moved");
    }

    /// Allows no further process.
    fn close(&self) {
        let now = fs::read_to_string(self.0.join("pids.current")).expect("a count");
        fs::write(self.0.join("pids.max"), now.trim()).expect("a limit");
    }

    fn open(&self) {
        fs::write(self.0.join("pids.max"), "max").expect("a limit");
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        eventually("the control group is empty", SOON, || fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn a_guest_at_its_process_limit_serves_files() {
    testing::needs_root!("it limits processes by a cgroup");
    let pids = Pids::new("sandbar-guest-limit");
    let mut guest = TestGuest::start();
    assert_eq!(guest.upload("before", b"x").status, 200);
    let pid = guest.host_pid();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").count();
    eventually("threads that idle end", SOON, || (threads() <= 2).then_some(()));
    pids.take(pid);
    pids.close();

    let path = guest.home().join("at-the-limit").display().to_string();
    assert_eq!(guest.upload(&path, b"written at the limit").status, 200);
    assert_eq!(guest.get(&format!("/files?path={path}")).text(), "written at the limit");
    guest.call("filesystem.Filesystem/Stat", &json!({"path": path})).expect("it is there");
    assert_eq!(guest.get("/metrics").status, 200);
    let refused = guest.run("true").error.expect("no process can start");
    assert_eq!(refused["message"], "the sandbox has reached its limit of processes");
    assert!(!guest.has_exited());

    pids.open();
    assert_eq!(guest.run("echo again").out(), "again\n");
}
