//! What a test needs of the user who runs it.
//!
//! Root runs all tests, and whatever the machine lacks fails them. For an ordinary user, a test
//! that begins with [`needs_root!`](crate::needs_root) is not run and named instead; one that
//! begins with [`needs_network!`](crate::needs_network) runs in namespaces of its own, where the
//! user is root and nowhere else. [`in_namespaces!`](crate::in_namespaces) does so for a whole
//! program.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The file to which tests that are not run add their names. `./dev` prints it.
const NOT_RUN: &str = "SANDBAR_TESTS_NOT_RUN";

/// Set in the namespaces of a test: root there is an ordinary user of the host.
const IN_NAMESPACES: &str = "SANDBAR_TEST_IN_NAMESPACES";

/// Whether root of the host runs the tests.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root() && std::env::var_os(IN_NAMESPACES).is_none()
}

/// Says that an ordinary user does not run a test, and why.
pub fn not_run(test: &str, reason: &str) {
    let line = format!("{test}: {reason}\n");
    print!("not run: needs root: {line}");
    if let Some(path) = std::env::var_os(NOT_RUN) {
        let list = OpenOptions::new().append(true).create(true).open(&path);
        list.and_then(|mut list| list.write_all(line.as_bytes()))
            .expect("the list of tests that are not run is writable");
    }
}

/// Runs a test of this program in namespaces of its own, unless this process is root in its own.
/// Returns whether it did. Panics if the test failed there.
#[track_caller]
pub fn ran_in_namespaces(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    let program = std::env::current_exe().expect("this program");
    let done = namespaces().arg(program).args(["--exact", test, "--nocapture"]).output().expect("python3 runs");
    let (output, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    print!("{output}{errors}");
    assert!(done.status.success(), "{test} failed in its namespaces");
    assert!(output.contains("test result: ok. 1 passed"), "no test of this program is {test}");
    true
}

/// Executes this program again in namespaces, unless this process is root or in namespaces already.
pub(crate) fn enter_namespaces() {
    if rustix::process::geteuid().is_root() || std::env::var_os(IN_NAMESPACES).is_some() {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let error = namespaces().arg(program).args(std::env::args_os().skip(1)).exec();
    panic!("python3: {error}");
}

/// For a test that starts its own program as another user: the program stays outside of namespaces.
pub fn without_namespaces(command: &mut Command) -> &mut Command {
    command.env(IN_NAMESPACES, "1")
}

/// A command that executes its arguments in namespaces.
fn namespaces() -> Command {
    let mut command = Command::new("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/machine.py")).env(IN_NAMESPACES, "1");
    command
}

/// The name of a test as its harness has it, from the path of an item in its body.
#[doc(hidden)]
pub fn test_of(item: &'static str) -> String {
    let path: Vec<&str> = item.split("::").filter(|part| *part != "{{closure}}").collect();
    // Without the program and the item.
    path[1..path.len() - 1].join("::")
}

/// The name of the test whose body this is in.
#[doc(hidden)]
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        $crate::test_of(std::any::type_name_of_val(&here))
    }};
}

/// At the beginning of a test: an ordinary user does not run it, for this reason.
#[macro_export]
macro_rules! needs_root {
    ($reason:expr) => {
        if !$crate::is_root() {
            $crate::not_run(&$crate::test_name!(), $reason);
            return;
        }
    };
}

/// At the beginning of a test that joins networks: for an ordinary user it runs in namespaces of
/// its own.
#[macro_export]
macro_rules! needs_network {
    () => {
        if $crate::ran_in_namespaces(&$crate::test_name!()) {
            return;
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_knows_its_name() {
        assert_eq!(crate::test_name!(), "needs::tests::a_test_knows_its_name");
        let thread = std::thread::current();
        assert_eq!(thread.name(), Some("needs::tests::a_test_knows_its_name"));
    }

    #[tokio::test]
    async fn an_asynchronous_test_knows_its_name() {
        assert_eq!(crate::test_name!(), "needs::tests::an_asynchronous_test_knows_its_name");
    }
}
