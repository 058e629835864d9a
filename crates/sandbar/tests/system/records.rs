//! Records that this version cannot read or write: the server sets a row aside, and names a newer
//! database or a read-only or full directory together with what to do.

use crate::support::{Program, Server};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Changes one row of a database from another process.
#[track_caller]
fn execute(database: &Path, statement: &str) {
    let program = "import sqlite3, sys\nfile = sqlite3.connect(sys.argv[1], timeout=10)\n\
                   changed = file.execute(sys.argv[2]).rowcount\nfile.commit()\nassert changed == 1, changed\n";
    let done = Command::new("python3").args(["-c", program]).arg(database).arg(statement).output();
    let done = done.expect("python3 starts");
    assert!(done.status.success(), "{statement}: {done:?}");
}

#[test]
fn a_row_of_a_newer_version_is_set_aside_and_keeps_its_files() {
    let mut server = Server::with(&["--no-studio"]);
    let (one, other) = (server.create(), server.create());
    for sandbox in [&one, &other] {
        assert_eq!(sandbox.write("/home/user/mine", sandbox.id.as_bytes()).status, 200);
        let paused = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), Some(json!({ "memory": false })));
        assert_eq!(paused.status, 204, "{}", paused.text());
    }
    let volume = server.call("POST", "/volumes", Some(json!({ "name": "kept" })));
    assert_eq!(volume.status, 201, "{}", volume.text());
    server.stop();
    let database = server.file("node.sqlite");
    execute(&database, &format!("UPDATE sandbox SET standing = 'hibernating' WHERE id = '{}'", one.id));

    server.start_again();
    let ready = server.call("GET", "/ready", None);
    assert_eq!(ready.status, 200, "{}", ready.text());
    let set_aside = ready.json()["setAside"].clone();
    assert_eq!((&set_aside[0]["table"], &set_aside[0]["id"]), (&json!("sandbox"), &json!(one.id)), "{set_aside}");
    assert!(set_aside[0]["cause"].as_str().is_some_and(|cause| cause.contains("hibernating")), "{set_aside}");
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", one.id), None).status, 404);
    let connected = server.call("POST", &format!("/v2/sandboxes/{}/connect", other.id), Some(json!({})));
    assert_eq!(connected.status, 201, "{}", connected.text());
    server.stop();

    // Restores the value, as the newer version would read it.
    execute(&database, &format!("UPDATE sandbox SET standing = 'paused_files' WHERE id = '{}'", one.id));
    server.start_again();
    let connected = server.call("POST", &format!("/v2/sandboxes/{}/connect", one.id), Some(json!({})));
    assert_eq!(connected.status, 201, "{}", connected.text());
    let one = one.at(&server.address);
    assert_eq!(one.read("/home/user/mine").body, one.id.as_bytes(), "the files of a row that was set aside");
    assert_eq!(server.call("GET", "/ready", None).json().get("setAside"), None::<&Value>);
}

#[test]
fn a_database_of_a_newer_version_is_named() {
    let mut server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    sandbox.must("user", "echo kept >file");
    server.stop();
    let database = server.file("node.sqlite");
    execute(&database, "INSERT INTO seaql_migrations VALUES ('m0099_future', 0)");
    let data = server.data().to_str().expect("a plain path").to_owned();
    let message = Program::new("up").fails(1, &["--data", &data, "--listen", "127.0.0.1:0"]);
    let expected = ["node.sqlite", "newer version", "m0099_future", "run the newer version again"];
    assert!(expected.iter().all(|part| message.contains(part)), "{message}");
    let home = server.file("none");
    let down = Program::new("down").variable("XDG_DATA_HOME", &home).variable("XDG_CONFIG_HOME", &home);
    for arguments in [&["--data", &data][..], &["--data", &data, "--yes"]] {
        let message = down.fails(1, arguments);
        assert!(expected.iter().all(|part| message.contains(part)), "{arguments:?}: {message}");
    }
    execute(&database, "DELETE FROM seaql_migrations WHERE version = 'm0099_future'");
    server.start_again();
    assert_eq!(sandbox.at(&server.address).must("user", "cat file"), "kept\n", "nothing was ended");
}

/// Mounting needs root.
#[test]
fn a_data_directory_that_is_not_writable_is_named() {
    testing::needs_root!("it mounts a disk");
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("a plain path");
    let mount = |options: &str| {
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none", place]).status();
        assert!(done.expect("mount starts").success());
    };
    let unmount = || Command::new("umount").args(["--lazy", place]).status().expect("umount starts");
    let data = format!("{place}/data");
    let up = || Program::new("up").fails(1, &["--data", &data, "--listen", "127.0.0.1:0", "--no-studio"]);

    mount("size=4g,ro");
    let message = up();
    unmount();
    assert!(message.contains(&data) && message.contains("read-only") && message.contains("remount,rw"), "{message}");

    // The root of the file system and the data directory take the two inodes.
    mount("size=4g,nr_inodes=2");
    let message = up();
    unmount();
    assert!(
        message.contains(place) && message.contains("no free inodes") && message.contains("remove files"),
        "{message}"
    );
}
