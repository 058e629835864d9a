//! Cgroups against the real kernel (the tests fail without root), and the rules of version 2
//! against a stand-in tree, for machines whose controllers are all in trees of version 1.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sandbar_cgroup::{
    Ceiling, Cgroup, CgroupError, CgroupLimits, Hierarchy, MemoryCgroup, Mounts, ProcessShares, ProcessorClasses,
};
use testing::{SOON, eventually};

const LIMITS: CgroupLimits = CgroupLimits { cpu_count: 1, memory_mb: 64, pids: 20 };

/// The server's cgroup of one test. Dropping it, also when the test fails, kills and removes
/// everything in it.
struct Scene {
    hierarchy: Hierarchy,
}

impl Scene {
    fn new(mounts: &Mounts) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let group = format!("sandbar-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { hierarchy: Hierarchy::with_mounts(&group, mounts).expect("the machine has the controllers") }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for name in self.hierarchy.list() {
            if let Some(group) = self.hierarchy.open_existing(&name) {
                let ended = group.kill_all().and_then(|()| group.remove());
                assert!(thread::panicking() || ended.is_ok(), "{ended:?}");
            }
        }
        assert!(self.hierarchy.remove_root_if_empty() || thread::panicking());
    }
}

/// The mounts of this machine and, where both versions are mounted, those of version 1 alone.
fn machines() -> Vec<Mounts> {
    let found = Mounts::detect().expect("mountinfo can be read");
    let v1 = Mounts { unified: None, ..found.clone() };
    if found.unified.is_some() && !found.v1.is_empty() { vec![found, v1] } else { vec![found] }
}

fn on_every_machine(mut check: impl FnMut(&Scene)) {
    for mounts in machines() {
        eprintln!("on {}", mounts.describe());
        check(&Scene::new(&mounts));
    }
}

/// A program that starts once it is in its cgroup; killed and reaped on drop.
struct Inside {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Inside {
    fn run(group: &Cgroup, program: &str, arguments: &[&str]) -> Self {
        Self::start(group, program, arguments, false)
    }

    fn start(group: &Cgroup, program: &str, arguments: &[&str], with_input: bool) -> Self {
        // The shell waits until it is in the cgroup, then executes the program.
        let mut child = Command::new("sh")
            .args(["-c", r#"read go; exec "$0" "$@""#, program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        group.add(child.id()).expect("the process can be moved");
        let mut input = child.stdin.take().expect("it is piped");
        input.write_all(b"go\n").expect("it waits for this");
        Self { child, input: with_input.then_some(input), output }
    }

    /// As [`Inside::run`]; the program reads the input that [`Inside::ask`] writes.
    fn run_with_input(group: &Cgroup, program: &str, arguments: &[&str]) -> Self {
        Self::start(group, program, arguments, true)
    }

    fn ask(&mut self, question: &str) -> String {
        let input = self.input.as_mut().expect("it was started with an input");
        writeln!(input, "{question}").expect("it reads");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("output");
        line.trim().to_owned()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Usually dead already; waiting reaps it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_memory_bomb_dies_and_its_parent_goes_on() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("bomb", &LIMITS).unwrap();
        assert_eq!(group.oom_kills().unwrap(), 0);
        // tail keeps an endless line in memory.
        let script = "head -c 500M /dev/zero | tail >/dev/null; echo bomb $?; head -c 20M /dev/zero | tail | wc -c";
        let mut shell = Inside::run(&group, "sh", &["-c", script]);
        assert_eq!(shell.line(), "bomb 137");
        assert_eq!(shell.line(), "20971520", "what fits the limit still runs");
        assert!(group.oom_kills().unwrap() >= 1);
    });
}

#[test]
fn a_memory_cgroup_takes_a_process_and_goes_when_dropped() {
    testing::needs_root!("cgroups belong to root");
    let prefix = "sandbar-test-memory-";
    let group = MemoryCgroup::new(prefix, 64 << 20).expect("root has the memory controller");
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep starts");
    group.procs_file().write_all(child.id().to_string().as_bytes()).expect("the process can be moved");
    let own = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line = own.lines().find(|line| line.contains(prefix)).expect("it is in the group");
    let path = line.splitn(3, ':').nth(2).unwrap().trim_start_matches('/').to_owned();
    let mounts = Mounts::detect().unwrap();
    let exists = || mounts.places().any(|place| place.join(&path).is_dir());
    assert!(exists(), "{path}");
    drop(group);
    assert!(!exists(), "{path}");
}

#[test]
fn no_more_processes_than_the_limit() {
    testing::needs_root!("cgroups belong to root");
    const FORK: &str = "import os, signal\nn = 0\ntry:\n  while n < 1000:\n    if os.fork() == 0: signal.pause()\n    n += 1\n\
                        except OSError as e: print(n, e.errno, flush=True)\nsignal.pause()";
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("forks", &LIMITS).unwrap();
        let mut python = Inside::run(&group, "python3", &["-c", FORK]);
        assert_eq!(python.line(), format!("19 {}", libc::EAGAIN));
        assert_eq!(group.usage().unwrap().pids, 20);
        assert_eq!(group.pids().unwrap().len(), 20);
        group.kill_all().unwrap();
        assert!(group.pids().unwrap().is_empty());
        group.remove().unwrap();
        assert!(scene.hierarchy.list().is_empty());
    });
}

#[test]
fn a_fork_bomb_ends() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("forks", &CgroupLimits { pids: 200, ..LIMITS }).unwrap();
        let _bomb = Inside::run(&group, "sh", &["-c", "f() { while :; do f & done; }; f; f"]);
        eventually("the bomb's growth", SOON, || group.usage().unwrap().pids > 50);
        group.kill_all().unwrap();
        group.remove().unwrap();
    });
}

#[test]
fn a_frozen_group_stands_still_until_it_is_thawed() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("counter", &LIMITS).unwrap();
        let _counter = Inside::run(&group, "sh", &["-c", "while :; do :; done"]);
        let time = || group.usage().unwrap().cpu_usec;
        let advances = |from: u64| eventually("progress", SOON, || time() > from + 1000);
        advances(0);
        for _ in 0..3 {
            group.freeze().unwrap();
            assert!(group.is_frozen().unwrap());
            let before = time();
            thread::sleep(Duration::from_millis(30));
            assert_eq!(time(), before, "no time passes for it");
            group.thaw().unwrap();
            eventually("the thaw", SOON, || !group.is_frozen().unwrap());
            advances(before);
        }
    });
}

#[test]
fn a_frozen_group_can_be_killed() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("frozen", &LIMITS).unwrap();
        let mut shell = Inside::run(&group, "sh", &["-c", "sleep 1000 & sleep 1000 & echo up; wait"]);
        assert_eq!(shell.line(), "up");
        group.freeze().unwrap();
        group.kill_all().unwrap();
        assert!(group.pids().unwrap().is_empty());
        group.remove().unwrap();
        group.kill_all().expect("absent is success");
        group.remove().expect("absent is success");
        assert!(scene.hierarchy.open_existing("frozen").is_none());
    });
}

#[test]
fn a_process_in_only_some_of_the_trees_is_found_and_killed() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("half", &LIMITS).unwrap();
        for file in group.procs_files() {
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            fs::write(&file, child.id().to_string()).unwrap();
            assert_eq!(group.pids().unwrap(), [child.id()]);
            let waiter = thread::spawn(move || child.wait().unwrap());
            group.kill_all().unwrap();
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(waiter.join().unwrap().signal(), Some(libc::SIGKILL));
        }
    });
}

#[test]
fn memory_and_cache_are_counted_separately() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("usage", &CgroupLimits { memory_mb: 256, ..LIMITS }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cached");
        const HOLD: &str = "import sys, signal\nopen(sys.argv[1], 'wb').write(bytes(40 << 20))\nx = b'x' * (80 << 20)\n\
                            print('up', flush=True)\nsignal.pause()";
        let mut python = Inside::run(&group, "python3", &["-c", HOLD, file.to_str().unwrap()]);
        assert_eq!(python.line(), "up");
        let usage = group.usage().unwrap();
        assert_eq!(usage.memory_limit, 256 << 20);
        assert!((80 << 20..110 << 20).contains(&usage.memory_used), "{usage:?}");
        assert!((38 << 20..60 << 20).contains(&usage.memory_cache), "{usage:?}");
        assert!(usage.cpu_usec > 1000, "{usage:?}");
    });
}

#[test]
fn two_processors_worth_of_work_get_one() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("cpu", &LIMITS).unwrap();
        let _busy: Vec<_> = (0..3).map(|_| Inside::run(&group, "sh", &["-c", "while :; do :; done"])).collect();
        let (start, used) = (Instant::now(), group.usage().unwrap().cpu_usec);
        thread::sleep(Duration::from_millis(500));
        let used = Duration::from_micros(group.usage().unwrap().cpu_usec - used);
        let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
        assert!(share < 1.3, "{share} processors were used");
    });
}

#[test]
fn a_left_over_group_is_taken_over_when_it_is_empty_only() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("box", &LIMITS).unwrap();
        let _sleep = Inside::run(&group, "sleep", &["1000"]);
        let again = scene.hierarchy.create("box", &LIMITS);
        assert!(matches!(again, Err(CgroupError::Exists(ref name)) if name == "box"), "{again:?}");
        assert_eq!(group.pids().unwrap().len(), 1, "the refusal changes nothing");
        group.freeze().unwrap();
        group.kill_all().unwrap();
        let again = scene.hierarchy.create("box", &CgroupLimits { memory_mb: 32, ..LIMITS }).unwrap();
        assert!(!again.is_frozen().unwrap());
        assert_eq!(again.usage().unwrap().memory_limit, 32 << 20);
        assert_eq!(scene.hierarchy.list(), ["box"]);
    });
}

#[test]
fn names_cannot_leave_the_tree() {
    testing::needs_root!("cgroups belong to root");
    let scene = Scene::new(&machines()[0]);
    for name in ["", ".", "..", "a/b", "../memory", "cgroup.procs"] {
        assert!(matches!(scene.hierarchy.create(name, &LIMITS), Err(CgroupError::InvalidName(_))), "{name:?}");
        assert!(scene.hierarchy.open_existing(name).is_none(), "{name:?}");
    }
}

#[test]
fn all_groups_together_are_limited_also_while_they_run() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let [first, second] = ["first", "second"].map(|name| scene.hierarchy.create(name, &LIMITS).unwrap());
        let adopted = Inside::run(&first, "sleep", &["1000"]);
        let ceiling = Ceiling { memory: 1 << 30, pids: 8 };
        scene.hierarchy.limit_together(ceiling).expect("running groups are limited");
        scene.hierarchy.limit_together(ceiling).expect("and again, by the next server");
        const FORK: &str = "import os, signal\nn = 0\ntry:\n  while n < 100:\n    if os.fork() == 0: signal.pause()\n    n += 1\n\
                            except OSError as e: print(n, e.errno, flush=True)\nsignal.pause()";
        let mut bomb = Inside::run(&second, "python3", &["-c", FORK]);
        assert_eq!(bomb.line(), format!("6 {}", libc::EAGAIN), "with the other group's process there are eight");
        second.kill_all().unwrap();
        assert_eq!(first.pids().unwrap(), [adopted.child.id()], "what ran already is not touched");
        let mut control =
            Inside::run(&second, "python3", &["-c", "import os\nif os.fork() == 0: os._exit(0)\nprint(os.wait()[1])"]);
        assert_eq!(control.line(), "0", "the control: below the limit processes are made");
    });
}

#[test]
fn v2_limits_of_all_are_written_and_never_below_what_is_used() {
    let tree = FakeTree::new("cpu memory pids");
    for (file, content) in [
        ("memory.max", "max\n"),
        ("memory.current", "8000\n"),
        ("pids.max", "max\n"),
        ("cpu.weight", "100\n"),
        ("io.weight", "default 100\n"),
        ("io.bfq.weight", "100\n"),
    ] {
        tree.put(&format!("server/{file}"), content);
    }
    let hierarchy = Hierarchy::with_mounts("server", &tree.mounts()).unwrap();
    hierarchy.limit_together(Ceiling { memory: 100_000, pids: 70 }).unwrap();
    let read = |file: &str| tree.get(&format!("server/{file}"));
    let written = || ["memory.max", "pids.max", "cpu.weight"].map(read);
    assert_eq!(written(), ["100000", "70", "80"]);
    assert_eq!(["io.weight", "io.bfq.weight"].map(read), ["80", "80"], "below other programs' default");
    hierarchy.limit_together(Ceiling { memory: 1000, pids: 70 }).unwrap();
    assert_eq!(written()[0], "9000", "more than is used");
    fs::remove_file(tree.path("server/cpu.weight")).unwrap();
    assert!(hierarchy.limit_together(Ceiling { memory: 200_000, pids: 60 }).is_err(), "what is missing is told");
    assert_eq!(written_but_weight(&tree), ["200000", "60"], "and the others are set");
}

fn written_but_weight(tree: &FakeTree) -> [String; 2] {
    ["memory.max", "pids.max"].map(|file| tree.get(&format!("server/{file}")))
}

/// A directory with the files of a cgroup2 tree.
struct FakeTree {
    root: tempfile::TempDir,
}

impl FakeTree {
    /// The server's cgroup `server` with the empty cgroup `box`, with the files that the kernel
    /// creates.
    fn new(controllers: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let tree = Self { root };
        fs::create_dir_all(tree.path("server/box")).unwrap();
        tree.put("cgroup.controllers", controllers);
        for directory in ["", "server/", "server/box/"] {
            tree.put(&format!("{directory}cgroup.subtree_control"), "");
        }
        for (file, content) in [
            ("cgroup.procs", ""),
            ("cgroup.freeze", "0\n"),
            ("cgroup.kill", ""),
            ("cgroup.events", "populated 0\nfrozen 0\n"),
            ("cpu.max", "max 100000\n"),
            ("cpu.weight", "100\n"),
            ("cpu.stat", "usage_usec 1234567\nuser_usec 1000000\n"),
            ("memory.max", "max\n"),
            ("memory.swap.max", "max\n"),
            ("memory.oom.group", "1\n"),
            ("memory.current", "1000000\n"),
            ("memory.stat", "anon 500000\nfile 400000\nshmem 100000\n"),
            ("memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n"),
            ("pids.max", "max\n"),
            ("pids.current", "5\n"),
        ] {
            tree.put(&format!("server/box/{file}"), content);
        }
        tree
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.path().join(file)
    }

    fn put(&self, file: &str, content: &str) {
        fs::write(self.path(file), content).unwrap();
    }

    fn get(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    fn mounts(&self) -> Mounts {
        Mounts { unified: Some(self.root.path().to_owned()), ..Mounts::default() }
    }

    fn group(&self) -> Cgroup {
        Hierarchy::with_mounts("server", &self.mounts()).unwrap().create("box", &LIMITS).unwrap()
    }

    /// Acts as the kernel does on `cgroup.freeze` and `cgroup.kill`, while `body` runs.
    fn with_kernel(&self, body: impl FnOnce()) {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let box_file = |file: &str| self.path("server/box").join(file);
                let read = |file: &str| fs::read_to_string(box_file(file)).unwrap().trim().to_owned();
                // By an atomic rename: a reader never sees a half-written file of this kind.
                let replace = |file: &str, text: &str| {
                    fs::write(self.path("next"), text).unwrap();
                    fs::rename(self.path("next"), box_file(file)).unwrap();
                };
                let (mut frozen, mut populated) = (2, 2);
                while !over.load(Ordering::Relaxed) {
                    if read("cgroup.kill") == "1" {
                        replace("cgroup.procs", "");
                    }
                    let now = (u8::from(read("cgroup.freeze") == "1"), u8::from(!read("cgroup.procs").is_empty()));
                    if now != (frozen, populated) {
                        (frozen, populated) = now;
                        write_in_place(
                            &box_file("cgroup.events"),
                            &format!("populated {populated}\nfrozen {frozen}\n"),
                        );
                    }
                    thread::yield_now();
                }
            });
            let _stop = Stop(&over);
            body();
        });
    }
}

/// The reader keeps `cgroup.events` open, so it must stay the same file; both texts have the same
/// length.
fn write_in_place(path: &Path, text: &str) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn v2_controllers_are_handed_down_and_limits_written() {
    let tree = FakeTree::new("cpuset cpu io memory hugetlb pids rdma");
    let group = tree.group();
    for file in ["cgroup.subtree_control", "server/cgroup.subtree_control"] {
        assert_eq!(tree.get(file), "+memory +cpu +pids");
    }
    let written = ["memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "cpu.weight", "pids.max"]
        .map(|file| tree.get(&format!("server/box/{file}")));
    assert_eq!(written, ["67108864", "0", "0", "100000 100000", "10", "20"]);
    assert_eq!(group.procs_files(), [tree.path("server/box/cgroup.procs")]);
    group.add(4711).unwrap();
    assert_eq!(tree.get("server/box/cgroup.procs"), "4711");
    assert_eq!(group.pids().unwrap(), [4711]);
}

#[test]
fn v2_controllers_that_are_there_are_not_asked_for_again() {
    let tree = FakeTree::new("cpu memory pids");
    tree.put("cgroup.subtree_control", "cpu memory pids\n");
    tree.put("server/cgroup.subtree_control", "memory\n");
    tree.group();
    assert_eq!(tree.get("cgroup.subtree_control"), "cpu memory pids\n");
    assert_eq!(tree.get("server/cgroup.subtree_control"), "+cpu +pids");
}

#[test]
fn v2_usage_is_read() {
    let tree = FakeTree::new("cpu memory pids");
    let group = tree.group();
    let usage = group.usage().unwrap();
    assert_eq!((usage.cpu_usec, usage.pids, usage.memory_limit), (1_234_567, 5, 64 << 20));
    assert_eq!((usage.memory_used, usage.memory_cache), (700_000, 300_000), "shared memory is no cache");
    assert_eq!(group.oom_kills().unwrap(), 2);
    tree.put("server/box/memory.max", "max\n");
    assert_eq!(group.usage().unwrap().memory_limit, u64::MAX);
}

#[test]
fn v2_freezes_thaws_and_kills() {
    let tree = FakeTree::new("cpu memory pids");
    let group = tree.group();
    // A number beyond every pid: no real process is ever signalled.
    tree.put("server/box/cgroup.procs", "4194305\n");
    tree.with_kernel(|| {
        group.freeze().unwrap();
        assert!(group.is_frozen().unwrap());
        group.thaw().unwrap();
        assert_eq!(tree.get("server/box/cgroup.freeze"), "0");
        group.freeze().unwrap();
        group.kill_all().unwrap();
        assert_eq!(tree.get("server/box/cgroup.kill"), "1");
        assert!(group.pids().unwrap().is_empty());
    });
}

#[test]
fn a_freeze_that_does_not_happen_is_taken_back() {
    let tree = FakeTree::new("cpu memory pids");
    let group = tree.group();
    let frozen = group.freeze();
    assert!(matches!(frozen, Err(CgroupError::Timeout { what: "freezing", .. })), "{frozen:?}");
    assert_eq!(tree.get("server/box/cgroup.freeze"), "0");
}

#[test]
fn a_missing_controller_is_named_with_its_fix() {
    let tree = FakeTree::new("cpu pids");
    let error = Hierarchy::with_mounts("server", &tree.mounts()).unwrap_err();
    let CgroupError::Unsupported { what, fix } = error else { panic!("{error:?}") };
    assert!(what.contains("memory"), "{what}");
    assert!(!fix.is_empty());
}

/// Reads how often to fork, and prints how often that succeeded.
const FORKS: &str = "import os, signal, sys\nfor line in sys.stdin:\n  n = 0\n  try:\n    while n < int(line):\n      \
                     if os.fork() == 0: signal.pause()\n      n += 1\n  except OSError: pass\n  print(n, flush=True)";

#[test]
fn a_fork_bomb_leaves_other_groups_their_share() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let limits = CgroupLimits { pids: 190, memory_mb: 512, ..LIMITS };
        let [greedy, modest] = ["greedy", "modest"].map(|name| scene.hierarchy.create(name, &limits).unwrap());
        scene.hierarchy.limit_together(Ceiling { memory: 2 << 30, pids: 200 }).unwrap();
        let mut shares = ProcessShares::new(scene.hierarchy.clone());
        let forks = |group| Inside::run_with_input(group, "python3", &["-c", FORKS]);
        let (mut greedy_python, mut modest_python) = (forks(&greedy), forks(&modest));
        shares.balance().unwrap();
        assert_eq!(greedy_python.ask("148"), "148", "numbers are plentiful");
        shares.balance().unwrap();
        assert_eq!(greedy_python.ask("10"), "0", "it has more than its half");
        assert_eq!(modest_python.ask("40"), "40", "the control: one below its share");
        greedy.kill_all().unwrap();
        drop(greedy_python);
        // A killed process keeps its pid until its parent, or process 1 of the host, has reaped it.
        eventually("all are reaped", SOON, || greedy.usage().unwrap().pids == 0);
        shares.balance().unwrap();
        assert_eq!(forks(&greedy).ask("110"), "110", "and again once half of all are free");
    });
}

/// The scheduler's class of the group, from the one file that says so.
fn is_in_background(group: &Cgroup) -> bool {
    let directories = group.procs_files().into_iter().filter_map(|file| file.parent().map(Path::to_owned));
    let files: Vec<String> =
        directories.filter_map(|directory| fs::read_to_string(directory.join("cpu.idle")).ok()).collect();
    assert_eq!(files.len(), 1, "this kernel has classes");
    files[0].trim() == "1"
}

/// The group's processor weight, which the kernel changes with the class.
fn weight(group: &Cgroup) -> u64 {
    let directories = group.procs_files().into_iter().filter_map(|file| file.parent().map(Path::to_owned));
    let mut files = directories.flat_map(|directory| ["cpu.shares", "cpu.weight"].map(|file| directory.join(file)));
    let text = files.find_map(|file| fs::read_to_string(file).ok()).expect("a weight");
    text.trim().parse().expect("a number")
}

#[test]
fn a_sandbox_that_only_computes_gives_way_to_those_called() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let [computing, called] = ["computing", "called"].map(|name| scene.hierarchy.create(name, &LIMITS).unwrap());
        let _spinning = [&computing, &called].map(|group| Inside::run(group, "sh", &["-c", "while :; do :; done"]));
        let classes = |busy_percent| ProcessorClasses::new(scene.hierarchy.clone(), 2).with_busy_percent(busy_percent);
        let mut always = classes(0);
        let calls = HashMap::from([("called".to_owned(), u32::MAX)]);
        eventually("the kernel prefers the other", SOON, || {
            always.balance(&calls).unwrap();
            assert!(!is_in_background(&called), "its calls account for its half of two processors");
            is_in_background(&computing)
        });
        assert!([102, 10].contains(&weight(&called)), "a tenth of the kernel's default");
        let mut never = classes(1000);
        assert!(!is_in_background(&computing), "a new server has no accounts yet");
        assert_eq!(weight(&computing), weight(&called), "it weighs again what all do");
        never.balance(&calls).unwrap();
        never.balance(&calls).unwrap();
        assert!(!is_in_background(&computing), "the machine is not busy");
    });
}

/// Reads how many milliseconds of its processor's time to use, and says when it has.
const BURSTS: &str = "import sys, time\nfor line in sys.stdin:\n  end = time.process_time() + int(line) / 1000\n  \
                      while time.process_time() < end: pass\n  print('used', flush=True)";

#[test]
fn bursts_between_quiet_times_go_to_the_background() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let group = scene.hierarchy.create("bursts", &LIMITS).unwrap();
        let mut python = Inside::run_with_input(&group, "python3", &["-c", BURSTS]);
        // So little that a burst is busy on a loaded machine, too.
        let mut classes = ProcessorClasses::new(scene.hierarchy.clone(), 2).with_busy_percent(1);
        let calls = HashMap::<String, u32>::new();
        let mut found = Vec::new();
        for _ in 0..3 {
            classes.balance(&calls).unwrap();
            assert_eq!(python.ask("500"), "used");
            classes.balance(&calls).unwrap();
            found.push(is_in_background(&group));
            eventually("a quiet time ends the background", SOON, || {
                thread::sleep(Duration::from_millis(20));
                classes.balance(&calls).unwrap();
                !is_in_background(&group)
            });
        }
        assert_eq!(found.last(), Some(&true), "{found:?}");
    });
}

/// Processes that fork all the time.
const CROWD: &str = "for i in $(seq 160); do (while :; do (:); done) & done; wait";

/// The group's processor time per period, in microseconds, from the file of either version.
fn quota(group: &Cgroup) -> u64 {
    let directories = group.procs_files().into_iter().filter_map(|file| file.parent().map(Path::to_owned));
    let mut read = directories.filter_map(|directory| {
        let text = ["cpu.cfs_quota_us", "cpu.max"].map(|file| fs::read_to_string(directory.join(file)).ok());
        text.into_iter().flatten().next()
    });
    let text = read.next().expect("a quota");
    text.split_whitespace().next().expect("a number").parse().expect("a number")
}

#[test]
fn a_crowd_of_forks_is_rationed_while_others_are_called() {
    testing::needs_root!("cgroups belong to root");
    on_every_machine(|scene| {
        let limits = CgroupLimits { memory_mb: 512, pids: 1000, ..LIMITS };
        let [crowd, called] = ["crowd", "called"].map(|name| scene.hierarchy.create(name, &limits).unwrap());
        let forking = Inside::run(&crowd, "sh", &["-c", CROWD]);
        let mut classes = ProcessorClasses::new(scene.hierarchy.clone(), 2).with_busy_percent(0);
        let mut balance = |calls: &[&str]| {
            classes.balance(&calls.iter().map(|name| ((*name).to_owned(), 1)).collect()).unwrap();
            thread::sleep(Duration::from_millis(20));
        };
        eventually("a crowd that no call waits for only gives way", SOON, || {
            balance(&["crowd"]);
            is_in_background(&crowd) && crowd.usage().unwrap().pids > 128
        });
        assert_eq!(quota(&crowd), 100_000, "its own calls are no reason");
        eventually("it gets a ration, in the foreground", SOON, || {
            balance(&["called"]);
            quota(&crowd) == 10_000 && !is_in_background(&crowd)
        });
        for _ in 0..5 {
            balance(&[]);
            assert_eq!(quota(&crowd), 10_000, "it stays rationed");
        }
        assert_eq!(quota(&called), 100_000);
        ProcessorClasses::new(scene.hierarchy.clone(), 2);
        assert_eq!(quota(&crowd), 100_000, "a new server gives it back");
        let mut classes = ProcessorClasses::new(scene.hierarchy.clone(), 2).with_busy_percent(0);
        let mut balance = || {
            classes.balance(&HashMap::from([("called".to_owned(), 1)])).unwrap();
            thread::sleep(Duration::from_millis(20));
            quota(&crowd)
        };
        eventually("it is rationed again", SOON, || balance() == 10_000);
        drop(forking);
        crowd.kill_all().unwrap();
        eventually("a crowd that ended has its quota", SOON, || balance() == 100_000);
    });
}
