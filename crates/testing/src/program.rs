//! The program under test.

use std::path::PathBuf;
use std::process::Command;

/// The program of this build. Builds it if it is missing.
pub fn program() -> PathBuf {
    let tests = std::env::current_exe().expect("the test has a path");
    let built = tests.ancestors().nth(2).expect("tests are two levels below the target directory").join("sandbar");
    if !built.exists() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let made = Command::new(cargo).args(["build", "-p", "sandbar"]).status().expect("cargo runs");
        assert!(made.success() && built.exists(), "no {} to test against", built.display());
    }
    built
}

/// Removes variables from a command's environment that would point the program to another service
/// or directory.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let set = name.to_str().is_some_and(|name| name.starts_with("E2B_") || name.starts_with("SANDBAR_"));
        if set || name == "XDG_DATA_HOME" {
            command.env_remove(name);
        }
    }
    command
}
