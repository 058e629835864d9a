//! `sandbar run` and `sandbar runs` as users and scripts call them: the real program on a real
//! server, with a scripted model.

use crate::support::{Program, Server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use tempfile::TempDir;

/// A user with a home directory, which has the records and the checkpoints.
pub(crate) struct User {
    home: TempDir,
    pub(crate) run: Program,
    runs: Program,
    pub(crate) workspace: Program,
}

impl User {
    pub(crate) fn for_server(server: &Server) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let program = |word| {
            let program = Program::new(word).variable("XDG_DATA_HOME", home.path().join("data")).at(server);
            program.variable("XDG_CONFIG_HOME", home.path().join("config"))
        };
        Self { run: program("run"), runs: program("runs"), workspace: program("workspace"), home }
    }

    pub(crate) fn script(&self, turns: &Value) -> String {
        let file: PathBuf = self.home.path().join("script.json");
        std::fs::write(&file, json!({ "turns": turns }).to_string()).expect("a file of our own");
        format!("scripted:{}", file.display())
    }

    /// Starts a run whose events the caller reads while they are printed.
    fn begin(&self, program: &Program, arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
        let mut child = program.command(arguments).stdout(Stdio::piped()).spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        (child, output)
    }
}

fn parse_events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Reads the next event of type `kind`, or of any type if `kind` is empty. `None` at the end.
pub(crate) fn next(output: &mut impl BufRead, kind: &str) -> Option<Value> {
    loop {
        let mut line = String::new();
        if output.read_line(&mut line).expect("readable") == 0 {
            return None;
        }
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        if kind.is_empty() || event["type"] == kind {
            return Some(event);
        }
    }
}

pub(crate) fn bash(command: &str) -> Value {
    json!({ "tool_calls": [{ "name": "bash", "input": { "command": command } }] })
}

#[test]
fn a_run_prints_and_records_its_events_and_exits_by_outcome() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let good =
        user.script(&json!([bash("pwd && echo hello > a.txt"), { "expect": "/home/user/project", "text": "Done." }]));
    let done = user.run.run(&["--goal", "Say hello", "--workspace", "shop", "--model", &good]);
    let emitted = parse_events(&crate::support::program::text(&done.stdout));
    let ending = crate::support::program::text(&done.stderr);
    assert!(
        done.status.success() && ending.contains("workspace shop is paused; `sandbar workspace resume shop`"),
        "{ending}"
    );
    assert_eq!(user.workspace.json(&["show", "shop"])["paused"], true, "its work has ended");
    assert_eq!(emitted[0]["type"], "run_started");
    let id = emitted[0]["run_id"].as_str().expect("an id").to_owned();
    let last = emitted.last().expect("events");
    assert_eq!((&last["type"], &last["stop_reason"]), (&json!("run_finished"), &json!("completed")), "{last}");
    let of = |kind: &str| {
        emitted.iter().find(|event| event["type"] == kind).unwrap_or_else(|| panic!("{kind} in {emitted:?}"))
    };
    assert_eq!(of("tool_call_started")["id"], of("tool_call_finished")["id"]);
    assert_eq!(user.workspace.must(&["exec", "shop", "-c", "cat a.txt"]), "hello\n");

    let shown = user.runs.json(&["show", &id]);
    assert_eq!((&shown["state"], &shown["stop_reason"]), (&json!("finished"), &json!("completed")));
    assert_eq!(shown["events"].as_array().expect("events").last(), Some(last));
    let listed = user.runs.json(&["list"]);
    assert_eq!((&listed[0]["run_id"], &listed[0]["workspace"]), (&json!(id), &json!("shop")));
    let timeline = user.runs.must(&["show", &id]);
    assert!(
        timeline.contains("▸ bash pwd && echo hello > a.txt") && timeline.contains("completed after 2 turns"),
        "{timeline}"
    );
    assert!(user.runs.fails(1, &["resume", &id]).contains("has completed"));

    // With --keep-running the workspace stays running, and the last lines print the preview's URL.
    let served = user.script(&json!([
        bash("echo hi >index.html; (setsid python3 -m http.server 3000 >/dev/null 2>&1 &); until curl -sf localhost:3000 >/dev/null; do sleep 0.1; done"),
        { "tool_calls": [{ "name": "take_screenshot", "input": {} }] },
        { "text": "Done." },
    ]));
    let done = user.run.run(&["--goal", "Serve", "--workspace", "shop", "--model", &served, "--keep-running"]);
    let ending = crate::support::program::text(&done.stderr);
    assert!(ending.contains("workspace shop runs on") && ending.contains("sandbar: preview: http"), "{ending}");
    assert!(ending.contains("sandbar: screenshot: http"), "{ending}");
    assert_eq!(user.workspace.json(&["show", "shop"])["paused"], false);

    // The run stops at its turn limit, and resumes with a higher one.
    let endless = user.script(&json!((0..4).map(|number| bash(&format!("echo {number}"))).collect::<Vec<_>>()));
    let stopped = user.run.run(&["--goal", "Count", "--workspace", "shop", "--model", &endless, "--max-turns", "2"]);
    assert_eq!(stopped.status.code(), Some(1));
    let emitted = parse_events(&crate::support::program::text(&stopped.stdout));
    let last = emitted.last().expect("events");
    assert_eq!(last["stop_reason"], "max_turns", "{last}");
    assert!(emitted.iter().any(|event| event["type"] == "saved" && event["snapshot"].is_string()), "{emitted:?}");
    assert_eq!(user.workspace.json(&["show", "shop"])["paused"], true);
    let id = emitted[0]["run_id"].as_str().expect("an id");
    let emitted = parse_events(&user.runs.must(&["resume", id, "--max-turns", "9"]));
    assert_eq!(emitted.last().expect("events")["stop_reason"], "completed");
}

#[test]
fn a_run_killed_between_events_resumes_and_repeats_nothing() {
    const TURNS: usize = 5;
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let turns: Vec<Value> = (1..=TURNS)
        .map(|number| {
            let mut turn = bash(&format!("echo {number} >> count"));
            if number > 1 {
                let before = number - 1;
                turn["if_interrupted"] = bash(&format!("sleep 1; grep -qx {before} count || echo {before} >> count"));
            }
            turn
        })
        .chain([json!({ "text": "Done.", "if_interrupted": bash(&format!("sleep 1; grep -qx {TURNS} count || echo {TURNS} >> count")) })])
        .collect();
    let model = user.script(&json!(turns));
    user.workspace.must(&["create", "shop"]);
    let expected: String = (1..=TURNS).map(|number| format!("{number}\n")).collect();
    // Each process is killed after more events than the one before, so at another event boundary.
    let (mut child, mut output) = user.begin(&user.run, &["--goal", "Count", "--workspace", "shop", "--model", &model]);
    let id = next(&mut output, "run_started").expect("it starts")["run_id"].as_str().expect("an id").to_owned();
    for events_to_live in [3, 4, 6] {
        for _ in 0..events_to_live {
            next(&mut output, "").expect("it is not done yet");
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        (child, output) = user.begin(&user.runs, &["resume", &id, "--json-events"]);
        assert_eq!(next(&mut output, "run_started").expect("it starts again")["resumed"], true);
    }
    let last = next(&mut output, "run_finished").expect("it ends");
    assert_eq!(last["stop_reason"], "completed", "{last}");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(user.workspace.must(&["exec", "shop", "-c", "cat count"]), expected);
    let all = user.runs.json(&["show", &id]);
    let ids = |kind: &str| {
        let of = all["events"].as_array().expect("events").iter().filter(|event| event["type"] == kind);
        let mut ids: Vec<String> = of.map(|event| event["id"].as_str().expect("an id").to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids("tool_call_started"), ids("tool_call_finished"));
}

#[test]
fn sigint_and_cancel_stop_a_run_cleanly() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let model = user.script(&json!([bash("echo begun | tee mark; sleep 1000"), { "text": "Done." }]));
    let (mut child, mut output) = user.begin(&user.run, &["--goal", "Wait", "--workspace", "shop", "--model", &model]);
    let id = next(&mut output, "run_started").expect("it starts")["run_id"].as_str().expect("an id").to_owned();
    next(&mut output, "tool_output_delta").expect("the command runs");
    testing::signal(child.id(), "INT");
    let last = next(&mut output, "run_finished").expect("it ends");
    assert_eq!(last["stop_reason"], "cancelled");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(
        user.workspace.must(&["exec", "shop", "-c", "cat mark; pgrep -fc '[s]leep 1000' || true"]),
        "begun\n0\n"
    );

    let emitted = parse_events(&user.runs.must(&["resume", &id, "--json-events"]));
    assert_eq!(emitted.last().expect("events")["stop_reason"], "completed");

    let (mut child, mut output) = user.begin(&user.run, &["--goal", "Wait", "--workspace", "shop", "--model", &model]);
    let id = next(&mut output, "run_started").expect("it starts")["run_id"].as_str().expect("an id").to_owned();
    next(&mut output, "tool_output_delta").expect("the command runs");
    assert_eq!(user.runs.json(&["cancel", &id])["stop_reason"], "cancelled");
    assert_eq!(next(&mut output, "run_finished").expect("it ends")["stop_reason"], "cancelled");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn a_run_whose_reader_is_gone_saves_and_pauses() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let endless = bash("echo begun >mark; while :; do echo more; sleep 0.1; done");
    let model = user.script(&json!([endless, { "text": "Done." }]));
    let (mut child, mut output) = user.begin(&user.run, &["--goal", "Wait", "--workspace", "shop", "--model", &model]);
    next(&mut output, "tool_output_delta").expect("the command runs");
    drop(output);
    assert_eq!(child.wait().expect("it ends").code(), Some(141), "as a shell reports SIGPIPE");
    assert_eq!(user.workspace.json(&["show", "shop"])["paused"], true, "its work has ended");
    let saved = user.workspace.json(&["snapshots", "shop"]);
    assert!(saved.as_array().is_some_and(|saved| !saved.is_empty()), "{saved}");
    // At once: no lease of the run is left.
    assert_eq!(user.workspace.must(&["exec", "shop", "-c", "cat mark"]), "begun\n");
}

#[test]
fn an_approval_is_answered_by_another_process() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let model = user.script(&json!([
        bash("echo first >> mark"),
        bash("echo second >> mark"),
        { "expect": "not on a Friday", "text": "Done." },
    ]));
    let goal = ["--goal", "Mark", "--workspace", "shop", "--model", &model, "--ask", "bash:echo"];
    let (mut child, mut output) = user.begin(&user.run, &[&goal[..], &["--json-events"]].concat());
    let id = next(&mut output, "run_started").expect("it starts")["run_id"].as_str().expect("an id").to_owned();
    let first = next(&mut output, "approval_asked").expect("it asks")["id"].as_str().expect("an id").to_owned();
    assert_eq!(user.runs.json(&["answer", &id, &first, "allow"])["allowed"], true);
    assert!(user.runs.fails(1, &["answer", &id, &first, "deny"]).contains("answered before"));
    assert!(user.runs.fails(1, &["answer", &id, "toolu_none", "deny"]).contains("no question was asked"));
    let second = next(&mut output, "approval_asked").expect("it asks")["id"].as_str().expect("an id").to_owned();
    user.runs.must(&["answer", &id, &second, "deny", "--because", "not on a Friday"]);
    assert_eq!(next(&mut output, "run_finished").expect("it ends")["stop_reason"], "completed");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(user.workspace.must(&["exec", "shop", "-c", "cat mark"]), "first\n");
}

/// A chat completions endpoint whose model answers "Done." and reports 10 input and 5 output
/// tokens.
fn serve_model() -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let chunks = [
        json!({ "choices": [{ "index": 0, "delta": { "role": "assistant", "content": "Done." } }] }),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }),
        json!({ "choices": [], "usage": { "prompt_tokens": 10, "completion_tokens": 5 } }),
    ];
    let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    let body = format!("{events}data: [DONE]\n\n");
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            let (mut asked, mut piece) = (Vec::new(), [0; 65536]);
            loop {
                let count = connection.read(&mut piece).expect("a request");
                asked.extend_from_slice(&piece[..count]);
                let text = String::from_utf8_lossy(&asked).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length =
                    head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                if count == 0 || length.is_none_or(|length: usize| body.len() >= length) {
                    break;
                }
            }
            connection.write_all(format!("{head}{body}").as_bytes()).expect("an answer");
        }
    });
    url
}

#[test]
fn an_unlisted_model_costs_the_price_that_was_given() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let model = format!("openai:m@{}", serve_model());
    let ask = ["--goal", "x", "--model", &model, "--budget-usd", "20", "--json-events"];
    let (mut child, mut output) = user.begin(&user.run, &[&ask[..], &["--price", "500000/1000000"]].concat());
    let finished = next(&mut output, "run_finished").expect("it ends");
    assert_eq!((&finished["stop_reason"], &finished["cost_usd"]), (&json!("completed"), &json!(10.0)), "{finished}");
    assert!(child.wait().expect("it ends").success());
    assert!(user.run.fails(2, &[&ask[..], &["--price", "cheap"]].concat()).contains("is no price"));

    // The configuration can give the price as well.
    let file = user.home.path().join("prices.toml");
    std::fs::write(&file, "[models.m]\ninput_usd = 500000\noutput_usd = 1000000\n").expect("written");
    let config = ["--config", file.to_str().expect("a plain path")];
    let (mut child, mut output) = user.begin(&user.run, &[&ask[..], &config].concat());
    assert_eq!(next(&mut output, "run_finished").expect("it ends")["cost_usd"], 10.0);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn an_invalid_run_is_refused_before_anything_is_created() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    for (arguments, expected) in [
        (&["--goal", "x"][..], "set ANTHROPIC_API_KEY"),
        (&["--goal", "x", "--model", "anthropic:claude-opus-5-5"], "ANTHROPIC_API_KEY is not set"),
        (&["--goal", "x", "--model", "scripted:/nonexistent.yaml"], "cannot read the script"),
        (&["--goal", "x", "--model", "openai:m@http://127.0.0.1:9/v1", "--budget-usd", "1"], "the price of openai:m@"),
    ] {
        let message = user.run.fails(1, arguments);
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(user.workspace.json(&["list"]), json!([]));
    assert!(user.runs.fails(1, &["show", "run_0"]).contains("there is no run run_0"));
    user.runs.fails(2, &["show", "nonsense"]);
}
