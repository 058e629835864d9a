//! Fault points of a workspace's life, in the manner of [`checkpoint::faults`], which has those of
//! its saves and restores.

use checkpoint::fault_points;

fault_points! {
    /// A fault point between two steps of a workspace's life.
    pub enum WorkspacePoint {
        /// The sandbox gate is closed.
        HandoverGateClosed = "handover.fenced",
        /// The files are in a checkpoint.
        HandoverSaved = "handover.saved",
        /// The record says that a handover is under way.
        HandoverRecorded = "handover.recorded",
        /// The plan allows no second sandbox, so the old one is stopped first.
        HandoverOldEndedFirst = "handover.old_ended_first",
        /// The successor runs; the record does not name it yet.
        HandoverMade = "handover.made",
        /// The record names the successor.
        HandoverNoted = "handover.noted",
        /// The files are restored in the successor.
        HandoverRestored = "handover.restored",
        /// The declared processes run in the successor.
        HandoverServed = "handover.served",
        /// The successor is the workspace's sandbox; the old one still runs.
        HandoverSwapped = "handover.swapped",
        /// The old sandbox is stopped; the record still names it.
        HandoverTornDown = "handover.torn_down",
        /// The leftovers of an interrupted handover are known and not yet stopped.
        HandoverSettled = "handover.settled",
        /// The sandbox gate is closed.
        PauseGateClosed = "pause.fenced",
        /// The files are in a checkpoint.
        PauseSaved = "pause.saved",
        /// The sandbox is paused; the record does not say so yet.
        PausePaused = "pause.paused",
        /// The record says that it is paused.
        PauseNoted = "pause.noted",
        /// The sandbox runs again; the record does not say so yet.
        ResumeConnected = "resume.connected",
        /// The record says that it runs; declared processes are not started yet.
        ResumeNoted = "resume.noted",
        /// The record exists; there is no sandbox yet.
        CreateRecorded = "create.recorded",
        /// The sandbox runs; the record does not name it yet.
        CreateMade = "create.made",
        /// The record names the sandbox.
        CreateNoted = "create.noted",
        /// Setup is done; the record does not say so yet.
        CreateSetUp = "create.set_up",
        /// The files are in a checkpoint.
        DestroySaved = "destroy.saved",
        /// The sandbox is stopped; the record still names it.
        DestroyEnded = "destroy.ended",
    }
}
