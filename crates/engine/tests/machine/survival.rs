//! Servers and launchers that are killed: which sandboxes keep running, which a later server
//! adopts, and that nothing is left over.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use launcher::users::Rights;
use sandbar_engine::{Engine, Instance, Namespaces, Trash};
use testing::{SOON, eventually};

use crate::Test;
use crate::support::{
    Sandbox, TestDirectory, block_on, boot_of, closed, engine_at, files, fresh_name, id, on_host, remains_of, rights,
    run_at,
};

pub(crate) const TESTS: &[Test] = &[
    ("a_later_server_adopts_what_runs", a_later_server_adopts_what_runs),
    ("a_sweep_ends_unknown_sandboxes", a_sweep_ends_unknown_sandboxes),
    ("spares_that_a_sandbox_may_have_used_go_to_the_trash", spares_that_a_sandbox_may_have_used_go_to_the_trash),
    ("a_killed_launcher_leaves_nothing", a_killed_launcher_leaves_nothing),
    ("a_spare_launcher_that_died_is_replaced", a_spare_launcher_that_died_is_replaced),
    ("a_killed_server_leaves_no_spare_launcher", a_killed_server_leaves_no_spare_launcher),
    ("a_server_killed_while_booting_leaves_nothing_after_a_sweep", a_server_killed_while_booting_leaves_nothing),
];

/// First argument of a server that a test kills; its data directory and the names to boot follow.
/// After `...` it boots forever. What begins with `spare` is expected and not booted.
pub(crate) const SERVE: &str = "serve";

/// Prints a line per sandbox when it runs.
pub(crate) fn serve(arguments: &[String]) {
    let (place, names) = arguments.split_first().unwrap();
    block_on(async {
        let engine = engine_at(Path::new(place)).await;
        let boot = async |name: &str| {
            let machine = engine.boot(boot_of(&engine, name).await).await.unwrap();
            if name.starts_with("frozen") {
                machine.freeze().await.unwrap();
            }
            let Instance { pid, start_time } = machine.instance();
            println!("{name} {pid} {start_time}");
            machine
        };
        let mut machines = Vec::new();
        for name in names.iter().filter(|name| *name != "...") {
            if name.starts_with("spare") {
                engine.make_spares(&[id(name)], None).await.unwrap();
                engine.expect(&[id(name)]);
                continue;
            }
            machines.push(boot(name).await);
        }
        while names.last().is_some_and(|name| name == "...") {
            let machine = boot(&fresh_name()).await;
            // Some stay running, some are killed, so that the kill of the server interrupts both.
            if machine.instance().pid % 2 == 0 {
                machine.kill().await.unwrap();
            }
        }
        std::future::pending::<()>().await;
    });
}

/// A server; killed by SIGKILL on drop at the latest.
pub(crate) struct Server {
    pub(crate) process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    pub(crate) fn start(place: &TestDirectory, names: &[&str]) -> Self {
        let mut process = Command::new("/proc/self/exe")
            .arg(SERVE)
            .arg(place.at())
            .args(names)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    pub(crate) fn next_instance(&mut self) -> Instance {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        Instance { pid: words[1].parse().unwrap(), start_time: words[2].parse().unwrap() }
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sweeps all sandboxes, drops the engine, and checks that nothing is left.
#[track_caller]
pub(crate) fn sweep_clean(place: &TestDirectory, engine: Namespaces) {
    let sweep = || block_on(engine.sweep(&HashSet::new(), &HashSet::new())).unwrap();
    sweep();
    assert_eq!(sweep(), Vec::new(), "a second sweep finds nothing");
    drop(engine);
    let place = place.at().display().to_string();
    // The engine removes the runtime directory with the last sandbox; if it exists, it is empty.
    let sockets = format!("test ! -e {place}/run || ls -A {place}/run");
    let traces = format!("grep -ls {place} /proc/[0-9]*/mountinfo; losetup -a | grep -F {place}; {sockets}");
    let mut found = String::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        found = on_host(&traces).0;
        if found.trim().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("traces are left: {found}");
}

fn a_later_server_adopts_what_runs() {
    let place = TestDirectory::new();
    let mut server = Server::start(&place, &["running", "frozenone"]);
    let (running, frozen) = (server.next_instance(), server.next_instance());
    let cgroups = std::fs::read_to_string(format!("/proc/{}/cgroup", running.pid)).unwrap();
    let group = cgroups.split(['/', '\n']).find(|part| part.starts_with("sandbar-"));
    let group = group.map(str::to_owned).or((rights() != Rights::All).then(|| "none".to_owned()));
    let group = group.expect("a group of all sandboxes");
    let socket = place.at().join("run/running.sock");
    run_at(&socket, "echo before > /tmp/file; sleep 1000 >/dev/null 2>&1 &");
    server.kill();
    assert_eq!(run_at(&socket, "cat /tmp/file").0, "before\n", "it goes on without a server");

    let engine = block_on(place.engine());
    let machine = block_on(engine.adopt(&id("running"), running, closed())).unwrap().expect("it runs");
    assert_eq!(machine.instance(), running);
    assert_eq!(run_at(machine.guest_socket(), "pgrep -c sleep; cat /tmp/file").0, "1\nbefore\n");
    assert_eq!(block_on(machine.usage()).unwrap().disk_limit, 512 << 20);

    let cold = block_on(engine.adopt(&id("frozenone"), frozen, closed())).unwrap().expect("it is there");
    let used = || block_on(cold.usage()).unwrap().cpu_usec;
    let before = used();
    let path = cold.guest_socket().to_owned();
    let question = std::thread::spawn(move || run_at(&path, "echo awake"));
    std::thread::sleep(Duration::from_millis(100));
    assert!(used() == before && !question.is_finished(), "frozen stays frozen");
    block_on(cold.thaw()).unwrap();
    assert_eq!(question.join().unwrap().0, "awake\n");

    // Every part of the identity is checked.
    let adopt = |name: &str, instance| block_on(engine.adopt(&id(name), instance, closed())).unwrap().is_some();
    assert!(!adopt("running", Instance { start_time: running.start_time + 1, ..running }));
    assert!(!adopt("running", frozen));
    assert!(!adopt("unknown", running));
    assert!(!adopt("running", Instance { pid: std::process::id(), ..running }));

    block_on(machine.kill()).unwrap();
    assert!(!adopt("running", running));
    block_on(cold.kill()).unwrap();
    drop((machine, cold));
    sweep_clean(&place, engine);
    assert_eq!(
        on_host(&format!("find /sys/fs/cgroup -type d -name {group}")).0,
        "",
        "the group of all sandboxes goes too"
    );
}

fn a_sweep_ends_unknown_sandboxes() {
    let place = TestDirectory::new();
    let mut server = Server::start(&place, &["kept", "stray", "filesonly"]);
    let kept = server.next_instance();
    let stray = [server.next_instance(), server.next_instance()];
    server.kill();
    let engine = block_on(place.engine());
    let (running, named) = (HashSet::from([id("kept")]), HashSet::from(["kept", "filesonly"].map(files)));
    assert_eq!(block_on(engine.sweep(&running, &named)).unwrap(), ["filesonly", "stray"].map(files));
    for instance in stray {
        eventually("the end of a stray", SOON, || !Path::new(&format!("/proc/{}", instance.pid)).exists());
    }
    let machine = block_on(engine.adopt(&id("kept"), kept, closed())).unwrap().expect("it was to be kept");
    assert_eq!(run_at(machine.guest_socket(), "echo fine").0, "fine\n");
    let again = block_on(async { engine.boot(boot_of(&engine, "filesonly").await).await.unwrap() });
    assert_eq!(run_at(again.guest_socket(), "echo fine").0, "fine\n");
    drop((machine, again));
    sweep_clean(&place, engine);
}

fn spares_that_a_sandbox_may_have_used_go_to_the_trash() {
    let place = TestDirectory::new();
    let engine = block_on(place.engine());
    block_on(engine.make_spares(&["named", "used", "empty", "mounted"].map(id), None)).unwrap();
    // The pool is mounted in this process's namespace; a rootless engine has directories.
    let pools = ["data/pool", "data/volumes"].map(|pool| place.at().join(pool).join(".spares"));
    let spares = pools.into_iter().find(|spares| spares.is_dir()).expect("the spares");
    // A boot writes the host's name at least.
    let root = spares.join("used/up/root");
    std::fs::create_dir_all(root.join("upper/etc")).unwrap();
    std::fs::write(root.join("upper/etc/hostname"), "of a sandbox").unwrap();
    // As a launcher leaves them that had mounted them for a boot.
    for directory in ["upper", "work/work", "empty"] {
        std::fs::create_dir_all(spares.join("mounted/up/root").join(directory)).unwrap();
    }
    // The state after a power cut: the records have `named`, the rename of `used` was undone, and
    // its record was removed or is of an older copy.
    std::fs::write(spares.join(".boot_id"), "another kernel").unwrap();
    let (named, used) = (HashSet::from([files("named")]), files("used"));
    block_on(engine.settle_spares(&named)).unwrap();
    let expected = HashSet::from(["named", "used"].map(files));
    assert_eq!(block_on(engine.files()).unwrap(), expected, "the unused ones are removed");
    assert_eq!(block_on(engine.sweep(&HashSet::new(), &named)).unwrap(), std::slice::from_ref(&used));
    assert_eq!(block_on(engine.trash()).unwrap()[0].files, used);
    block_on(engine.take_from_trash(&used)).unwrap();

    // Under the same kernel no rename is undone: a spare was never used.
    block_on(engine.make_spares(&[id("more")], None)).unwrap();
    block_on(engine.settle_spares(&HashSet::new())).unwrap();
    assert_eq!(block_on(engine.files()).unwrap(), expected);
    sweep_clean(&place, engine);
}

/// The children of this process while the engine that the tests share has its spare launcher: after
/// a boot it prepares one.
fn settled_children() -> HashSet<String> {
    drop(Sandbox::new());
    wait_for_spare("self", &HashSet::new());
    children()
}

fn a_killed_launcher_leaves_nothing() {
    let others = settled_children();
    let place = TestDirectory::new();
    let engine = block_on(place.engine());
    let (mut booted, mut failed) = (0, 0);
    for round in 0..60 {
        let name = fresh_name();
        let boot = block_on(boot_of(&engine, &name));
        let over = Arc::new(AtomicBool::new(false));
        let killer = kill_launchers_after(Duration::from_micros(round * 150), others.clone(), over.clone());
        let result = block_on(engine.boot(boot));
        over.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        match result {
            Ok(machine) => {
                assert_eq!(run_at(machine.guest_socket(), "echo fine").0, "fine\n");
                block_on(machine.kill()).unwrap();
                booted += 1;
            }
            Err(_) => failed += 1,
        }
        assert_eq!(remains_of(&name, &place.at().join("run")), Vec::<String>::new(), "round {round}");
    }
    println!("launcher killed: {booted} sandboxes booted all the same, {failed} boots failed");
    assert!(failed > 5, "the launcher was hit");
    sweep_clean(&place, engine);
    let zombies = || on_host(&format!("ps --ppid {} -o stat=,pid=,pgid=,args= | grep ^Z", std::process::id())).0;
    eventually("the end of every child that has ended", SOON, || zombies().is_empty());
}

/// The children of this process.
fn children() -> HashSet<String> {
    children_of("self")
}

pub(crate) fn children_of(process: &str) -> HashSet<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Whether it is a launcher, or a process that a launcher has made for the mounts.
fn is_launcher(pid: &str) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.ends_with(b"launch\0") && !is_process_1(pid)
}

/// The processes of the spare launcher of a server that boots nothing: two, once it is prepared.
fn wait_for_spare(process: &str, others: &HashSet<String>) -> Vec<String> {
    let mut spare = Vec::new();
    eventually("a spare launcher", SOON, || {
        spare = children_of(process).difference(others).filter(|pid| is_launcher(pid)).cloned().collect();
        spare.len() == 2
    });
    spare.sort_by_key(|pid| pid.parse::<u32>().unwrap());
    spare
}

fn a_spare_launcher_that_died_is_replaced() {
    let others = settled_children();
    let place = TestDirectory::new();
    let engine = block_on(place.engine());
    for victim in 0..2 {
        let spare = wait_for_spare("self", &others);
        let pid = rustix::process::Pid::from_raw(spare[victim].parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        // Dead, but not reaped: the engine does that.
        eventually("the end of the spare", SOON, || !is_launcher(&spare[victim]));
        // A boot takes what is ready. While the spare is still being prepared it takes none, so
        // that only the next boot meets the dead one.
        eventually("the end of its other half", SOON, || {
            let machine = block_on(async { engine.boot(boot_of(&engine, &fresh_name()).await).await.unwrap() });
            assert_eq!(run_at(machine.guest_socket(), "echo fine").0, "fine\n");
            block_on(machine.kill()).unwrap();
            !spare.iter().any(|pid| is_launcher(pid))
        });
    }
    wait_for_spare("self", &others);
    sweep_clean(&place, engine);
    let left = || children().difference(&others).any(|pid| is_launcher(pid));
    eventually("the end of the spare launcher with its engine", SOON, || !left());
}

fn a_killed_server_leaves_no_spare_launcher() {
    let place = TestDirectory::new();
    let mut server = Server::start(&place, &["first"]);
    let first = server.next_instance();
    let spare = wait_for_spare(&server.process.id().to_string(), &HashSet::new());
    server.kill();
    eventually("the end of the spare launcher", SOON, || !spare.iter().any(|pid| is_launcher(pid)));
    assert!(Path::new(&format!("/proc/{}", first.pid)).exists(), "the sandbox goes on");
    let engine = block_on(place.engine());
    sweep_clean(&place, engine);
}

/// Whether it is the first process of a sandbox: also a child of this process, with the launcher's
/// arguments until it executes the guest. A signal for the launcher could otherwise reach a sandbox
/// that has booted in the meantime.
fn is_process_1(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_none_or(|ids| ids.split_whitespace().count() > 1)
}

/// After `delay`, kills every launcher but `others`, including the spare one, until the boot is
/// over.
fn kill_launchers_after(
    delay: Duration,
    others: HashSet<String>,
    over: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        while !over.load(Ordering::Relaxed) {
            for pid in children().difference(&others) {
                if is_launcher(pid) {
                    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
                    // It may have ended by itself.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
    })
}

fn a_server_killed_while_booting_leaves_nothing() {
    let place = TestDirectory::new();
    for round in 0..12 {
        let mut server = Server::start(&place, &["first", "..."]);
        server.next_instance();
        // From here on the server boots one sandbox after the other.
        std::thread::sleep(Duration::from_millis(7 * round));
        server.kill();
        drop(server);
        let engine = block_on(place.engine());
        sweep_clean(&place, engine);
    }
}
