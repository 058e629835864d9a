//! `sandbar sandbox cp`, `ls` and `cat`.

use super::{cli, create};
use crate::support::program::text;
use crate::support::{Cutter, Server, eventually};
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// All entries of a tree by name: the kind, whether the file is executable, and its bytes or
/// target.
fn content(root: &Path) -> BTreeMap<String, (char, bool, Vec<u8>)> {
    fn add(directory: &Path, below: &str, all: &mut BTreeMap<String, (char, bool, Vec<u8>)>) {
        for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
            let name = format!("{below}/{}", entry.file_name().to_str().expect("a text name"));
            let (path, found) = (entry.path(), entry.metadata().expect("it is there"));
            let can_run = found.is_file() && found.permissions().mode() & 0o111 != 0;
            let (kind, bytes) = if found.is_dir() {
                add(&path, &name, all);
                ('d', Vec::new())
            } else if found.is_symlink() {
                ('l', std::fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes())
            } else {
                ('f', std::fs::read(&path).expect("a file"))
            };
            all.insert(name, (kind, can_run, bytes));
        }
    }
    let mut all = BTreeMap::new();
    add(root, "", &mut all);
    all
}

fn create_tree(root: &Path) {
    for directory in ["sub/deep", "empty"] {
        std::fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    let bytes: Vec<u8> = (0..1_500_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (name, content) in [
        ("plain", &b"one\n"[..]),
        ("zero", b""),
        ("bytes", &[0, 255, 10, 13, 128]),
        ("sub/sp ace \"'$\\", b"odd"),
        ("sub/\u{fc}\n", b"odder"),
        ("sub/.hidden", b"h"),
        ("sub/deep/large", &bytes),
        ("sub/run", b"#!/bin/sh\necho ran\n"),
    ] {
        std::fs::write(root.join(name), content).expect("a file");
    }
    std::fs::set_permissions(root.join("sub/run"), std::fs::Permissions::from_mode(0o755)).expect("ours");
    symlink("../plain", root.join("sub/link")).expect("a link");
    symlink("sub", root.join("to-sub")).expect("a link");
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let here = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| here.path().join(name).to_str().expect("a text path").to_owned();
    create_tree(&here.path().join("tree"));

    cli.must(&["cp", &at("tree"), &format!("{id}:there")]);
    assert_eq!(cli.must(&["exec", &id, "--", "there/sub/run"]), "ran\n");
    cli.must(&["cp", &format!("{id}:there"), &at("back")]);
    assert_eq!(content(&here.path().join("back")), content(&here.path().join("tree")));
    // Copies into existing directories, in both directions.
    cli.must(&["cp", &at("tree"), &format!("{id}:there")]);
    cli.must(&["cp", &at("tree/."), &format!("{id}:there")]);
    let copied = cli.json(&["cp", &format!("{id}:there/tree"), &at("back")]);
    assert_eq!((&copied["files"], &copied["links"]), (&8.into(), &2.into()), "{copied}");
    assert_eq!(content(&here.path().join("back/tree")), content(&here.path().join("tree")));
    let left = cli.must(&["exec", &id, "--", "find", "/home/user", "-name", "*.part"]);
    assert_eq!(left, "", "drafts are left");

    let names = cli.must(&["ls", &id, "there/sub", "--depth", "2"]);
    assert!(names.contains("deep/large") && names.contains("1.4 MiB") && names.contains("\\n"), "{names}");
    let listed = cli.json(&["ls", &id, "there"]);
    let link = listed.as_array().expect("a list").iter().find(|entry| entry["name"] == "to-sub").expect("the link");
    assert_eq!(
        (&link["type"], &link["symlinkTarget"]),
        (&"FILE_TYPE_DIRECTORY".into(), &"/home/user/there/sub".into())
    );
    let done = cli.run(&["cat", &id, "there/bytes", "there/plain"]);
    assert_eq!(done.stdout, b"\0\xff\n\r\x80one\n");
    assert_eq!(cli.json(&["cat", &id, "there/plain"])[0]["content"], "one\n");
    assert!(cli.fails(1, &["cat", &id, "nothing"]).contains("\"nothing\" does not exist"));
    assert!(cli.fails(1, &["ls", &id, "there/plain"]).contains("there/plain"));
}

#[test]
fn a_single_file_goes_where_cp_would_put_it() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let here = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| here.path().join(name).to_str().expect("a text path").to_owned();
    std::fs::write(here.path().join("one"), "1").expect("a file");
    let read = |path: &str| cli.must(&["cat", &id, path]);

    cli.must(&["cp", &at("one"), &format!("{id}:")]);
    assert_eq!(read("one"), "1");
    cli.must(&["cp", &at("one"), &format!("{id}:new/dir/")]);
    assert_eq!(read("new/dir/one"), "1");
    cli.must(&["cp", &at("one"), &format!("{id}:~/new/name")]);
    assert_eq!(read("new/name"), "1");
    cli.must(&["cp", &at("one"), &format!("{id}:/etc/one"), "--user", "root"]);
    assert_eq!(cli.must(&["exec", &id, "--", "stat", "-c", "%U", "/etc/one"]), "root\n");
    // A link stays, and its target is replaced.
    cli.must(&["exec", &id, "-c", "echo old > kept; ln -s kept link"]);
    cli.must(&["cp", &at("one"), &format!("{id}:link")]);
    assert_eq!((read("kept").as_str(), cli.must(&["exec", &id, "--", "readlink", "link"]).as_str()), ("1", "kept\n"));

    std::fs::create_dir(here.path().join("into")).expect("a directory");
    cli.must(&["cp", &format!("{id}:/etc/one"), &at("into")]);
    cli.must(&["cp", &format!("{id}:one"), &at("into/two")]);
    cli.must(&["cp", &format!("{id}:one"), &at("made/")]);
    for name in ["into/one", "into/two", "made/one"] {
        assert_eq!(std::fs::read(here.path().join(name)).expect("it is there"), b"1", "{name}");
    }

    assert!(cli.fails(1, &["cp", &at("absent"), &format!("{id}:")]).contains("absent"));
    assert!(cli.fails(1, &["cp", &format!("{id}:absent"), &at("x")]).contains("absent"));
    assert!(cli.fails(1, &["cp", &at("into"), &format!("{id}:one")]).contains("a directory cannot replace it"));
    assert!(cli.fails(1, &["cp", &format!("{id}:new"), &at("one")]).contains("a directory cannot replace it"));
    assert!(cli.fails(2, &["cp", &at("one"), &at("two")]).contains("ID:PATH"));
    assert!(cli.fails(2, &["cp", &format!("{id}:one"), &format!("{id}:two")]).contains("both sides"));
    assert!(!here.path().join("x").exists());
}

#[test]
fn a_refused_copy_fails_at_once() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("plain");
    std::fs::write(&file, "one\n").expect("written");
    let begun = Instant::now();
    let message = cli.fails(1, &["cp", file.to_str().expect("a text path"), &format!("{id}:/etc/hostname/below")]);
    assert!(message.contains("\"/etc/hostname/below\"") && !message.contains(".part"), "{message}");
    // The program does not wait as long as it does for a draft that may still appear.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn a_copy_from_a_sandbox_stays_in_its_target() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let here = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| here.path().join(name).to_str().expect("a text path").to_owned();
    cli.must(&["exec", &id, "-c", "mkdir -p t/d; echo x > t/d/f; ln -s /etc/passwd t/out; ln -s nowhere t/dangling"]);
    let done = cli.run(&["cp", &format!("{id}:t"), &at("t")]);
    assert!(done.status.success(), "{done:?}");
    let message = text(&done.stderr);
    assert!(message.contains("t/out") && message.contains("t/dangling"), "{message}");
    assert_eq!(content(&here.path().join("t")).len(), 2);

    // A link in place of a directory would lead the copy out of its target.
    std::fs::create_dir_all(here.path().join("trap")).expect("a directory");
    std::fs::create_dir_all(here.path().join("outside")).expect("a directory");
    symlink("../outside", here.path().join("trap/d")).expect("a link");
    let message = cli.fails(1, &["cp", &format!("{id}:t/."), &at("trap")]);
    assert!(message.contains("trap/d is there and is not a directory"), "{message}");
    assert!(content(&here.path().join("outside")).is_empty());
}

#[test]
fn an_interrupted_copy_leaves_no_half_file() {
    const SIZE: u64 = 256 << 20;
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let here = tempfile::tempdir().expect("a temporary directory");
    let large = here.path().join("large");
    std::fs::File::create(&large).and_then(|file| file.set_len(SIZE)).expect("a sparse file");
    cli.must(&["exec", &id, "-c", "echo before > target; truncate -s 256M large"]);
    // Each copy has its own relay, so that the relay counts the bytes of this copy alone.
    let start = |from: &str, to: &str| {
        let network = Cutter::slow_in_front_of(&server.address);
        let mut command = cli.command(&["cp", from, to, "--sandbox-url", &format!("http://{}", network.address)]);
        (command.stderr(Stdio::piped()).spawn().expect("the program starts"), network)
    };
    let wait_until_under_way = |network: &Cutter| {
        eventually("the copy is under way", Duration::from_secs(20), || (network.sent() > 1 << 20).then_some(()));
    };
    let (from, to) = (large.to_str().expect("a text path"), format!("{id}:target"));
    let assert_unharmed = || {
        assert_eq!(cli.must(&["cat", &id, "target"]), "before\n");
        assert_eq!(cli.must(&["exec", &id, "--", "find", ".", "-name", "*.part"]), "", "a draft is left");
    };

    let (child, network) = start(from, &to);
    wait_until_under_way(&network);
    testing::signal(child.id(), "INT");
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(done.status.code(), Some(130));
    assert!(text(&done.stderr).contains("interrupted; 0 of 1 files were copied"), "{done:?}");
    assert_unharmed();

    let (child, network) = start(from, &to);
    wait_until_under_way(&network);
    network.cut();
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("lost"), "{done:?}");
    assert_unharmed();

    let target = here.path().join("target");
    std::fs::write(&target, "before").expect("a file");
    let (child, _network) = start(&format!("{id}:large"), target.to_str().expect("a text path"));
    let draft = || {
        let mut entries = std::fs::read_dir(here.path()).expect("a directory").flatten();
        entries.find(|entry| entry.path().extension().is_some_and(|ending| ending == "part"))
    };
    eventually("the copy is under way", Duration::from_secs(20), || {
        draft()?.metadata().ok().filter(|found| found.len() > 0)
    });
    testing::signal(child.id(), "TERM");
    assert_eq!(child.wait_with_output().expect("it ends").status.code(), Some(143));
    assert!(draft().is_none(), "a draft is left");
    assert_eq!(std::fs::read(&target).expect("it is there"), b"before");
}
