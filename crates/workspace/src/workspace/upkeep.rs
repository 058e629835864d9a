//! What a workspace does inside a sandbox to keep its files, besides saving and restoring them; and
//! the adapter that runs it as commands of the sandbox.

use async_trait::async_trait;
use sdk::{Command, CommandError, Output, Sandbox, label};
use text::error_chain;

use super::mark::Mark;
use crate::devserver::{self, DevServer, DevServerError};
use crate::phase;
use crate::provider::ANSWER_TIMEOUT;
use crate::setup::PROJECT_DIRECTORY;
use crate::shell::{self, KillError};
use checkpoint::Stamp;

/// Writes the marker once all earlier writes are on disk, and prints the boot id. Arguments: root,
/// stamp.
const WRITE: &str = r#"
cd -- "$1" || exit 1
if [ ! -d .sandbar ]; then
    modified=$(stat -c %y .)
    # A tool of a session may make it meanwhile.
    mkdir .sandbar 2>/dev/null || [ -d .sandbar ] || exit 1
    touch -c -d "$modified" .
fi
sync -f . 2>/dev/null || sync
printf '%s\n' "$2" >.sandbar/.snapshot && mv -f .sandbar/.snapshot .sandbar/snapshot || exit 1
sync .sandbar/snapshot .sandbar 2>/dev/null
cat /proc/sys/kernel/random/boot_id
"#;

/// Prints the boot id and, on the next line, the marker. Arguments: root.
const READ: &str = r#"cat /proc/sys/kernel/random/boot_id && { cat "$1/.sandbar/snapshot" 2>/dev/null || :; }"#;

/// The inside of running sandboxes.
#[async_trait]
pub(crate) trait SandboxUpkeep: Send + Sync {
    /// Marks the files below `root` as those of a checkpoint, once all of them are on disk. The
    /// error is for a log.
    async fn write_mark(&self, sandbox: &Sandbox, root: &str, stamp: Stamp) -> Result<Mark, String>;

    /// The boot id and the mark of the files, if they have one.
    async fn read_mark(&self, sandbox: &Sandbox, root: &str) -> Result<(String, Option<Stamp>), CommandError>;

    /// Flushes the files to the disk.
    async fn sync_files(&self, sandbox: &Sandbox);

    /// The commit that is checked out in the project.
    async fn head(&self, sandbox: &Sandbox) -> Result<Option<String>, CommandError>;

    /// The dev server that the project's files show.
    async fn detect_server(&self, sandbox: &Sandbox) -> Result<Option<DevServer>, DevServerError>;

    /// The processes of the user, by their names in reports.
    async fn list_processes(&self, sandbox: &Sandbox) -> Vec<String>;

    /// Kills the processes of the user.
    async fn kill_processes(&self, sandbox: &Sandbox) -> Result<(), KillError>;

    /// Kills what an earlier dev server left.
    async fn stop_leftovers(&self, sandbox: &Sandbox) -> Result<(), DevServerError>;
}

/// Commands in the sandbox.
pub(crate) struct UpkeepCommands;

#[async_trait]
impl SandboxUpkeep for UpkeepCommands {
    async fn write_mark(&self, sandbox: &Sandbox, root: &str, stamp: Stamp) -> Result<Mark, String> {
        match run_script(sandbox, WRITE, [root.to_owned(), stamp.to_string()]).await {
            Ok(output) if output.success() => Ok(Mark::new(stamp, output.stdout_text().trim().to_owned())),
            Ok(output) => Err(output.stderr_text().trim().to_owned()),
            Err(error) => Err(error_chain(&error)),
        }
    }

    async fn read_mark(&self, sandbox: &Sandbox, root: &str) -> Result<(String, Option<Stamp>), CommandError> {
        let output = run_script(sandbox, READ, [root.to_owned()]).await?;
        let text = output.stdout_text();
        let mut lines = text.lines();
        let boot = lines.next().unwrap_or_default().to_owned();
        Ok((boot, lines.next().and_then(|line| line.parse().ok())))
    }

    async fn sync_files(&self, sandbox: &Sandbox) {
        shell::sync_files(sandbox).await;
    }

    async fn head(&self, sandbox: &Sandbox) -> Result<Option<String>, CommandError> {
        phase::head(sandbox, PROJECT_DIRECTORY).await
    }

    async fn detect_server(&self, sandbox: &Sandbox) -> Result<Option<DevServer>, DevServerError> {
        devserver::detect(sandbox, PROJECT_DIRECTORY).await
    }

    async fn list_processes(&self, sandbox: &Sandbox) -> Vec<String> {
        match sandbox.within(ANSWER_TIMEOUT).commands().list().await {
            Ok(processes) => processes.iter().filter_map(label::report_name).collect(),
            Err(_) => Vec::new(),
        }
    }

    async fn kill_processes(&self, sandbox: &Sandbox) -> Result<(), KillError> {
        shell::kill_all(sandbox).await
    }

    async fn stop_leftovers(&self, sandbox: &Sandbox) -> Result<(), DevServerError> {
        devserver::stop_leftovers(sandbox).await
    }
}

async fn run_script<const N: usize>(
    sandbox: &Sandbox,
    script: &str,
    arguments: [String; N],
) -> Result<Output, CommandError> {
    let arguments = ["-c", script, "sh"].map(str::to_owned).into_iter().chain(arguments);
    let command = label::tag_internal(Command::exec("/bin/sh", arguments)).cwd("/").timeout(ANSWER_TIMEOUT);
    sandbox.within(ANSWER_TIMEOUT).commands().run(command).await
}
