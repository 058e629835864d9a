//! Attacks by system call: what hostile code with root's rights inside asks of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use testing::User;

use crate::support::{Sandbox, Server};

const INSIDE: &str = include_str!("inside.py");

/// What the filter, the missing capability or the missing module answers.
const REFUSALS: [&str; 8] =
    ["EPERM", "EACCES", "ENOSYS", "EROFS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EOPNOTSUPP"];

/// Outcome by (area, attempt).
type Outcomes = BTreeMap<(String, String), String>;

fn parse(output: &str) -> Outcomes {
    output
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('\t').map(str::to_owned);
            Some(((fields.next()?, fields.next()?), fields.next()?))
        })
        .collect()
}

fn attack(sandbox: &Sandbox, user: &str) -> Outcomes {
    assert_eq!(sandbox.write("/home/user/inside.py", INSIDE.as_bytes()).status, 200);
    parse(&sandbox.must(user, "/usr/bin/python3 /home/user/inside.py"))
}

/// The same calls by the test's own user, unfiltered.
fn control() -> Outcomes {
    let mut python = Command::new("/usr/bin/python3")
        .args(["-", "control"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    python.stdin.take().expect("a pipe").write_all(INSIDE.as_bytes()).expect("python reads");
    let output = python.wait_with_output().expect("python ends");
    assert!(output.status.success());
    parse(&String::from_utf8_lossy(&output.stdout))
}

#[track_caller]
fn assert_refused(outcomes: &Outcomes) {
    assert!(outcomes.len() > 200, "only {} attempts were made: {outcomes:?}", outcomes.len());
    let areas: BTreeSet<&str> = outcomes.keys().map(|(area, _)| area.as_str()).collect();
    assert_eq!(areas.len(), 9, "{areas:?}");
    let wrong: Vec<_> = outcomes.iter().filter(|(_, outcome)| !REFUSALS.contains(&outcome.as_str())).collect();
    assert!(wrong.is_empty(), "not refused: {wrong:#?}");
}

#[test]
fn hostile_calls_are_refused_to_every_user() {
    let server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    assert_refused(&attack(&sandbox, "root"));
    assert_refused(&attack(&sandbox, "user"));
    // The control: on the host the kernel looks at the arguments of most of them.
    if rustix::process::geteuid().is_root() {
        let judged =
            control().values().filter(|outcome| ["EFAULT", "EINVAL", "EBADF"].contains(&outcome.as_str())).count();
        assert!(judged > 30, "{:?}", control());
    }
}

#[test]
fn hostile_calls_are_refused_by_rootless_servers() {
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        let server = Server::of_user(user, &["--no-studio"]);
        assert_refused(&attack(&server.create(), "root"));
    }
}
