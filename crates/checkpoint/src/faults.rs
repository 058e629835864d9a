//! Fault points: named places between two steps, where a test can kill the process, stop the
//! sandbox or corrupt the store.
//!
//! Durability holds only if a crash at every step has been tested. So the points are enumerated in
//! [`CheckpointPoint::ALL`], and a test that never reaches one of them fails. Without the feature
//! `faults`, reaching a point does nothing.

/// Defines the fault points of a crate: their enum, and with the crate's feature `faults` a hook
/// that runs where work reaches one.
#[macro_export]
macro_rules! fault_points {
    ($(#[$about:meta])* pub enum $Point:ident { $($(#[$doc:meta])* $point:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $Point {
            $($(#[$doc])* $point,)*
        }

        impl $Point {
            /// All fault points, in the order in which work reaches them.
            pub const ALL: &'static [Self] = &[$(Self::$point,)*];

            /// The name used in test output and configuration.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }
        }

        #[cfg(feature = "faults")]
        pub use armed::{Hook, scope};

        /// Reports that work reached a point, and runs the test's hook there.
        #[cfg(feature = "faults")]
        pub(crate) async fn reach(point: $Point) {
            armed::reach(point).await;
        }

        /// Reports that work reached a point. Does nothing without the feature `faults`.
        #[cfg(not(feature = "faults"))]
        pub(crate) async fn reach(_point: $Point) {}

        #[cfg(feature = "faults")]
        mod armed {
            use std::sync::Arc;

            use futures::future::BoxFuture;

            use super::$Point;

            /// Runs when work reaches a point; the work continues when the future completes.
            pub type Hook = Arc<dyn Fn($Point) -> BoxFuture<'static, ()> + Send + Sync>;

            tokio::task_local! {
                /// Task-local, so that tests can run in parallel in one process.
                static HOOK: Hook;
            }

            /// Runs `work` with `hook` at every fault point it reaches.
            pub async fn scope<F: Future>(hook: Hook, work: F) -> F::Output {
                HOOK.scope(hook, work).await
            }

            pub(super) async fn reach(point: $Point) {
                if let Ok(hook) = HOOK.try_with(Arc::clone) {
                    hook(point).await;
                }
            }
        }
    };
}

fault_points! {
    /// A fault point of a save, a prune or a restore.
    pub enum CheckpointPoint {
        /// Nothing is done yet.
        SaveBegun = "save.begun",
        /// The checkpoint has a stamp, known only to this process.
        SaveStamped = "save.stamped",
        /// `tar` runs in the sandbox.
        SaveArchiving = "save.archiving",
        /// A part of the archive is uploaded.
        SaveHalfStored = "save.half_stored",
        /// `tar` has exited and its output is received, but the upload is not complete.
        SaveStreamed = "save.streamed",
        /// The archive is in the store; no manifest refers to it.
        SaveArchiveStored = "save.archive_stored",
        /// The manifest is stored: the checkpoint exists.
        SaveCommitted = "save.committed",
        /// The checkpoint is verified, so older ones may be pruned.
        SaveVerified = "save.verified",
        /// The checkpoints to prune are known.
        PruneListed = "prune.listed",
        /// The manifest is deleted; the archive is still stored.
        PruneManifestDeleted = "prune.manifest_deleted",
        /// Manifest and archive are deleted.
        PruneArchiveDeleted = "prune.archive_deleted",
        /// The leftovers of an interrupted save are deleted.
        PruneOrphanDeleted = "prune.orphan_deleted",
        /// Nothing is done yet.
        RestoreBegun = "restore.begun",
        /// The checkpoint to restore is chosen and its manifest read.
        RestoreChosen = "restore.chosen",
        /// `tar` runs in the sandbox and waits for the archive.
        RestoreUnpacking = "restore.unpacking",
        /// A part of the archive is sent.
        RestoreHalfSent = "restore.half_sent",
        /// All files are unpacked in a directory next to the old ones.
        RestoreUnpacked = "restore.unpacked",
        /// The unpacked files match the manifest.
        RestoreVerified = "restore.verified",
        /// The unpacked files have replaced the old ones.
        RestoreSwapped = "restore.swapped",
    }
}
