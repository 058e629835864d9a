//! The life cycle of a sandbox by `sandbar sandbox`, from `create` to `kill`.

use super::{cli, create};
use crate::support::program::text;
use crate::support::{Server, eventually, http};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_sandbox_is_created_listed_and_described() {
    let server = Server::start();
    let cli = cli(&server);
    let made =
        cli.json(&["create", "base", "--timeout", "1h", "--metadata", "owner=me", "--memory", "512", "--auto-pause"]);
    let id = made["sandboxID"].as_str().expect("an id");
    let token = made["envdAccessToken"].as_str().expect("a token");
    assert!(made["templateID"].is_string() && made["domain"].is_string(), "{made}");
    let other = cli.must(&["create", "--env", "A=b"]);
    assert_eq!(cli.must(&["exec", other.trim(), "-c", "echo $A"]), "b\n");

    let detail = cli.json(&["info", id]);
    assert_eq!((&detail["state"], &detail["memoryMB"]), (&"running".into(), &512.into()), "{detail}");
    assert_eq!(detail["lifecycle"]["onTimeout"], "pause");
    let mine = cli.json(&["list", "--metadata", "owner=me"]);
    assert_eq!((mine.as_array().map(Vec::len), &mine[0]["sandboxID"]), (Some(1), &id.into()), "{mine}");
    assert_eq!(cli.json(&["list", "--limit", "1"]).as_array().map(Vec::len), Some(1));
    for shown in [cli.must(&["info", id]), cli.must(&["list"])] {
        assert!(
            shown.contains(id) && shown.contains("owner=me") && !shown.contains(token) && !shown.contains('\x1b'),
            "{shown}"
        );
    }
    assert!(cli.fails(1, &["create", "nonsense"]).contains("\"nonsense\""));
    assert!(cli.fails(2, &["create", "--timeout", "0"]).contains("a second at least"));
}

#[test]
fn snapshots_and_forks_have_the_files_of_their_origin() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    cli.must(&["exec", &id, "-c", "echo kept > kept"]);
    let snapshot = cli.must(&["snapshot", &id, "--name", "ready"]);
    let of_snapshot = cli.must(&["create", snapshot.trim()]);
    let forks = cli.must(&["fork", &id, "--count", "2"]);
    let forks: Vec<&str> = forks.lines().collect();
    assert_eq!(forks.len(), 2, "{forks:?}");
    for copy in forks.into_iter().chain([of_snapshot.trim()]) {
        assert_eq!(cli.must(&["cat", copy, "kept"]), "kept\n");
        cli.must(&["exec", copy, "-c", "echo changed > kept"]);
    }
    assert_eq!(cli.must(&["cat", &id, "kept"]), "kept\n", "the copies are copies");
}

#[test]
fn a_sandbox_pauses_resumes_and_ends_by_its_timeout() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    cli.must(&["exec", &id, "-c", "echo kept > kept"]);
    assert_eq!(cli.json(&["pause", &id])["state"], "paused");
    assert!(cli.must(&["pause", &id]).contains("was paused already"));
    assert_eq!(cli.json(&["list", "--state", "paused"])[0]["sandboxID"], id.as_str());
    // Reading a file does not resume the sandbox.
    let message = cli.fails(1, &["cat", &id, "kept"]);
    assert!(message.contains(&format!("`sandbar sandbox resume {id}` wakes it")), "{message}");
    assert_eq!(cli.json(&["info", &id])["state"], "paused");
    assert_eq!(cli.json(&["resume", &id, "--timeout", "10m"])["sandboxID"], id.as_str());
    assert!(cli.must(&["resume", &id]).contains("was running already"));
    assert_eq!(cli.must(&["cat", &id, "kept"]), "kept\n");

    let end = cli.json(&["timeout", &id, "2h"])["endAt"].as_str().expect("a moment").to_owned();
    assert_eq!(cli.json(&["info", &id])["endAt"], end.as_str());
    assert!(cli.must(&["timeout", &id, "90"]).contains("(in 1m"));
    cli.must(&["timeout", &id, "0"]);
    eventually("its time is up", Duration::from_secs(10), || (!cli.run(&["info", &id]).status.success()).then_some(()));
    assert!(cli.fails(1, &["timeout", &id, "5m"]).contains("does not exist"));
}

#[test]
fn ports_and_files_have_urls() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let port = server.address.rsplit(':').next().expect("a port");
    assert_eq!(cli.must(&["url", &id, "3000"]), format!("http://3000-{id}.localhost:{port}\n"));

    let link = cli.json(&["url", &id, "--upload", "up load"])["url"].as_str().expect("a link").to_owned();
    let target =
        |link: &str| link.strip_prefix(&format!("http://{}", server.address)).expect("of this server").to_owned();
    let plain = [("Content-Type", "application/octet-stream")];
    let reply = http::request(&server.address, "POST", &target(&link), &plain, b"sent").expect("an answer");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let link = cli.must(&["url", &id, "--download", "up load", "--expires", "1h"]);
    let reply = http::request(&server.address, "GET", &target(link.trim()), &[], b"").expect("an answer");
    assert_eq!((reply.status, reply.text().as_str()), (200, "sent"));
}

#[test]
fn file_events_logs_and_metrics_are_printed() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);

    let mut watching = cli
        .command(&["watch", &id, "--count", "1", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(watching.stderr.take().expect("it is piped")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("watching"), "{line}");
    cli.must(&["exec", &id, "--", "touch", "seen"]);
    let seen = watching.wait_with_output().expect("it ends");
    let event: serde_json::Value = serde_json::from_slice(&seen.stdout).expect("JSON");
    assert!(seen.status.success());
    assert_eq!((&event["name"], &event["type"]), (&"seen".into(), &"EVENT_TYPE_CREATE".into()), "{event}");
    assert!(cli.fails(1, &["watch", &id, "/nowhere"]).contains("/nowhere"));

    let mut following =
        cli.command(&["logs", &id, "-f", "-n", "1"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(following.stdout.take().expect("it is piped")).lines();
    lines.next().expect("the newest entry").expect("text");
    cli.must(&["exec", &id, "--", "uname"]);
    let later: Vec<String> = lines.by_ref().map(|line| line.expect("text")).take(2).collect();
    assert!(later.iter().all(|line| line.contains("uname")) && later[0].contains("started"), "{later:?}");
    let entries = cli.json(&["logs", &id, "--since", "10m", "--search", "process ended"]);
    let last = entries.as_array().and_then(|entries| entries.last()).expect("an entry");
    assert_eq!((&last["fields"]["command"], &last["level"]), (&"uname".into(), &"info".into()), "{last}");
    assert_eq!(cli.json(&["logs", &id, "--level", "error"]), serde_json::json!([]));

    let readings = eventually("a reading is taken", Duration::from_secs(30), || {
        Some(cli.json(&["metrics", &id])).filter(|readings| readings[0].is_object())
    });
    assert!(readings[0]["memTotal"].as_u64().is_some_and(|total| total > 0), "{readings}");
    let shown = cli.must(&["metrics", &id]);
    assert!(shown.contains("1.0 GiB") && shown.contains("reading"), "{shown}");

    cli.must(&["kill", &id]);
    assert!(following.wait().expect("it ends with the sandbox").success());
}

#[test]
fn killing_all_sandboxes_needs_a_confirmation() {
    let server = Server::start();
    let cli = cli(&server);
    let ids = [create(&cli), create(&cli), cli.must(&["create", "-m", "owner=me"]).trim().to_owned()];
    assert_eq!(cli.json(&["kill", &ids[0]]), serde_json::json!([{ "sandboxID": ids[0], "killed": true }]));
    assert!(cli.fails(1, &["kill", &ids[0], &ids[0]]).contains("does not exist"));
    let message = cli.fails(1, &["kill", "--all"]);
    assert!(message.contains("all 2 sandboxes") && message.contains("--yes"), "{message}");
    assert_eq!(cli.must(&["kill", "--all", "--yes", "-m", "owner=me"]), format!("{} killed\n", ids[2]));
    assert_eq!(cli.must(&["list", "-q"]).trim(), ids[1]);
    cli.must(&["kill", "--all", "--yes"]);
    assert_eq!(cli.json(&["list"]), serde_json::json!([]));
    assert_eq!(cli.run(&["kill", "--all", "--yes"]).status.code(), Some(0));
}

#[test]
fn a_closed_pipe_is_not_reported_as_a_failure() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let mut child = cli
        .command(&["logs", &id, "-f", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
    cli.must(&["exec", &id, "--", "true"]);
    let done = child.wait_with_output().expect("it ends");
    assert_eq!((done.status.code(), text(&done.stderr).as_str()), (Some(141), ""));
    // A watch reports that the sandbox was killed.
    let mut watching = cli.command(&["watch", &id]).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut messages = BufReader::new(watching.stderr.take().expect("it is piped")).lines();
    messages.next().expect("it watches").expect("text");
    cli.must(&["kill", &id]);
    let last = messages.next().expect("a word").expect("text");
    assert!(last.contains("was killed or reached the end of its lifetime"), "{last}");
    assert_eq!(watching.wait().expect("it ends").code(), Some(1));
}
