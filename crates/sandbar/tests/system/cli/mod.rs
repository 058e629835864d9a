//! `sandbar sandbox` as users and scripts call it: the real program against a real server.

mod copy;
mod endpoint;
mod exec;
mod life;
mod shell;

use crate::support::Server;
use crate::support::program::{Program, text};
use crate::support::server::PROGRAM;
use std::process::Command;

/// `sandbar sandbox` without a server.
fn program() -> Command {
    Program::new("sandbox").command(&[])
}

/// `sandbar sandbox` for a server.
fn cli(server: &Server) -> Program {
    Program::new("sandbox").at(server)
}

#[track_caller]
fn create(cli: &Program) -> String {
    cli.must(&["create"]).trim().to_owned()
}

#[test]
fn the_help_of_every_subcommand_has_examples() {
    let help = text(&program().arg("--help").output().expect("the program runs").stdout);
    let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    let names: Vec<&str> =
        commands.lines().filter_map(|line| line.strip_prefix("  ")).filter_map(|line| line.split(' ').next()).collect();
    for name in ["create", "list", "exec", "shell", "cp", "fork", "snapshot", "kill"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for name in names.into_iter().filter(|&name| !name.is_empty() && name != "help") {
        let done = program().args([name, "--help"]).output().expect("the program runs");
        let help = text(&done.stdout);
        assert!(done.status.success() && help.contains("Examples:") && !help.contains('\x1b'), "{name}: {help}");
    }
}

#[test]
fn shells_can_complete() {
    for shell in ["bash", "zsh", "fish"] {
        let done = Command::new(PROGRAM).args(["completions", shell]).output().expect("the program runs");
        assert!(done.status.success() && text(&done.stdout).contains("snapshot"), "{shell}: {done:?}");
    }
    let script = "source <(\"$0\" completions bash); COMP_WORDS=(sandbar \"$1\" sn); COMP_CWORD=2; \
                  _sandbar sandbar sn \"$1\"; echo \"${COMPREPLY[@]}\"";
    for (command, completed) in [("sandbox", "snapshot"), ("workspace", "snapshot snapshots")] {
        let done = Command::new("bash").args(["-c", script, PROGRAM, command]).output().expect("bash runs");
        assert_eq!(text(&done.stdout).trim(), completed, "{done:?}");
    }
}

#[test]
fn a_usage_error_names_the_invalid_value() {
    let usage_error = |arguments: &[&str]| {
        let done = program().args(arguments).output().expect("the program runs");
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {done:?}");
        text(&done.stderr)
    };
    assert!(usage_error(&["info", "I-am/wrong"]).contains("\"I-am/wrong\" is not a sandbox id"));
    assert!(usage_error(&["timeout", "iabc", "5x"]).contains("`5x` is not a time"));
    assert!(usage_error(&["create", "--metadata", "owner"]).contains("KEY=VALUE"));
    assert!(usage_error(&["create", "--volume", "v:relative"]).contains("absolute path"));
    assert!(usage_error(&["exec", "iabc"]).contains("ARGV"));
    assert!(usage_error(&["url", "iabc", "0"]).contains('0'));
    assert!(usage_error(&["kill"]).contains("ID"));
    assert!(usage_error(&["nonsense"]).contains("nonsense"));
}
