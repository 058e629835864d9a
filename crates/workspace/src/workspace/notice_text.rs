//! The texts of notices about a change of sandbox, one line each.

use super::core::WorkspaceCore;
use super::details::{LastFiles, SandboxRef};
use super::handover::Why;
use checkpoint::{FilePath, Restored, Stamp};

/// The most names of processes and folders in a notice.
const NAMED: usize = 8;

impl WorkspaceCore {
    /// Describes what did not survive, and since when.
    pub(super) fn describe_handover(
        &self,
        why: Why,
        restored: &Restored,
        running: &[String],
        old: Option<&SandboxRef>,
    ) -> String {
        let Restored { stamp, excluded, root, .. } = restored;
        let saved = format_time(*stamp);
        let mut line = match why {
            Why::Rotation => "This workspace continues in a new sandbox.".to_owned(),
            Why::Move => "This workspace continues in a sandbox of another provider.".to_owned(),
            Why::Lost => format!(
                "The sandbox was lost; this workspace continues in a new one with the files of snapshot {stamp}, saved \
                 {saved}. Changes after that are gone, in {root} as well."
            ),
            Why::FilesMissing => format!(
                "The files of the sandbox are missing at its provider; this workspace continues in a new one with the files of \
                 snapshot {stamp}, saved {saved}. Changes after that are gone, in {root} as well."
            ),
            Why::Ended(LastFiles::Saved) => format!(
                "The sandbox was ended after its files were saved; this workspace continues in a new one with snapshot {stamp}."
            ),
            Why::Ended(LastFiles::Unsaved) => format!(
                "The sandbox was ended unsaved; this workspace continues in a new one with the files of snapshot {stamp}, saved \
                 {saved}. Changes after that are gone, in {root} as well."
            ),
            Why::Restore => format!(
                "This workspace continues in a new sandbox with the files of snapshot {stamp}, saved {saved}; later changes are \
                 not in it."
            ),
            Why::LostWrites { aside } => format!(
                "The sandbox came back with older files than it had, which happens when its host loses power: they were set back \
                 to snapshot {stamp}, saved {saved}. Changes after that are gone, in {root} as well; what the sandbox had is in \
                 snapshot {aside}."
            ),
        };
        line.push_str(&describe_skipped(restored));
        if let (Why::Restore, Some(old)) = (why, old) {
            line.push_str(&format!(
                " Newer changes may be left in sandbox {old}, which could not be reached; it is not ended, and can be \
                 attached again."
            ));
        }
        line.push_str(" Did not survive: ");
        if running.is_empty() {
            line.push_str("running processes");
        } else {
            line.push_str(&format!("running processes ({})", list_some(running.iter().map(String::as_str))));
        }
        match why {
            Why::LostWrites { .. } => line.push('.'),
            _ => line.push_str(&format!(" and files outside {root}.")),
        }
        line.push_str(&self.describe_missing(excluded));
        line
    }

    /// Names the generated folders that are missing.
    pub(super) fn describe_missing(&self, excluded: &[FilePath]) -> String {
        if excluded.is_empty() {
            return String::new();
        }
        let names: Vec<String> = excluded.iter().map(|path| path.text().trim_start_matches("./").to_owned()).collect();
        let names = list_some(names.iter().map(String::as_str));
        match self.dev_server().and_then(|server| server.install_command) {
            Some(install) => {
                format!(" Generated folders were left out ({names}); `{install}` was run to make them again.")
            }
            None => format!(" Generated folders are absent and have to be made again: {names}."),
        }
    }
}

/// Formats the time of a checkpoint.
pub(super) fn format_time(stamp: Stamp) -> String {
    format!("at {}", stamp.time().strftime("%Y-%m-%d %H:%M:%S UTC"))
}

/// Names the newer checkpoints that were skipped, and why.
pub(super) fn describe_skipped(restored: &Restored) -> String {
    let each = restored.skipped_generations.iter();
    each.map(|(stamp, flaw)| format!(" The newer snapshot {stamp} was passed over: {flaw}.")).collect()
}

/// Lists the first names, and how many more there are.
pub(super) fn list_some<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
