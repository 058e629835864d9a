//! The life cycle of a workspace, from its creation to its recreation after `destroy`.

use super::{User, create_repository, text_of};
use crate::support::program::text;
use crate::support::{Server, eventually};
use serde_json::json;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn files_survive_rotation_pause_loss_and_destruction() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let source = tempfile::tempdir().expect("a directory");
    create_repository(source.path());
    let directory = source.path().to_str().expect("text");

    let made = user.workspace.json(&["create", "shop", "--repo", directory, "--branch", "next"]);
    assert_eq!(
        (text_of(&made, "workspace"), text_of(&made, "project_id"), text_of(&made, "provider")),
        ("shop".into(), "shop".into(), "local".into())
    );
    assert_eq!(made["skipped"], json!([{ "provider": "e2b", "reason": "E2B API key not configured" }]));
    assert_eq!(made["limits"]["ephemeral"], "filesystem lost when stopped");
    let first = text_of(&made, "sandboxID");

    let shown = user.workspace.json(&["show", "shop"]);
    assert_eq!(
        (text_of(&shown, "state"), &shown["paused"], text_of(&shown, "sandboxID")),
        ("ready".into(), &json!(false), first.clone())
    );
    assert!(text_of(&shown, "expires_at").parse::<jiff::Timestamp>().is_ok(), "{shown}");
    assert_eq!(user.workspace.must(&["list", "--quiet"]), "shop\n");

    let result = user.workspace.json(&["exec", "shop", "--", "sh", "-c", "pwd; cat two; echo oops >&2; exit 0"]);
    assert_eq!(
        (text_of(&result, "stdout"), text_of(&result, "stderr"), &result["exit_code"]),
        ("/home/user/project\ntwo\n".into(), "oops\n".into(), &json!(0))
    );
    let failed = user.workspace.run(&["exec", "shop", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(7), "{failed:?}");
    let fed = user.workspace.run_with(b"from here", &["exec", "shop", "-c", "cat >kept; chmod 600 kept"]);
    assert!(fed.status.success(), "{fed:?}");

    let saved = user.workspace.json(&["snapshot", "shop"]);
    assert!(
        text_of(&saved, "key").starts_with("projects/shop/snapshots/") && text_of(&saved, "sha256").len() == 64,
        "{saved}"
    );
    let listed = user.workspace.json(&["snapshots", "shop"]);
    let last = listed.as_array().and_then(|all| all.last()).expect("it is listed").clone();
    for field in ["key", "files", "bytes", "sha256"] {
        assert_eq!(last[field], saved[field], "{field} in {last}");
    }
    assert!(last["verified"] == true && last["created_at"].is_string(), "{last}");

    user.exec("shop", "cd .. && rm -r project");
    let restored = user.workspace.json(&["restore", "shop", "--snapshot", &text_of(&saved, "key"), "--discard"]);
    assert_eq!(restored["key"], saved["key"]);
    assert_eq!(user.exec("shop", "cat kept; stat -c %a kept; cat two"), "from here600\ntwo\n");

    let rotated = user.workspace.json(&["rotate", "shop"]);
    let second = text_of(&rotated, "sandboxID");
    assert!(second != first && user.sandbox("shop") == second, "{rotated}");
    assert_eq!(server.call("GET", &format!("/sandboxes/{first}"), None).status, 404, "the old one is ended");
    let rotated = user.workspace.run(&["exec", "shop", "--", "cat", "kept"]);
    assert_eq!(text(&rotated.stdout), "from here");
    assert!(text(&rotated.stderr).contains("new sandbox"), "what did not survive is reported: {rotated:?}");
    let again = user.workspace.run(&["exec", "shop", "--", "cat", "kept"]);
    assert_eq!(text(&again.stderr), "", "once");

    let paused = user.workspace.json(&["pause", "shop"]);
    assert_eq!((&paused["state"], &paused["paused"]), (&json!("paused"), &json!(true)), "text and JSON agree");
    assert_eq!(text_of(&paused, "sandboxID"), second);
    assert_eq!(server.call("GET", &format!("/sandboxes/{second}"), None).json()["state"], "paused");
    assert_eq!(user.exec("shop", "cat kept"), "from here", "a command wakes it");
    assert_eq!(user.workspace.json(&["show", "shop"])["paused"], false);
    user.workspace.must(&["pause", "shop"]);
    let resumed = user.workspace.json(&["resume", "shop"]);
    assert_eq!((&resumed["paused"], text_of(&resumed, "sandboxID")), (&json!(false), second.clone()));

    assert_eq!(server.call("DELETE", &format!("/sandboxes/{second}"), None).status, 204);
    assert_eq!(text_of(&user.workspace.json(&["list"])[0], "state"), "ended", "looking tells what became of it");
    let resumed = user.workspace.json(&["resume", "shop"]);
    let back = &resumed["brought_back"];
    assert_eq!(text_of(back, "reason"), "sandbox_lost", "the command itself tells: {resumed}");
    assert!(text_of(back, "notice").contains("Changes after that are gone, in /home/user as well"), "{resumed}");
    assert_eq!(user.exec("shop", "cat kept"), "from here", "a lost sandbox comes back with the newest snapshot");

    let refused = user.workspace.fails(1, &["destroy", "shop"]);
    assert!(refused.contains("--yes"), "{refused}");
    user.exec("shop", "echo last >kept");
    let destroyed = user.workspace.json(&["destroy", "shop", "--yes"]);
    assert_eq!(destroyed["destroyed"], true);
    assert_eq!(server.call("GET", "/v2/sandboxes", None).json(), json!([]), "nothing is left");
    let unknown = user.workspace.fails(1, &["show", "shop"]);
    assert!(unknown.contains("there is no workspace shop") && unknown.contains("list"), "{unknown}");
    assert!(!user.workspace.json(&["snapshots", "shop"]).as_array().expect("a list").is_empty(), "they outlive it");

    let back = user.workspace.json(&["create", "shop", "--repo", directory]);
    assert!(back["notes"].to_string().contains("left out"), "the repository gives way to the snapshot: {back}");
    assert_eq!(text_of(&back, "provider"), "local");
    assert_eq!(user.exec("shop", "cat kept two"), "last\ntwo\n");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

/// Damages the archive of a snapshot of the user, and returns the snapshot's name.
pub(super) fn damage(user: &User, key: &str) -> String {
    let archive = user.home.path().join("data/sandbar/workspaces/objects").join(key);
    let length = std::fs::metadata(&archive).expect("an archive").len();
    let file = std::fs::File::options().write(true).open(&archive).expect("an archive");
    std::os::unix::fs::FileExt::write_all_at(&file, b"damaged", length / 2).expect("written");
    let name = key.rsplit('/').next().expect("a name");
    name.split('.').next().expect("a stamp").to_owned()
}

/// Saves two generations, damages the newer one and kills the sandbox. Returns the name of the
/// damaged one.
fn lose_newest(server: &Server, user: &User, round: &str) -> String {
    user.exec("shop", &format!("echo {round} >kept"));
    user.workspace.must(&["snapshot", "shop"]);
    user.exec("shop", "echo later >kept");
    let newest = text_of(&user.workspace.json(&["snapshot", "shop"]), "key");
    let id = user.sandbox("shop");
    assert_eq!(server.call("DELETE", &format!("/sandboxes/{id}"), None).status, 204);
    damage(user, &newest)
}

#[test]
fn an_older_snapshot_is_named_with_the_reason() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    user.workspace.must(&["create", "shop"]);
    let skips = |skipped: &serde_json::Value, stamp: &str| {
        let found = skipped.as_array().is_some_and(|all| all.iter().any(|one| text_of(one, "snapshot") == stamp));
        assert!(found && skipped[0].to_string().contains("reason"), "{stamp}: {skipped}");
    };
    for (round, command) in [&["resume", "shop"][..], &["rotate", "shop"], &["restore", "shop"]].into_iter().enumerate()
    {
        let (text_round, json_round) = (format!("text {round}"), format!("json {round}"));
        let damaged = lose_newest(&server, &user, &text_round);
        let done = user.workspace.run(command);
        assert!(done.status.success() && text(&done.stderr).contains(&damaged), "{command:?}: {done:?}");
        assert!(text(&done.stderr).contains("passed over"), "{command:?}: {done:?}");
        assert_eq!(user.exec("shop", "cat kept"), format!("{text_round}\n"));

        let damaged = lose_newest(&server, &user, &json_round);
        let done = user.workspace.json(command);
        let skipped = if command[0] == "restore" { &done["skipped"] } else { &done["brought_back"]["skipped"] };
        skips(skipped, &damaged);
        assert_eq!(user.exec("shop", "cat kept"), format!("{json_round}\n"));
    }
    user.workspace.must(&["destroy", "shop", "--yes", "--purge"]);
}

#[test]
fn a_killed_guest_costs_no_files() {
    let server = Server::with(&["--no-studio"]);
    let user = User::for_server(&server);
    let id = text_of(&user.workspace.json(&["create", "shop"]), "sandboxID");
    user.exec("shop", "echo unsaved >file");
    // The guest is process 1 of the PID namespace that its commands are in.
    let namespace = user.exec("shop", "readlink /proc/self/ns/pid").trim().to_owned();
    let guest = find_first_process(&namespace).expect("the guest runs");
    testing::signal(guest, "KILL");
    eventually("the guest is gone", Duration::from_secs(30), || find_first_process(&namespace).is_none().then_some(()));

    let resumed = user.workspace.json(&["resume", "shop"]);
    assert_eq!((text_of(&resumed, "sandboxID"), &resumed["brought_back"]), (id, &json!(null)), "{resumed}");
    assert_eq!(user.exec("shop", "cat file"), "unsaved\n", "from its own disk");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

/// The process of this machine that is process 1 of a PID namespace.
fn find_first_process(namespace: &str) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").expect("processes");
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let is_in =
            std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link.to_str() == Some(namespace));
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let is_first =
            |line: &str| line.strip_prefix("NSpid:").is_some_and(|pids| pids.split_whitespace().last() == Some("1"));
        is_in && status.lines().any(is_first)
    })
}

#[test]
fn a_failed_preparation_is_named_and_resumed() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let create = [
        "create",
        "shop",
        "--prepare",
        "echo once >>done",
        "--prepare",
        "test -e /tmp/fixed",
        "--env",
        "TOKEN=hushhush",
    ];
    let failed = user.workspace.fails(1, &create);
    assert!(failed.contains("command 2") && failed.contains("same command"), "{failed}");
    let shown = user.workspace.json(&["show", "shop"]);
    assert_eq!(text_of(&shown, "state"), "setting_up");
    let closed = user.workspace.fails(1, &["exec", "shop", "--", "true"]);
    assert!(closed.contains("not set up"), "{closed}");

    let id = text_of(&shown, "sandboxID");
    let fixed = crate::support::Program::new("sandbox").at(&server).run(&["exec", &id, "--", "touch", "/tmp/fixed"]);
    assert!(fixed.status.success(), "{fixed:?}");
    assert_eq!(text_of(&user.workspace.json(&create), "sandboxID"), id);
    assert_eq!(user.exec("shop", "cat done"), "once\n", "what was done is not done again");
    let exists = user.workspace.fails(1, &create);
    assert!(exists.contains("there is a workspace shop already"), "{exists}");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn one_process_at_a_time_has_a_workspace() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    user.workspace.must(&["create", "shop"]);
    let mut long = user
        .workspace
        .command(&["exec", "shop", "-c", "touch begun; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo done"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let id = user.sandbox("shop");
    let sandbox = crate::support::Program::new("sandbox").at(&server);
    eventually("the command runs", Duration::from_secs(30), || {
        sandbox.run(&["exec", &id, "--", "test", "-e", "project/begun"]).status.success().then_some(())
    });
    let refused = user.workspace.fails(1, &["snapshot", "shop", "--wait", "0"]);
    assert!(refused.contains(&format!("in use by process {} on", long.id())), "{refused}");
    let looked = user.workspace.json(&["show", "shop"]);
    assert_eq!(text_of(&looked, "state"), "ready", "looking needs no lease");
    let waiting = user.workspace.command(&["exec", "shop", "--", "echo", "after"]).stdout(Stdio::piped()).spawn();
    sandbox.must(&["exec", &id, "--", "touch", "/tmp/go"]);
    let waited = waiting.expect("the program starts").wait_with_output().expect("it ends");
    assert_eq!(text(&waited.stdout), "after\n", "who waits comes next: {waited:?}");
    assert!(long.wait().expect("it ends").success());
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn files_are_copied_and_excluded_ones_are_reported() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    user.workspace.must(&["create", "shop"]);
    let written = user.workspace.run_with(b"hello", &["write", "shop", "dist/index.html"]);
    assert!(written.status.success(), "{written:?}");
    assert_eq!(user.workspace.must(&["read", "shop", "dist/index.html"]), "hello");
    assert_eq!(user.exec("shop", "pwd; cat dist/index.html"), "/home/user/project\nhello");
    let listed = user.workspace.json(&["ls", "shop", "dist"]);
    assert_eq!(text_of(&listed[0], "path"), "/home/user/project/dist/index.html");
    let place = tempfile::tempdir().expect("a directory");
    let here = place.path().join("copied").to_str().expect("text").to_owned();
    user.workspace.must(&["cp", "shop:dist", &here]);
    assert_eq!(std::fs::read(format!("{here}/index.html")).expect("copied"), b"hello");
    user.workspace.must(&["cp", &format!("{here}/."), "shop:again"]);
    assert_eq!(user.workspace.must(&["read", "shop", "again/index.html"]), "hello");
    let url = user.workspace.must(&["url", "shop", "3000"]);
    assert!(url.starts_with("http") && url.contains("3000"), "{url}");

    user.exec("shop", "mkdir node_modules && touch package.json node_modules/x");
    let shown = user.workspace.json(&["show", "shop"]);
    assert_eq!(shown["left_out"], json!(["project/node_modules"]), "before anything is gone");
    assert_eq!(text_of(&shown["limits"], "ephemeral"), "filesystem lost when stopped");
    let rotated = user.workspace.run(&["rotate", "shop"]);
    assert!(text(&rotated.stderr).contains("not taken along: project/node_modules"), "{rotated:?}");
    assert_eq!(user.exec("shop", "ls"), "again\ndist\npackage.json\n", "what was written by hand is there");

    let first = user.workspace.json(&["snapshot", "shop"]);
    assert_eq!((&first["unchanged"], &first["left_out"]), (&json!(true), &json!([])), "{first}");
    user.exec("shop", "echo new >file");
    let second = user.workspace.json(&["snapshot", "shop"]);
    assert_eq!(second["unchanged"], json!(false));
    let key = text_of(&second, "key");
    assert!(user.workspace.fails(1, &["snapshots", "shop", "--delete", &key]).contains("--yes"));
    let deleted = user.workspace.json(&["snapshots", "shop", "--delete", &key, "--yes"]);
    assert!(deleted["deleted"][0].as_str().is_some_and(|stamp| key.contains(stamp)), "{deleted}");
    let left = user.workspace.json(&["snapshots", "shop"]);
    assert!(left.as_array().expect("a list").iter().all(|one| text_of(one, "key") != key), "{left}");
    assert!(user.workspace.fails(1, &["destroy", "shop", "--purge"]).contains("--yes"));
    let purged = user.workspace.json(&["destroy", "shop", "--purge", "--yes"]);
    assert_eq!(purged["destroyed"], json!(true));
    assert!(user.workspace.fails(1, &["snapshots", "shop"]).contains("there is no workspace shop"), "nothing is left");
}

#[test]
fn invalid_arguments_are_reported() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    for (arguments, expected) in [
        (&["create", "a/b"][..], "\"a/b\" is not a name"),
        (&["create", "shop", "--branch", "main"], "--repo"),
        (&["create", "shop", "--env", "1A=v"], "does not begin with a digit"),
        (&["create", "shop", "--env", "UNSET_HERE"], "UNSET_HERE=VALUE"),
        (&["create", "shop", "--port", "3000"], "--dev"),
        (&["restore", "shop", "--snapshot", "yesterday"], "is not a snapshot"),
        (&["move", "shop"], "--to"),
        (&["exec", "shop"], "ARGV"),
    ] {
        let wrong = user.workspace.fails(2, arguments);
        assert!(wrong.contains(expected), "{arguments:?}: {wrong}");
    }
    let nowhere = user.workspace.fails(1, &["create", "shop", "--provider", "moon"]);
    assert!(nowhere.contains("there is no provider moon; the configuration has e2b, local"), "{nowhere}");
    let absent = user.workspace.fails(1, &["create", "shop", "--repo", "/absent"]);
    assert!(absent.contains("/absent does not exist on this machine"), "{absent}");
    let unknown = user.workspace.fails(1, &["snapshots", "none"]);
    assert!(unknown.contains("there is no workspace none"), "{unknown}");
    let unknown = user.workspace.fails(1, &["exec", "none", "--", "true"]);
    assert!(unknown.contains("there is no workspace none"), "{unknown}");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn snapshots_before_a_shrink_stay_until_it_is_confirmed() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    user.configure("[objects]\nkeep_snapshots = 2\n");
    user.workspace.must(&["create", "shop"]);
    user.exec("shop", "for number in $(seq 40); do head -c 2000 /dev/urandom >file-$number; done");
    let large = text_of(&user.workspace.json(&["snapshot", "shop"]), "key");
    for number in 0..3 {
        user.exec("shop", &format!("rm -f file-*; echo {number} >left"));
        user.workspace.must(&["snapshot", "shop"]);
    }
    let keys = || {
        let listed = user.workspace.json(&["snapshots", "shop"]);
        listed.as_array().expect("a list").iter().map(|listed| text_of(listed, "key")).collect::<Vec<_>>()
    };
    let kept = keys();
    assert!(kept.len() == 3 && kept[0] == large, "the large one is kept besides the two newest: {kept:?}");
    let confirmed = user.workspace.json(&["snapshots", "shop", "--confirm-shrink"]);
    let deleted = confirmed["deleted"].as_array().expect("a list");
    assert!(deleted.len() == 1 && large.contains(deleted[0].as_str().expect("a stamp")), "{confirmed}");
    assert_eq!(keys(), kept[1..]);
    assert_eq!(user.workspace.must(&["snapshots", "shop", "--confirm-shrink"]), "0 snapshots deleted\n");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}
