//! `sandbar sandbox` as people and scripts use it: the real program against a real server.

mod copy;
mod endpoint;
mod exec;
mod life;
mod shell;

use crate::support::Server;
use crate::support::server::PROGRAM;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// What would lead the program elsewhere.
const VARIABLES: [&str; 8] = [
    "E2B_API_KEY",
    "E2B_API_URL",
    "E2B_SANDBOX_URL",
    "E2B_DOMAIN",
    "SANDBAR_DATA",
    "SANDBAR_CONFIG",
    "SANDBAR_LOG",
    "XDG_DATA_HOME",
];

/// `sandbar sandbox`, and nothing of the environment that would lead it to another service.
fn program() -> Command {
    let mut command = Command::new(PROGRAM);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command.arg("sandbox");
    command
}

/// The program at a server, found by its data directory.
struct Cli<'a> {
    server: &'a Server,
}

impl Cli<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.env("SANDBAR_DATA", self.server.data()).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program runs")
    }

    fn run_with(&self, input: &[u8], arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut pipe = child.stdin.take().expect("it is piped");
        let input = input.to_owned();
        let writer = std::thread::spawn(move || pipe.write_all(&input));
        let output = child.wait_with_output().expect("the program ends");
        writer.join().expect("no panic").expect("all input is taken");
        output
    }

    /// Demands success; stdout.
    #[track_caller]
    fn must(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        text(&done.stdout)
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.must(&[arguments, &["--json"]].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said}"))
    }

    /// Demands failure with this exit code; what it says about it.
    #[track_caller]
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {done:?}");
        text(&done.stderr)
    }

    #[track_caller]
    fn create(&self) -> String {
        self.must(&["create"]).trim().to_owned()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_subcommand_helps_with_examples() {
    let help = text(&program().arg("--help").output().expect("the program runs").stdout);
    let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    let names: Vec<&str> =
        commands.lines().filter_map(|line| line.strip_prefix("  ")).filter_map(|line| line.split(' ').next()).collect();
    for name in ["create", "list", "exec", "shell", "cp", "fork", "snapshot", "kill"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for name in names.into_iter().filter(|&name| !name.is_empty() && name != "help") {
        let done = program().args([name, "--help"]).output().expect("the program runs");
        let said = text(&done.stdout);
        assert!(done.status.success() && said.contains("Examples:") && !said.contains('\x1b'), "{name}: {said}");
    }
}

#[test]
fn shells_can_complete() {
    for shell in ["bash", "zsh", "fish"] {
        let done = Command::new(PROGRAM).args(["completions", shell]).output().expect("the program runs");
        assert!(done.status.success() && text(&done.stdout).contains("snapshot"), "{shell}: {done:?}");
    }
    let script = "source <(\"$0\" completions bash); COMP_WORDS=(sandbar sandbox sn); COMP_CWORD=2; \
                  _sandbar sandbar sn sandbox; echo \"${COMPREPLY[@]}\"";
    let done = Command::new("bash").args(["-c", script, PROGRAM]).output().expect("bash runs");
    assert_eq!(text(&done.stdout).trim(), "snapshot", "{done:?}");
}

#[test]
fn what_cannot_be_meant_is_said_with_the_value() {
    let said = |arguments: &[&str]| {
        let done = program().args(arguments).output().expect("the program runs");
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {done:?}");
        text(&done.stderr)
    };
    assert!(said(&["info", "I-am/wrong"]).contains("\"I-am/wrong\" is not a sandbox id"));
    assert!(said(&["timeout", "iabc", "5x"]).contains("`5x` is not a time"));
    assert!(said(&["create", "--env", "secret"]).contains("KEY=VALUE"));
    assert!(said(&["create", "--volume", "v:relative"]).contains("absolute path"));
    assert!(said(&["exec", "iabc"]).contains("ARGV"));
    assert!(said(&["url", "iabc", "0"]).contains('0'));
    assert!(said(&["kill"]).contains("ID"));
    assert!(said(&["nonsense"]).contains("nonsense"));
}
