//! Attacks on the host's kernel and files from inside: system calls, /proc, /sys, /usr.

use crate::support::{Output, Sandbox, Server};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use testing::User;

/// A server whose sandboxes have one kind of ids, on which the refusals of these attempts depend.
struct Target {
    kind: &'static str,
    server: Server,
}

#[test]
fn sandboxes_of_this_user_reach_nothing_of_the_host() {
    attack("this user", || Server::with(&["--no-studio"]));
}

#[test]
fn sandboxes_with_subordinate_ids_reach_nothing_of_the_host() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    attack("subordinate ids", || Server::for_user(User::with_subordinate_ids(), &["--no-studio"]));
}

#[test]
fn sandboxes_with_a_single_id_reach_nothing_of_the_host() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    attack("single id", || Server::for_user(User::with_a_single_id(), &["--no-studio"]));
}

/// Makes all attempts. Those on files that root plants on the host, before and after the server
/// starts, are left out if the tests run as an ordinary user.
fn attack(kind: &'static str, start: impl FnOnce() -> Server) {
    let is_root = testing::is_root();
    let planted = is_root.then(|| (Planted::new("before"), LocalSettings::new()));
    let target = Target { kind, server: start() };
    if let Some((before, local)) = &planted {
        check_host_permissions_hold(&target, before);
        check_usr_local_is_filtered(&target, local);
    }
    check_crash_handler_never_runs(&target);
    check_guest_is_out_of_reach(&target);
    check_proc_and_sys_hide_others(&target);
}

/// Runs a Python program in the sandbox from a file, so that no shell expands it.
#[track_caller]
fn python(sandbox: &Sandbox, user: &str, program: &str) -> Output {
    assert_eq!(sandbox.write("/tmp/attempt.py", program.as_bytes()).status, 200);
    sandbox.run_as(user, "/usr/bin/python3 /tmp/attempt.py")
}

/// Files of the host that not every user may read, and one that every user may. Removed on drop,
/// also when a test fails.
struct Planted {
    directories: Vec<PathBuf>,
}

/// A name that no other test uses, since tests run in parallel.
fn unique_name(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("sandbar-test-{}-{}-{name}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

const SECRET: &str = "planted-by-a-test";

impl Planted {
    /// Creates the files below several directories of `/usr` and of the package databases.
    fn new(name: &str) -> Self {
        let name = unique_name(name);
        let places =
            ["/usr/lib", "/usr/share", "/usr/local/lib", "/usr/local/share/man", "/var/lib/dpkg", "/var/lib/apt"];
        let directories =
            places.iter().filter(|place| Path::new(place).is_dir()).map(|place| Path::new(place).join(&name));
        let planted = Self { directories: directories.collect() };
        for directory in &planted.directories {
            fs::create_dir(directory).expect("root may plant files");
            for (path, mode) in [("open", 0o644), ("owner", 0o600), ("group", 0o640), ("later", 0o644)] {
                write(&directory.join(path), mode);
            }
            fs::create_dir(directory.join("closed")).expect("a directory");
            write(&directory.join("closed/inner"), 0o644);
            fs::hard_link(directory.join("closed/inner"), directory.join("closed/link")).expect("a link");
            set_mode(&directory.join("closed"), 0o700);
        }
        planted
    }

    fn close_later_files(&self) {
        for directory in &self.directories {
            set_mode(&directory.join("later"), 0o600);
        }
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        for directory in &self.directories {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn write(path: &Path, mode: u32) {
    fs::write(path, SECRET).expect("a file");
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its owner may");
}

/// Prints the content of every planted file below `$1`, by every means that root of a sandbox has.
const WAYS: &str = r#"
cd "$1"
for file in owner group $2 closed/inner closed/link; do cat $file; done
cp owner /tmp/copy && cat /tmp/copy
ln owner /usr/linked && cat /usr/linked
echo x >> owner && cat owner
chmod 644 owner && cat owner
chown user group && su user -c "cat group"
mv $2 /usr/moved && cat /usr/moved
mkdir closed/own; chmod -R 777 closed; ls -R closed; cat closed/*
"#;

fn check_host_permissions_hold(Target { kind, server }: &Target, before: &Planted) {
    let sandbox = server.create();
    assert_eq!(sandbox.write("/tmp/ways.sh", WAYS.as_bytes()).status, 200);
    let after = Planted::new("after");
    before.close_later_files();
    after.close_later_files();
    for directory in before.directories.iter().chain(&after.directories) {
        // A rootless server has copied the package databases when it started.
        let is_copy = *kind != "this user" && directory.starts_with("/var/lib");
        let later = if is_copy { "owner" } else { "later" };
        let directory = directory.display();
        for user in ["root", "user"] {
            assert_eq!(sandbox.must(user, &format!("cat {directory}/open")), SECRET, "{kind}, {user}: the control");
        }
        let read = sandbox.run_as("root", &format!("bash /tmp/ways.sh {directory} {later} 2>&1"));
        assert!(!read.stdout.contains(SECRET) && !read.stdout.contains("inner\n"), "{kind}: {read:?}");
        let found = sandbox.read(&format!("{directory}/owner"));
        assert!(!found.text().contains(SECRET), "{kind}: the files API reads it");
    }
}

#[test]
fn a_sandbox_can_change_its_usr() {
    let server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    assert_eq!(sandbox.must("user", "sudo -n id -u; sudo -n su user -c 'id -un'"), "0\nuser\n");
    let changes = "
        set -e
        echo x > /usr/lib/own; mkdir /usr/share/own; rm /usr/bin/yes; mv /usr/bin/tac /usr/bin/tac2
        echo '# end' >> /usr/lib/os-release; chmod 700 /usr/bin/cut; chown user /usr/bin/seq; ln /usr/bin/env /usr/bin/env2
        mv /usr/share/doc /usr/share/doc2; ls /usr/share/doc2 | head -1 | grep -q .
        stat -c '%U %a' /usr/bin/env; tail -1 /usr/lib/os-release; stat -c %a /usr/bin/cut; ! test -e /usr/bin/yes
    ";
    let privileged = testing::is_root();
    if privileged {
        assert_eq!(sandbox.must("root", changes), "root 755\n# end\n700\n");
        assert_eq!(
            sandbox.must("root", "cp /usr/bin/env /tmp/p && setcap cap_net_raw+ep /tmp/p && getcap /tmp/p").trim(),
            "/tmp/p cap_net_raw=ep"
        );
    }
    // Locks of the host's package manager do not block the sandbox's.
    let install = "dpkg --configure -a && apt-get -qq check && test -w /var/lib/dpkg/lock-frontend";
    sandbox.must("root", install);
    let snapshot = server.call("POST", &format!("/sandboxes/{}/snapshots", sandbox.id), Some(json!({})));
    assert_eq!(snapshot.status, 201, "{}", snapshot.text());
    let copy = server.create_with(json!({ "templateID": snapshot.json()["snapshotID"] }));
    assert_eq!(copy.must("user", "sudo -n id -u"), "0\n");
    if privileged {
        assert_eq!(copy.must("root", "tail -1 /usr/lib/os-release; ls /usr/bin/tac2"), "# end\n/usr/bin/tac2\n");
    }
}

/// Directories of `/usr/local` with settings that have a token. Removed on drop.
struct LocalSettings {
    places: [PathBuf; 3],
    later: PathBuf,
}

impl LocalSettings {
    fn new() -> Self {
        let name = unique_name("local");
        let places = ["/usr/local/etc", "/usr/local/src", "/usr/local/share"].map(|place| Path::new(place).join(&name));
        let local = Self { places, later: Path::new("/usr/local/etc").join(format!("{name}-later")) };
        let text = "registry=https://registry.test/\n//registry.test/:_authToken=npm_secret\n";
        for place in &local.places {
            fs::create_dir_all(place).expect("root may");
            fs::write(place.join("npmrc"), text).expect("a file");
        }
        local
    }
}

impl Drop for LocalSettings {
    fn drop(&mut self) {
        for place in &self.places {
            let _ = fs::remove_dir_all(place);
        }
        let _ = fs::remove_file(&self.later);
    }
}

fn check_usr_local_is_filtered(Target { kind, server }: &Target, local: &LocalSettings) {
    let sandbox = server.create();
    let [etc, src, share] = local.places.each_ref().map(|place| place.join("npmrc"));
    let read = |path: &Path| sandbox.run_as("root", &format!("cat {}", path.display()));
    assert_eq!(read(&etc).stdout, "registry=https://registry.test/\n", "{kind}: the control, without the token");
    assert!(!read(&src).ok() && !read(&share).ok(), "{kind}");
    // The sandbox has a copy of this directory, in which later files do not appear.
    fs::write(&local.later, SECRET).expect("a file");
    assert!(!read(&local.later).ok(), "{kind}");
    sandbox.must("root", "touch /usr/local/etc/own /usr/local/src/own /usr/local/share/own");
}

/// Prints the core limit after each attempt to change it.
const LIMITS: &str = r#"
import resource, os, ctypes
def now(): return resource.getrlimit(resource.RLIMIT_CORE)
print(now())
libc = ctypes.CDLL(None, use_errno=True)
for limits in [(0, 0), (0, 1), (-1, -1), (4096, -1)]:
    try: resource.setrlimit(resource.RLIMIT_CORE, limits)
    except (OSError, ValueError): pass
    print(now())
    both = (ctypes.c_ulong * 2)(*[v % 2**64 for v in limits])
    libc.syscall(160, 4, both)
    libc.syscall(302, 0, 4, both, 0)
    print(now())
try: resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))
except OSError as error: print("refused", error.errno)
print(now())
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"#;

fn check_crash_handler_never_runs(Target { kind, server }: &Target) {
    let sandbox = server.create();
    let output = python(&sandbox, "root", LIMITS);
    let lines: Vec<&str> = output.stdout.lines().collect();
    let [cores @ .., refused, last, files] = &lines[..] else { panic!("{kind}: {output:?}") };
    assert!(cores.iter().chain([last]).all(|line| *line == "(1, 1)"), "{kind}: {output:?}");
    assert_eq!((*refused, *files), ("refused 1", "(64, 64)"), "{kind}: the control: another limit can be set");
    let limits = sandbox.must(
        "user",
        "ulimit -c 0; ulimit -c unlimited; grep core /proc/self/limits; cd /tmp; sh -c 'kill -SEGV $$'; ls",
    );
    assert!(limits.contains("Max core file size        1                    1"), "{kind}: {limits}");
    assert!(!limits.lines().any(|line| line.starts_with("core")), "{kind}: {limits}");
}

/// Attempts to read and to control the process whose pid is the argument. Prints the outcomes.
const REACH: &str = r#"
import ctypes, errno, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    result = libc.syscall(*[ctypes.c_long(one) if isinstance(one, int) else one for one in arguments])
    print(name, 'through' if result >= 0 else errno.errorcode[ctypes.get_errno()])
    return result
def attempt(name, work):
    try: work(); print(name, 'through')
    except OSError as error: print(name, errno.errorcode[error.errno])
for file in ['mem', 'maps', 'environ', 'auxv', 'smaps', 'syscall', 'pagemap']:
    def read():
        with open(f'/proc/{pid}/{file}', 'rb', 0) as opened:
            if file == 'mem':
                start = int(open(f'/proc/{pid}/maps').readline().split('-')[0], 16)
                opened.seek(start)
            opened.read(16)
    attempt(file, read)
for link in ['cwd', 'root', 'exe', 'ns/net', 'fd/3']:
    attempt(link, lambda: os.readlink(f'/proc/{pid}/{link}'))
attempt('open fd', lambda: os.open(f'/proc/{pid}/fd/4', os.O_RDONLY) if pid == 1 else os.listdir(f'/proc/{pid}/fd'))
local = ctypes.create_string_buffer(16)
class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
def first_page():
    try: return int(open(f'/proc/{pid}/maps').readline().split('-')[0], 16)
    except OSError: return 0x400000
mine, theirs = Vec(ctypes.addressof(local), 16), Vec(first_page(), 16)
call('process_vm_readv', 310, pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
pidfd = libc.syscall(434, pid, 0)
call('pidfd_getfd', 438, pidfd, 0 if pid != 1 else 3, 0)
call('kcmp', 312, os.getpid(), pid, 0, 0, 0)
if call('ptrace seize', 101, 0x4206, pid, 0, 0) >= 0:
    libc.syscall(101, 17, pid, 0, 0)
"#;

fn check_guest_is_out_of_reach(Target { kind, server }: &Target) {
    let sandbox = server.create();
    assert_eq!(sandbox.write("/tmp/reach.py", REACH.as_bytes()).status, 200);
    for user in ["root", "user"] {
        let output = sandbox.run_as(user, "/usr/bin/python3 /tmp/reach.py 1");
        let through: Vec<&str> = output.stdout.lines().filter(|line| line.ends_with("through")).collect();
        assert!(output.ok() && through.is_empty(), "{kind}, {user}: {output:?}");
        assert!(output.stdout.lines().count() >= 15, "{kind}, {user}: {output:?}");
        // The control: the same attempts succeed on another process of the sandbox.
        let own = "sleep 60 <&- 3>/tmp/third.$$ 0</dev/null & /usr/bin/python3 /tmp/reach.py $!; kill $!";
        let output = sandbox.run_as(user, own);
        let refused: Vec<&str> = output.stdout.lines().filter(|line| !line.ends_with("through")).collect();
        assert!(refused.is_empty() && output.stdout.lines().count() >= 15, "{kind}, {user}: {output:?}");
    }
    // The guest still runs commands, and can read its own entries of `/proc`.
    assert_eq!(sandbox.must("user", "cat /proc/self/oom_score_adj").trim(), "100", "{kind}");
    assert_eq!(sandbox.read("/proc/self/comm").status, 200, "{kind}");
}

fn check_proc_and_sys_hide_others(Target { kind, server }: &Target) {
    let (sandbox, neighbour) = (server.create(), server.create());
    let data = server.data().to_str().expect("a text path").to_owned();
    let name = server.data().file_name().and_then(|name| name.to_str()).expect("a name");
    // The control is below: the host's own `/proc/vmstat` has one of these words.
    let everything = "cat /proc/self/mountinfo /proc/self/mounts /proc/1/mountinfo /proc/swaps /proc/partitions /proc/diskstats \
             /proc/interrupts /proc/locks /proc/vmstat /proc/softirqs /proc/zoneinfo /proc/buddyinfo /proc/modules /proc/pressure/* 2>&1; \
             grep -rs . /sys --include=* -l 2>/dev/null | grep -v '^/sys/devices/system/cpu\\|/net/' ; \
             find /sys -name 'loop*' -o -name 'btrfs' -o -name 'vd?' -o -name 'sd?' -o -name 'nvme*' -o -name backing_file";
    let seen = sandbox.run_as("root", everything).stdout;
    for leaked in
        [data.as_str(), name, neighbour.id.as_str(), "loop", "btrfs", "backing_file", "nr_free_pages", "subvol"]
    {
        let lines: Vec<&str> = seen.lines().filter(|line| line.contains(leaked)).collect();
        assert!(lines.is_empty(), "{kind}: {leaked:?} is visible: {lines:?}");
    }
    for empty in ["interrupts", "diskstats", "partitions", "locks", "vmstat", "swaps", "modules", "zoneinfo"] {
        assert_eq!(
            sandbox.must("root", &format!("cat /proc/{empty} 2>/dev/null | wc -c")).trim(),
            "0",
            "{kind}: /proc/{empty}"
        );
    }
    let control = fs::read_to_string("/proc/vmstat").expect("the host has it");
    assert!(control.contains("nr_free_pages"), "the control");
    // Programs find what they need.
    let needed = "
            set -e
            test $(nproc) -ge 1; lscpu | grep -q Architecture; free -m | grep -q Mem; df / | grep -q overlay; uptime >/dev/null
            top -b -n 1 | grep -q Cpu; ps aux | grep -q sandbar-guest; cat /sys/kernel/mm/transparent_hugepage/enabled >/dev/null
            ls /sys/class/net/lo/mtu /sys/devices/system/cpu/online /sys/fs/cgroup /proc/self/cgroup >/dev/null
            /usr/bin/python3 -c 'import os, multiprocessing; os.getloadavg(); os.cpu_count(); multiprocessing.Pool(1).map(abs, [1])'
            ls /sys/block /sys/class/block /sys/module | grep -c . || true
        ";
    let output = sandbox.run_as("user", needed);
    assert!(output.ok(), "{kind}: {output:?}");
    if is_installed("node") {
        sandbox.must(
            "user",
            "node -e 'const os = require(\"os\"); if (!os.cpus().length || !os.totalmem()) process.exit(1)'",
        );
    }
    if is_installed("java") {
        sandbox.must("user", "java -XshowSettings:system -version");
    }
    assert!(!sandbox.run_as("root", "umount /sys || umount /proc/vmstat || mount -t sysfs x /mnt").ok(), "{kind}");
}

fn is_installed(program: &str) -> bool {
    Path::new("/usr/bin").join(program).is_file()
}

/// Creates sockets of every type and protocol of three families, and prints each outcome.
const SOCKETS: &str = r#"
import errno, socket
for family in [socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]:
    for kind in range(1, 7):
        for protocol in list(range(0, 300)):
            if family == socket.AF_NETLINK and (protocol > 31 or kind not in (2, 3)): continue
            try: socket.socket(family, kind, protocol).close(); print(int(family), kind, protocol, 'made')
            except OSError as error: print(int(family), kind, protocol, errno.errorcode[error.errno])
"#;

#[test]
fn sockets_of_unusual_protocols_are_refused() {
    let server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    let output = python(&sandbox, "root", SOCKETS);
    assert!(output.ok(), "{output:?}");
    let mut made = Vec::new();
    for line in output.stdout.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [family, kind, protocol, answer] = fields[..] else { panic!("{line}") };
        match (answer, kind) {
            ("made", "3") if family != "16" => {}
            ("made", _) => made.push(format!("{family} {kind} {protocol}")),
            _ => {}
        }
    }
    for expected in
        ["2 1 0", "2 1 6", "2 2 0", "2 2 17", "10 1 0", "10 1 6", "10 2 17", "16 2 0", "16 3 0", "16 3 4", "16 3 15"]
    {
        assert!(made.iter().any(|one| one == expected), "the control {expected}: {made:?}");
    }
    let usual = |one: &String| {
        let fields: Vec<u32> = one.split(' ').map(|field| field.parse().expect("a number")).collect();
        match fields[..] {
            [2 | 10, 1, protocol] => [0, 6, 262].contains(&protocol),
            [2 | 10, 2, protocol] => [0, 17, 1, 58].contains(&protocol),
            [16, _, protocol] => [0, 4, 15].contains(&protocol),
            _ => false,
        }
    };
    let unusual: Vec<&String> = made.iter().filter(|one| !usual(one)).collect();
    assert!(unusual.is_empty(), "{unusual:?}");
    for refused in [
        "2 1 132 EPROTONOSUPPORT",
        "2 5 132 ESOCKTNOSUPPORT",
        "2 2 136 EPROTONOSUPPORT",
        "16 3 16 EPROTONOSUPPORT",
        "16 3 9 EPROTONOSUPPORT",
    ] {
        assert!(output.stdout.lines().any(|line| line == refused), "{refused}");
    }
    assert!(python(&sandbox, "user", "import socket; socket.getaddrinfo('localhost', 80)").ok());
    sandbox.must("user", "sudo -n true && ss -tlnp >/dev/null && sudo -n su user -c true");
}

/// The calls that the filter allows. A test of the launcher pins this list.
const ALLOWED: &str = include_str!("../../../../launcher/src/seccomp/allowed_x86_64.txt");

/// uretprobe and uprobe: the kernel does not pass them to filters, and kills a process that calls
/// them from code other than the trampoline that the kernel itself installed.
const PROBES: [u32; 2] = [335, 336];

#[test]
#[cfg(target_arch = "x86_64")]
fn the_filter_refuses_every_call_that_is_not_listed() {
    let server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    let numbers = |line: &str| line.split(' ').next().and_then(|number| number.parse::<u32>().ok());
    let allowed: Vec<u32> = ALLOWED.lines().filter_map(numbers).collect();
    let unlisted: Vec<u32> = (0..1000).filter(|number| !allowed.contains(number) && !PROBES.contains(number)).collect();
    let program = format!(
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\nfor number in {unlisted:?}:\n \
         ctypes.set_errno(0)\n result = libc.syscall(number, -1, -1, -1, -1, -1, -1)\n \
         print(number, 'made' if result >= 0 else errno.errorcode[ctypes.get_errno()])\n"
    );
    let output = python(&sandbox, "root", &program);
    let answers: Vec<&str> = output.stdout.lines().collect();
    assert!(output.ok() && answers.len() == unlisted.len(), "{output:?}");
    let wrong: Vec<&&str> =
        answers.iter().filter(|line| !line.ends_with(" ENOSYS") && !line.ends_with(" EPERM")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // The control: the kernel implements one of them, clone3, for a process without the filter.
    let control = "import ctypes, errno; l = ctypes.CDLL(None, use_errno=True); l.syscall(435, 0, 0); print(errno.errorcode[ctypes.get_errno()])";
    let control = Command::new("/usr/bin/python3").args(["-c", control]).output().expect("python runs");
    assert_eq!(String::from_utf8_lossy(&control.stdout).trim(), "EINVAL", "clone3");
    assert!(answers.contains(&"435 ENOSYS"));
}
