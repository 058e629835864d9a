//! Which server the program connects to: flags, variables, the local server.

use super::{cli, create, program};
use crate::support::Server;
use crate::support::program::text;
use crate::support::server::PROGRAM;
use std::os::unix::fs::PermissionsExt;

#[test]
fn the_local_server_is_found_without_settings() {
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

    // A killed server leaves its note. The program sees by the lock that the note is stale.
    server.kill_9();
    let dead = run(&["list"]);
    assert_eq!(dead.status.code(), Some(1));
    let message = text(&dead.stderr);
    assert!(
        message.contains("is gone") && message.contains("start `sandbar up`") && message.lines().count() == 1,
        "{message}"
    );
    server.start_again();
    assert!(text(&run(&["list", "--quiet"]).stdout).contains(id));
    server.stop();
    let message = text(&run(&["list"]).stderr);
    assert!(message.contains("no `sandbar up` runs here") && message.contains("set E2B_API_KEY"), "{message}");
    server.start_again();
}

#[test]
fn a_key_given_to_the_server_by_flag_is_found() {
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
        let message = cli.fails(1, &[call, &["--api-url", "http://127.0.0.1:1", "--api-key", "e2b_00"]].concat());
        assert!(
            message.contains("cannot reach 127.0.0.1:1") && message.contains("`sandbar up` starts one"),
            "{message}"
        );
    }
    let no_file = cli.fails(1, &["list", "--api-key-file", "/nonexistent/key"]);
    assert!(no_file.contains("/nonexistent/key"), "{no_file}");
    assert!(cli.fails(1, &["list", "--api-url", "ftp://x", "--api-key", "e2b_00"]).contains("ftp://x"));
}

#[test]
fn another_user_s_server_is_refused() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let copy = directory.path().join("sandbar");
    std::fs::copy(PROGRAM, &copy).expect("a copy of the program");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let done = testing::as_another_user(&copy)
        .args(["sandbox", "list", "--data"])
        .arg(server.data())
        .env_remove("E2B_API_KEY")
        .output()
        .expect("it runs");
    let message = text(&done.stderr);
    assert!(done.status.code() == Some(1) && message.contains("belongs to another user"), "{message}");
}
