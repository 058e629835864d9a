//! A marker in the sandbox that names the newest snapshot of its files.
//!
//! A host that loses power may come back with a sandbox as its disk knew it seconds before: older
//! than what was saved, and nothing else tells. The marker is written when all files before it are
//! on the disk (`syncfs`), so a sandbox whose marker is older than the record says has lost what
//! the snapshot has. Snapshots leave the marker out.

use sdk::{Command, Sandbox};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::core::{Core, SavedFor, Turn};
use super::error::WorkspaceError;
use super::handover::Why;
use super::wake::BroughtBack;
use crate::chain::chain;
use crate::label;
use crate::provider::ANSWER_TIME;
use crate::snapshot::{Stamp, Which};

/// Writes the marker, once everything before it is on the disk, and prints the boot id. Arguments:
/// root, stamp.
const WRITE: &str = r#"
cd -- "$1" || exit 1
if [ ! -d .sandbar ]; then
    modified=$(stat -c %y .)
    mkdir .sandbar || exit 1
    touch -c -d "$modified" .
fi
sync -f . 2>/dev/null || sync
printf '%s\n' "$2" >.sandbar/.snapshot && mv -f .sandbar/.snapshot .sandbar/snapshot || exit 1
sync .sandbar/snapshot .sandbar 2>/dev/null
cat /proc/sys/kernel/random/boot_id
"#;

/// Prints the boot id and, on the next line, the marker. Arguments: root.
const READ: &str = r#"cat /proc/sys/kernel/random/boot_id && { cat "$1/.sandbar/snapshot" 2>/dev/null || :; }"#;

/// What was written into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) stamp: Stamp,
    /// Of the sandbox. As long as it is the same, nothing that was written can have been lost.
    pub(crate) boot: String,
}

impl Core {
    /// Marks a sandbox as having all files of a snapshot, on its disk. None when it could not be
    /// marked in time.
    pub(super) async fn write_mark(&self, sandbox: &Sandbox, stamp: Stamp) -> Option<Mark> {
        let arguments = [self.root(), &stamp.to_string()].map(str::to_owned);
        let boot = match self.run_script(sandbox, WRITE, arguments).await {
            Ok(said) => said.trim().to_owned(),
            Err(reason) => {
                warn!(workspace = %self.name, reason, "the sandbox was not marked with its snapshot");
                return None;
            }
        };
        Some(Mark { stamp, boot })
    }

    /// The snapshot whose files a sandbox once had on its disk and does not have any more. None
    /// when it has them, or cannot say.
    pub(super) async fn find_lost_snapshot(&self, sandbox: &Sandbox) -> Option<Stamp> {
        let mark = self.seat().details.mark.clone()?;
        let said = match self.run_script(sandbox, READ, [self.root().to_owned()]).await {
            Ok(said) => said,
            Err(reason) => {
                warn!(workspace = %self.name, reason, "the sandbox does not say which snapshot it has");
                return None;
            }
        };
        let mut lines = said.lines();
        if lines.next()? == mark.boot {
            return None;
        }
        let found: Option<Stamp> = lines.next().and_then(|line| line.parse().ok());
        found.is_none_or(|found| found < mark.stamp).then_some(mark.stamp)
    }

    /// Sets a sandbox that lost its last writes back to the snapshot that has them. What it has is
    /// saved before, in case only the marker was removed. None when nothing was to be done, or
    /// could be.
    pub(super) async fn restore_lost_writes(
        &self,
        turn: &Turn<'_>,
        sandbox: &Sandbox,
        lost: Stamp,
    ) -> Result<Option<BroughtBack>, WorkspaceError> {
        let failed = |reason: String| {
            self.notice(&format!(
                "The sandbox came back with older files than snapshot {lost} has, which happens when its host loses power. They \
                 could not be set back to it: {reason}. `sandbar workspace restore {}` tries again.",
                self.name
            ));
        };
        let aside = match self.save_sparing(turn, sandbox, SavedFor::Handover, Some(lost)).await {
            // The disk has lost nothing but the marker.
            Ok(aside) if aside.unchanged && aside.stamp >= lost => {
                let mark = self.write_mark(sandbox, aside.stamp).await;
                self.update(turn, |_, details| details.mark = mark).await?;
                return Ok(None);
            }
            Ok(aside) => aside.stamp,
            Err(error) => {
                failed(chain(&error));
                return Ok(None);
            }
        };
        info!(workspace = %self.name, %lost, %aside, "the sandbox lost its last writes; the snapshot has them");
        let restored = match self.house.snapshots.restore(sandbox, &self.project, Which::Exactly(lost)).await {
            Ok(restored) => restored,
            Err(error) => {
                failed(chain(&error));
                return Ok(None);
            }
        };
        let notice = self.describe_return(Why::LostWrites { aside }, &restored, &[], None);
        self.notice(&notice);
        // The newest snapshot is the one that a later loss goes back to.
        if let Err(error) = self.save(turn, sandbox, SavedFor::Stop).await {
            warn!(workspace = %self.name, error = %chain(&error), "the newest snapshot is the one that was set aside");
        }
        Ok(Some(BroughtBack { reason: "writes_lost", notice, restored }))
    }

    pub(super) fn root(&self) -> &str {
        &self.settings().snapshot.root
    }

    async fn run_script<const N: usize>(
        &self,
        sandbox: &Sandbox,
        script: &str,
        arguments: [String; N],
    ) -> Result<String, String> {
        let arguments = ["-c", script, "sh"].map(str::to_owned).into_iter().chain(arguments);
        let command = label::own(Command::exec("/bin/sh", arguments)).cwd("/").timeout(ANSWER_TIME);
        match sandbox.within(ANSWER_TIME).commands().run(command).await {
            Ok(output) if output.success() => Ok(output.stdout_text().into_owned()),
            Ok(output) => Err(output.stderr_text().trim().to_owned()),
            Err(error) => Err(chain(&error)),
        }
    }
}
