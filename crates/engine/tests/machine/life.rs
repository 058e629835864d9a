//! Boot, freeze, thaw, kill, and which files remain.

use std::time::Duration;

use egress::NAMESERVER;
use sandbar_engine::{Engine, NamespacesError};
use testing::{SOON, eventually};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::Test;
use crate::support::{
    LIMITS, Sandbox, block_on, boot_of, cause, engine, files, fresh_name, on_host, remains_of, run_at, shared_directory,
};

pub(crate) const TESTS: &[Test] = &[
    ("a_booted_sandbox_runs_commands", a_booted_sandbox_runs_commands),
    ("files_outlive_a_boot_and_the_boot_id_does_not", files_outlive_a_boot_and_the_boot_id_does_not),
    ("a_frozen_sandbox_stands_still_and_goes_on", a_frozen_sandbox_stands_still_and_goes_on),
    ("a_kill_leaves_files_and_nothing_else", a_kill_leaves_files_and_nothing_else),
    ("a_frozen_sandbox_can_be_killed", a_frozen_sandbox_can_be_killed),
    ("the_end_of_process_1_is_noticed", the_end_of_process_1_is_noticed),
    ("a_port_of_the_sandbox_can_be_dialled", a_port_of_the_sandbox_can_be_dialled),
    ("usage_and_limits_are_reported", usage_and_limits_are_reported),
    ("a_running_name_is_not_booted_twice", a_running_name_is_not_booted_twice),
    ("a_failed_boot_names_its_step_and_leaves_nothing", a_failed_boot_names_its_step_and_leaves_nothing),
    ("an_abandoned_boot_is_undone", an_abandoned_boot_is_undone),
    ("a_full_disk_does_not_keep_a_sandbox_from_booting", a_full_disk_does_not_keep_a_sandbox_from_booting),
    ("a_broken_tree_does_not_keep_a_sandbox_from_booting", a_broken_tree_does_not_keep_a_sandbox_from_booting),
    ("every_sandbox_has_a_device_and_a_name_server", every_sandbox_has_a_device_and_a_name_server),
];

fn a_booted_sandbox_runs_commands() {
    let sandbox = Sandbox::new();
    assert_eq!(
        sandbox.succeed("echo hello; id -u; hostname; tr \\\\0 \\\\n < /proc/1/cmdline | head -1"),
        "hello\n0\nsandbox\nsandbar-guest"
    );
    assert_eq!(sandbox.succeed("cat /run/descriptors"), {
        "0 /dev/null\n1 /dev/null\n2 /dev/null\n3 socket\n4 /memfd:config (deleted)"
    });
    assert_eq!(sandbox.succeed("cat /proc/1/fd/4"), "{}");
    // In a user namespace it also has the mark by which a later server identifies it.
    assert_eq!(sandbox.succeed("tr '\\0' '\\n' < /proc/1/environ | grep -v ^SANDBAR_SANDBOX=sandbar-"), {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    });
    assert_eq!(sandbox.succeed("cat /etc/hostname; getent hosts sandbox | awk '{print $1}'"), "sandbox\n127.0.1.1");
}

fn files_outlive_a_boot_and_the_boot_id_does_not() {
    let mut sandbox = Sandbox::new();
    sandbox.succeed("echo kept > /root/file; echo kept > /usr/local/file; echo gone > /run/file; rm -r /etc/pam.d");
    let old_id = sandbox.succeed("cat /proc/sys/kernel/random/boot_id");
    assert_eq!(old_id, "11111111-2222-3333-4444-555555555555");
    block_on(sandbox.machine.kill()).unwrap();
    sandbox.machine = block_on(async {
        let mut boot = boot_of(&sandbox.engine, &sandbox.name).await;
        boot.boot_id = "99999999-2222-3333-4444-555555555555".to_owned();
        boot.hostname = "renamed".to_owned();
        sandbox.engine.boot(boot).await.unwrap()
    });
    assert_eq!(sandbox.succeed("cat /root/file /usr/local/file"), "kept\nkept");
    sandbox.fail("test -e /run/file || test -e /etc/pam.d");
    assert_eq!(sandbox.succeed("cat /proc/sys/kernel/random/boot_id; hostname; cat /etc/hostname"), {
        "99999999-2222-3333-4444-555555555555\nrenamed\nrenamed"
    });
}

fn a_frozen_sandbox_stands_still_and_goes_on() {
    let sandbox = Sandbox::new();
    sandbox.succeed("(while :; do echo >> /tmp/ticks; sleep 0.01; done) >/dev/null 2>&1 &");
    let path = sandbox.machine.guest_socket().to_owned();
    eventually("the first tick", SOON, || sandbox.run("test -s /tmp/ticks").1 == 0);
    block_on(sandbox.machine.freeze()).unwrap();
    block_on(sandbox.machine.freeze()).expect("frozen already is success");
    // The kernel still accepts the connection; the answer comes after the thaw.
    let question = std::thread::spawn(move || run_at(&path, "wc -l < /tmp/ticks"));
    let used = || block_on(sandbox.machine.usage()).unwrap().cpu_usec;
    let before = used();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!question.is_finished());
    assert_eq!(used(), before, "a frozen sandbox used the processor");
    block_on(sandbox.machine.thaw()).unwrap();
    let first: u32 = question.join().unwrap().0.trim().parse().unwrap();
    eventually("another tick", SOON, || sandbox.succeed("wc -l < /tmp/ticks").parse::<u32>().unwrap() > first);
}

fn a_kill_leaves_files_and_nothing_else() {
    let sandbox = Sandbox::new();
    sandbox.succeed("echo kept > /home/user/file; for i in 1 2 3; do setsid sleep 1000 >/dev/null 2>&1 & done");
    let namespace = sandbox.succeed("readlink /proc/self/ns/pid");
    let processes = || on_host(&format!("readlink /proc/[0-9]*/ns/pid | grep -Fx '{namespace}'")).0;
    assert_eq!(processes().lines().count(), 4, "process 1 and three sleeps");
    block_on(sandbox.machine.kill()).unwrap();
    assert_eq!(processes(), "");
    assert_eq!(remains_of(&sandbox.name, &shared_directory().join("run")), Vec::<String>::new());
    block_on(sandbox.machine.kill()).expect("killing again is success");
    let status = format!("/proc/{}/status", sandbox.machine.instance().pid);
    assert!(!std::fs::exists(status).unwrap(), "process 1 is reaped");
}

fn a_frozen_sandbox_can_be_killed() {
    let sandbox = Sandbox::new();
    block_on(sandbox.machine.freeze()).unwrap();
    block_on(sandbox.machine.kill()).unwrap();
    block_on(async { timeout(Duration::from_secs(5), sandbox.machine.exited()).await }).unwrap();
}

fn the_end_of_process_1_is_noticed() {
    let sandbox = Sandbox::new();
    let waiting = block_on(async { timeout(Duration::from_millis(50), sandbox.machine.exited()).await });
    assert!(waiting.is_err(), "it runs");
    assert_eq!(on_host(&format!("kill -9 {}", sandbox.machine.instance().pid)).1, 0);
    for _ in 0..2 {
        block_on(async { timeout(Duration::from_secs(5), sandbox.machine.exited()).await }).expect("it has ended");
    }
}

fn a_port_of_the_sandbox_can_be_dialled() {
    let sandbox = Sandbox::new();
    let refused = block_on(sandbox.machine.dial(8123)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    sandbox.succeed(
        "cat > /tmp/serve.py <<'END'
import socket
listener = socket.create_server(('127.0.0.1', 8123))
open('/tmp/ready', 'w').close()
while True:
    connection, _ = listener.accept()
    connection.sendall(b'from inside')
    connection.close()
END
python /tmp/serve.py >/dev/null 2>&1 &
until test -e /tmp/ready; do sleep 0.01; done",
    );
    let answer = block_on(async {
        let mut answer = String::new();
        sandbox.machine.dial(8123).await.unwrap().read_to_string(&mut answer).await.unwrap();
        answer
    });
    assert_eq!(answer, "from inside");
}

fn usage_and_limits_are_reported() {
    let sandbox = Sandbox::new();
    sandbox.succeed("dd if=/dev/urandom of=/root/ten bs=1M count=10; sync");
    let usage = block_on(sandbox.machine.usage()).unwrap();
    assert_eq!(usage.memory_limit, u64::from(LIMITS.memory_mb) << 20);
    assert_eq!(usage.disk_limit, u64::from(LIMITS.disk_mb) << 20);
    assert!(usage.disk_used >= 10 << 20 && usage.disk_used < 30 << 20, "{usage:?}");
    assert!(usage.cpu_usec > 0 && usage.memory_used > 0 && usage.memory_used < usage.memory_limit, "{usage:?}");
    assert!(usage.pids >= 1 && usage.pids < 20, "{usage:?}");
}

fn a_running_name_is_not_booted_twice() {
    let sandbox = Sandbox::new();
    let boot = block_on(boot_of(&sandbox.engine, &sandbox.name));
    let refused = block_on(sandbox.engine.boot(boot)).err().expect("it runs");
    assert!(matches!(cause(&refused), NamespacesError::Running(name) if *name == sandbox.name), "{refused:?}");
    assert_eq!(sandbox.succeed("echo still here"), "still here");
}

fn a_failed_boot_names_its_step_and_leaves_nothing() {
    let (engine, name) = (engine(), fresh_name());
    let boot = block_on(boot_of(&engine, &name));
    let mut template = block_on(engine.base_template()).unwrap();
    template.mounts[1].lowers.push("/var/tmp/no such layer".into());
    let error = block_on(engine.boot_from(boot, template)).unwrap_err();
    match &error {
        NamespacesError::Launch { step, source, .. } => {
            assert!(step.contains("no such layer"), "{step}");
            assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(remains_of(&name, &shared_directory().join("run")), Vec::<String>::new());
    let zombies = format!("ps --ppid {} -o stat=,args= | grep ^Z", std::process::id());
    // Launchers of other boots are reaped with a delay.
    eventually("the end of every child that has ended", SOON, || on_host(&zombies).0.is_empty());
    block_on(engine.remove_files(&files(&name))).unwrap();
}

fn an_abandoned_boot_is_undone() {
    let (engine, name) = (engine(), fresh_name());
    let boot = block_on(boot_of(&engine, &name));
    let gave_up = block_on(async { timeout(Duration::from_millis(1), engine.boot(boot)).await.is_err() });
    assert!(gave_up, "no boot takes less than a millisecond");
    let runtime = shared_directory().join("run");
    eventually("the end of the abandoned sandbox", SOON, || remains_of(&name, &runtime).is_empty());
    eventually("its end for good", SOON, || {
        // Boots with the same name: succeeds once the abandoned boot has ended.
        let boot = block_on(boot_of(&engine, &name));
        match block_on(engine.boot(boot)) {
            Ok(machine) => {
                block_on(machine.kill()).unwrap();
                true
            }
            Err(error) if matches!(cause(&error), NamespacesError::Running(_)) => false,
            Err(other) => panic!("{other:?}"),
        }
    });
    block_on(engine.remove_files(&files(&name))).unwrap();
}

fn a_full_disk_does_not_keep_a_sandbox_from_booting() {
    let mut sandbox = Sandbox::with(|boot| boot.resources.disk_mb = 64);
    let (output, _) = sandbox.run("dd if=/dev/zero of=/root/big bs=1M count=200; sync; rm -f /etc/hostname /etc/hosts");
    assert!(output.contains("Disk quota exceeded") || output.contains("No space left"), "{output}");
    block_on(sandbox.machine.kill()).unwrap();
    sandbox.machine = block_on(async {
        let mut boot = boot_of(&sandbox.engine, &sandbox.name).await;
        boot.resources.disk_mb = 64;
        sandbox.engine.boot(boot).await.unwrap()
    });
    sandbox.succeed("rm /root/big && sync && echo room > /root/small && cat /root/small");
}

fn a_broken_tree_does_not_keep_a_sandbox_from_booting() {
    let mut sandbox = Sandbox::new();
    sandbox.succeed("mv /var /other; mkdir /var; rm -rf /etc; ln -s /etc-elsewhere /etc; ln -sfn /root /tmp-link");
    block_on(sandbox.machine.kill()).unwrap();
    sandbox.machine = block_on(async {
        let boot = boot_of(&sandbox.engine, &sandbox.name).await;
        sandbox.engine.boot(boot).await.unwrap()
    });
    sandbox.succeed("test -e /var/lib/dpkg/status && echo works");
}

fn every_sandbox_has_a_device_and_a_name_server() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.succeed("cat /etc/resolv.conf"), format!("nameserver {NAMESERVER}"));
    eventually("a device", SOON, || sandbox.run("ls /sys/class/net | grep -x tun0").1 == 0);
    // No process inside can change the network, not even as root.
    sandbox.fail("ip link set tun0 down");
    // The policy denies every connection, and the sandbox gets the error at once.
    sandbox.fail("timeout 20 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80'");
}
