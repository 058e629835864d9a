//! `sandbar sandbox exec`: input, outputs, exit code, arguments, interrupts and lost connections.

use super::{cli, create};
use crate::support::program::text;
use crate::support::{Cutter, Server, eventually};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_command_behaves_like_a_local_one() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);

    let done = cli.run(&["exec", &id, "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((text(&done.stdout).as_str(), text(&done.stderr).as_str()), ("out\n", "err\n"));
    assert_eq!(done.status.code(), Some(7));

    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let back = cli.run_with(&large, &["exec", &id, "--", "cat"]);
    assert!(back.status.success() && back.stdout == large, "{} bytes came back", back.stdout.len());

    let odd = ["a b", "it's", "\"$HOME\" `id`", "", "new\nline", "-n", "--json", "ü\\", "*"];
    let done = cli.run(&[&["exec", &id, "--", "printf", "%s\\0"], &odd[..]].concat());
    let arrived: Vec<&[u8]> =
        done.stdout.split_inclusive(|&byte| byte == 0).map(|text| &text[..text.len() - 1]).collect();
    assert_eq!(arrived, odd.map(str::as_bytes), "{done:?}");

    let output =
        cli.must(&["exec", &id, "--cwd", "/tmp", "--env", "A=b=c", "--user", "root", "-c", "pwd; whoami; echo $A"]);
    assert_eq!(output, "/tmp\nroot\nb=c\n");
    assert_eq!(cli.run(&["exec", &id, "-c", "kill -9 $$"]).status.code(), Some(137));
    let slow = cli.run(&["exec", &id, "--timeout", "1", "--", "sleep", "60"]);
    assert_eq!(slow.status.code(), Some(124), "{slow:?}");
    assert!(text(&slow.stderr).contains("did not end within 1s; it was killed"), "{slow:?}");
}

#[test]
fn json_has_the_outputs_and_keeps_the_exit_code() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let done = cli.run(&["exec", &id, "--json", "--", "bash", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(done.status.code(), Some(3));
    let result: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(
        (&result["stdout"], &result["stderr"], &result["exit_code"]),
        (&"out\n".into(), &"err\n".into(), &3.into())
    );
    assert!(result["duration_ms"].is_u64() && text(&done.stderr).is_empty(), "{done:?}");

    let started = cli.json(&["exec", &id, "--background", "--tag", "web", "-c", "echo here > started; sleep 600"]);
    assert!(started["tag"] == "web" && started["pid"].as_u64().is_some(), "{started}");
    let pid = started["pid"].to_string();
    eventually("the command in the background runs", Duration::from_secs(10), || {
        cli.run(&["cat", &id, "started"]).status.success().then_some(())
    });
    cli.must(&["exec", &id, "--", "kill", "-0", &pid]);
}

#[test]
fn a_command_that_cannot_run_fails_with_one_line() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    for (arguments, expected) in [
        (&["exec", &id, "--", "/nonexistent"][..], "/nonexistent"),
        (&["exec", &id, "--cwd", "/nowhere", "--", "ls"], "/nowhere"),
        (&["exec", "iabc", "--", "ls"], "sandbox iabc does not exist"),
    ] {
        let message = cli.fails(1, arguments);
        assert!(
            message.contains(expected) && message.starts_with("sandbar: ") && message.lines().count() == 1,
            "{message}"
        );
    }
    // A reader that closes the pipe ends the command. The program exits by SIGPIPE without a
    // message.
    let mut child = cli
        .command(&["exec", &id, "--", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
    let done = child.wait_with_output().expect("it ends");
    assert_eq!((line.as_str(), done.status.code(), text(&done.stderr).as_str()), ("y\n", Some(141), ""));
    eventually("the command ends", Duration::from_secs(10), || {
        (!cli.run(&["exec", &id, "--", "pgrep", "-x", "yes"]).status.success()).then_some(())
    });
}

#[test]
fn ctrl_c_reaches_the_command_and_all_it_started() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    for (line, signal, code) in [
        ("echo go; sleep 600; sleep 600", "INT", 130),
        ("trap 'echo asked; exit 5' INT; echo go; while :; do sleep 0.1; done", "INT", 130),
        ("echo go; sleep 600", "TERM", 143),
    ] {
        let mut child =
            cli.command(&["exec", &id, "-c", line]).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "go");
        testing::signal(child.id(), signal);
        let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{line}");
        assert_eq!(rest.contains(&"asked".to_owned()), line.starts_with("trap"), "{rest:?}");
    }
    assert_eq!(cli.run(&["exec", &id, "--", "pgrep", "-x", "sleep"]).status.code(), Some(1), "something still runs");

    // The program kills a command that ignores SIGINT at the second SIGINT.
    let deaf = "trap '' INT; echo go; while :; do sleep 0.1; done";
    let mut child = cli.command(&["exec", &id, "-c", deaf]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    lines.next().expect("a line").expect("text");
    testing::signal(child.id(), "INT");
    eventually("the program ends", Duration::from_secs(20), || {
        testing::signal(child.id(), "INT");
        child.try_wait().expect("it is ours")
    });
    assert_eq!(cli.run(&["exec", &id, "--", "pgrep", "-x", "sleep"]).status.code(), Some(1), "something still runs");
}

#[test]
fn a_lost_connection_costs_no_exit_code() {
    let server = Server::start();
    let cli = cli(&server);
    let id = create(&cli);
    let network = Cutter::in_front_of(&server.address);
    let line = "echo go; until [ -e end ]; do sleep 0.05; done; echo end; exit 9";
    let mut child = cli
        .command(&["exec", &id, "--sandbox-url", &format!("http://{}", network.address), "-c", line])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "go");
    network.cut();
    let mut messages = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let warning = messages.next().expect("a line").expect("text");
    assert!(warning.contains("output may be missing"), "{warning}");
    cli.must(&["exec", &id, "--", "touch", "end"]);
    assert_eq!(child.wait().expect("it ends").code(), Some(9));
}
