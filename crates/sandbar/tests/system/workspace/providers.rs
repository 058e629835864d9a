//! Providers: this machine's server, found or started, and a remote one; moves between them,
//! screenshots and cost.

use super::life::damage;
use super::{Down, User, create_repository, text_of};
use crate::support::program::text;
use crate::support::{Program, Server, eventually};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A user with two providers: this machine's server, and a remote one.
fn user_with_two_providers(here: &Server, there: &Server) -> User {
    let user = User::with_settings(|program| program.at(here).variable("THERE_KEY", &there.key));
    configure_providers(&user, there);
    user
}

/// Writes the configuration with the remote server's address, which changes when it starts again.
fn configure_providers(user: &User, there: &Server) {
    let text = format!(
        r#"
[[providers]]
name = "here"
kind = "local"
[providers.price]
usd_per_hour = 1.0

[[providers]]
name = "there"
kind = "e2b"
deployment_mode = "self_hosted"
api_key_env = "THERE_KEY"
api_url = "http://{0}"
domain = "localhost:{1}"
[providers.price]
usd_per_hour = 3600.0
"#,
        there.address,
        there.address.rsplit(':').next().expect("a port"),
    );
    user.configure(&text);
}

/// The page that a port of a sandbox serves through the edge.
fn page(server: &Server, id: &str, port: u16) -> String {
    let headers = [("E2b-Sandbox-Id", id), ("E2b-Sandbox-Port", &port.to_string())];
    testing::http::request(&server.address, "GET", "/", &headers, b"").expect("the edge answers").text()
}

/// The automatic screenshots of a workspace.
fn screenshots(server: &Server, name: &str) -> Vec<PathBuf> {
    let directory = server.data().join("media/screenshots").join(name).join("auto");
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    all.sort();
    all
}

fn is_image(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"))
}

fn files_of<'a>(all: &'a [PathBuf], begin: &str) -> Vec<&'a PathBuf> {
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    all.iter().filter(|path| name(path).starts_with(begin) && is_image(path)).collect()
}

#[test]
fn a_workspace_moves_with_its_dev_server_and_its_bill() {
    let (here, there) = (Server::with(&["--ephemeral"]), Server::with(&["--ephemeral"]));
    let user = user_with_two_providers(&here, &there);
    let source = tempfile::tempdir().expect("a directory");
    create_repository(source.path());
    let directory = source.path().to_str().expect("text");
    let dev = ["--dev", "python3 -m http.server $PORT", "--port", "3000", "--install", "touch installed"];
    let made = user.workspace.json(&[&["create", "shop", "--repo", directory][..], &dev].concat());
    let first = text_of(&made, "sandboxID");
    assert_eq!(text_of(&made, "provider"), "here");
    assert!(page(&here, &first, 3000).contains("<title>Shop</title>"));
    let taken = screenshots(&here, "shop");
    assert_eq!(files_of(&taken, "devserver-").len(), 2, "desktop and mobile: {taken:?}");

    user.exec(
        "shop",
        "echo '<h1>new</h1>' >>index.html && git -c user.name=T -c user.email=t@example.com commit -qam new",
    );
    let commit = user.exec("shop", "git rev-parse HEAD");
    let taken = screenshots(&here, "shop");
    assert_eq!(files_of(&taken, commit.trim()).len(), 2, "the commit was noticed: {taken:?}");

    let moved = user.workspace.json(&["move", "shop", "--to", "there"]);
    let second = text_of(&moved, "sandboxID");
    assert_eq!(text_of(&moved, "provider"), "there");
    assert!(page(&there, &second, 3000).contains("<h1>new</h1>"), "the dev server runs there");
    assert_eq!(here.call("GET", &format!("/sandboxes/{first}"), None).status, 404, "the old sandbox is ended");
    assert_eq!(user.exec("shop", "ls"), "index.html\ninstalled\n", "generated files were made again");
    let same = user.workspace.fails(1, &["move", "shop", "--to", "there"]);
    assert!(same.contains("at there already"), "{same}");

    let back = user.workspace.json(&["move", "shop", "--to", "here"]);
    assert!(page(&here, &text_of(&back, "sandboxID"), 3000).contains("<h1>new</h1>"), "and here again");
    assert_eq!(text_of(&user.workspace.json(&["show", "shop"]), "provider"), "here");
    let taken = screenshots(&here, "shop");
    assert_eq!(files_of(&taken, "devserver-").len(), 6, "a pair at each place: {taken:?}");

    user.workspace.must(&["pause", "shop"]);
    user.workspace.must(&["resume", "shop"]);
    eventually("pictures after the answer", Duration::from_secs(60), || {
        (files_of(&screenshots(&here, "shop"), "devserver-").len() == 8).then_some(())
    });

    let bill = user.usage.json(&["--project", "shop"]);
    let cost = |place: &str| bill["providers"][place]["cost_usd"].as_f64().unwrap_or_else(|| panic!("{place}: {bill}"));
    assert!(cost("there") > cost("here") && cost("here") > 0.0, "{bill}");
    assert_eq!(bill["providers"]["here"]["creations"], 2, "{bill}");
    let table = user.usage.must(&[]);
    assert!(table.contains("shop") && table.contains("there"), "{table}");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn this_machines_server_is_started_when_none_runs() {
    let user = User::with_settings(|program| program);
    let _down = Down(&user);
    let made: Value = user.workspace.json(&["create", "shop"]);
    assert_eq!(text_of(&made, "provider"), "local");
    assert_eq!(user.exec("shop", "echo hi"), "hi\n", "it goes on when the program has ended");
    let listed =
        Program::new("sandbox").variable("XDG_DATA_HOME", user.home.path().join("data")).must(&["list", "--quiet"]);
    assert_eq!(listed.trim(), text_of(&made, "sandboxID"));
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn a_sandbox_left_by_a_move_is_named_and_can_be_attached() {
    let (here, mut there) = (Server::with(&["--ephemeral"]), Server::start());
    let user = user_with_two_providers(&here, &there);
    user.workspace.must(&["create", "shop", "--provider", "there"]);
    user.exec("shop", "echo saved >kept");
    let saved = text_of(&user.workspace.json(&["snapshot", "shop"]), "key");
    user.exec("shop", "echo damaged >kept");
    let damaged = damage(&user, &text_of(&user.workspace.json(&["snapshot", "shop"]), "key"));
    user.exec("shop", "echo newer >kept");
    let left = user.sandbox("shop");
    there.kill_9();

    let refused = user.workspace.fails(1, &["move", "shop", "--to", "here"]);
    assert!(refused.contains("--leave-unsaved") && refused.contains(&left), "{refused}");
    assert_eq!(user.sandbox("shop"), left, "it is where it was");
    let moved = user.workspace.json(&["move", "shop", "--to", "here", "--leave-unsaved"]);
    assert_eq!(text_of(&moved["skipped"][0], "snapshot"), damaged, "{moved}");
    assert_eq!((text_of(&moved, "provider"), text_of(&moved, "key")), ("here".into(), saved.clone()));
    let behind = &moved["left_behind"];
    assert_eq!((text_of(behind, "provider"), text_of(behind, "sandboxID")), ("there".into(), left.clone()));
    assert!(saved.contains(&text_of(behind, "since")), "{moved}");
    assert_eq!(user.exec("shop", "cat kept"), "saved\n");

    there.start_again();
    configure_providers(&user, &there);
    let back = user.workspace.run(&["attach", "shop", &left]);
    assert!(back.status.success() && text(&back.stdout).contains(&left), "{back:?}");
    assert_eq!(user.exec("shop", "cat kept"), "newer\n", "what was left behind is there again");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}
