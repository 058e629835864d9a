//! A marker file in the sandbox that names the newest checkpoint of its files.
//!
//! A host that loses power may bring a sandbox back with the files that its disk had seconds
//! before: older than what was saved, without any other sign. The marker is written when all
//! earlier writes are on disk (`syncfs`), so a sandbox whose marker is older than the record says
//! has lost writes that the checkpoint has. Checkpoints exclude the marker.

use sdk::{Command, Sandbox};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::core::{Core, OpGuard, SavedFor};
use super::error::WorkspaceError;
use super::handover::Why;
use super::resume::AutoRestore;
use crate::provider::ANSWER_TIMEOUT;
use checkpoint::{Stamp, Which};
use sdk::error_chain;
use sdk::label;

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

/// The marker that was written into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) stamp: Stamp,
    /// The boot id of the sandbox. While it is the same, no write can have been lost.
    pub(crate) boot: String,
}

impl Core {
    /// Marks a sandbox as having all files of a checkpoint on its disk. [`None`] when it could not
    /// be marked in time.
    pub(super) async fn write_mark(&self, sandbox: &Sandbox, stamp: Stamp) -> Option<Mark> {
        let arguments = [self.root(), &stamp.to_string()].map(str::to_owned);
        let boot = match self.run_script(sandbox, WRITE, arguments).await {
            Ok(output) => output.trim().to_owned(),
            Err(reason) => {
                warn!(workspace = %self.name, reason, "the sandbox could not be marked with its checkpoint");
                return None;
            }
        };
        Some(Mark { stamp, boot })
    }

    /// The checkpoint whose files the sandbox had on its disk and lost. [`None`] when it has them,
    /// or the marker cannot be read.
    pub(super) async fn find_lost_checkpoint(&self, sandbox: &Sandbox) -> Option<Stamp> {
        let mark = self.state().details.mark.clone()?;
        let output = match self.run_script(sandbox, READ, [self.root().to_owned()]).await {
            Ok(output) => output,
            Err(reason) => {
                warn!(workspace = %self.name, reason, "the marker of the sandbox could not be read");
                return None;
            }
        };
        let mut lines = output.lines();
        if lines.next()? == mark.boot {
            return None;
        }
        let found: Option<Stamp> = lines.next().and_then(|line| line.parse().ok());
        found.is_none_or(|found| found < mark.stamp).then_some(mark.stamp)
    }

    /// Restores the checkpoint that has the last writes of a sandbox that lost them. Its current
    /// files are saved first, in case only the marker was removed. [`None`] when nothing was lost,
    /// or the restore failed.
    pub(super) async fn restore_lost_writes(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        lost: Stamp,
    ) -> Result<Option<AutoRestore>, WorkspaceError> {
        let failed = |reason: String| {
            self.add_notice(&format!(
                "The sandbox came back with older files than snapshot {lost} has, which happens when its host loses power. They \
                 could not be set back to it: {reason}. `sandbar workspace restore {}` tries again.",
                self.name
            ));
        };
        let aside = match self.save_sparing(op, sandbox, SavedFor::Handover, Some(lost)).await {
            // Only the marker was lost.
            Ok(aside) if aside.unchanged && aside.stamp >= lost => {
                let mark = self.write_mark(sandbox, aside.stamp).await;
                self.update(op, |_, details| details.mark = mark).await?;
                return Ok(None);
            }
            Ok(aside) => aside.stamp,
            Err(error) => {
                failed(error_chain(&error));
                return Ok(None);
            }
        };
        info!(workspace = %self.name, %lost, %aside, "the sandbox lost its last writes; restoring the checkpoint");
        let restored = match self.context.checkpoints.restore(sandbox, &self.project, Which::Exactly(lost)).await {
            Ok(restored) => restored,
            Err(error) => {
                failed(error_chain(&error));
                return Ok(None);
            }
        };
        let notice = self.describe_handover(Why::LostWrites { aside }, &restored, &[], None);
        self.add_notice(&notice);
        // Saved again, so that the newest checkpoint is the one to restore after a later loss.
        if let Err(error) = self.save(op, sandbox, SavedFor::Stop).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the newest checkpoint is the one of the older files");
        }
        Ok(Some(AutoRestore { reason: "writes_lost", notice, restored }))
    }

    pub(super) fn root(&self) -> &str {
        &self.settings().checkpoint.root
    }

    async fn run_script<const N: usize>(
        &self,
        sandbox: &Sandbox,
        script: &str,
        arguments: [String; N],
    ) -> Result<String, String> {
        let arguments = ["-c", script, "sh"].map(str::to_owned).into_iter().chain(arguments);
        let command = label::tag_internal(Command::exec("/bin/sh", arguments)).cwd("/").timeout(ANSWER_TIMEOUT);
        match sandbox.within(ANSWER_TIMEOUT).commands().run(command).await {
            Ok(output) if output.success() => Ok(output.stdout_text().into_owned()),
            Ok(output) => Err(output.stderr_text().trim().to_owned()),
            Err(error) => Err(error_chain(&error)),
        }
    }
}
