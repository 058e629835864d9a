//! The program under test.

use std::path::PathBuf;
use std::process::Command;

/// The program of this build, made when it is missing.
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
