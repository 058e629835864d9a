//! `sandbar workspace` as users and scripts call it: the real program, real servers.

mod exposed;
mod killed_exec;
mod life;
mod maintenance;
mod providers;
mod server;
mod tools;

use crate::support::{Program, Server};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A user with a home directory, which has the configuration, the records and the checkpoints.
struct User {
    home: TempDir,
    workspace: Program,
    tool: Program,
    usage: Program,
    down: Program,
}

impl User {
    /// A user whose local provider is this server.
    fn for_server(server: &Server) -> Self {
        Self::with_settings(|program| program.at(server))
    }

    fn with_settings(settings: impl Fn(Program) -> Program) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let program = |word| {
            let program = Program::new(word).variable("XDG_DATA_HOME", home.path().join("data"));
            settings(program.variable("XDG_CONFIG_HOME", home.path().join("config")))
        };
        Self {
            workspace: program("workspace"),
            tool: program("tool"),
            usage: program("usage"),
            down: program("down"),
            home,
        }
    }

    /// Writes the configuration file.
    fn configure(&self, text: &str) {
        let directory = self.home.path().join("config/sandbar");
        std::fs::create_dir_all(&directory).expect("a directory of our own");
        std::fs::write(directory.join("config.toml"), text).expect("a directory of our own");
    }

    /// The id of the sandbox of a workspace.
    #[track_caller]
    fn sandbox(&self, name: &str) -> String {
        text_of(&self.workspace.json(&["show", name]), "sandboxID")
    }

    /// Runs a line of shell in a workspace and returns stdout.
    #[track_caller]
    fn exec(&self, name: &str, line: &str) -> String {
        self.workspace.must(&["exec", name, "-c", line])
    }
}

/// Ends the server that the program started for a user, and its sandboxes, on drop.
struct Down<'a>(&'a User);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let _ = self.0.down.run(&["--yes"]);
    }
}

/// The string field `key` of a JSON object.
#[track_caller]
fn text_of(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_else(|| panic!("{key} in {object}")).to_owned()
}

/// Creates a Git repository with one commit on `main` and one more on `next`.
fn create_repository(directory: &Path) {
    let script = r#"set -e; cd "$0"; git init -q -b main; git config user.email t@example.com; git config user.name T
        echo '<title>Shop</title><body style="background:teal"><h1>Shop</h1>' >index.html
        git add .; git commit -qm one; git checkout -qb next; echo two >two; git add .; git commit -qm two; git checkout -q main"#;
    let made = Command::new("/bin/sh").args(["-c", script]).arg(directory).output().expect("a shell runs");
    assert!(made.status.success(), "{made:?}");
}
