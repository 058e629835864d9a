//! `sandbar config` and `sandbar usage` as users call them.

use crate::support::server::PROGRAM;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Runs the program with its own home directory, without the configuration of this machine.
fn run(home: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(PROGRAM);
    testing::without_settings(&mut command)
        .args(arguments)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_DATA_HOME", home.join("data"));
    command.envs(variables.iter().copied()).output().expect("the program runs")
}

#[track_caller]
fn json(done: &Output) -> Value {
    assert!(done.status.success(), "{done:?}");
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn home() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn a_configuration_is_created_once_and_shown_with_sources() {
    let home = home();
    let variables =
        [("E2B_API_KEY", "e2b_hidden"), ("E2B_API_URL", "http://127.0.0.1:5000"), ("SANDBAR_LISTEN", "127.0.0.1:7")];
    let shown = run(home.path(), &["config", "show", "--json"], &variables);
    let shown = json(&shown);
    assert!(shown["file"].is_null() && !shown.to_string().contains("hidden"), "{shown}");
    assert_eq!(shown["keys"]["E2B_API_KEY"], "set");
    for (key, source) in
        [("listen", "SANDBAR_LISTEN"), ("providers.0.api_url", "E2B_API_URL"), ("providers.1.kind", "default")]
    {
        assert_eq!(shown["sources"][key], source, "{key}");
    }
    assert_eq!(shown["config"]["providers"][0]["deployment_mode"], "self_hosted");

    let made = run(home.path(), &["config", "init"], &[]);
    let file = home.path().join("config/sandbar/config.toml");
    assert_eq!(String::from_utf8_lossy(&made.stdout).trim(), file.display().to_string(), "{made:?}");
    let again = run(home.path(), &["config", "init"], &[]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("--force"), "{again:?}");

    std::fs::write(&file, "[[providers]]\nname = \"here\"\nkind = \"local\"\n").expect("the file is written");
    let table = run(home.path(), &["config", "show"], &[]);
    let table = String::from_utf8_lossy(&table.stdout);
    let line = table.lines().find(|line| line.starts_with("providers.0.name")).expect("the name is shown");
    assert!(line.contains("here") && line.contains("config.toml"), "{line}");

    std::fs::write(&file, "[[providers]]\nname = \"here\"\nkind = \"lokal\"\n").expect("the file is written");
    for arguments in [&["config", "show"][..], &["usage"], &["up"]] {
        let wrong = run(home.path(), arguments, &[]);
        let message = String::from_utf8_lossy(&wrong.stderr);
        assert!(!wrong.status.success() && message.contains("lokal") && message.contains("config.toml"), "{message}");
    }
}

#[test]
fn usage_is_empty_at_first_and_its_records_block_no_server() {
    let home = home();
    let used = json(&run(home.path(), &["usage", "--json"], &[]));
    assert_eq!((&used["total"]["cost_usd"], &used["total"]["creations"]), (&0.0.into(), &0.into()));
    let shown = run(home.path(), &["usage", "--project", "shop"], &[]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("nothing was used"), "{shown:?}");
    assert!(home.path().join("data/sandbar/workspaces/records.sqlite").is_file());
    // The records are in the directory that a server uses as well.
    let down = run(home.path(), &["down"], &[]);
    assert!(down.status.success(), "{down:?}");
    let unreachable = [("SANDBAR_RECORDS__URL", "postgres://nobody@localhost/none?host=/nonexistent")];
    let failed = run(home.path(), &["usage"], &unreachable);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("cannot open the records of workspaces"), "{failed:?}");
}
