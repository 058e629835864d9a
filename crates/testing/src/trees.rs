//! Trees of files, compared without the code under test.

use sdk::Sandbox;

/// Runs a line as root in the home directory, which must succeed.
pub async fn run(sandbox: &Sandbox, line: &str) -> String {
    stdout(sandbox, sdk::Command::exec("/bin/bash", ["-c", line])).await
}

/// Runs a Python program in the same way.
pub async fn python(sandbox: &Sandbox, text: &str) -> String {
    stdout(sandbox, sdk::Command::exec("python3", ["-c", text])).await
}

async fn stdout(sandbox: &Sandbox, command: sdk::Command) -> String {
    let output = sandbox.commands().run(command.user("root").cwd("/home/user")).await.expect("the sandbox answers");
    assert!(output.success(), "{}{}", output.stdout_text(), output.stderr_text());
    output.stdout_text().into_owned()
}

/// The metadata and digest of every file below the home directory, one line each.
pub async fn tree_of(sandbox: &Sandbox) -> Vec<String> {
    python(sandbox, include_str!("tree.py")).await.lines().map(str::to_owned).collect()
}

#[track_caller]
pub fn assert_same(found: &[String], wanted: &[String]) {
    let differing = |a: &[String], b: &[String]| a.iter().filter(|line| !b.contains(line)).cloned().collect::<Vec<_>>();
    assert!(
        found == wanted,
        "the trees differ; missing:\n{}\ntoo much:\n{}",
        differing(wanted, found).join("\n"),
        differing(found, wanted).join("\n")
    );
}
