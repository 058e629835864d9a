//! Attacks by system call: hostile code that is root in its sandbox calls the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use testing::User;

use crate::support::{Sandbox, Server, repeats};

const INSIDE: &str = include_str!("inside.py");

/// Errors of the seccomp filter, of a missing capability and of a missing kernel module.
const REFUSALS: [&str; 8] =
    ["EPERM", "EACCES", "ENOSYS", "EROFS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EOPNOTSUPP"];

/// Outcomes by area and attempt.
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

/// Makes the same calls on the host, as the user who runs the tests, without the filter.
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
    for _ in 0..repeats(1, 20) {
        assert_refused(&attack(&sandbox, "root"));
        assert_refused(&attack(&sandbox, "user"));
    }
    // The control: on the host the kernel rejects most calls by their arguments, not by privilege.
    if testing::is_root() {
        let rejected =
            control().values().filter(|outcome| ["EFAULT", "EINVAL", "EBADF"].contains(&outcome.as_str())).count();
        assert!(rejected > 30, "{:?}", control());
    }
}

#[test]
fn hostile_calls_are_refused_by_rootless_servers() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        let server = Server::for_user(user, &["--no-studio"]);
        assert_refused(&attack(&server.create(), "root"));
    }
}
