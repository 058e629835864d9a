//! Named places between two steps, where a test may kill the process, end the sandbox or spoil the store.
//!
//! Nothing can be lost only if every place where work may break off has been tried, so the places have names and a list
//! ([`Point::ALL`]), and a test that never comes to one of them fails. In a program that was built without the feature
//! `faults` all this is nothing.

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal,)*) => {
        /// A place between two steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Point {
            $($(#[$doc])* $point,)*
        }

        impl Point {
            /// Every place there is, in the order in which work comes to them.
            pub const ALL: &'static [Self] = &[$(Self::$point,)*];

            /// How it is called outside of this program.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// Nothing was done yet.
    SaveBegun = "save.begun",
    /// The snapshot has its stamp, which nobody else knows of.
    SaveStamped = "save.stamped",
    /// `tar` runs in the sandbox.
    SaveArchiving = "save.archiving",
    /// A part of the archive has been handed to the store.
    SaveHalfStored = "save.half_stored",
    /// `tar` has ended and all it said is with us, but the store has not been told that it was all.
    SaveStreamed = "save.streamed",
    /// The archive is in the store and nothing speaks of it.
    SaveArchiveStored = "save.archive_stored",
    /// The snapshot exists.
    SaveCommitted = "save.committed",
    /// It was seen to be whole, so that older ones may go.
    SaveVerified = "save.verified",
    /// What may go is known.
    PruneListed = "prune.listed",
    /// A snapshot does not exist any more; its archive is still there.
    PruneManifestDeleted = "prune.manifest_deleted",
    /// Nothing of a snapshot is left.
    PruneArchiveDeleted = "prune.archive_deleted",
    /// What an interrupted save left behind is gone.
    PruneOrphanDeleted = "prune.orphan_deleted",
    /// Nothing was done yet.
    RestoreBegun = "restore.begun",
    /// It is known what the files must be.
    RestoreChosen = "restore.chosen",
    /// `tar` waits in the sandbox for the archive.
    RestoreUnpacking = "restore.unpacking",
    /// It has a part of it.
    RestoreHalfSent = "restore.half_sent",
    /// All files lie beside the old ones.
    RestoreUnpacked = "restore.unpacked",
    /// They are as they must be.
    RestoreVerified = "restore.verified",
    /// They have taken the place of the old ones.
    RestoreSwapped = "restore.swapped",
    /// Nobody comes in any more.
    HandoverFenced = "handover.fenced",
    /// The files are in a snapshot.
    HandoverSaved = "handover.saved",
    /// The record says that the workspace is between two sandboxes.
    HandoverRecorded = "handover.recorded",
    /// The plan has no room for two, and the old one is gone.
    HandoverOldEndedFirst = "handover.old_ended_first",
    /// There is a successor of which nothing is written.
    HandoverMade = "handover.made",
    /// The record names the successor.
    HandoverNoted = "handover.noted",
    /// It has the files.
    HandoverRestored = "handover.restored",
    /// What is declared to run runs in it.
    HandoverServed = "handover.served",
    /// It is the workspace's sandbox; the old one still lives.
    HandoverSwapped = "handover.swapped",
    /// The old one is gone, and the record still names it.
    HandoverTornDown = "handover.torn_down",
    /// What a handover that broke off left is known and not yet ended.
    HandoverSettled = "handover.settled",
    /// Nobody comes in any more.
    PauseFenced = "pause.fenced",
    /// The files are in a snapshot.
    PauseSaved = "pause.saved",
    /// The sandbox is paused, and the record does not say so.
    PausePaused = "pause.paused",
    /// The record says so.
    PauseNoted = "pause.noted",
    /// The sandbox runs again, and the record does not say so.
    ResumeConnected = "resume.connected",
    /// The record says so; nothing that is declared runs yet.
    ResumeNoted = "resume.noted",
    /// The record exists; there is no sandbox.
    CreateRecorded = "create.recorded",
    /// There is a sandbox of which nothing is written.
    CreateMade = "create.made",
    /// The record names it.
    CreateNoted = "create.noted",
    /// Nothing is left to be done but to say so.
    CreateSetUp = "create.set_up",
    /// The files are in a snapshot.
    DestroySaved = "destroy.saved",
    /// There is no sandbox any more; the record still names it.
    DestroyEnded = "destroy.ended",
}

#[cfg(feature = "faults")]
pub use armed::{Hook, scope};

/// Says that work has come to a place. What happens there is for a test to say.
#[cfg(feature = "faults")]
pub(crate) async fn reach(point: Point) {
    armed::reach(point).await;
}

/// Says that work has come to a place.
#[cfg(not(feature = "faults"))]
pub(crate) async fn reach(_point: Point) {}

#[cfg(feature = "faults")]
mod armed {
    use std::sync::Arc;

    use futures::future::BoxFuture;

    use super::Point;

    /// What happens when work comes to a place; the work goes on when it has ended.
    pub type Hook = Arc<dyn Fn(Point) -> BoxFuture<'static, ()> + Send + Sync>;

    tokio::task_local! {
        /// Belongs to a task and not to the process, so that tests may run side by side.
        static HOOK: Hook;
    }

    /// Does `work`, with `hook` at every place it comes to.
    pub async fn scope<F: Future>(hook: Hook, work: F) -> F::Output {
        HOOK.scope(hook, work).await
    }

    pub(super) async fn reach(point: Point) {
        if let Ok(hook) = HOOK.try_with(Arc::clone) {
            hook(point).await;
        }
    }
}
