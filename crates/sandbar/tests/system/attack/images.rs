//! Attacks by images on the process that unpacks them. The test stops the unpacker while it works
//! and inspects it from outside: a layer that took it over would have these privileges.

use crate::support::program::text;
use crate::support::{Program, Server, eventually};
use crate::templates::image::Image;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;
use testing::User;

const TIMEOUT: Duration = Duration::from_secs(300);
/// With this number of entries the unpacker works for a second or more.
const MANY: usize = 60_000;
/// The capabilities CHOWN, DAC_OVERRIDE, FOWNER, FSETID and SETFCAP.
const FOR_FILES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 31;

fn many_links() -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for number in 0..MANY {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_mode(0o777);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        archive.append_link(&mut header, format!("many/{number}"), "x").expect("an entry");
    }
    archive.into_inner().expect("an archive")
}

/// A running build of an image that takes a while to unpack.
struct Build {
    saved: TempDir,
    running: JoinHandle<Output>,
}

impl Build {
    fn start(server: &Server, saved: TempDir) -> Self {
        let (archive, context) = (saved.path().join("saved.tar"), saved.path().join("context"));
        fs::create_dir_all(&context).expect("a directory");
        if !archive.exists() {
            Image::with_layer("many", many_links()).save(&archive);
        }
        let program = Program::new("template").at(server);
        let running = spawn(move || {
            let (archive, context) = (archive.display().to_string(), context.display().to_string());
            program.run(&["build", "--from", &archive, "--name", "many", &context])
        });
        Self { saved, running }
    }

    fn wait(self) -> (Output, TempDir) {
        (self.running.join().expect("no panic"), self.saved)
    }
}

fn pid(server: &Server) -> u32 {
    let note = fs::read_to_string(server.file("server.json")).expect("the server says who it is");
    let note: serde_json::Value = serde_json::from_str(&note).expect("JSON");
    u32::try_from(note["pid"].as_u64().expect("a number")).expect("a process")
}

/// A field of `/proc/PID/status`. `None` once the process has ended.
fn field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("it is mounted").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| field(*pid, "PPid").is_some_and(|found| found == parent.to_string())).collect()
}

fn signal(pid: u32, name: &str) {
    let done = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(done.is_ok_and(|status| status.success()), "process {pid} is there");
}

fn number(pid: u32, name: &str, radix: u32) -> Option<u64> {
    u64::from_str_radix(field(pid, name)?.split_ascii_whitespace().next()?, radix).ok()
}

/// Stops the process that unpacks once its seccomp filter is installed and it has capabilities.
/// Returns the pids of its supervisor and of the process.
fn stop_unpacker(server: &Server) -> (u32, u32) {
    let (server, own_filters) = (pid(server), number(std::process::id(), "Seccomp_filters", 10));
    eventually("the unpacker works", TIMEOUT, || {
        let is_unpacker = |pid: &u32| field(*pid, "Name").is_some_and(|name| name == "sandbar-unpack");
        let supervisor = children(server).into_iter().find(is_unpacker)?;
        let confined = children(supervisor).into_iter().next()?;
        let is_confined = number(confined, "Seccomp_filters", 10) > own_filters;
        let has_tree = number(confined, "CapEff", 16).is_some_and(|set| set != 0);
        (is_confined && has_tree).then(|| {
            signal(confined, "STOP");
            (supervisor, confined)
        })
    })
}

fn nice(pid: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    // The name, in parentheses, may contain anything. The state after it is the third field.
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    fields.split(' ').nth(16).and_then(|nice| nice.parse().ok()).expect("a number")
}

/// Asserts that the process has a cgroup of its own, with limits.
#[track_caller]
fn assert_limited(server: u32, confined: u32) {
    let of = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroups");
    let controller = |text: &str, name: &str| {
        let line =
            |line: &&str| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|found| found == name));
        let line = text.lines().find(line).or_else(|| text.lines().find(|line| line.starts_with("0::")));
        line.and_then(|line| line.splitn(3, ':').nth(2)).expect("a cgroup").to_owned()
    };
    for (name, files) in [("memory", ["memory.max", "memory.limit_in_bytes"]), ("pids", ["pids.max", "pids.max"])] {
        let own = controller(&of(confined), name);
        assert_ne!(own, controller(&of(server), name), "the {name} cgroup is its own");
        let places = [format!("/sys/fs/cgroup{own}"), format!("/sys/fs/cgroup/{name}{own}")];
        let limit = places.iter().flat_map(|place| files.map(|file| Path::new(place).join(file)));
        let limit = limit.filter_map(|file| fs::read_to_string(file).ok()).next().expect("a limit");
        assert!(limit.trim().parse::<u64>().is_ok_and(|limit| limit <= 2 << 30), "{name}: {limit}");
    }
}

#[track_caller]
fn assert_confined(server: &Server, confined: u32) {
    let server = pid(server);
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a namespace");
        assert_ne!(of(confined), of(server), "the {kind} namespace is its own");
    }
    for set in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
        let expected = if matches!(set, "CapInh" | "CapAmb") { 0 } else { FOR_FILES };
        assert_eq!(number(confined, set, 16), Some(expected), "{set}");
    }
    assert_eq!(number(confined, "NoNewPrivs", 10), Some(1));
    assert_eq!(number(confined, "Seccomp", 10), Some(2));
    // Its root directory is the tree, which has only files of the image.
    let entries = fs::read_dir(format!("/proc/{confined}/root")).expect("its root").flatten();
    let names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().all(|name| ["bin", "etc", "srv", "many"].contains(&name.as_str())), "{names:?}");
    assert!(!Path::new(&format!("/proc/{confined}/root/etc/passwd")).exists());
    let mounts = fs::read_to_string(format!("/proc/{confined}/mountinfo")).expect("its mounts");
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    assert!(mounts.contains("nosuid,nodev,noexec"), "{mounts}");
    let open = fs::read_dir(format!("/proc/{confined}/fd")).expect("its descriptors").flatten();
    let open: Vec<_> = open.map(|entry| fs::read_link(entry.path()).expect("a descriptor")).collect();
    assert!(!open.iter().any(|target| target.to_string_lossy().contains("socket")), "{open:?}");
    let limits = fs::read_to_string(format!("/proc/{confined}/limits")).expect("its limits");
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).expect("a limit");
        line.split_ascii_whitespace().next().expect("a value").to_owned()
    };
    assert_eq!((limit("Max address space"), limit("Max core file size")), ((1 << 30).to_string(), "1".to_owned()));
    assert_eq!(nice(confined), 19, "it has the lowest priority");
    assert!(limit("Max cpu time").parse::<u64>().is_ok_and(|seconds| seconds < 100_000), "{limits}");
}

/// Inspects the unpacker of a server, then lets the build succeed.
#[track_caller]
fn check_unpacker(server: &Server, has_cgroups: bool) {
    let build = Build::start(server, tempfile::tempdir().expect("a directory"));
    let (supervisor, confined) = stop_unpacker(server);
    assert_confined(server, confined);
    if has_cgroups {
        assert_limited(pid(server), confined);
        assert_limited(pid(server), supervisor);
    }
    signal(confined, "CONT");
    let (done, _) = build.wait();
    assert!(done.status.success(), "the control: {done:?}");
}

#[test]
fn an_image_unpacker_has_no_privileges_beyond_its_tree() {
    let server = Server::with(&["--no-studio"]);
    check_unpacker(&server, testing::is_root());
}

#[test]
fn rootless_unpackers_have_no_privileges_beyond_their_tree() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        check_unpacker(&Server::for_user(user, &["--no-studio"]), false);
    }
}

#[test]
fn an_unpacker_that_is_killed_costs_one_build() {
    let server = Server::with(&["--no-studio"]);
    let mut saved = tempfile::tempdir().expect("a directory");
    for victim in ["supervisor", "confined process"] {
        let build = Build::start(&server, saved);
        let (supervisor, confined) = stop_unpacker(&server);
        let files = count_volumes(&server);
        signal(if victim == "supervisor" { supervisor } else { confined }, "KILL");
        let (done, kept) = build.wait();
        saved = kept;
        let message = text(&done.stderr);
        assert!(
            !done.status.success() && message.contains("the process that reads the image was killed"),
            "{victim}: {message}"
        );
        eventually(format!("what the {victim} left is gone"), TIMEOUT, || {
            (count_volumes(&server) < files).then_some(())
        });
        eventually("both processes are gone", TIMEOUT, || {
            let is_gone = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
            (is_gone(supervisor) && is_gone(confined)).then_some(())
        });
    }
    // The control: a build of the same image succeeds.
    let (done, _) = Build::start(&server, saved).wait();
    assert!(done.status.success(), "{done:?}");
}

/// Counts the volumes in the server's pool, without its trash.
fn count_volumes(server: &Server) -> usize {
    let root = format!("/proc/{}/root{}", pid(server), server.data().canonicalize().expect("a path").display());
    let listed = ["pool", "volumes"].map(|name| fs::read_dir(Path::new(&root).join(name)));
    let is_volume =
        |entry: &fs::DirEntry| entry.path().is_dir() && !entry.file_name().to_string_lossy().starts_with('.');
    listed.into_iter().flatten().map(|entries| entries.flatten().filter(is_volume).count()).sum()
}
