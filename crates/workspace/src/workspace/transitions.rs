//! What a handover, its repair and a loss do to a record, as pure functions: the product and the
//! simulation change records by nothing else.
//!
//! ```text
//! Ready, Stopped ── begin ──► Moving ── note_successor ──► Moving ── swap ──► Ready
//!                               │ end_old (the plan allows one sandbox)
//!                               └── settle ──► Ready: the old sandbox · Stopped: a checkpoint
//! ```

use jiff::Timestamp;
use sdk::SandboxId;

use super::details::{Details, Handover, NoSandbox, Run, SandboxRef};
use super::mark::Mark;
use crate::records::{WorkspaceRecord, WorkspaceState};
use checkpoint::Stamp;

/// What becomes of the old sandbox once its successor has replaced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OldSandbox {
    Retired,
    /// It may have newer files, or get them back.
    LeftBehind,
}

/// A sandbox with the files and the services of the workspace.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) place: SandboxRef,
    pub(crate) run: Option<Run>,
    pub(crate) head: Option<String>,
    pub(crate) mark: Option<Mark>,
}

/// Begins a handover, before anything depends on it.
pub(crate) fn begin(
    record: &mut WorkspaceRecord,
    details: &mut Details,
    old: Option<SandboxRef>,
    checkpoint: Option<Stamp>,
) {
    record.state = WorkspaceState::Moving;
    details.handover = Some(Handover { old, checkpoint, successor: None });
}

/// The old sandbox was killed before there is a successor; its files are in the checkpoint.
pub(crate) fn end_old(record: &mut WorkspaceRecord, details: &mut Details) {
    record.sandbox = None;
    details.run = None;
    details.saved_at_pause = None;
    if let Some(handover) = &mut details.handover {
        handover.old = None;
    }
}

/// The successor is created, and has no files yet.
pub(crate) fn note_successor(details: &mut Details, place: SandboxRef) {
    if let Some(handover) = &mut details.handover {
        handover.successor = Some(place);
    }
}

/// Makes the successor the workspace's sandbox. `strays_due` is when the creates of the handover
/// must have ended.
pub(crate) fn swap(
    record: &mut WorkspaceRecord,
    details: &mut Details,
    successor: Successor,
    (old, becomes): (Option<SandboxRef>, OldSandbox),
    strays_due: Timestamp,
) {
    let Successor { place, run, head, mark } = successor;
    record.state = WorkspaceState::Ready;
    record.provider = place.provider;
    record.sandbox = Some(place.sandbox);
    record.paused = false;
    details.saved_at_pause = None;
    details.handover = None;
    details.strays_due = Some(strays_due);
    details.stopped = None;
    details.run = run;
    details.epoch += 1;
    details.head = head.or(details.head.take());
    details.mark = mark;
    details.loss = None;
    details.unsaved = false;
    match becomes {
        OldSandbox::LeftBehind => details.left_behind.extend(old),
        OldSandbox::Retired => details.retired.extend(old),
    }
}

/// Settles an interrupted handover: back to the old sandbox if it lives, else to none with the
/// files in a checkpoint. The successor and the strays are killed later.
pub(crate) fn settle(
    record: &mut WorkspaceRecord,
    details: &mut Details,
    old_lives: bool,
    strays: Vec<SandboxRef>,
    strays_due: Timestamp,
) {
    let Some(Handover { old, successor, checkpoint }) = details.handover.take() else {
        record.state = settled_state(record.sandbox.is_some());
        return;
    };
    // The marker of the old sandbox names the checkpoint before the handover's.
    if let Some(mark) = details.mark.as_mut().filter(|mark| old_lives && checkpoint > Some(mark.newest())) {
        mark.unmarked = checkpoint;
    }
    let (kept, lost) = if old_lives { (old, None) } else { (None, old) };
    record.state = settled_state(kept.is_some());
    details.stopped = kept.is_none().then_some(NoSandbox::Lost);
    record.sandbox = kept.as_ref().map(|place| place.sandbox.clone());
    if let Some(place) = kept {
        record.provider = place.provider;
    }
    if let Some(place) = lost {
        details.saved_at_pause = None;
        details.record_lost(place);
    }
    details.strays_due = Some(strays_due);
    for place in successor.into_iter().chain(strays) {
        if !details.retired.iter().any(|known| known.sandbox == place.sandbox) {
            details.retired.push(place);
        }
    }
}

/// The sandbox is gone, or was given up.
pub(crate) fn stop(record: &mut WorkspaceRecord, details: &mut Details, place: &SandboxRef, why: NoSandbox) {
    record.sandbox = None;
    record.paused = false;
    record.state = WorkspaceState::Stopped;
    details.stopped = Some(why);
    details.saved_at_pause = None;
    details.run = None;
    if why == NoSandbox::Lost {
        details.record_lost(place.clone());
    }
}

/// The sandboxes of a workspace that are no strays, besides `own`: none may be killed as a leftover
/// of a handover. Ids only, because one server may have two names.
pub(crate) fn spare<'a>(details: &'a Details, own: Option<&'a SandboxRef>) -> Vec<SandboxId> {
    let Details { left_behind, lost, retired, .. } = details;
    let places = own.into_iter().chain(left_behind).chain(lost).chain(retired);
    places.map(|place| place.sandbox.clone()).collect()
}

/// Whether strays may be searched for: their creates must have ended, and no handover may still
/// need one.
pub(crate) fn may_retire_strays(record: &WorkspaceRecord, details: &Details, now: Timestamp) -> bool {
    record.state != WorkspaceState::Moving && details.strays_due.is_some_and(|due| due <= now)
}

fn settled_state(has_sandbox: bool) -> WorkspaceState {
    if has_sandbox { WorkspaceState::Ready } else { WorkspaceState::Stopped }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn place(id: &str) -> SandboxRef {
        SandboxRef { provider: "one".parse().expect("a name"), sandbox: id.parse().expect("an id") }
    }

    /// A workspace that is paused with its files in a checkpoint.
    fn paused() -> (WorkspaceRecord, Details) {
        let record = WorkspaceRecord {
            name: "shop".parse().expect("a name"),
            project: "shop".parse().expect("an id"),
            provider: "one".parse().expect("a name"),
            sandbox: Some(place("i1").sandbox),
            state: WorkspaceState::Ready,
            paused: true,
            template: None,
            created_at: Timestamp::UNIX_EPOCH,
            expires_at: Timestamp::MAX,
            services: json!({}),
            env: BTreeMap::new(),
            details: json!({}),
        };
        let saved_at_pause = Some("20261116T000937Z".parse().expect("a stamp"));
        (record, Details { saved_at_pause, ..Details::default() })
    }

    #[test]
    fn a_new_sandbox_does_not_count_as_saved() {
        let (mut record, mut details) = paused();
        stop(&mut record, &mut details, &place("i1"), NoSandbox::Lost);
        assert_eq!(details.saved_at_pause, None, "its sandbox is lost");

        let (mut record, mut details) = paused();
        begin(&mut record, &mut details, Some(place("i1")), None);
        let successor = Successor { place: place("i2"), run: None, head: None, mark: None };
        let old = (Some(place("i1")), OldSandbox::Retired);
        swap(&mut record, &mut details, successor, old, Timestamp::UNIX_EPOCH);
        assert_eq!(details.saved_at_pause, None, "it has another sandbox");
    }

    #[test]
    fn a_paused_sandbox_stays_saved_after_a_rollback() {
        for old_lives in [true, false] {
            let (mut record, mut details) = paused();
            begin(&mut record, &mut details, Some(place("i1")), None);
            settle(&mut record, &mut details, old_lives, Vec::new(), Timestamp::UNIX_EPOCH);
            assert_eq!(details.saved_at_pause.is_some(), old_lives);
        }
    }
}
