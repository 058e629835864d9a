//! Attempts to escape, each with its control: the same attempt where it is allowed.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use launcher::users::Rights;

use crate::Test;
use crate::support::{Sandbox, block_on, on_host, rights, shared_directory};

pub(crate) const TESTS: &[Test] = &[
    ("dangerous_system_calls_are_refused", dangerous_system_calls_are_refused),
    ("namespaces_and_mounts_are_refused", namespaces_and_mounts_are_refused),
    ("secrets_of_the_host_are_out_of_sight", secrets_of_the_host_are_out_of_sight),
    ("kernel_files_are_masked", kernel_files_are_masked),
    ("devices_are_the_harmless_ones", devices_are_the_harmless_ones),
    ("processes_and_sockets_of_the_host_are_out_of_reach", processes_and_sockets_of_the_host_are_out_of_reach),
    ("sandboxes_have_ids_of_their_own", sandboxes_have_ids_of_their_own),
    ("a_memory_bomb_hurts_only_itself", a_memory_bomb_hurts_only_itself),
    ("process_1_is_not_the_first_to_go", process_1_is_not_the_first_to_go),
    ("files_in_memory_are_bounded", files_in_memory_are_bounded),
    ("watchers_of_one_sandbox_leave_others_theirs", watchers_of_one_sandbox_leave_others_theirs),
    ("a_fork_bomb_hurts_only_itself", a_fork_bomb_hurts_only_itself),
    ("a_full_disk_hurts_only_itself", a_full_disk_hurts_only_itself),
    ("layers_and_volumes_are_closed_to_host_users", layers_and_volumes_are_closed_to_host_users),
];

/// Prints `name errno` lines; the arguments make a call that is not refused harmless.
const CALLS: &str = r#"
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
calls = {
    'mount': (165, 40), 'umount2': (166, 39), 'pivot_root': (155, 41), 'setns': (308, 268), 'add_key': (248, 217),
    'request_key': (249, 218), 'keyctl': (250, 219), 'bpf': (321, 280), 'perf_event_open': (298, 241),
    'kexec_load': (246, 104), 'init_module': (175, 105), 'finit_module': (313, 273), 'delete_module': (176, 106),
    'clock_settime': (227, 112), 'settimeofday': (164, 170), 'swapon': (167, 224), 'reboot': (169, 142),
    'open_by_handle_at': (304, 265), 'userfaultfd': (323, 282), 'io_uring_setup': (425, 425), 'quotactl': (179, 60),
    'syslog': (103, 116), 'open_tree': (428, 428), 'fsopen': (430, 430), 'move_mount': (429, 429), 'fanotify_init': (300, 262),
    'mount_setattr': (442, 442), 'sethostname': (170, 161),
}
for name, (on_x86, on_arm) in calls.items():
    ctypes.set_errno(0)
    libc.syscall(on_x86 if x86 else on_arm, -1, 0, -1, -1, -1)
    print(name, ctypes.get_errno())
"#;

fn dangerous_system_calls_are_refused() {
    const EPERM: &str = "1";
    let sandbox = Sandbox::new();
    let script = format!("python3 - <<'END'\n{CALLS}\nEND");
    let (host, code) = on_host(&script);
    assert_eq!(code, 0, "{host}");
    let inside = sandbox.succeed(&script);
    let mut controls = 0;
    for (line, on_host) in inside.lines().zip(host.lines()) {
        let (name, errno) = line.split_once(' ').unwrap();
        assert_eq!(errno, EPERM, "{name} inside");
        controls += u32::from(on_host.split_once(' ').unwrap().1 != EPERM);
    }
    assert_eq!(inside.lines().count(), host.lines().count());
    assert!(controls > 20, "on the host most of them fail for another reason or not at all: {host}");
    // An unknown call does not exist.
    assert_eq!(sandbox.succeed("python3 -c 'import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(435, 0, 0); print(ctypes.get_errno())'"), "38");
}

/// Asserts that the command fails inside, as root and as a user, and works on the host.
#[track_caller]
fn refused(sandbox: &Sandbox, command: &str) {
    let (output, code) = on_host(command);
    // Root of a user namespace lacks some of these permissions, too.
    assert!(code == 0 || rights() != Rights::All, "control of `{command}`: {output}");
    sandbox.fail(command);
    sandbox.fail(&format!("su user -c \"{}\"", command.replace('"', "\\\"")));
}

fn namespaces_and_mounts_are_refused() {
    let sandbox = Sandbox::new();
    for kind in ["U", "m", "n", "i", "u", "C"] {
        refused(&sandbox, &format!("unshare -{kind} true"));
    }
    refused(&sandbox, "unshare -pf true");
    refused(&sandbox, "unshare -Ur true");
    refused(&sandbox, "unshare -m sh -c 'mount -t tmpfs none /mnt'");
    sandbox.fail("mount -t proc proc /mnt || mount --bind / /mnt || mount -o remount,rw /proc/sys || umount /proc/sys");
    sandbox.fail("nsenter -t 1 -m true");
    refused(&sandbox, "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'");
    // By the older name, SOCK_PACKET.
    sandbox.fail("python3 -c 'import socket; socket.socket(socket.AF_INET, 10, 0x300)'");
    // The bounding set limits the capabilities that a process can raise.
    assert_eq!(sandbox.succeed("grep -h -E 'CapBnd|CapPrm|CapAmb|Seccomp:' /proc/1/status"), {
        "CapPrm:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nCapAmb:\t0000000000000000\nSeccomp:\t2"
    });
}

/// Files that are removed on drop.
struct Planted(Vec<PathBuf>);

impl Drop for Planted {
    fn drop(&mut self) {
        for path in &self.0 {
            fs::remove_file(path).unwrap();
        }
    }
}

fn secrets_of_the_host_are_out_of_sight() {
    let name = format!("sandbar-secret-{}", std::process::id());
    let directories =
        ["/root", "/home", "/etc", "/opt", "/srv", "/tmp", "/var/tmp", "/var/lib", "/run", "/mnt", "/etc/ssl", "/"];
    let mut planted = Planted(Vec::new());
    for directory in directories.map(Path::new) {
        let path = directory.join(&name);
        match fs::write(&path, "secret") {
            // An ordinary user plants files in world-writable directories only; the others are
            // exposed by the same mounts.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && rights() != Rights::All => continue,
            written => written.unwrap(),
        }
        // Even a file that every user of the host may read is hidden.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        planted.0.push(path);
    }
    assert!(planted.0.len() >= 2, "{:?}", planted.0);
    let sandbox = Sandbox::new();
    for path in &planted.0 {
        sandbox.fail(&format!("test -e {}", path.display()));
    }
    let control = on_host("grep -c . /etc/shadow").1;
    assert!(control == 0 || rights() != Rights::All, "the host has passwords to hide");
    assert_eq!(sandbox.succeed("cut -d: -f2 /etc/shadow | sort -u"), "*");
    assert_eq!(
        sandbox.succeed("ls -A /home /opt /srv /mnt /media | tr '\\n' ' '"),
        "/home: user  /media:  /mnt:  /opt:  /srv:"
    );
    assert_eq!(sandbox.succeed("ls -A /root | tr '\\n' ' '"), ".bash_logout .bashrc .profile");
    sandbox.fail("ls -d /etc/ssh || ls -d /etc/ssl/private || ls -d /etc/sudoers.d/*");
    sandbox.fail(&format!("test -e {}", shared_directory().display()));
}

fn kernel_files_are_masked() {
    let sandbox = Sandbox::new();
    for path in ["/proc/kcore", "/proc/kallsyms", "/proc/keys", "/proc/timer_list", "/proc/cmdline", "/proc/config.gz"]
    {
        assert_eq!(sandbox.succeed(&format!("head -c 100 {path} 2>/dev/null | wc -c")), "0", "{path}");
    }
    for directory in ["/sys/firmware", "/sys/kernel/debug", "/sys/kernel/security", "/sys/fs/bpf"] {
        assert_eq!(sandbox.succeed(&format!("ls -A {directory} 2>/dev/null | wc -l")), "0", "{directory}");
    }
    for attempt in [
        "echo b > /proc/sysrq-trigger && test -s /proc/sysrq-trigger",
        "echo x > /proc/sys/kernel/hostname",
        "echo /tmp/x > /proc/sys/kernel/core_pattern",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 1 > /sys/class/net/lo/mtu",
        "echo x > /proc/sys/kernel/random/boot_id",
        "mkdir /sys/fs/cgroup/x",
        "echo -1000 > /proc/self/oom_score_adj",
    ] {
        sandbox.fail(attempt);
    }
    let mounted = sandbox.succeed("awk '{print $5, $6}' /proc/self/mountinfo");
    assert!(mounted.contains("/sys ro") && mounted.contains("/proc/sys ro"), "{mounted}");
    let (host, _) = on_host("head -c 100 /proc/kallsyms | wc -c");
    assert_eq!(host.trim(), "100", "control");
}

fn devices_are_the_harmless_ones() {
    let sandbox = Sandbox::new();
    assert_eq!(
        sandbox.succeed("ls /dev | tr '\\n' ' '"),
        "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    sandbox.fail("mknod /root/disk b 254 0 || mknod /root/mem c 1 1 || mknod /dev/kmsg c 1 11");
    let control = on_host("d=$(mktemp -d); mknod $d/mem c 1 1; r=$?; rm -r $d; exit $r").1;
    assert!(control == 0 || rights() != Rights::All, "control");
    assert_eq!(sandbox.succeed("test -w /dev/null && echo into > /dev/null; wc -c < /dev/null"), "0");
}

fn processes_and_sockets_of_the_host_are_out_of_reach() {
    let sandbox = Sandbox::new();
    let neighbour = Sandbox::new();
    neighbour.succeed("sleep 1000 >/dev/null 2>&1 &");
    // Not in a pipe: the result would depend on which end starts first.
    let seen = sandbox.succeed("ls /proc >/tmp/seen; grep -c '^[0-9]' /tmp/seen");
    assert_eq!(seen, "3", "guest, shell, ls");
    sandbox.fail(&format!("kill -0 {}", std::process::id()));
    // A signal to all processes reaches none outside.
    sandbox.run("kill -9 -1");
    assert_eq!(neighbour.succeed("pgrep -c sleep"), "1");

    let listen = "import socket; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'sandbar-probe'); s.listen()";
    let connect = "import socket; c = socket.socket(socket.AF_UNIX); c.connect(chr(0) + 'sandbar-probe')";
    let control = on_host(&format!("python3 -c \"{listen}; {connect}\""));
    assert_eq!(control.1, 0, "{}", control.0);
    let mut listener = std::process::Command::new("python3")
        .args(["-c", &format!("{listen}; print(1, flush=True); input()")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(listener.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let (output, code) = sandbox.run(&format!("python3 -c \"{connect}\""));
    listener.kill().unwrap();
    listener.wait().unwrap();
    assert!(code != 0 && output.contains("ConnectionRefused"), "{output}");
}

fn sandboxes_have_ids_of_their_own() {
    let (a, b) = (Sandbox::new(), Sandbox::new());
    let base = |sandbox: &Sandbox| -> u32 {
        sandbox.succeed("awk '{print $2, $3}' /proc/self/uid_map").split_once(' ').unwrap().0.parse().unwrap()
    };
    assert!(base(&a).abs_diff(base(&b)) >= 65536);
    let owner = |sandbox: &Sandbox| {
        on_host(&format!("stat -c %u /proc/{}", sandbox.machine.instance().pid)).0.trim().parse::<u32>().unwrap()
    };
    assert_eq!((owner(&a), owner(&b)), (base(&a), base(&b)), "to the host, root inside has an id of no user");
}

fn a_memory_bomb_hurts_only_itself() {
    let (sandbox, neighbour) = (Sandbox::with(|boot| boot.resources.memory_mb = 128), Sandbox::new());
    let (_, code) = sandbox.run("python3 -c 'x = bytearray(1 << 30); print(len(x))'");
    assert_ne!(code, 0);
    assert_eq!(sandbox.succeed("python3 -c 'x = bytearray(1 << 24); print(len(x))'"), (1 << 24).to_string());
    // Files in memory count as well.
    sandbox.fail("head -c 1G /dev/zero > /dev/shm/big");
    sandbox.succeed("rm -f /dev/shm/big; echo fine");
    assert_eq!(neighbour.succeed("echo fine"), "fine");
}

fn process_1_is_not_the_first_to_go() {
    let sandbox = Sandbox::with(|boot| boot.resources.memory_mb = 256);
    // Below the score that the guest sets for the processes it starts, above that of the server.
    assert_eq!(sandbox.succeed("cat /proc/1/oom_score_adj"), "10");
    let greedy = "import time; x = bytearray(b'x') * (40 << 20); time.sleep(1000)";
    // More than the limit; each sets its score first, as the guest does.
    let ended = sandbox.succeed(&format!(
        "for i in $(seq 10); do (echo 100 > /proc/self/oom_score_adj && exec python3 -c \"{greedy}\") >/dev/null 2>&1 & done
         wait -n; echo $?"
    ));
    assert!(ended.ends_with("137"), "killed for want of memory: {ended}");
    assert_eq!(sandbox.succeed("pkill -9 python3; echo fine"), "fine");
}

fn files_in_memory_are_bounded() {
    let sandbox = Sandbox::with(|boot| boot.resources.memory_mb = 256);
    let size = |path: &str| {
        sandbox.succeed(&format!("df --output=size -B1 {path} | tail -1")).trim().parse::<u64>().unwrap() >> 20
    };
    assert_eq!(size("/run"), 51, "a fifth");
    assert_eq!(size("/dev/shm"), 128, "half");
    assert_eq!(sandbox.succeed("grep -o ' /dev/pts .*max=[0-9]*' /proc/mounts | grep -o 'max=.*'"), "max=256");
}

/// Opens inotify instances until that fails or `most` are open, prints their number, and holds them
/// until it is killed.
fn watchers(most: u32) -> String {
    let script = format!(
        "import ctypes, time
libc = ctypes.CDLL(None)
count = 0
while count < {most} and libc.inotify_init1(0) >= 0: count += 1
print(count, flush=True)
time.sleep(1000)"
    );
    format!("exec 3< <(exec python3 -c '{script}' 2>/dev/null); read -u 3 count; echo $count")
}

fn watchers_of_one_sandbox_leave_others_theirs() {
    let (sandbox, neighbour) = (Sandbox::new(), Sandbox::new());
    let limit: u32 = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap().trim().parse().unwrap();
    let opened: u32 = sandbox.succeed(&watchers(1 << 16)).parse().unwrap();
    assert!(opened > 0 && opened <= limit, "{opened} of {limit}");
    assert_eq!(sandbox.succeed(&watchers(1)), "0", "control: it has no more");
    assert_eq!(neighbour.succeed(&watchers(limit)), limit.to_string());
}

fn a_fork_bomb_hurts_only_itself() {
    let (sandbox, neighbour) = (Sandbox::with(|boot| boot.resources.pids = 64), Sandbox::new());
    let bomb = "import os, time
children = 0
try:
    while children < 500:
        if os.fork() == 0:
            os.close(1); os.close(2); time.sleep(1000)
        children += 1
except BlockingIOError:
    print('refused after', children)
";
    let output = sandbox.succeed(&format!("python3 - <<'END'\n{bomb}\nEND"));
    assert!(output.starts_with("refused after"), "{output}");
    assert!(block_on(sandbox.machine.usage()).unwrap().pids <= 64);
    assert_eq!(neighbour.succeed("echo fine"), "fine");
}

fn a_full_disk_hurts_only_itself() {
    let (sandbox, neighbour) = (Sandbox::with(|boot| boot.resources.disk_mb = 64), Sandbox::new());
    let output = sandbox.fail("head -c 100M /dev/urandom > /root/big && sync /root/big");
    assert!(output.contains("quota exceeded") || output.contains("No space"), "{output}");
    neighbour.succeed("head -c 100M /dev/urandom > /root/big && sync /root/big");
    sandbox.succeed("rm /root/big && sync && head -c 10M /dev/urandom > /root/small && sync /root/small");
}

fn layers_and_volumes_are_closed_to_host_users() {
    let sandbox = Sandbox::new();
    sandbox.succeed("cp /bin/bash /root/shell && chmod 4755 /root/shell && chmod 755 /root");
    let data = shared_directory().join("data");
    let found = on_host(&format!("find {} -name shell -perm -4000 | head -1", data.display())).0;
    assert!(found.contains("shell"), "control: root of the host finds it, with the set-uid bit, in {}", data.display());
    assert_ne!(on_host(&format!("setpriv --reuid 65534 --clear-groups ls {}", found.trim())).1, 0);
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(shared_directory().join("run")).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(sandbox.machine.guest_socket()).unwrap().permissions().mode() & 0o777, 0o600);
}
