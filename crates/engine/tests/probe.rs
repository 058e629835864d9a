//! The probe on this machine: as root every check succeeds, as the user `nobody` it names what is
//! weaker. An ordinary user runs the second part only. A program without a test harness, because it
//! runs itself again as another user.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use sandbar_engine::probe::{self, Isolation, Report};

const UNPRIVILEGED: &str = "unprivileged";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(UNPRIVILEGED) => {
            let report = probe::probe(&std::env::temp_dir().join("sandbar-probe-nobody"));
            println!("{}", serde_json::to_string(&report).expect("a report is plain data"));
            return ExitCode::SUCCESS;
        }
        // Cargo requests the list of tests, or passes filters, which this program ignores.
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    if launcher::users::Rights::of_this_process() == launcher::users::Rights::All {
        as_root_everything_works();
    } else {
        println!("as_root_everything_works: needs root");
    }
    without_privileges_it_works_and_names_what_is_weaker();
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

fn without_privileges_it_works_and_names_what_is_weaker() {
    // A copy, because the user `nobody` may lack access to the build directory.
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("probe");
    std::fs::copy("/proc/self/exe", &program).expect("the program can be copied");
    open_to_all(directory.path());
    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.arg(UNPRIVILEGED).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it prints a report");
    assert_eq!(report["ok"], true, "{report:#}");
    assert_eq!(report["isolation"], "reduced");
    let checks = report["checks"].as_array().expect("checks are a list");
    for check in checks {
        let (ok, fix) = (check["ok"].as_bool().expect("a boolean"), &check["fix"]);
        assert_eq!(ok, fix.is_null(), "a fix exactly where something is missing: {check}");
        assert!(check["found"].as_str().is_some_and(|found| !found.is_empty()), "{check}");
    }
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    for (name, fix) in [("cgroups", "Delegate=yes"), ("disk", "sudo sandbar up")] {
        let check = check(name);
        assert!(check["fix"].as_str().is_some_and(|found| found.contains(fix)), "{check}");
    }
    for name in ["kernel", "privileges", "user-namespaces", "overlay", "freezer", "seccomp", "network"] {
        assert_eq!(check(name)["ok"], true, "{}", check(name));
    }
    let differences = report["differences"].as_array().expect("a list");
    assert!(differences.iter().any(|it| it.as_str().is_some_and(|it| it.contains("not limited"))), "{report:#}");
}

fn open_to_all(directory: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).expect("the mode can be set");
}
