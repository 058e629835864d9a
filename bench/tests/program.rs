//! The program as a user runs it. `./dev test` runs it completely, and so checks that it measures.

use std::process::Command;

#[test]
fn an_unknown_measurement_is_refused_before_the_start() {
    let bench = Command::new(env!("CARGO_BIN_EXE_sandbar-bench"))
        .args(["--server", "/nonexistent", "--only", "speed"])
        .output()
        .expect("the program runs");
    let stderr = String::from_utf8_lossy(&bench.stderr);
    assert_eq!(bench.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("'speed'") && stderr.contains("snapshots, templates, rotation"), "{stderr}");
}
