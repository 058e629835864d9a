//! The program as somebody types it. That it measures is seen by `./dev test`, which runs it whole.

use std::process::Command;

#[test]
fn a_measurement_that_does_not_exist_is_refused_before_anything_starts() {
    let bench = Command::new(env!("CARGO_BIN_EXE_sandbar-bench"))
        .args(["--server", "/nonexistent", "--only", "speed"])
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&bench.stderr);
    assert_eq!(bench.status.code(), Some(2), "{said}");
    assert!(said.contains("'speed'") && said.contains("snapshots, templates, rotation"), "{said}");
}
