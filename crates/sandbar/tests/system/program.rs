//! The program as users and scripts call it: flags, files, messages, exit codes.

use crate::support::server::PROGRAM;
use crate::support::{Holdings, Server};
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The layers of defence of `docs/security.md`, in the order of the report.
const LAYERS: [&str; 12] = [
    "user namespace",
    "seccomp",
    "socket protocols",
    "landlock",
    "host files",
    "masked /proc and /sys",
    "guest memory",
    "core dumps",
    "limits of all sandboxes",
    "budget of flows",
    "image unpacker",
    "browser root",
];

#[test]
fn doctor_succeeds_here_and_prints_json() {
    let done = run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(done.status.success(), "{report:#}");
    // The isolation of a rootless server is reduced, and the report lists the differences.
    let isolation = if testing::is_root() { "full" } else { "reduced" };
    assert_eq!((&report["ok"], &report["isolation"]), (&true.into(), &isolation.into()), "{report:#}");
    assert_eq!(report["differences"].as_array().is_some_and(Vec::is_empty), isolation == "full", "{report:#}");
    for check in report["checks"].as_array().expect("a list") {
        assert!(check["name"].is_string() && check["ok"].is_boolean() && check["found"].is_string(), "{check}");
        assert!(check.get("fix").is_some(), "{check}");
    }
    assert_eq!(unpacker_layer(&report)["on"], true, "{report:#}");
    let layers = report["layers"].as_array().expect("a list");
    let names: Vec<&str> = layers.iter().filter_map(|layer| layer["name"].as_str()).collect();
    assert_eq!(names, LAYERS, "{report:#}");
    assert!(layers.iter().all(|layer| layer["on"].is_boolean() && layer["found"].is_string()), "{report:#}");
    let readable = text(&run(&["doctor"]).stdout);
    assert!(readable.contains(&format!("isolation: {isolation}")) && !readable.contains('\x1b'), "{readable}");
}

/// The layer of the report for unpacking images.
fn unpacker_layer(report: &serde_json::Value) -> &serde_json::Value {
    let layers = report["layers"].as_array().expect("a list");
    layers.iter().find(|layer| layer["name"] == "image unpacker").expect("the layer is listed")
}

#[test]
fn up_without_isolation_fails_and_names_doctor() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let data = data.to_str().expect("a text path");
    // User namespaces are disabled, as administrators may configure it.
    let closed = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
    let run_without = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", closed, "sh", PROGRAM]).args(arguments);
        command.output().expect("unshare runs")
    };
    let done = run_without(&["doctor", "--json", "--data", data]);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(!done.status.success());
    assert_eq!((&report["ok"], &report["isolation"]), (&false.into(), &"none".into()), "{report:#}");
    let (on, found) = (&unpacker_layer(&report)["on"], unpacker_layer(&report)["found"].to_string());
    assert!(*on == false && found.contains("cannot make the namespaces"), "{found}");
    let done = run_without(&["up", "--listen", "127.0.0.1:0", "--data", data]);
    assert!(!done.status.success());
    assert!(text(&done.stderr).contains("sandbar doctor"), "{}", text(&done.stderr));
    assert!(!text(&done.stdout).contains("ready:"));
}

#[test]
fn a_typing_mistake_in_the_configuration_names_the_key() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("sandbar.toml");
    std::fs::write(&file, "[egress]\nalow_ranges = []\n").expect("the file is written");
    let done = run(&["up", "--config", file.to_str().expect("a text path")]);
    assert!(!done.status.success());
    let message = text(&done.stderr);
    assert!(message.contains("alow_ranges") && message.contains("sandbar.toml"), "{message}");
}

#[test]
fn a_typing_mistake_in_the_log_filter_is_reported() {
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
    let help = text(&run(&["up", "--help"]).stdout);
    let example: String = help
        .lines()
        .skip_while(|line| !line.contains("listen = "))
        .take_while(|line| !line.trim().is_empty())
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("sandbar.toml");
    std::fs::write(&file, &example).expect("the file is written");
    let done = run(&["doctor", "--config", file.to_str().expect("a text path")]);
    assert!(done.status.success(), "{example}\n{done:?}");
}

#[test]
fn variables_are_validated_like_the_configuration() {
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
fn the_help_of_every_command_has_examples() {
    for arguments in [&[][..], &["up"], &["down"], &["doctor"], &["sandbox"], &["trust"], &["completions"]] {
        let arguments = &[arguments, &["--help"]].concat()[..];
        let done = run(arguments);
        assert!(done.status.success() && text(&done.stdout).contains("Examples:"), "{arguments:?}");
    }
}

#[test]
fn a_directory_with_foreign_files_is_not_changed() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("foreign"), "").expect("a file");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let done = run(&["up", "--listen", "127.0.0.1:0", "--data", directory.path().to_str().expect("a text path")]);
    assert!(!done.status.success() && text(&done.stderr).contains("holds other things"), "{done:?}");
    let mode = std::fs::metadata(directory.path()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "untouched");
    let done = run(&["trust", "--path", "--data", directory.path().to_str().expect("a text path")]);
    assert!(!done.status.success() && text(&done.stderr).contains("holds other things"), "{done:?}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 1, "nothing was added");
}

#[test]
fn a_directory_of_other_commands_is_accepted() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().to_str().expect("a text path");
    for arguments in [&["user", "add", "ada", "--data", data][..], &["trust", "--path", "--data", data]] {
        let done = run(arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
    std::fs::create_dir_all(directory.path().join("media/screenshots")).expect("as take_screenshot makes it");
    assert!(directory.path().join("studio").exists(), "users are recorded there");
    let done = run(&["down", "--data", data]);
    assert!(done.status.success() && text(&done.stdout).contains("no server was running"), "{done:?}");
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let server = Server::start();
    let done = run(&["up", "--listen", "127.0.0.1:0", "--data", server.data().to_str().expect("a text path")]);
    assert!(!done.status.success());
    let message = text(&done.stderr);
    assert!(message.contains(&server.address) && message.contains("sandbar down --data"), "{message}");
}

#[test]
fn the_key_is_created_once_in_the_form_that_sdks_accept() {
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
fn a_stopped_server_keeps_its_sandboxes_unless_ephemeral() {
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
fn sighup_ends_the_sandboxes_of_an_ephemeral_server() {
    let mut server = Server::with(&["--ephemeral"]);
    let sandbox = server.create();
    server.end_by("HUP");
    server.start_again();
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", sandbox.id), None).status, 404);
}

#[test]
fn a_strict_umask_does_not_change_modes_in_sandboxes() {
    let server = Server::with_umask("077");
    assert_eq!(server.create().must("user", "pwd; stat -c %a / /usr").trim(), "/home/user\n755\n755");
}

#[test]
fn down_ends_the_server_and_its_sandboxes() {
    let server = Server::start();
    let holdings = Holdings::for_server(&server);
    server.create();
    let data = server.data().to_str().expect("a text path").to_owned();
    let done = run(&["down", "--data", &data]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("sandboxes ended: 1"), "{done:?}");
    assert!(server.try_call("GET", "/health", None).is_err(), "the server is gone");
    assert_eq!(holdings.all_of_the_server(), Vec::<String>::new());
    let again = run(&["down", "--data", &data]);
    assert!(text(&again.stdout).contains("no server was running; sandboxes ended: 0"), "{again:?}");
}

#[test]
fn extensions_are_listed_and_can_be_disabled() {
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
fn unimplemented_routes_answer_501() {
    let server = Server::start();
    for path in ["/api-keys", "/nodes"] {
        let reply = server.call("GET", path, Some(serde_json::json!({})));
        assert_eq!(reply.status, 501, "{path}: {}", reply.text());
        assert_eq!(reply.header("should-retry"), Some("false"));
        assert!(reply.json()["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
}
