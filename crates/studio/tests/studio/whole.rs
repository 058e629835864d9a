//! Whole builds on a real server with a scripted model: ready, paused, resumed, expired, rebuilt.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use reqwest::StatusCode;
use sandbar_studio::records::Records;
use sdk::model::SandboxState;
use sdk::{SandboxId, Secret};
use serde_json::{Value, json};

use super::programs::{Caller, Whole};

const SLOW: &str = r#"{"turns": [
    {"text": "This takes long.", "tool_calls": [{"name": "bash", "input": {"command": "echo begun > /home/user/project/begun; sleep 300"}}]},
    {"text": "Done."}
]}"#;
const WRONG: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo hello > /home/user/project/hello.txt"}}]},
    {"expect": "this is in no result", "text": "Done."}
]}"#;
const PAGE: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo '<h1>Hello</h1>' > /home/user/project/index.html"}}]},
    {"text": "Done."}
]}"#;
const PHASES: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo '<h1>One</h1>' > /home/user/project/index.html"}},
                    {"name": "bash", "input": {"command": "cd /home/user/project && python3 -m http.server 3000", "run_in_background": true}}]},
    {"tool_calls": [{"name": "bash", "input": {"command": "until curl -sf localhost:3000; do sleep 0.1; done"}}]},
    {"text": "The page is served."},
    {"tool_calls": [{"name": "bash", "input": {"command": "echo '<h1>Two</h1>' > /home/user/project/index.html"}}]},
    {"text": "The page is changed."}
]}"#;
const NO_PAGE: &str = r#"{"turns": [
    {"tool_calls": [{"name": "write_file", "input": {"path": "/home/user/project/notes.txt", "content": "nothing to look at"}}]},
    {"text": "Done."}
]}"#;

/// The recorded events, without waiting for more.
async fn timeline(whole: &Whole, job: &str) -> Vec<Value> {
    let records = whole.records().await;
    let job = job.parse().expect("an id");
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = records.events(&job, after).await.expect("read");
        let Some(last) = page.last() else { return all };
        after = last.seq.expect("a number");
        all.extend(page.iter().map(|event| serde_json::to_value(event).expect("JSON")));
    }
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_paused_resumed_expired_and_rebuilt() {
    let whole = Whole::start(&[]);
    let user = &whole.user;
    let client = testing::client(&whole.server.address, &whole.server.key).build().expect("a client");
    let job = user.build(&json!({ "name": "Counter", "goal": "Count.", "model": "scripted:demo" })).await;
    let paused = user.until_paused(&job).await;
    assert_eq!((&paused["preview_url"], &paused["screenshot_url"]), (&Value::Null, &Value::Null));
    let sandbox: SandboxId = paused["sandbox_id"].as_str().expect("a sandbox").parse().expect("an id");
    let state = async || client.info(&sandbox).await.expect("it is there").listed.state;

    // Reads resume nothing.
    let (preview, files) = (format!("/api/jobs/{job}/preview"), format!("/api/jobs/{job}/files"));
    assert_eq!(user.get(&preview).await["state"], "paused");
    let listed = user.get(&files).await;
    assert_eq!((&listed["source"], listed["entries"].as_array().map(Vec::len)), (&json!("snapshot"), Some(3)));
    let read = user.get(&format!("/api/jobs/{job}/file?path=index.html")).await;
    assert!(read["text"].as_str().expect("a text").contains("How often?"), "{read}");
    let screenshots = user.get(&format!("/api/jobs/{job}/screenshots")).await;
    assert_eq!(screenshots["screenshots"].as_array().map(Vec::len), Some(2), "{screenshots}");
    assert_eq!(state().await, SandboxState::Paused);

    // Every event of the build, once each.
    let events = timeline(&whole, &job).await;
    for kind in ["run_started", "run_finished", "screenshots", "paused", "credit"] {
        assert_eq!(count(&events, kind), 1, "{kind}: {events:#?}");
    }
    assert_eq!(count(&events, "tool_call_started"), count(&events, "tool_call_finished"));
    let statuses: Vec<&str> = events.iter().filter_map(|event| event["status"].as_str()).collect();
    let mut distinct = statuses.clone();
    distinct.dedup();
    assert_eq!(distinct, ["queued", "provisioning", "building", "ready"]);

    // Concurrent resumes share one attempt.
    let resume = format!("/api/generation/{job}/resume");
    let nothing = json!({});
    let (one, two, three) =
        tokio::join!(user.post(&resume, &nothing), user.post(&resume, &nothing), user.post(&resume, &nothing));
    assert_eq!((one.0, &one), (StatusCode::OK, &two), "{one:?}");
    assert_eq!(one, three);
    let url = one.1["preview_url"].as_str().expect("a URL").to_owned();
    assert_eq!(count(&timeline(&whole, &job).await, "resumed"), 1);
    let page = reqwest::Client::new()
        .get(format!("http://{}/", whole.server.address))
        .header("host", url.strip_prefix("http://").expect("plain HTTP here"))
        .send()
        .await
        .expect("an answer");
    assert!(page.text().await.expect("a page").contains("How often?"));
    let status = user.get(&format!("/api/generation/{job}/status")).await;
    assert_eq!((&status["sandbox_paused"], &status["preview_url"]), (&json!(false), &json!(url)));
    assert_eq!(user.get(&preview).await["state"], "active");

    // Reads extend nothing.
    let ends = async || client.info(&sandbox).await.expect("it is there").listed.end_at;
    let before = ends().await;
    assert_eq!(user.get(&files).await["source"], "sandbox");
    user.get("/api/dashboard").await;
    user.get(&preview).await;
    assert_eq!(ends().await, before);
    let (again, _) = user.post(&resume, &nothing).await;
    assert_eq!(again, StatusCode::OK, "resuming a running sandbox succeeds");

    // A pause is idempotent.
    for _ in 0..2 {
        let paused = user.post(&format!("/api/jobs/{job}/snapshot"), &nothing).await;
        assert_eq!(paused, (StatusCode::OK, json!({ "job_id": job, "paused": true })));
        assert_eq!(state().await, SandboxState::Paused);
    }

    // The sandbox is gone: only a rebuild helps, and it has the files.
    assert!(client.kill(&sandbox).await.expect("killed"));
    assert_eq!(user.get(&preview).await["state"], "expired");
    let (status, refused) = user.post(&resume, &nothing).await;
    assert_eq!((status.as_u16(), &refused["error_type"]), (503, &json!("sandbox_expired")), "{refused}");
    // The expiry is recorded: the job has no paused sandbox and no preview.
    let seen = user.get(&format!("/api/jobs/{job}")).await;
    assert_eq!((&seen["sandbox_paused"], &seen["preview_url"]), (&json!(false), &Value::Null), "{seen}");
    let (status, again) = user.post(&resume, &nothing).await;
    assert_eq!((status.as_u16(), &again["error_type"]), (503, &json!("sandbox_expired")), "{again}");
    assert!(
        timeline(&whole, &job)
            .await
            .iter()
            .any(|event| event["text"] == "The sandbox is gone. A rebuild starts from the newest files.")
    );
    let rebuild = format!("/api/generation/{job}/rebuild");
    let (status, question) = user.post(&rebuild, &nothing).await;
    assert_eq!((status.as_u16(), &question["message"]), (409, &json!("This will use 1 build credit. Continue?")));
    let (status, rebuilt) = user.post(&rebuild, &json!({ "confirm": true })).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{rebuilt}");
    let rebuilt = rebuilt["job_id"].as_str().expect("an id").to_owned();
    let second = user.until_paused(&rebuilt).await;
    assert_eq!((&second["build_version"], &second["rebuilt_from"]), (&json!(2), &json!(job)));
    assert_eq!(user.get(&format!("/api/jobs/{rebuilt}/files")).await["entries"].as_array().map(Vec::len), Some(3));
    assert_eq!(user.get("/api/me").await["credits"], 8);

    // A restore brings the files of a snapshot back, and the preview runs after it.
    let saved = user.get(&format!("/api/jobs/{rebuilt}/snapshots")).await["snapshots"][0].clone();
    let restore = format!("/api/jobs/{rebuilt}/restore");
    let (status, begun) = user.post(&restore, &json!({ "key": saved["key"] })).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{begun}");
    let looked = user.get(&format!("/api/jobs/{rebuilt}/preview")).await;
    assert!(["starting", "active"].contains(&looked["state"].as_str().expect("a state")), "{looked}");
    let resumed = |seen: &Value| seen["stage_label"] == "Ready" && seen["sandbox_paused"] == false;
    let restored = user.until(&rebuilt, "restored and resumed", resumed).await;
    assert_eq!(restored["sandbox_id"], second["sandbox_id"], "where it was");
    let events = timeline(&whole, &rebuilt).await;
    let wrong = events.iter().find(|event| event["type"] == "job_status" && event["message"].is_string());
    assert_eq!(wrong, None, "nothing went wrong");
    assert_eq!((count(&events, "restored"), count(&events, "resumed")), (1, 1), "{events:#?}");

    // `sandbar usage` shows builds beside workspaces.
    let usage = |arguments: &[&str]| {
        let mut command = std::process::Command::new(testing::program());
        testing::without_settings(&mut command).args(["usage", "--json", "--data"]).arg(whole.data()).args(arguments);
        command.env("XDG_DATA_HOME", whole.data().join("none")).env("XDG_CONFIG_HOME", whole.data().join("none"));
        let done = command.output().expect("the program runs");
        assert!(done.status.success(), "{done:?}");
        serde_json::from_slice::<Value>(&done.stdout).expect("JSON")
    };
    let all = usage(&[]);
    assert_eq!(
        all["projects"].as_object().map(|all| all.keys().map(String::as_str).collect::<Vec<_>>()),
        Some(vec!["studio/Counter"])
    );
    let jobs: Vec<&String> = all["jobs"].as_object().expect("jobs").keys().collect();
    assert!(jobs.contains(&&job) && jobs.contains(&&rebuilt), "{all:#}");
    assert!(all["total"]["creations"].as_u64() >= Some(2), "{all:#}");
    for name in ["Counter", "studio/Counter"] {
        assert_eq!(usage(&["--project", name])["total"]["creations"], all["total"]["creations"], "{name}");
    }
    assert_eq!(usage(&["--project", "another"])["lines"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_builds_explain_and_leave_no_sandbox() {
    let whole = Whole::start(&[("slow.json", SLOW), ("wrong.json", WRONG), ("no-page.json", NO_PAGE)]);
    let user = &whole.user;
    let client = testing::client(&whole.server.address, &whole.server.key).build().expect("a client");
    let wrong = user.build(&json!({ "name": "wrong", "goal": "g", "model": "scripted:wrong.json" })).await;

    // A failed build says what to do next, and its files are kept.
    let failed = user.until(&wrong, "failed", |seen| seen["status"] == "failed").await;
    assert!(failed["error_message"].as_str().expect("a message").contains("build"), "{failed}");
    let path = format!("/api/jobs/{wrong}/file?path=hello.txt");
    let read = testing::eventually_async("its files are in a snapshot", super::programs::TIMEOUT, || async {
        let (status, read) = user.call(reqwest::Method::GET, &path, None).await;
        (status == StatusCode::OK && read["source"] == "snapshot").then_some(read)
    });
    assert_eq!(read.await["text"], "hello\n");

    // Cancelled while it builds, and before it starts, which refunds the credit. Two builds run at
    // once, so the third waits.
    let slow = json!({ "name": "slow", "goal": "g", "model": "scripted:slow.json" });
    let (slow, other, waiting) = (user.build(&slow).await, user.build(&slow).await, user.build(&slow).await);
    for job in [&slow, &other] {
        user.until(job, "building", |seen| seen["status"] == "building").await;
    }
    let credits = user.get("/api/me").await["credits"].as_i64().expect("a number");
    for job in [&waiting, &slow, &other] {
        let (status, cancelled) = user.post(&format!("/api/jobs/{job}/cancel"), &json!({})).await;
        assert_eq!(status, StatusCode::OK, "{cancelled}");
        user.until(job, "cancelled", |seen| seen["status"] == "cancelled").await;
    }
    assert_eq!(user.get("/api/me").await["credits"], credits + 1, "the one that never began costs nothing");
    let (status, _) = user.post(&format!("/api/generation/{slow}/resume"), &json!({})).await;
    assert_eq!(status.as_u16(), 422);

    // A build without a page is ready, too.
    let plain = user.build(&json!({ "name": "plain", "goal": "g", "model": "scripted:no-page.json" })).await;
    let ready = user.until_paused(&plain).await;
    let preview = user.get(&format!("/api/jobs/{plain}/preview")).await;
    assert_eq!((&preview["state"], &ready["error_message"]), (&json!("none"), &Value::Null), "{preview}");

    // Only the ready build has a sandbox; after the deletions none has.
    let one = testing::eventually_async("one sandbox is left", super::programs::TIMEOUT, || async {
        use futures::TryStreamExt as _;
        let rows: Vec<_> = client.list(sdk::ListQuery::new()).try_collect().await.expect("a list");
        (rows.len() == 1).then_some(rows)
    });
    one.await;
    let (status, _) = user.call(reqwest::Method::DELETE, &format!("/api/jobs/{plain}"), None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let gone = testing::eventually_async("no sandbox is left", super::programs::TIMEOUT, || async {
        use futures::TryStreamExt as _;
        let rows: Vec<_> = client.list(sdk::ListQuery::new()).try_collect().await.expect("a list");
        rows.is_empty().then_some(())
    });
    gone.await;
    let (status, _) = user.call(reqwest::Method::GET, &format!("/api/jobs/{plain}"), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_phase_with_a_page_has_screenshots() {
    let whole = Whole::start(&[("phases.json", PHASES)]);
    let user = &whole.user;
    let phases = ["Serve a page.", "Change it."];
    let job = user.build(&json!({ "name": "p", "goal": "g", "model": "scripted:phases.json", "phases": phases })).await;
    user.until_paused(&job).await;
    let taken = user.get(&format!("/api/jobs/{job}/screenshots")).await;
    let mut reasons: Vec<&str> =
        taken["screenshots"].as_array().expect("a list").iter().filter_map(|one| one["reason"].as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["phase 1", "phase 1", "phase 2", "phase 2", "ready", "ready"], "{taken:#}");
    let events = timeline(&whole, &job).await;
    assert_eq!((count(&events, "screenshots"), count(&events, "phase_finished")), (3, 2), "{events:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_automatic_pause_waits_for_the_watching_page() {
    let whole = Whole::start(&[("page.json", PAGE)]);
    let user = &whole.user;
    let job = user.build(&json!({ "name": "p", "goal": "g", "model": "scripted:page.json" })).await;
    let token = std::fs::read_to_string(whole.data().join("studio/token")).expect("a token");
    let events = format!("http://{}/api/jobs/{job}/events", whole.server.address);
    let watching = reqwest::Client::new().get(events).bearer_auth(token.trim()).send().await.expect("a stream");
    assert_eq!(watching.status(), StatusCode::OK);
    user.until(&job, "ready", |seen| seen["status"] == "ready").await;
    // The page has 30 seconds to load.
    assert_eq!(user.get(&format!("/api/jobs/{job}/preview")).await["state"], "active");
    let records = whole.records().await;
    let record = async || records.job(&job.parse().expect("an id")).await.expect("read").expect("a job");
    let waiting = record().await;
    assert_eq!((waiting.watched, waiting.preview_loaded, waiting.settled), (true, false, false));
    let loaded = format!("/api/jobs/{job}/preview/loaded");
    let (status, _) = user.call(reqwest::Method::POST, &loaded, None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    user.until_paused(&job).await;
    assert!(record().await.preview_loaded);
    let events = timeline(&whole, &job).await;
    let paused: Vec<&Value> = events.iter().filter(|event| event["type"] == "paused").collect();
    assert!(paused.len() == 1 && paused[0]["automatic"] == true, "{events:#?}");
    // A pause by a user has an event.
    let (status, _) = user.post(&format!("/api/generation/{job}/resume"), &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let paused = user.post(&format!("/api/generation/{job}/snapshot"), &json!({})).await;
    assert_eq!(paused, (StatusCode::OK, json!({ "job_id": job, "paused": true })));
    let events = timeline(&whole, &job).await;
    assert!(events.iter().any(|event| event["type"] == "paused" && event["automatic"] == false), "{events:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_owner_token_is_printed_and_stored() {
    let whole = Whole::start(&[]);
    let file = whole.data().join("studio/token");
    let before = std::fs::read_to_string(&file).expect("a token");
    let mut command = std::process::Command::new(testing::program());
    testing::without_settings(&mut command).args(["user", "token", "--data"]).arg(whole.data());
    command.env("XDG_DATA_HOME", whole.data().join("none")).env("XDG_CONFIG_HOME", whole.data().join("none"));
    let done = command.output().expect("the program runs");
    assert!(done.status.success(), "{done:?}");
    let printed = String::from_utf8(done.stdout).expect("text");
    let token = printed.trim().strip_prefix("export SANDBAR_TOKEN=").expect("a line for a shell").to_owned();
    assert_ne!(token, before.trim());
    assert_eq!(std::fs::read_to_string(&file).expect("a token").trim(), token, "what `sandbar up` prints next time");
    let owner = Caller::new(&whole.server.address, &token);
    assert_eq!(owner.get("/api/me").await["name"], "owner");
    let old = Caller::new(&whole.server.address, before.trim());
    let (status, _) = old.call(reqwest::Method::GET, "/api/me", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

/// A WebSocket client that reads bytes with their framing.
struct TerminalSocket(TcpStream);

impl TerminalSocket {
    /// Opens a terminal with a header that proves who opens it.
    fn open(whole: &Whole, job: &str, proof: &str) -> Self {
        let mut stream = TcpStream::connect(&whole.server.address).expect("the server listens");
        stream.set_read_timeout(Some(super::programs::TIMEOUT)).expect("a socket");
        let head = format!(
            "GET /api/jobs/{job}/terminal HTTP/1.1\r\nHost: localhost\r\n{proof}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it is sent");
        let mut socket = Self(stream);
        assert!(socket.read_until("\r\n\r\n").starts_with("HTTP/1.1 101"), "it is upgraded");
        socket
    }

    /// Sends a short message, masked with zeros.
    fn send(&mut self, text: &str) {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 126).expect("a short message");
        let frame = [&[0x82, 0x80 | length, 0, 0, 0, 0][..], text.as_bytes()].concat();
        self.0.write_all(&frame).expect("it is sent");
    }

    #[track_caller]
    fn read_until(&mut self, wanted: &str) -> String {
        let mut read = Vec::new();
        loop {
            let mut piece = [0; 4096];
            let length = self.0.read(&mut piece).expect("something in time");
            assert_ne!(length, 0, "it ended before {wanted:?}: {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&piece[..length]);
            if String::from_utf8_lossy(&read).contains(wanted) {
                return String::from_utf8_lossy(&read).into_owned();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_the_token_ends_terminals() {
    let whole = Whole::start(&[("slow.json", SLOW)]);
    let job = whole.user.build(&json!({ "name": "slow", "goal": "g", "model": "scripted:slow.json" })).await;
    whole.user.until(&job, "building", |seen| seen["status"] == "building" && seen["sandbox_id"].is_string()).await;
    let token = std::fs::read_to_string(whole.data().join("studio/token")).expect("a token");
    tokio::task::block_in_place(|| {
        let mut terminal = TerminalSocket::open(&whole, &job, &format!("Authorization: Bearer {}", token.trim()));
        terminal.send("echo six-$((6*7))\n");
        terminal.read_until("six-42");
        let mut command = std::process::Command::new(testing::program());
        testing::without_settings(&mut command).args(["user", "token", "--data"]).arg(whole.data());
        command.env("XDG_DATA_HOME", whole.data().join("none")).env("XDG_CONFIG_HOME", whole.data().join("none"));
        assert!(command.output().expect("the program runs").status.success());
        let revoked = std::time::Instant::now();
        terminal.read_until("signed out");
        let taken = revoked.elapsed();
        assert!(taken < std::time::Duration::from_secs(5), "the terminal ended {taken:?} after its token");
    });
}

/// Sends a request and returns all of its answer.
#[track_caller]
fn send(whole: &Whole, line: &str, header: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(&whole.server.address).expect("the server listens");
    stream.set_read_timeout(Some(super::programs::TIMEOUT)).expect("a socket");
    let length = body.len();
    let form = "Content-Type: application/x-www-form-urlencoded";
    let head =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{form}\r\n");
    stream.write_all(format!("{head}{header}\r\n{body}").as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    answer
}

/// Signs in and returns the cookie as the header that a browser sends.
#[track_caller]
fn sign_in(whole: &Whole, token: &str) -> String {
    let answer = send(whole, "POST /login", "", &format!("token={token}"));
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
    let cookie = answer.lines().find_map(|line| line.split_once("sandbar_session=")?.1.split(';').next());
    format!("Cookie: sandbar_session={}", cookie.expect("a cookie"))
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_out_ends_the_terminals_of_that_session_only() {
    let whole = Whole::start(&[("slow.json", SLOW)]);
    let job = whole.user.build(&json!({ "name": "slow", "goal": "g", "model": "scripted:slow.json" })).await;
    whole.user.until(&job, "building", |seen| seen["status"] == "building" && seen["sandbox_id"].is_string()).await;
    let token = std::fs::read_to_string(whole.data().join("studio/token")).expect("a token");
    tokio::task::block_in_place(|| {
        let (leaves, stays) = (sign_in(&whole, token.trim()), sign_in(&whole, token.trim()));
        let own_origin = |cookie: &str| format!("{cookie}\r\nOrigin: http://localhost");
        let mut ended = TerminalSocket::open(&whole, &job, &own_origin(&leaves));
        let mut others = [
            TerminalSocket::open(&whole, &job, &own_origin(&stays)),
            TerminalSocket::open(&whole, &job, &format!("Authorization: Bearer {}", token.trim())),
        ];
        ended.send("echo six-$((6*7))\n");
        ended.read_until("six-42");
        let out = send(&whole, "POST /logout", &format!("{leaves}\r\n"), "");
        assert!(out.starts_with("HTTP/1.1 303"), "{out}");
        let signed_out = std::time::Instant::now();
        ended.read_until("signed out");
        let taken = signed_out.elapsed();
        assert!(taken < std::time::Duration::from_secs(5), "the terminal ended {taken:?} after its session");
        // The control: terminals of the other session and of the token still work.
        for terminal in &mut others {
            terminal.send("echo seven-$((7*7))\n");
            terminal.read_until("seven-49");
        }
        for proof in [stays, format!("Authorization: Bearer {}", token.trim())] {
            let answer = send(&whole, "GET /api/me", &format!("{proof}\r\n"), "");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    });
}

/// The names of the project's files.
async fn files(whole: &Whole, job: &str) -> Vec<String> {
    let listed = whole.user.get(&format!("/api/jobs/{job}/files")).await;
    let entries = listed["entries"].as_array().expect("entries").iter();
    entries.map(|entry| entry["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_build_starts_from_the_newest_files() {
    let whole = Whole::start(&[("slow.json", SLOW), ("wrong.json", WRONG), ("page.json", PAGE)]);
    let user = &whole.user;
    let build = |model: &str| json!({ "name": "p", "goal": "g", "model": format!("scripted:{model}") });
    let has = async |job: &str, names: &[&str]| {
        let listed = files(&whole, job).await;
        for name in names {
            assert!(listed.iter().any(|listed| listed == name), "{name} is missing in {listed:?}");
        }
    };

    // A failed build: the next one is started before the files of the failed one are saved.
    let wrong = user.build(&build("wrong.json")).await;
    user.until(&wrong, "failed", |seen| seen["status"] == "failed").await;
    let second = user.build(&build("page.json")).await;
    let paused = user.until_paused(&second).await;
    has(&second, &["hello.txt", "index.html"]).await;

    // A ready build whose preview runs, and whose files were edited by hand after they were saved.
    let (status, _) = user.post(&format!("/api/generation/{second}/resume"), &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let client = testing::client(&whole.server.address, &whole.server.key).build().expect("a client");
    let sandbox: SandboxId = paused["sandbox_id"].as_str().expect("a sandbox").parse().expect("an id");
    let sandbox = client.attach(&client.info(&sandbox).await.expect("it is there")).expect("it runs");
    sandbox.files().write("/home/user/project/by-hand.txt", "mine\n").await.expect("written");
    let (status, rebuilt) = user.post(&format!("/api/generation/{second}/rebuild"), &json!({ "confirm": true })).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{rebuilt}");
    let rebuilt = rebuilt["job_id"].as_str().expect("an id").to_owned();
    sandbox.files().write("/home/user/project/later.txt", "mine\n").await.expect("written");
    let third = user.build(&build("page.json")).await;
    for job in [&rebuilt, &third] {
        user.until_paused(job).await;
        has(job, &["hello.txt", "by-hand.txt"]).await;
    }
    has(&third, &["later.txt"]).await;

    // A cancelled build.
    let slow = user.build(&build("slow.json")).await;
    let log = format!("/api/jobs/{slow}/file?path=begun");
    testing::eventually_async("the build has written its file", super::programs::TIMEOUT, || async {
        let (status, _) = user.call(reqwest::Method::GET, &log, None).await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
    let (status, _) = user.post(&format!("/api/jobs/{slow}/cancel"), &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    user.until(&slow, "cancelled", |seen| seen["status"] == "cancelled").await;
    let last = user.build(&build("page.json")).await;
    user.until_paused(&last).await;
    has(&last, &["begun", "by-hand.txt"]).await;
}

impl Whole {
    pub(crate) async fn records(&self) -> Records {
        let file = self.data().join("studio/records.sqlite");
        Records::open(&Secret::from(format!("sqlite://{}", file.display()))).await.expect("the records")
    }
}
