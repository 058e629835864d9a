//! Boots from spare files that a launcher has mounted ahead.

use std::collections::HashSet;
use std::path::Path;

use sandbar_engine::{BootFiles, Engine, Mount, Namespaces, Trash};
use testing::{SOON, eventually};

use crate::Test;
use crate::support::{Sandbox, TestDirectory, block_on, boot_of, engine, files, fresh_name, id};
use crate::survival::{Server, children_of, sweep_clean};

pub(crate) const TESTS: &[Test] = &[
    ("an_expected_boot_finds_its_files_mounted", an_expected_boot_finds_its_files_mounted),
    ("files_mounted_by_another_template_are_not_used", files_mounted_by_another_template_are_not_used),
    ("removed_spares_are_not_mounted_any_more", removed_spares_are_not_mounted_any_more),
    ("a_killed_server_leaves_no_mounted_spare", a_killed_server_leaves_no_mounted_spare),
];

/// The launcher among the children of `process` that has mounted the spare files `name`.
pub(crate) fn mounter_of(process: &str, name: &str) -> Option<String> {
    let part = format!("/.spares/{name}/");
    let mounts = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    children_of(process).into_iter().find(|pid| mounts(pid).contains(&part))
}

/// Makes spare files and waits until they are mounted; returns the launcher.
pub(crate) fn expect(engine: &Namespaces, name: &str) -> String {
    block_on(async {
        engine.make_spares(&[id(name)], None).await.unwrap();
        engine.expect(&[id(name)]);
    });
    let mut mounter = None;
    eventually("the mount of spare files", SOON, || {
        // It enters the namespaces only at the boot; before, it holds them open.
        mounter = mounter_of("self", name).filter(|pid| !held_by(pid).is_empty());
        mounter.is_some()
    });
    mounter.unwrap()
}

/// The user namespaces that a process holds open.
fn held_by(pid: &str) -> HashSet<String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.map(|link| link.display().to_string()).filter(|link| link.starts_with("user:")).collect()
}

fn user_namespace_of(sandbox: &Sandbox) -> String {
    let pid = sandbox.machine.instance().pid;
    std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap().display().to_string()
}

fn an_expected_boot_finds_its_files_mounted() {
    for with_volume in [false, true] {
        let (engine, name, volume) = (engine(), fresh_name(), fresh_name());
        let held = held_by(&expect(&engine, &name));
        let machine = block_on(async {
            engine.create_volume(&files(&volume), 64 << 20).await.unwrap();
            assert!(engine.take_spare(&id(&name)).await.unwrap());
            let mut boot = boot_of(&engine, &name).await;
            assert_eq!(boot.files, BootFiles::Open);
            if with_volume {
                boot.volumes = vec![Mount { files: files(&volume), at: "/data".into() }];
            }
            engine.boot(boot).await.unwrap()
        });
        let mut sandbox = Sandbox { engine, name, machine };
        assert!(held.contains(&user_namespace_of(&sandbox)), "booted by the launcher that had mounted its files");
        sandbox.succeed("echo kept > /root/file; echo kept > /usr/local/file; echo x > /etc/sudoers.d/new");
        assert_eq!(sandbox.run("echo shared > /data/file").1 == 0, with_volume);
        block_on(sandbox.machine.kill()).unwrap();
        sandbox.machine = block_on(async {
            let boot = boot_of(&sandbox.engine, &sandbox.name).await;
            sandbox.engine.boot(boot).await.unwrap()
        });
        assert!(!held.contains(&user_namespace_of(&sandbox)));
        assert_eq!(sandbox.succeed("cat /root/file /usr/local/file /etc/sudoers.d/new"), "kept\nkept\nx");
        block_on(sandbox.engine.remove_files(&files(&volume))).unwrap();
    }
}

fn files_mounted_by_another_template_are_not_used() {
    let (engine, name) = (engine(), fresh_name());
    let mounter = expect(&engine, &name);
    let held = held_by(&mounter);
    let machine = block_on(async {
        let mut other = engine.base_template().await.unwrap();
        other.mounts.pop();
        assert!(engine.take_spare(&id(&name)).await.unwrap());
        let boot = boot_of(&engine, &name).await;
        engine.boot_from(boot, other).await.unwrap()
    });
    assert!(!Path::new(&format!("/proc/{mounter}")).exists(), "files are mounted once at a time");
    let sandbox = Sandbox { engine, name, machine: std::sync::Arc::new(machine) };
    assert!(!held.contains(&user_namespace_of(&sandbox)));
    assert_eq!(sandbox.succeed("echo fine > /root/file; cat /root/file"), "fine");
}

fn removed_spares_are_not_mounted_any_more() {
    let (engine, name) = (engine(), fresh_name());
    let mounter = expect(&engine, &name);
    block_on(engine.remove_spare(&id(&name))).unwrap();
    assert!(!Path::new(&format!("/proc/{mounter}")).exists());
    // The same for one that is not expected any more.
    let (one, other) = (fresh_name(), fresh_name());
    let mounter = expect(&engine, &one);
    expect(&engine, &other);
    eventually("the end of the launcher", SOON, || !Path::new(&format!("/proc/{mounter}")).exists());
    block_on(async {
        engine.expect(&[]);
        engine.remove_spare(&id(&one)).await.unwrap();
        engine.remove_spare(&id(&other)).await.unwrap();
    });
    assert_eq!(mounter_of("self", &other), None);
}

fn a_killed_server_leaves_no_mounted_spare() {
    let place = TestDirectory::new();
    let mut server = Server::start(&place, &["spareone", "first"]);
    server.next_instance();
    let process = server.process.id().to_string();
    let mut mounter = None;
    eventually("the mount of spare files", SOON, || {
        mounter = mounter_of(&process, "spareone");
        mounter.is_some()
    });
    server.kill();
    let mounter = format!("/proc/{}", mounter.unwrap());
    // Reaped by process 1 of this machine, which may take its time: its end is enough.
    let has_ended = || std::fs::read_to_string(format!("{mounter}/mountinfo")).unwrap_or_default().is_empty();
    eventually("the end of the launcher", SOON, has_ended);
    let engine = block_on(place.engine());
    block_on(engine.settle_spares(&HashSet::new())).unwrap();
    assert!(!block_on(engine.files()).unwrap().contains(&files("spareone")));
    sweep_clean(&place, engine);
}
