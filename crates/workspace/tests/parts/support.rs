//! Runs lines in sandboxes and git on this machine, and stores the progress of a setup.

use std::convert::Infallible;
use std::path::Path;
use std::process::Command;

use parking_lot::Mutex;
use sandbar_workspace::devserver::{self, DevServer, Start};
use sandbar_workspace::phase;
use sandbar_workspace::setup::{self, Progress, Setup, StepFailed};
use sdk::Sandbox;
pub(crate) use text::error_chain;

pub(crate) const PROJECT: &str = setup::PROJECT_DIRECTORY;

/// Runs a line in the project directory, which must succeed.
#[track_caller]
pub(crate) fn run(sandbox: &Sandbox, line: &str) -> impl Future<Output = String> {
    let place = std::panic::Location::caller();
    let command = sdk::Command::exec("/bin/bash", ["-c", &format!("cd {PROJECT} 2>/dev/null; {line}")]);
    let sandbox = sandbox.clone();
    let line = line.to_owned();
    async move {
        let output = sandbox.commands().run(command).await.expect("the sandbox answers");
        assert!(output.success(), "{place}: {line}\n{}{}", output.stdout_text(), output.stderr_text());
        output.stdout_text().trim_end().to_owned()
    }
}

/// Waits until a process in the sandbox listens on a port.
pub(crate) async fn listens(sandbox: &Sandbox, port: u16) {
    let poll = format!(
        "for i in $(seq 600); do (: <>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && exit 0; sleep 0.1; done; exit 1"
    );
    run(sandbox, &poll).await;
}

/// Runs git on this machine, with an author and without user configuration.
#[track_caller]
pub(crate) fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=Test", "-c", "user.email=test@example.com"]);
    command.args(["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]).args(arguments);
    command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_SYSTEM", "/dev/null")]);
    let output = command.output().expect("git runs");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// Writes a file and commits all changes.
#[track_caller]
pub(crate) fn commit(directory: &Path, name: &str, content: &str) {
    std::fs::write(directory.join(name), content).expect("a directory of our own");
    git(directory, &["add", "--all"]);
    git(directory, &["commit", "--quiet", "--message", name]);
}

/// Stores the progress of a setup as the records do: as text.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Option<String>>);

impl Kept {
    pub(crate) fn progress(&self) -> Progress {
        let kept = self.0.lock();
        kept.as_deref().map(|text| serde_json::from_str(text).expect("what was stored")).unwrap_or_default()
    }

    /// Continues from the stored progress.
    pub(crate) async fn set_up(&self, sandbox: &Sandbox, setup: &Setup) -> Result<Progress, StepFailed> {
        let mut progress = self.progress();
        let save = |progress: Progress| async move {
            let text = serde_json::to_string(&progress).expect("it can be stored");
            *self.0.lock() = Some(text);
            Ok::<_, Infallible>(())
        };
        setup::run(sandbox, setup, &mut progress, save).await.map(|()| progress)
    }
}

/// All futures of this crate are `Send`.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn everything_can_be_spawned(sandbox: &Sandbox, setup: &Setup, server: &DevServer) {
    fn sent<T: Send>(_: T) {}
    let mut progress = Progress::default();
    sent(setup::run(sandbox, setup, &mut progress, |_| async { Ok::<_, Infallible>(()) }));
    sent(devserver::start(sandbox, server, Start::Plain));
    sent(devserver::detect(sandbox, PROJECT));
    sent(phase::commit(sandbox, PROJECT, "message"));
    sent(phase::head(sandbox, PROJECT));
}
