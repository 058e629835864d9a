//! The program as people and scripts use it: flags, files, messages, exit codes.

use crate::support::server::PROGRAM;
use crate::support::{Holdings, Server};
use std::process::{Command, Output};

fn sandbar(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn doctor_is_green_here_and_speaks_json() {
    let done = sandbar(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(done.status.success(), "{report:#}");
    // An ordinary user's falls short, and says in what.
    let isolation = if rustix::process::geteuid().is_root() { "full" } else { "reduced" };
    assert_eq!((&report["ok"], &report["isolation"]), (&true.into(), &isolation.into()), "{report:#}");
    assert_eq!(report["differences"].as_array().is_some_and(Vec::is_empty), isolation == "full", "{report:#}");
    for check in report["checks"].as_array().expect("a list") {
        assert!(check["name"].is_string() && check["ok"].is_boolean() && check["found"].is_string(), "{check}");
        assert!(check.get("fix").is_some(), "{check}");
    }
    let readable = text(&sandbar(&["doctor"]).stdout);
    assert!(readable.contains(&format!("isolation: {isolation}")) && !readable.contains('\x1b'), "{readable}");
}

#[test]
fn without_isolation_nothing_runs_and_doctor_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let data = data.to_str().expect("a text path");
    // Where no further user namespace can be made, as administrators may have it.
    let closed = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
    let without = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", closed, "sh", PROGRAM]).args(arguments);
        command.output().expect("unshare runs")
    };
    let done = without(&["doctor", "--json", "--data", data]);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(!done.status.success());
    assert_eq!((&report["ok"], &report["isolation"]), (&false.into(), &"none".into()), "{report:#}");
    let done = without(&["up", "--listen", "127.0.0.1:0", "--data", data]);
    assert!(!done.status.success());
    assert!(text(&done.stderr).contains("sandbar doctor"), "{}", text(&done.stderr));
    assert!(!text(&done.stdout).contains("ready:"));
}

#[test]
fn a_typing_mistake_in_the_configuration_names_the_key() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("sandbar.toml");
    std::fs::write(&file, "[egress]\nalow_ranges = []\n").expect("the file is written");
    let done = sandbar(&["up", "--config", file.to_str().expect("a text path")]);
    assert!(!done.status.success());
    let said = text(&done.stderr);
    assert!(said.contains("alow_ranges") && said.contains("sandbar.toml"), "{said}");
}

#[test]
fn a_typing_mistake_in_the_log_filter_is_said() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let done = Command::new(PROGRAM)
        .args(["up", "--listen", "127.0.0.1:0", "--data"])
        .arg(directory.path().join("data"))
        .env("SANDBAR_LOG", "sandbar=lowd")
        .output()
        .expect("the program runs");
    assert!(!done.status.success());
    assert!(text(&done.stderr).contains("SANDBAR_LOG: `sandbar=lowd`"), "{done:?}");
}

#[test]
fn the_help_of_up_shows_a_configuration_that_works() {
    let help = text(&sandbar(&["up", "--help"]).stdout);
    let example: String = help
        .lines()
        .skip_while(|line| !line.contains("listen = "))
        .take_while(|line| !line.trim().is_empty())
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("sandbar.toml");
    std::fs::write(&file, &example).expect("the file is written");
    let done = sandbar(&["doctor", "--config", file.to_str().expect("a text path")]);
    assert!(done.status.success(), "{example}\n{done:?}");
}

#[test]
fn variables_count_like_the_file() {
    let up = |variable: &str, value: &str| {
        let done = Command::new(PROGRAM).arg("up").env(variable, value).output().expect("the program runs");
        assert!(!done.status.success(), "{variable}={value} was accepted");
        text(&done.stderr)
    };
    assert!(up("SANDBAR_LISTEN", "nowhere").contains("listen"));
    assert!(up("SANDBAR_SANDBOXES__MEMORY_MB", "1").contains("sandboxes.memory_mb is 1"));
    assert!(up("SANDBAR_EGRESS__ALLOW_RANGES", "[\"10.0.0.0/99\"]").contains("10.0.0.0/99"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let absent = directory.path().join("absent");
    let done = Command::new(PROGRAM).arg("down").env("SANDBAR_DATA", &absent).output().expect("the program runs");
    assert!(done.status.success() && !absent.exists(), "{done:?}");
}

#[test]
fn every_command_helps_with_examples() {
    for arguments in [&[][..], &["up"], &["down"], &["doctor"], &["sandbox"], &["trust"], &["completions"]] {
        let arguments = &[arguments, &["--help"]].concat()[..];
        let done = sandbar(arguments);
        assert!(done.status.success() && text(&done.stdout).contains("Examples:"), "{arguments:?}");
    }
}

#[test]
fn a_directory_with_another_purpose_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("foreign"), "").expect("a file");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let done = sandbar(&["up", "--listen", "127.0.0.1:0", "--data", directory.path().to_str().expect("a text path")]);
    assert!(!done.status.success() && text(&done.stderr).contains("holds other things"), "{done:?}");
    let mode = std::fs::metadata(directory.path()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "untouched");
    let done = sandbar(&["trust", "--path", "--data", directory.path().to_str().expect("a text path")]);
    assert!(!done.status.success() && text(&done.stderr).contains("holds other things"), "{done:?}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 1, "nothing was added");
}

#[test]
fn a_directory_that_other_commands_made_is_taken() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().to_str().expect("a text path");
    for arguments in [&["user", "add", "ada", "--data", data][..], &["trust", "--path", "--data", data]] {
        let done = sandbar(arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
    std::fs::create_dir_all(directory.path().join("media/screenshots")).expect("as take_screenshot makes it");
    assert!(directory.path().join("studio").exists(), "users are recorded there");
    let done = sandbar(&["down", "--data", data]);
    assert!(done.status.success() && text(&done.stdout).contains("no server was running"), "{done:?}");
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let server = Server::start();
    let done = sandbar(&["up", "--listen", "127.0.0.1:0", "--data", server.data().to_str().expect("a text path")]);
    assert!(!done.status.success());
    let said = text(&done.stderr);
    assert!(said.contains(&server.address) && said.contains("sandbar down --data"), "{said}");
}

#[test]
fn the_key_is_made_once_in_the_form_every_sdk_accepts() {
    use std::os::unix::fs::PermissionsExt;
    let mut server = Server::start();
    let key = server.key.clone();
    let digits = key.strip_prefix("e2b_").expect("the prefix");
    assert!(digits.len() == 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    let mode = std::fs::metadata(server.file("api-key")).expect("the key is kept").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.stop();
    server.start_again();
    assert_eq!(server.key, key);
}

#[test]
fn a_stopped_server_keeps_its_sandboxes_and_an_ephemeral_one_ends_them() {
    let mut server = Server::start();
    let sandbox = server.create();
    sandbox.must("user", "echo kept > kept");
    server.stop();
    server.start_again();
    assert_eq!(sandbox.at(&server.address).must("user", "cat kept").trim(), "kept");

    let mut server = Server::with(&["--ephemeral"]);
    let sandbox = server.create();
    server.stop();
    server.start_again();
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", sandbox.id), None).status, 404);
}

#[test]
fn a_closed_terminal_ends_an_ephemeral_servers_sandboxes() {
    let mut server = Server::with(&["--ephemeral"]);
    let sandbox = server.create();
    server.end_by("HUP");
    server.start_again();
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", sandbox.id), None).status, 404);
}

#[test]
fn a_strict_umask_does_not_spoil_the_sandboxes() {
    let server = Server::under_umask("077");
    assert_eq!(server.create().must("user", "pwd; stat -c %a / /usr").trim(), "/home/user\n755\n755");
}

#[test]
fn down_ends_the_server_and_what_it_ran() {
    let server = Server::start();
    let holdings = Holdings::of(&server);
    server.create();
    let data = server.data().to_str().expect("a text path").to_owned();
    let done = sandbar(&["down", "--data", &data]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("sandboxes ended: 1"), "{done:?}");
    assert!(server.try_call("GET", "/health", None).is_err(), "the server is gone");
    assert_eq!(holdings.all_of_the_server(), Vec::<String>::new());
    let again = sandbar(&["down", "--data", &data]);
    assert!(text(&again.stdout).contains("no server was running; sandboxes ended: 0"), "{again:?}");
}

#[test]
fn extensions_are_listed_and_can_be_left_out() {
    let server = Server::start();
    let reply = server.call("GET", "/sandbar/capabilities", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    for name in ["cpuCount", "memoryMB", "diskSizeMB"] {
        assert!(reply.text().contains(name), "{}", reply.text());
    }
    let plain = Server::with(&["--no-extensions"]);
    assert_eq!(plain.call("GET", "/sandbar/capabilities", None).status, 404);
    let body = serde_json::json!({ "templateID": "base", "cpuCount": 100_000 });
    assert_eq!(plain.call("POST", "/v2/sandboxes", Some(body)).status, 201, "a plain E2B ignores unknown fields");
}

#[test]
fn what_is_not_served_says_so() {
    let server = Server::start();
    for path in ["/api-keys", "/nodes"] {
        let reply = server.call("GET", path, Some(serde_json::json!({})));
        assert_eq!(reply.status, 501, "{path}: {}", reply.text());
        assert_eq!(reply.header("should-retry"), Some("false"));
        assert!(reply.json()["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
}
