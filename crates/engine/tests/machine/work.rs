//! Ordinary work inside: files, packages, languages, debuggers, sudo.

use crate::Test;
use crate::support::{Sandbox, on_host};

pub(crate) const TESTS: &[Test] = &[
    ("every_part_of_the_tree_can_be_changed", every_part_of_the_tree_can_be_changed),
    ("user_has_a_home_and_sudo", user_has_a_home_and_sudo),
    ("packages_can_be_installed", packages_can_be_installed),
    ("languages_and_tools_run", languages_and_tools_run),
    ("debuggers_trace_inside", debuggers_trace_inside),
    ("terminals_and_shared_memory_work", terminals_and_shared_memory_work),
];

fn every_part_of_the_tree_can_be_changed() {
    let sandbox = Sandbox::new();
    for directory in
        ["/", "/usr", "/usr/bin", "/etc", "/var/lib/dpkg", "/home/user", "/tmp", "/opt", "/run", "/dev/shm"]
    {
        sandbox.succeed(&format!("cd {directory} && echo text > .probe && mv .probe .moved && rm .moved"));
    }
    // Directories of a layer: renamed, removed, replaced.
    sandbox.succeed("mv /usr/share/doc /usr/share/documents && test -d /usr/share/documents && mkdir /usr/share/doc");
    sandbox.succeed("rm -rf /usr/share/documents /usr/games && ! test -e /usr/share/documents");
    sandbox.succeed("mv /etc/ssl /etc/ssl-renamed && test -d /etc/ssl-renamed/certs");
    sandbox.succeed("touch /root/f && chown 1000:33 /root/f && test \"$(stat -c %u:%g /root/f)\" = 1000:33");
    sandbox.succeed("python -c 'import os; os.setxattr(\"/root/f\", \"user.e2b.key\", b\"v\"); print(os.getxattr(\"/root/f\", \"user.e2b.key\"))'");
    sandbox.succeed("mkfifo /root/pipe && ln /root/f /root/g && ln -s f /root/h");
    // The host is unchanged.
    assert!(std::path::Path::new("/etc/ssl/certs").is_dir() && !std::path::Path::new("/etc/ssl-renamed").exists());
    assert!(!std::path::Path::new("/usr/share/documents").exists());
}

fn user_has_a_home_and_sudo() {
    let sandbox = Sandbox::new();
    let as_user = |command: &str| format!("su - user -c '{command}'");
    assert_eq!(
        sandbox.succeed(&as_user("id -un; id -u; pwd; echo $HOME; echo $SHELL")),
        "user\n1000\n/home/user\n/home/user\n/bin/bash"
    );
    sandbox.succeed(&as_user("touch ~/mine && test -O ~/mine && ls -A ~ | grep -x .bashrc"));
    assert_eq!(sandbox.succeed(&as_user("sudo -n id -u")), "0");
    sandbox.succeed(&as_user("sudo -n touch /usr/by-root && test ! -w /usr/by-root"));
    sandbox.fail(&as_user("cat /etc/shadow"));
    // sudo does not raise capabilities above those of the sandbox.
    let capabilities = sandbox.succeed(&as_user("sudo -n grep CapEff /proc/self/status"));
    assert_eq!(capabilities, "CapEff:\t00000000a80425fb");
}

fn packages_can_be_installed() {
    let sandbox = Sandbox::new();
    sandbox.succeed(
        "mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin /tmp/p/etc/hello /tmp/p/var/lib/hello && cd /tmp/p &&
         printf 'Package: sandbar-hello\\nVersion: 1\\nArchitecture: all\\nMaintainer: tests <n@example.org>\\nDescription: x\\n' > DEBIAN/control &&
         printf '#!/bin/sh\\nset -e\\nchown daemon:daemon /var/lib/hello\\nadduser --system --no-create-home hello-service\\nldconfig\\n' > DEBIAN/postinst &&
         chmod 755 DEBIAN/postinst && printf '#!/bin/sh\\necho hello from a package\\n' > usr/bin/sandbar-hello && chmod 755 usr/bin/sandbar-hello &&
         dpkg-deb -b /tmp/p /tmp/hello.deb",
    );
    sandbox.succeed("su - user -c 'sudo -n apt-get install -y /tmp/hello.deb'");
    assert_eq!(
        sandbox.succeed("sandbar-hello; stat -c %U /var/lib/hello; getent passwd hello-service | cut -d: -f1"),
        { "hello from a package\ndaemon\nhello-service" }
    );
    sandbox
        .succeed("dpkg -s sandbar-hello | grep -q 'ok installed' && apt-get check && apt-get remove -y sandbar-hello");
    sandbox.fail("test -e /usr/bin/sandbar-hello");
    assert_ne!(on_host("dpkg -s sandbar-hello").1, 0, "the host's packages are its own");
}

/// Each program runs if the host has it; those that a sandbox promises must exist.
fn languages_and_tools_run() {
    let sandbox = Sandbox::with(|boot| boot.resources.memory_mb = 2048);
    let promised = ["bash", "git", "python3", "python", "node", "curl", "tput", "sudo"];
    for program in promised {
        sandbox.succeed(&format!("su - user -c 'command -v {program}'"));
    }
    let tries = [
        (
            "python3",
            "python3 -c 'import ssl, sqlite3, subprocess, threading; print(subprocess.check_output([\"echo\", \"42\"]).decode())'",
        ),
        (
            "python3",
            "python3 -c 'import concurrent.futures as f; p = f.ProcessPoolExecutor(2); print(sum(p.map(abs, range(10))) - 3)'",
        ),
        ("node", "node -e 'require(\"fs\").promises.readFile(\"/etc/passwd\").then(() => console.log(42))'"),
        ("npm", "npm --version >/dev/null && echo 42"),
        (
            "git",
            "git init -q r && cd r && git -c user.name=u -c user.email=e commit -q --allow-empty -m m && git log --oneline | wc -l | sed s/1/42/",
        ),
        ("gcc", "echo 'int main(){return 42;}' > m.c && gcc m.c -o m; ./m; echo $?"),
        (
            "java",
            "echo 'class M { public static void main(String[] a) { System.out.println(42); } }' > M.java && java M.java",
        ),
        ("go", "printf 'package main\\nfunc main() { println(42) }\\n' > m.go && GOCACHE=/tmp/gc go run m.go 2>&1"),
        ("perl", "perl -e 'print 42'"),
        ("tput", "TERM=xterm tput cols >/dev/null && echo 42"),
    ];
    for (program, command) in tries {
        let program = if program == "go" { "/usr/local/go/bin/go" } else { program };
        if on_host(&format!("PATH=/usr/bin:/bin command -v {program}")).1 == 0 {
            let script = command.replace("go run", "/usr/local/go/bin/go run");
            let (output, code) = sandbox.run(&format!("mkdir -p /tmp/w && cd /tmp/w && {script}"));
            assert!(code == 0 && output.contains("42"), "{program}: {output}");
        } else {
            println!("the host has no {program}");
        }
    }
}

fn debuggers_trace_inside() {
    let sandbox = Sandbox::new();
    if on_host("command -v strace").1 == 0 {
        let output = sandbox.succeed("su - user -c 'strace -f -e trace=execve sh -c \"echo traced\"'");
        assert!(output.contains("execve(") && output.contains("traced"), "{output}");
    }
    if on_host("command -v gdb").1 == 0 {
        let output = sandbox.succeed("gdb -batch -ex run -ex 'print 6*7' --args /bin/true");
        assert!(output.contains("= 42") && output.contains("exited normally"), "{output}");
    }
}

fn terminals_and_shared_memory_work() {
    let sandbox = Sandbox::new();
    assert!(sandbox.succeed("script -qc 'tty' /dev/null").contains("/dev/pts/"));
    sandbox.succeed(
        "python -c 'import multiprocessing.shared_memory as m; s = m.SharedMemory(create=True, size=1000); s.unlink()'",
    );
    sandbox
        .succeed("python -c 'import socket; a, b = socket.socketpair(); a.send(b\"x\"); assert b.recv(1) == b\"x\"'");
    sandbox.succeed("python -c 'import socket; socket.create_server((\"::1\", 0), family=socket.AF_INET6); socket.create_server((\"127.0.0.1\", 80))'");
    sandbox.succeed(
        "echo x > /dev/null && head -c 8 /dev/urandom >/dev/null && head -c 8 /dev/zero >/dev/null && ls /dev/fd/0",
    );
    assert_eq!(
        sandbox.succeed("ulimit -c; umask; stat -c %a /tmp /run/lock /dev/shm | tr '\\n' ' '"),
        "0\n0022\n1777 1777 1777"
    );
}
