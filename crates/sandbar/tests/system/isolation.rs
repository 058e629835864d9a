//! Attempts to escape from a sandbox. Each asserts the refusal inside and its control: the same
//! attempt succeeds where it is allowed, so that a refusal means isolation and not a typing
//! mistake.

use crate::support::{Output, Sandbox, Server};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;
use testing::User;

/// One attempt to escape, which must fail.
struct Attempt {
    what: &'static str,
    /// Run by root inside the sandbox: must fail, and print `refusal`.
    inside: &'static str,
    refusal: &'static str,
    /// Run on the host, where it is allowed: must succeed.
    control: Control,
}

/// The privilege that the attempt needs on the host.
enum Control {
    /// The user who runs the tests, if necessary as root of a user namespace.
    AnyUser(&'static str),
    /// Root. An ordinary user is refused on the host as well, so only the attempt itself is made.
    Root(&'static str),
}
use Control::{AnyUser, Root};

/// A raw system call that prints `errno NAME`, which distinguishes a refusal by seccomp from
/// invalid arguments.
macro_rules! syscall {
    ($number:literal, $($argument:literal),*) => {
        concat!(
            "/usr/bin/python3 -c \"import ctypes,errno; l=ctypes.CDLL(None,use_errno=True); r=l.syscall(", $number, $(",", $argument,)* ");",
            " e=ctypes.get_errno(); print('errno', 'none' if r>=0 else errno.errorcode[e])\" | tee /dev/stderr | grep -qv EPERM"
        )
    };
}

const ATTEMPTS: &[Attempt] = &[
    Attempt {
        what: "mount a file system",
        inside: "mount -t tmpfs none /mnt",
        refusal: "permission denied",
        control: AnyUser("unshare -Urm mount -t tmpfs none /mnt"),
    },
    Attempt {
        what: "bind a directory elsewhere",
        inside: "mount --bind /etc /mnt",
        refusal: "permission denied",
        control: AnyUser("unshare -Urm mount --bind /etc /mnt"),
    },
    Attempt {
        what: "unmount what hides the host's /proc files",
        inside: "umount /proc/kallsyms || umount /proc/sys",
        refusal: "must be superuser",
        control: AnyUser("unshare -Urm sh -c 'mount -t tmpfs none /mnt && umount /mnt'"),
    },
    Attempt {
        what: "change the kernel's settings",
        inside: "echo core > /proc/sys/kernel/core_pattern",
        refusal: "Read-only file system",
        control: Root("p=$(cat /proc/sys/kernel/core_pattern); echo \"$p\" > /proc/sys/kernel/core_pattern"),
    },
    Attempt {
        what: "find a file of /sys to write to",
        inside: "echo writable: $(find /sys -type f -writable 2>/dev/null | wc -l) | tee /dev/stderr | grep -qv ' 0$'",
        refusal: "writable: 0",
        control: Root("echo writable: $(find /sys/kernel -type f -writable 2>/dev/null | wc -l) | grep -qv ' 0$'"),
    },
    Attempt {
        what: "read the kernel's timers, which name processes of the whole host",
        inside: "grep -q . /proc/timer_list || { echo hidden >&2; false; }",
        refusal: "hidden",
        control: Root("grep -q . /proc/timer_list"),
    },
    Attempt {
        what: "read where the kernel's functions are",
        inside: "grep -q . /proc/kallsyms || { echo hidden >&2; false; }",
        refusal: "hidden",
        control: AnyUser("grep -q . /proc/kallsyms"),
    },
    Attempt {
        what: "make a device node for the host's disk",
        inside: "mknod /tmp/disk b 254 0",
        refusal: "Operation not permitted",
        control: Root("d=$(mktemp -d) && mknod $d/disk b 254 0 && rm -r $d"),
    },
    Attempt {
        what: "find a block device",
        inside: "find /dev -type b | grep . || { echo none >&2; false; }",
        refusal: "none",
        control: AnyUser("find /dev -type b | grep ."),
    },
    Attempt {
        what: "nest a user namespace",
        inside: "unshare -U true",
        refusal: "Operation not permitted",
        control: AnyUser("unshare -U true"),
    },
    Attempt {
        what: "nest a mount namespace",
        inside: "unshare -m true",
        refusal: "Operation not permitted",
        control: AnyUser("unshare -Ur unshare -m true"),
    },
    Attempt {
        what: "nest a network namespace",
        inside: "unshare -n true",
        refusal: "Operation not permitted",
        control: AnyUser("unshare -Ur unshare -n true"),
    },
    Attempt {
        what: "enter the namespaces of another process",
        inside: "nsenter -t $$ -m true",
        refusal: "Operation not permitted",
        control: AnyUser("unshare -Urm sh -c 'nsenter -t $$ -m true'"),
    },
    Attempt { what: "bpf", inside: syscall!(321, 5, 0, 0), refusal: "EPERM", control: Root(syscall!(321, 5, 0, 0)) },
    Attempt {
        what: "keyctl",
        inside: syscall!(250, 0, -3, 0),
        refusal: "EPERM",
        control: AnyUser(syscall!(250, 0, -3, 0)),
    },
    Attempt {
        what: "perf_event_open",
        inside: syscall!(298, 0, 0, -1, -1, 0),
        refusal: "EPERM",
        control: Root(syscall!(298, 0, 0, -1, -1, 0)),
    },
    Attempt {
        what: "kexec_load",
        inside: syscall!(246, 0, 0, 0, -1),
        refusal: "EPERM",
        control: Root(syscall!(246, 0, 0, 0, -1)),
    },
    Attempt {
        what: "init_module",
        inside: syscall!(175, 0, 0, 0),
        refusal: "EPERM",
        control: Root(syscall!(175, 0, 0, 0)),
    },
    Attempt {
        what: "clock_settime",
        inside: syscall!(227, 0, 0),
        refusal: "EPERM",
        control: Root(syscall!(227, 0, 0)),
    },
    Attempt {
        what: "open_by_handle_at",
        inside: syscall!(304, -1, 0, 0),
        refusal: "EPERM",
        control: Root(syscall!(304, -1, 0, 0)),
    },
    Attempt {
        what: "io_uring_setup",
        inside: syscall!(425, 1, 0),
        refusal: "EPERM",
        control: AnyUser(syscall!(425, 1, 0)),
    },
    Attempt { what: "userfaultfd", inside: syscall!(323, 1), refusal: "EPERM", control: AnyUser(syscall!(323, 1)) },
    Attempt { what: "swapon", inside: syscall!(167, 0, 0), refusal: "EPERM", control: Root(syscall!(167, 0, 0)) },
    Attempt {
        what: "the new mount interface",
        inside: syscall!(430, 0, 0),
        refusal: "EPERM",
        control: AnyUser(concat!("unshare -Urm ", syscall!(430, 0, 0))),
    },
    Attempt {
        what: "gain capabilities by a file",
        inside: "p=/tmp/py; cp $(readlink -f /usr/bin/python3) $p && setcap cap_sys_admin+ep $p; \
                 su user -c \"$p -c 'import ctypes,os; l=ctypes.CDLL(None,use_errno=True); \
                 r=l.mount(b\\\"none\\\",b\\\"/mnt\\\",b\\\"tmpfs\\\",0,0); raise SystemExit(os.strerror(ctypes.get_errno()) if r else 0)'\"",
        refusal: "ermi",
        control: AnyUser("unshare -Urm mount -t tmpfs none /mnt"),
    },
];

fn on_host(command: &str) -> Output {
    let done = Command::new("/bin/bash").args(["-c", command]).output().expect("bash runs");
    Output {
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
        exit: i64::from(done.status.code().unwrap_or(-1)),
    }
}

#[test]
fn every_attempt_is_refused_and_its_control_succeeds() {
    check_attempts(&Server::start());
}

#[test]
fn every_attempt_is_refused_by_rootless_servers() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        check_attempts(&Server::for_user(user, &["--no-studio"]));
    }
}

#[track_caller]
fn check_attempts(server: &Server) {
    let sandbox = server.create();
    let mut wrong = Vec::new();
    for Attempt { what, inside, refusal, control } in ATTEMPTS {
        let output = sandbox.run_as("root", inside);
        if output.ok() || !format!("{}{}", output.stdout, output.stderr).contains(refusal) {
            wrong.push(format!("{what}: not refused with {refusal:?}: {output:?}"));
        }
        let allowed = match control {
            Root(_) if !testing::is_root() => continue,
            Root(control) | AnyUser(control) => on_host(control),
        };
        if !allowed.ok() {
            wrong.push(format!("{what}: the control failed on the host: {allowed:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn root_inside_is_unprivileged_outside() {
    let server = Server::start();
    let sandbox = server.create();
    let mut sleeper = sandbox.start_as("root", "exec sleep 987654");
    sleeper.pid();
    let ids = crate::support::eventually("the sleeper shows on the host", std::time::Duration::from_secs(5), || {
        std::fs::read_dir("/proc").expect("procfs").flatten().find_map(|entry| {
            let command = std::fs::read(entry.path().join("cmdline")).ok()?;
            (command == b"sleep\0987654\0").then_some(())?;
            let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
            Some(status.lines().find(|line| line.starts_with("Uid:"))?.to_owned())
        })
    });
    let host_uid: u32 = ids.split_whitespace().nth(1).and_then(|id| id.parse().ok()).expect("a uid");
    assert!(host_uid >= 65536, "the sandbox's root is {host_uid} on the host");
    let capabilities = sandbox.must("root", "grep CapBnd /proc/self/status");
    let bounding = u64::from_str_radix(capabilities.split_whitespace().nth(1).expect("a mask"), 16).expect("hex");
    for (name, bit) in [("NET_ADMIN", 12), ("SYS_MODULE", 16), ("SYS_PTRACE", 19), ("SYS_ADMIN", 21), ("SYS_TIME", 25)]
    {
        assert_eq!(bounding >> bit & 1, 0, "CAP_{name} is in the bounding set {bounding:#x}");
    }
    assert_eq!(bounding >> 7 & 1, 1, "the control: CAP_SETUID is in the bounding set, for sudo");
    assert_eq!(sandbox.must("user", "sudo id -u").trim(), "0", "sudo works without a password");
}

#[test]
fn a_set_user_id_file_is_out_of_reach_for_host_users() {
    let server = Server::start();
    let sandbox = server.create();
    sandbox.must("root", "cp /bin/bash /home/user/rootshell && chmod 4755 /home/user/rootshell");
    assert_eq!(sandbox.must("user", "/home/user/rootshell -p -c 'id -u'").trim(), "0", "the control: it works inside");
    let mode = std::fs::metadata(server.data()).expect("the data directory").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let found = testing::as_another_user("find").arg(server.data()).args(["-name", "rootshell"]).output();
    let found = found.expect("find runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
    assert!(stderr.contains("Permission denied") && !stdout.contains("rootshell"), "{found:?}");
}

#[test]
fn the_host_s_files_are_not_visible() {
    let server = Server::start();
    let sandbox = server.create();
    let marker = server.file("marker");
    std::fs::write(&marker, "host").expect("the marker is written");
    let path = marker.to_str().expect("a text path");
    for (what, path) in [
        ("by its name", path.to_owned()),
        ("through /proc/1/root", format!("/proc/1/root{path}")),
        ("through /proc/1/cwd", format!("/proc/1/cwd{path}")),
        ("by climbing", format!("/home/user/../../../../../../..{path}")),
        ("relative to the home directory", format!("../../../../..{path}")),
    ] {
        let reply = sandbox.read(&path);
        assert_eq!(reply.status, 404, "{what}: {}", reply.text());
    }
    sandbox.must("root", &format!("ln -s {path} /home/user/link; ln -s /../../../.. /home/user/up"));
    assert_eq!(sandbox.read("/home/user/link").status, 404);
    assert_eq!(sandbox.read(&format!("/home/user/up{path}")).status, 404);
    // The control: the same calls read the sandbox's own file.
    sandbox.must("root", &format!("mkdir -p $(dirname {path}) && echo -n inside > {path}"));
    assert_eq!(sandbox.read("/home/user/link").text(), "inside");
    assert_eq!(std::fs::read_to_string(&marker).expect("the marker is there"), "host");

    match std::fs::read_to_string("/etc/shadow") {
        Ok(shadow) => assert_ne!(sandbox.must("root", "cat /etc/shadow"), shadow),
        // The server runs as the user who runs the tests, who cannot read the file either.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    for absent in ["/root/.ssh", "/root/.cargo", "/etc/ssl/private/x", "/var/lib/docker", "/run/docker.sock"] {
        assert!(!sandbox.run_as("root", &format!("test -e {absent}")).ok(), "{absent} is visible");
    }
    assert_eq!(sandbox.must("root", "ls /home").trim(), "user");
}

#[test]
fn the_host_s_processes_and_sockets_are_not_visible() {
    let server = Server::start();
    let sandbox = server.create();
    let pids = sandbox.must("root", "ls /proc | grep -c '^[0-9]'");
    assert!(pids.trim().parse::<u32>().expect("a count") < 12, "{pids} processes are visible");
    assert!(!sandbox.must("root", "cat /proc/*/cmdline | tr '\\0' ' '").contains("sandbar up"));

    let name = format!("sandbar-test-{}", std::process::id());
    let _listener =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("an abstract socket");
    let connect = format!(
        "/usr/bin/python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')\" 2>&1 | tail -n 1; \
         exit ${{PIPESTATUS[0]}}"
    );
    let inside = sandbox.run_as("root", &connect);
    assert!(!inside.ok() && inside.stdout.contains("refused"), "{inside:?}");
    let control = on_host(&connect);
    assert!(control.ok(), "{control:?}");
}

fn edge_status(server: &Server, sandbox: &Sandbox, token: &str) -> u16 {
    let headers = [
        ("E2b-Sandbox-Id", sandbox.id.as_str()),
        ("E2b-Sandbox-Port", "49983"),
        ("X-Access-Token", token),
        ("Content-Type", "application/json"),
    ];
    testing::http::request(&server.address, "POST", "/process.Process/List", &headers, b"{}").expect("an answer").status
}

#[test]
fn sandboxes_do_not_see_each_other() {
    let server = Server::start();
    let (one, two) = (server.create(), server.create());
    assert_eq!(edge_status(&server, &one, &one.token), 200, "the control: its own token");
    assert_eq!(edge_status(&server, &one, &two.token), 401);
    assert_eq!(edge_status(&server, &one, ""), 401);
    one.must("user", "echo secret > /home/user/mine; echo secret > /tmp/mine; echo secret > /dev/shm/mine");
    let found = two.run_as("root", "cat /home/user/mine /tmp/mine /dev/shm/mine; grep -rs secret /proc/*/environ");
    assert!(!found.stdout.contains("secret"), "{found:?}");
    // Shared memory of System V is per IPC namespace.
    one.must("user", "/usr/bin/python3 -c \"import ctypes; assert ctypes.CDLL(None).shmget(4711, 4096, 0o1666) >= 0\"");
    let other = two.run_as(
        "root",
        "/usr/bin/python3 -c \"import ctypes,sys; sys.exit(ctypes.CDLL(None).shmget(4711, 0, 0) < 0)\"",
    );
    assert!(!other.ok(), "{other:?}");
    let same = one.run_as(
        "user",
        "/usr/bin/python3 -c \"import ctypes,sys; sys.exit(ctypes.CDLL(None).shmget(4711, 0, 0) < 0)\"",
    );
    assert!(same.ok(), "the control: {same:?}");

    let mut serving = one.start_as("user", "cd /tmp && exec /usr/bin/python3 -m http.server 8123 --bind 0.0.0.0");
    serving.pid();
    crate::support::eventually("the service answers through the edge", std::time::Duration::from_secs(10), || {
        (one.request(8123, "GET", "/", &[], b"").status == 200).then_some(())
    });
    let addresses = one.must(
        "user",
        "/usr/bin/python3 -c \"print(open('/proc/net/fib_trie').read())\" | grep -oE '[0-9]+(\\.[0-9]+){3}' | sort -u",
    );
    for address in addresses.lines().filter(|address| !address.starts_with("0.") && !address.ends_with(".0")) {
        let reached = two.run_as("user", &format!("curl -s -m 3 http://{address}:8123/"));
        assert!(!reached.ok(), "{address} of another sandbox answered: {reached:?}");
    }
}

#[test]
fn a_wrong_key_opens_nothing() {
    let server = Server::start();
    let sandbox = server.create();
    for key in ["", "e2b_0000000000000000000000000000000000000000"] {
        let headers = [("X-API-Key", key)];
        let path = format!("/sandboxes/{}", sandbox.id);
        let reply = testing::http::request(&server.address, "GET", &path, &headers, b"").expect("an answer");
        assert_eq!((reply.status, reply.json()["code"].as_i64()), (401, Some(401)));
    }
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", sandbox.id), None).status, 200, "the control");
    // The edge does not forward routes of the guest that are for the host, even with the token.
    for route in ["/init", "/sandbar/lease", "/sandbar/log", "/freeze", "//sandbar/lease", "/sandbar/../sandbar/lease"]
    {
        let reply = sandbox.request(49983, "POST", route, &[], b"{}");
        assert_eq!(reply.status, 404, "{route}: {}", reply.text());
    }
}
