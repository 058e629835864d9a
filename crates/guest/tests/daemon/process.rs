//! `process.Process` over real HTTP: order of events, exits, signals, input, terminals, deadlines,
//! listeners.

use std::fs;
use std::io::Write;
use std::ops::Not;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use buffa::Message as _;
use protocol::rpc::process::process_event::Event;
use protocol::rpc::process::process_event::data_event::Output;
use protocol::rpc::process::{ListResponse, ProcessConfig, StartRequest, StartResponse};
use serde_json::json;
use sha2::Digest as _;
use testing::{SOON, eventually};

use crate::common::{EventStream, Message, TestGuest, envelope, head, write_chunk};

#[test]
fn events_of_a_command_are_ordered() {
    let guest = TestGuest::start();
    let run = guest.run("echo out; echo err >&2; exit 3");
    assert_eq!((run.stdout.as_slice(), run.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    let end = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
    assert_eq!(run.end(), &end);
    assert_eq!(guest.run("true").end(), &json!({"exited": true, "status": "exit status 0"}));
    assert_eq!(guest.run("kill -9 $$").end()["status"], "signal: killed");
}

#[test]
fn binary_output_passes_unchanged() {
    let guest = TestGuest::start();
    let run = guest.run("head -c 3000000 /dev/zero; printf '\\xff\\xfe'");
    assert_eq!(run.stdout.len(), 3_000_002);
    assert_eq!(run.stdout[2_999_999..], [0, 0xff, 0xfe]);
    assert!(run.chunks >= 3_000_002 / 32_768, "chunks of at most 32 KiB, got {}", run.chunks);
}

#[test]
fn environment_and_directory_follow_the_rules() {
    let guest = TestGuest::start_with(|config| {
        config.env_vars.insert("FROM_CREATE".into(), "1".into());
        config.env_vars.insert("E2B_SANDBOX".into(), "overridden".into());
        config.env_vars.insert("HOME".into(), "/create".into());
        config.default_workdir = Some("/usr".into());
    });
    let more = json!({"process": {"cmd": "/usr/bin/env", "args": [], "envs": {"FROM_CALL": "2", "USER": "call"}}});
    let mut lines: Vec<String> = guest.run_with("", &more, &[]).out().lines().map(str::to_owned).collect();
    lines.sort();
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(
        lines,
        ["E2B_SANDBOX=true", "FROM_CALL=2", "FROM_CREATE=1", "HOME=/create", "LOGNAME=user", path, "USER=call"]
    );
    assert_eq!(guest.run("pwd").out(), "/usr\n");
    let home = guest.home().display().to_string();
    for (cwd, expected) in [("~", home.as_str()), ("/etc", "/etc"), ("/etc/../var", "/var")] {
        assert_eq!(guest.run_with("pwd", &json!({"process": {"cwd": cwd}}), &[]).out().trim(), expected);
    }
    let missing = guest.run_with("pwd", &json!({"process": {"cwd": "/no/where"}}), &[]);
    assert_eq!(missing.error, Some(json!({"code": "invalid_argument", "message": "cwd '/no/where' does not exist"})));
    let envs = guest.get("/envs").json();
    assert_eq!(envs, json!({"E2B_SANDBOX": "true", "FROM_CREATE": "1", "HOME": "/create"}));
}

#[test]
fn processes_have_user_groups_and_their_own_session() {
    let guest = TestGuest::start();
    let command = "id -u; id -G; cat /proc/self/oom_score_adj; ps -o sid= -p $$ | tr -d ' '; echo $$; umask";
    let run = guest.run(command);
    let lines: Vec<String> = run.out().lines().map(str::to_owned).collect();
    assert_eq!((lines[0].as_str(), lines[1].as_str(), lines[2].as_str()), ("1000", "1000 27", "100"));
    assert_eq!(lines[3], lines[4], "the process leads its session");
    assert_eq!(lines[4].parse::<u64>().ok(), run.pid, "the pid is that of the sandbox");
    assert_eq!(lines[5], "0022");
    let ignored = guest.run("sed -n 's/^SigIgn:.//p' /proc/self/status").out();
    // Signals from 32 on belong to the C library.
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).map(|signals| signals & 0x7fff_ffff), Ok(0), "{ignored}");
    let root = format!("Basic {}", STANDARD.encode("root:"));
    assert_eq!(guest.run_with("id -u", &json!({}), &[("authorization", &root)]).out(), "0\n");
    let unknown = format!("Basic {}", STANDARD.encode("ghost:"));
    let run = guest.run_with("id -u", &json!({}), &[("authorization", &unknown)]);
    assert_eq!(run.error, Some(json!({"code": "unauthenticated", "message": "invalid username: 'ghost'"})));
    let listed = guest.call_with("process.Process/List", &json!({}), &[("authorization", &unknown)]);
    assert_eq!(listed.expect_err("unknown user").status, 401);
}

#[test]
fn guest_descriptors_do_not_leak() {
    let guest = TestGuest::start();
    let run = guest.run("i=0; while [ $i -lt 200 ]; do [ -e /proc/$$/fd/$i ] && echo $i; i=$((i+1)); done");
    assert_eq!(run.out(), "0\n1\n2\n");
}

#[test]
fn unstartable_commands_are_invalid_arguments() {
    let guest = TestGuest::start();
    for cmd in ["/no/such/program", "no-such-program", "", "/etc/passwd", "/", "a\u{0}b"] {
        let run = guest.run_with("", &json!({"process": {"cmd": cmd, "args": []}}), &[]);
        assert_eq!(run.error_code(), "invalid_argument", "{cmd:?}");
    }
    // Searched in PATH, as in a shell.
    let run = guest.run_with("", &json!({"process": {"cmd": "echo", "args": ["hi"]}}), &[]);
    assert_eq!(run.out(), "hi\n");
}

#[test]
fn fatal_signals_end_the_stream_despite_open_pipes() {
    let guest = TestGuest::start();
    for (signal, status) in [("SIGNAL_SIGKILL", "signal: killed"), ("SIGNAL_SIGTERM", "signal: terminated")] {
        let (pid, mut stream) = guest.start_process("sleep 300 & echo ready; sleep 300", &json!({}), &[]);
        stream.until("ready");
        let begun = Instant::now();
        let request = json!({"process": {"pid": pid}, "signal": signal});
        guest.call("process.Process/SendSignal", &request).expect("sent");
        let end = stream.finish().end().clone();
        assert_eq!(end, json!({"exitCode": -1, "status": status, "error": status}));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    let (pid, stream) = guest.start_process("sleep 300", &json!({}), &[]);
    let bad = guest.call("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": 0}));
    assert_eq!(bad.expect_err("no signal").code, "unimplemented");
    // Enums accept numbers.
    guest.call("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": 9})).expect("sent");
    assert_eq!(stream.finish().end()["status"], "signal: killed");
}

#[test]
fn the_stream_ends_after_the_last_writer() {
    let guest = TestGuest::start();
    let fifo = guest.base().join("go");
    let command = format!("mkfifo -m 666 {0}; (read x < {0}; echo late) & echo early", fifo.display());
    fs::set_permissions(guest.base(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("permissions");
    let (pid, mut stream) = guest.start_process(&command, &json!({}), &[]);
    stream.until("early");
    // The direct child exits, its child writes later.
    eventually("the shell is gone", SOON, || {
        guest.run(&format!("kill -0 {pid} || echo gone")).out().contains("gone").then_some(())
    });
    fs::write(&fifo, "x\n").expect("written");
    let run = stream.finish();
    assert_eq!((run.out().as_str(), &run.end()["status"]), ("late\n", &json!("exit status 0")));
}

#[test]
fn stdin_is_delivered_and_closing_it_is_eof() {
    let guest = TestGuest::start();
    let (pid, mut stream) = guest.start_process("cat", &json!({"tag": "echo"}), &[]);
    let send = |text: &str| {
        let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode(text)}});
        guest.call("process.Process/SendInput", &input)
    };
    send("hello ").expect("sent");
    stream.until("hello ");
    let by_tag = json!({"process": {"tag": "echo"}, "input": {"stdin": STANDARD.encode("world\n")}});
    guest.call("process.Process/SendInput", &by_tag).expect("sent");
    stream.until("world\n");
    let pty = json!({"process": {"pid": pid}, "input": {"pty": STANDARD.encode("x")}});
    assert_eq!(guest.call("process.Process/SendInput", &pty).expect_err("no terminal").code, "internal");
    let nothing = json!({"process": {"pid": pid}});
    assert_eq!(guest.call("process.Process/SendInput", &nothing).expect_err("no input").code, "unimplemented");
    let resize = json!({"process": {"pid": pid}, "pty": {"size": {"cols": 10, "rows": 10}}});
    assert_eq!(guest.call("process.Process/Update", &resize).expect_err("no terminal").code, "internal");

    // `sleep` keeps the process alive while its input is closed twice.
    let (sleeper, sleeping) = guest.start_process("cat >/dev/null; sleep 300", &json!({}), &[]);
    let close = json!({"process": {"pid": sleeper}});
    guest.call("process.Process/CloseStdin", &close).expect("closed");
    guest.call("process.Process/CloseStdin", &close).expect("closed twice is closed");
    let input = json!({"process": {"pid": sleeper}, "input": {"stdin": STANDARD.encode("x")}});
    assert_eq!(guest.call("process.Process/SendInput", &input).expect_err("closed").code, "internal");
    drop(sleeping);

    guest.call("process.Process/CloseStdin", &json!({"process": {"pid": pid}})).expect("closed");
    assert_eq!(stream.finish().end()["status"], "exit status 0");

    let (pid, stream) = guest.start_process("sleep 300", &json!({"stdin": false}), &[]);
    let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode("x")}});
    assert_eq!(guest.call("process.Process/SendInput", &input).expect_err("disabled").code, "internal");
    drop(stream);
}

/// Several gzip members, split anywhere; the process does not see the encoding.
#[test]
fn compressed_stdin_is_inflated() {
    let compressed = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    };
    let guest = TestGuest::start();
    let start = |line: &str| {
        let config = json!({"cmd": "/bin/bash", "args": ["-c", line], "envs": {"SANDBAR_STDIN_ENCODING": "gzip"}});
        guest.start_process(line, &json!({"process": config}), &[])
    };
    let send = |pid: u64, bytes: &[u8]| {
        let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode(bytes)}});
        guest.call("process.Process/SendInput", &input)
    };
    let (pid, stream) = start("echo ${SANDBAR_STDIN_ENCODING-unset}; sha256sum");
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
    let whole = [compressed(b"first "), compressed(&large)].concat();
    for piece in whole.chunks(700_001) {
        send(pid, piece).expect("sent");
    }
    guest.call("process.Process/CloseStdin", &json!({"process": {"pid": pid}})).expect("closed");
    let digest = sha2::Sha256::digest([b"first ", &large[..]].concat());
    let hexadecimal: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let run = stream.finish();
    assert_eq!(String::from_utf8_lossy(&run.stdout), format!("unset\n{hexadecimal}  -\n"));

    // An invalid piece fails a later send.
    let (pid, _stream) = start("cat >/dev/null; sleep 300");
    send(pid, b"no gzip at all").expect("taken before it is looked at");
    eventually("the input is refused", SOON, || send(pid, b"more").err());
}

#[test]
fn stdin_streams_in_many_chunks() {
    let guest = TestGuest::start();
    let (pid, stream) = guest.start_process("head -c 200000 | md5sum", &json!({}), &[]);
    let mut call = guest.connect();
    let headers = [("content-type", "application/connect+json")];
    call.write_all(&head("POST", "/process.Process/StreamInput", &headers, None)).expect("written");
    let mut say = |value: serde_json::Value| write_chunk(&mut call, &envelope(0, value.to_string().as_bytes()));
    say(json!({"start": {"process": {"pid": pid}}}));
    say(json!({"keepalive": {}}));
    for _ in 0..20 {
        say(json!({"data": {"input": {"stdin": STANDARD.encode(vec![b'a'; 10_000])}}}));
    }
    call.write_all(b"0\r\n\r\n").expect("written");
    let mut answer = EventStream::read(call, "application/connect+json");
    assert_eq!(answer.frame(), (0, b"{}".to_vec()));
    assert_eq!(answer.message(), Message::Over(None));
    let expected = guest.run("head -c 200000 /dev/zero | tr '\\0' a | md5sum").out();
    assert_eq!(stream.finish().out(), expected);
}

#[test]
fn a_terminal_is_resized_and_rejoined() {
    let guest = TestGuest::start();
    let terminal = json!({
        "process": {"cmd": "/bin/bash", "args": ["-i"], "envs": {"TERM": "xterm-256color", "PS1": "", "HISTFILE": ""}},
        "pty": {"size": {"cols": 77, "rows": 33}}
    });
    let (pid, mut stream) = guest.start_process("", &terminal, &[]);
    let send = |text: &str| {
        let input = json!({"process": {"pid": pid}, "input": {"pty": STANDARD.encode(text)}});
        guest.call("process.Process/SendInput", &input).expect("sent");
    };
    send("stty size; tty; echo one-$((1+1))\n");
    let seen = stream.until("one-2");
    assert!(seen.contains("33 77"), "{seen:?}");
    assert!(seen.contains("/dev/pts/"), "{seen:?}");
    let resize = json!({"process": {"pid": pid}, "pty": {"size": {"cols": 120, "rows": 40}}});
    guest.call("process.Process/Update", &resize).expect("resized");
    drop(stream);

    let mut joined = guest.stream("process.Process/Connect", &json!({"process": {"pid": pid}}), &[]);
    assert_eq!(joined.started(), pid);
    send("tput cols; echo two-$((1+1))\n");
    let seen = joined.until("two-2");
    assert!(seen.contains("120"), "{seen:?}");

    let stdin = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode("x")}});
    assert_eq!(guest.call("process.Process/SendInput", &stdin).expect_err("a terminal").code, "internal");
    let close = json!({"process": {"pid": pid}});
    assert_eq!(guest.call("process.Process/CloseStdin", &close).expect_err("a terminal").code, "unknown");
    send("exit\n");
    let run = joined.finish();
    assert_eq!(run.end()["status"], "exit status 0");
    assert!(run.stdout.is_empty(), "a terminal has one stream");
}

#[test]
fn the_deadline_kills_the_process_and_its_group() {
    let guest = TestGuest::start();
    let begun = Instant::now();
    let run = guest.run_with("sleep 4321 & echo started; sleep 4321", &json!({}), &[("connect-timeout-ms", "700")]);
    assert_eq!((run.out().as_str(), run.error_code()), ("started\n", "deadline_exceeded"));
    assert!(run.end.is_none());
    assert!((Duration::from_millis(600)..Duration::from_secs(5)).contains(&begun.elapsed()));
    assert_eq!(guest.call("process.Process/List", &json!({})).expect("listed"), json!({}));
    eventually("the group is killed", SOON, || {
        guest.run("ps -e -o args=").out().contains("sleep 4321").not().then_some(())
    });

    // It applies after a disconnect, and is an ordinary end for other listeners.
    let (pid, stream) = guest.start_process("sleep 300", &json!({}), &[("connect-timeout-ms", "700")]);
    drop(stream);
    let joined = guest.stream("process.Process/Connect", &json!({"process": {"pid": pid}}), &[]).finish();
    assert_eq!(joined.end()["status"], "signal: killed");
    // 0 means no timeout; the timeout of Connect limits only the stream.
    let (pid, _stream) = guest.start_process("sleep 300", &json!({}), &[("connect-timeout-ms", "0")]);
    let selector = json!({"process": {"pid": pid}});
    let joined = guest.stream("process.Process/Connect", &selector, &[("connect-timeout-ms", "200")]).finish();
    assert_eq!(joined.error_code(), "deadline_exceeded");
    assert_eq!(guest.run(&format!("kill -0 {pid} && echo alive")).out(), "alive\n");
}

#[test]
fn silent_streams_send_keepalives() {
    let guest = TestGuest::start();
    let run = guest.run_with("sleep 2.5", &json!({}), &[("keepalive-ping-interval", "1")]);
    assert_eq!(run.keepalives, 2);
    let busy = "for i in 1 2 3 4; do echo $i; sleep 0.6; done";
    assert_eq!(guest.run_with(busy, &json!({}), &[("keepalive-ping-interval", "1")]).keepalives, 0);
}

#[test]
fn disconnects_do_not_kill_and_all_listeners_get_events() {
    let guest = TestGuest::start();
    let (pid, first) = guest.start_process("while read line; do echo \"got $line\"; done", &json!({"tag": "t"}), &[]);
    drop(first);
    let mut joined: Vec<EventStream> = [json!({"pid": pid}), json!({"tag": "t"}), json!({"pid": pid})]
        .iter()
        .map(|selector| guest.stream("process.Process/Connect", &json!({"process": selector}), &[]))
        .collect();
    for stream in &mut joined {
        assert_eq!(stream.started(), pid);
    }
    let list = guest.call("process.Process/List", &json!({})).expect("listed");
    assert_eq!(list["processes"][0]["pid"], pid);
    assert_eq!(list["processes"][0]["tag"], "t");
    assert_eq!(list["processes"][0]["config"]["cmd"], "/bin/bash");
    let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode("word\n")}});
    guest.call("process.Process/SendInput", &input).expect("sent");
    for stream in &mut joined {
        assert_eq!(stream.until("\n"), "got word\n");
    }
    guest.call("process.Process/CloseStdin", &json!({"process": {"pid": pid}})).expect("closed");
    for stream in joined {
        assert_eq!(stream.finish().end()["status"], "exit status 0");
    }

    // Still connectable for a while, not listed, and refuses input.
    let late = guest.stream("process.Process/Connect", &json!({"process": {"pid": pid}}), &[]).finish();
    assert_eq!((late.pid, &late.end()["status"]), (Some(pid), &json!("exit status 0")));
    assert_eq!(guest.call("process.Process/List", &json!({})).expect("listed"), json!({}));
    assert_eq!(guest.call("process.Process/SendInput", &input).expect_err("over").code, "not_found");
    for (selector, code) in
        [(json!({"pid": 999_999}), "not_found"), (json!({"tag": "x"}), "not_found"), (json!({}), "unimplemented")]
    {
        let lost = guest.stream("process.Process/Connect", &json!({"process": selector}), &[]).finish();
        assert_eq!(lost.error_code(), code);
        let signal = json!({"process": selector, "signal": "SIGNAL_SIGKILL"});
        assert_eq!(guest.call("process.Process/SendSignal", &signal).expect_err("unknown").code, code);
    }
}

#[test]
fn a_slow_listener_applies_backpressure() {
    let guest = TestGuest::start();
    let counter = guest.home().join("count");
    let command = format!("for i in $(seq 1000); do head -c 32768 /dev/zero; echo $i > {}; done", counter.display());
    let (_, stream) = guest.start_process(&command, &json!({}), &[]);
    let count = || fs::read_to_string(&counter).ok().and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(0);
    // It blocks without a reader: the count stops growing.
    let mut last = (0, Instant::now());
    let stopped = eventually("the process stops", SOON, || {
        let now = count();
        if now != last.0 {
            last = (now, Instant::now());
        }
        (now > 0 && last.1.elapsed() > Duration::from_millis(500)).then_some(now)
    });
    assert!(stopped < 100, "{stopped} pieces of 32 KiB went nowhere");
    let run = stream.finish();
    assert_eq!(run.stdout.len(), 1000 * 32768);
}

#[test]
fn orphans_are_reaped() {
    let guest = TestGuest::start();
    guest.run("for i in $(seq 20); do (sleep 0.05 &) ; done");
    let zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z'; ps -e | grep -c '[s]leep'";
    eventually("no sleeper and no zombie is left", SOON, || (guest.run(zombies).out() == "0\n0\n").then_some(()));
    // Orphans' statuses are not mixed up with the guest's own processes.
    assert_eq!(guest.run("(sleep 0.05 &); exit 9").end()["exitCode"], 9);
}

#[test]
fn process_1_ignores_signals_from_inside() {
    let guest = TestGuest::start();
    let root = format!("Basic {}", STANDARD.encode("root:"));
    let command = "kill -TERM 1; kill -INT 1; kill -KILL 1; kill -HUP 1; cat /proc/1/comm";
    let run = guest.run_with(command, &json!({}), &[("authorization", &root)]);
    assert_eq!(run.out().trim(), "sandbar-guest");
    // Nor while it starts processes and pool threads exist.
    let hammer = "for i in $(seq 3000); do kill -TERM 1; done; echo over";
    let (_, stream) = guest.start_process(hammer, &json!({}), &[("authorization", &root)]);
    for _ in 0..50 {
        guest.run("true");
        assert_eq!(
            guest.call("filesystem.Filesystem/Stat", &json!({"path": "/"})).expect("a stat")["entry"]["name"],
            "/"
        );
    }
    assert_eq!(stream.finish().out(), "over\n");
    assert_eq!(guest.get("/health").status, 204);
}

#[test]
fn the_binary_codec_matches_json() {
    let guest = TestGuest::start();
    let request = StartRequest {
        process: ProcessConfig {
            cmd: "/bin/sh".into(),
            args: vec!["-c".into(), "printf bin; exit 4".into()],
            ..ProcessConfig::default()
        }
        .into(),
        stdin: Some(false),
        ..StartRequest::default()
    };
    let body = envelope(0, &request.encode_to_vec());
    let mut call = guest.connect();
    let headers = [("content-type", "application/connect+proto")];
    call.write_all(&head("POST", "/process.Process/Start", &headers, Some(body.len()))).expect("written");
    call.write_all(&body).expect("written");
    let mut stream = EventStream::read(call, "application/connect+proto");
    let mut events = Vec::new();
    let last = loop {
        let (flags, payload) = stream.frame();
        if flags == 2 {
            break payload;
        }
        let answer = StartResponse::decode_from_slice(&payload).expect("a message");
        events.push(answer.event.into_option().and_then(|event| event.event).expect("an event"));
    };
    assert_eq!(last, b"{}");
    let [Event::Start(start), Event::Data(data), Event::End(end)] = &events[..] else { panic!("{events:?}") };
    assert!(start.pid > 1);
    assert_eq!(data.output, Some(Output::Stdout(b"bin".to_vec())));
    assert_eq!((end.exit_code, end.exited, end.error.as_deref()), (4, true, Some("exit status 4")));

    let (pid, _stream) = guest.start_process("sleep 300", &json!({}), &[]);
    let list = guest.request("POST", "/process.Process/List", &[("content-type", "application/proto")], b"");
    assert_eq!((list.status, list.header("content-type")), (200, Some("application/proto")));
    let list = ListResponse::decode_from_slice(&list.body).expect("a message");
    assert_eq!(u64::from(list.processes[0].pid), pid);
}

#[test]
fn lenient_json_and_identity_encoding_are_accepted() {
    let guest = TestGuest::start();
    let dir = guest.home().display().to_string();
    let request = json!({"path": dir, "include_entry": true, "allow_network_mounts": true, "unknown": [1]});
    let headers = [("content-encoding", "identity"), ("accept-encoding", "zstd,gzip,br"), ("connect-timeout-ms", "0")];
    let answer = guest.call_with("filesystem.Filesystem/CreateWatcher", &request, &headers).expect("created");
    assert!(answer["watcherId"].is_string());
    let headers = [
        ("connect-accept-encoding", "identity"),
        ("connect-content-encoding", "identity"),
        ("accept-encoding", "zstd,gzip,br"),
    ];
    let more = json!({"process": {"later": 1}, "unknown": {}});
    assert_eq!(guest.run_with("echo ok", &more, &headers).out(), "ok\n");
    let lost = guest.request("POST", "/process.Process/Nothing", &[("content-type", "application/json")], b"{}");
    assert_eq!((lost.status, &lost.json()["code"]), (404, &json!("unimplemented")));
}

#[test]
fn an_inaccessible_directory_is_named() {
    let guest = TestGuest::start();
    let closed = guest.base().join("closed");
    fs::create_dir(&closed).expect("a directory");
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("permissions");
    let run = guest.run_with("true", &json!({"process": {"cwd": closed}}), &[]);
    let message = run.error.expect("refused")["message"].as_str().expect("a message").to_owned();
    let expected = format!("cannot enter the working directory '{}': Permission denied", closed.display());
    assert!(message.starts_with(&expected), "{message}");
}
