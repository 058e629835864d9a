//! The probe on this machine: as root all is well, as nobody it says what is missing. Root is needed, and its absence fails
//! the test. A program of its own without a test harness, because it runs itself again as somebody else.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use sandbar_engine::probe::{self, Isolation, Report};

const AS_NOBODY: &str = "as-nobody";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(AS_NOBODY) => {
            let report = probe::probe(&std::env::temp_dir().join("sandbar-probe-nobody"));
            println!("{}", serde_json::to_string(&report).expect("a report is plain data"));
            return ExitCode::SUCCESS;
        }
        // Cargo asks for the list of tests, or passes filters, which this one program does not have.
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    as_root_everything_works();
    as_nobody_nothing_does_and_the_fix_is_named();
    println!("probe: ok");
    ExitCode::SUCCESS
}

fn as_root_everything_works() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let before = traces();
    let report: Report = probe::probe(&data.path().join("not/yet/made"));
    let failed: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(report.ok);
    assert_eq!(report.isolation, Isolation::Full);
    assert_eq!(report.isolation.to_string(), "full");
    assert!(!data.path().join("not").exists(), "a probe makes nothing");
    assert_eq!(traces(), before, "a probe leaves nothing");
}

/// Mounts and cgroups that a probe may have left.
fn traces() -> (String, Vec<String>) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo can be read");
    let trees = std::fs::read_dir("/sys/fs/cgroup").expect("cgroups are mounted").flatten();
    let groups = trees.flat_map(|tree| std::fs::read_dir(tree.path()).into_iter().flatten().flatten());
    let names = groups.filter_map(|group| group.file_name().into_string().ok());
    (mounts, names.filter(|name| name.starts_with("sandbar-probe")).collect())
}

fn as_nobody_nothing_does_and_the_fix_is_named() {
    // A copy, because nobody may not be let into the directory of the build.
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("probe");
    std::fs::copy("/proc/self/exe", &program).expect("the program can be copied");
    open_to_all(directory.path());
    let output = Command::new(&program).arg(AS_NOBODY).uid(65534).gid(65534).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it prints a report");
    assert_eq!(report["ok"], false);
    assert_eq!(report["isolation"], "none");
    let checks = report["checks"].as_array().expect("checks are a list");
    for check in checks {
        let (ok, fix) = (check["ok"].as_bool().expect("a boolean"), &check["fix"]);
        assert_eq!(ok, fix.is_null(), "a fix exactly where something is missing: {check}");
        assert!(check["found"].as_str().is_some_and(|found| !found.is_empty()), "{check}");
    }
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    for name in ["privileges", "user-namespaces", "overlay", "cgroups", "freezer"] {
        let check = check(name);
        assert_eq!(check["fix"], "run as root: sudo sandbar up", "{check}");
    }
    assert_eq!(check("kernel")["ok"], true);
}

fn open_to_all(directory: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).expect("the mode can be set");
}
