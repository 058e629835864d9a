//! Which service the program talks to.

use super::{cli, create, program};
use crate::support::Server;
use crate::support::program::text;
use crate::support::server::PROGRAM;
use std::os::unix::fs::PermissionsExt;

#[test]
fn nothing_need_be_set_while_a_server_runs() {
    let mut server = Server::start();
    let home = tempfile::tempdir().expect("a temporary directory");
    std::os::unix::fs::symlink(server.data(), home.path().join("sandbar")).expect("a link");
    let run = |arguments: &[&str]| {
        program().args(arguments).env("XDG_DATA_HOME", home.path()).output().expect("the program runs")
    };
    let made = run(&["create", "--json"]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let id = made["sandboxID"].as_str().expect("an id");
    assert!(text(&run(&["list", "--quiet"]).stdout).contains(id));

    // Killed, it leaves its note; the lock tells that it is stale.
    server.kill_9();
    let dead = run(&["list"]);
    assert_eq!(dead.status.code(), Some(1));
    let said = text(&dead.stderr);
    assert!(said.contains("is gone") && said.contains("start `sandbar up`") && said.lines().count() == 1, "{said}");
    server.start_again();
    assert!(text(&run(&["list", "--quiet"]).stdout).contains(id));
    server.stop();
    let said = text(&run(&["list"]).stderr);
    assert!(said.contains("no `sandbar up` runs here") && said.contains("set E2B_API_KEY"), "{said}");
    server.start_again();
}

#[test]
fn the_key_that_a_server_was_started_with_is_found_too() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::with(&["--api-key", "e2b_0123"]);
    let cli = cli(&server);
    create(&cli);
    let note = server.file("server.json");
    assert_eq!(std::fs::metadata(note).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert!(!server.file("api-key").exists());
}

#[test]
fn flags_win_over_variables_and_variables_over_the_local_server() {
    let server = Server::start();
    let cli = cli(&server);
    let url = format!("http://{}", server.address);
    let id = create(&cli);

    let by_variables = program()
        .args(["list", "--quiet"])
        .envs([("E2B_API_KEY", server.key.as_str()), ("E2B_API_URL", &url), ("E2B_SANDBOX_URL", &url)])
        .output()
        .expect("the program runs");
    assert_eq!(text(&by_variables.stdout).trim(), id, "{by_variables:?}");

    let wrong = cli.command(&["list"]).env("E2B_API_KEY", "e2b_00").env("E2B_API_URL", &url).output().expect("it runs");
    assert!(text(&wrong.stderr).contains("not authorized"), "{wrong:?}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{}\n", server.key)).expect("it is written");
    let right = cli
        .command(&["list", "--quiet", "--api-url", &url, "--api-key-file"])
        .arg(file.path())
        .env("E2B_API_KEY", "e2b_00")
        .env("E2B_API_URL", "http://127.0.0.1:1")
        .output()
        .expect("the program runs");
    assert_eq!(text(&right.stdout).trim(), id, "{right:?}");

    let elsewhere = cli.command(&["list", "--api-url", "http://other.example"]).output().expect("the program runs");
    assert!(text(&elsewhere.stderr).contains("not configured for http://other.example"), "{elsewhere:?}");
    for call in [&["list"][..], &["create"], &["info", "i0"]] {
        let said = cli.fails(1, &[call, &["--api-url", "http://127.0.0.1:1", "--api-key", "e2b_00"]].concat());
        assert!(said.contains("cannot reach 127.0.0.1:1") && said.contains("`sandbar up` starts one"), "{said}");
    }
    let no_file = cli.fails(1, &["list", "--api-key-file", "/nonexistent/key"]);
    assert!(no_file.contains("/nonexistent/key"), "{no_file}");
    assert!(cli.fails(1, &["list", "--api-url", "ftp://x", "--api-key", "e2b_00"]).contains("ftp://x"));
}

#[test]
fn another_users_server_is_not_for_everybody() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let copy = directory.path().join("sandbar");
    std::fs::copy(PROGRAM, &copy).expect("a copy that nobody may run");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let done = testing::as_another_user(&copy)
        .args(["sandbox", "list", "--data"])
        .arg(server.data())
        .env_remove("E2B_API_KEY")
        .output()
        .expect("it runs");
    let said = text(&done.stderr);
    assert!(done.status.code() == Some(1) && said.contains("belongs to another user"), "{said}");
}
