//! How long things may take, and when something is due. The defaults are the product's; tests shorten them.

use std::time::Duration;

use crate::clock::Clock;
use crate::snapshot::SnapshotOptions;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How workspaces are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    pub clock: Clock,
    /// How long a workspace lives unless its set-up says otherwise.
    pub ttl: Duration,
    /// How long a lease lasts that nobody renews: what is left of a killed process stands in the way for so long.
    pub lease: Duration,
    /// How long somebody waits for a workspace that another process has.
    pub lease_wait: Duration,
    /// How long somebody waits at the fence while a sandbox is being replaced.
    pub fence_wait: Duration,
    /// How long a rotation waits for those who are inside the fence.
    pub leave_wait: Duration,
    /// How long what the provider said of a sandbox's end is believed.
    pub look_every: Duration,
    /// With less than this left, a sandbox's life is extended.
    pub extend_under: Duration,
    /// So long before an end that cannot be moved, the sandbox is replaced.
    pub rotate_before: Duration,
    /// After a rotation that failed.
    pub rotate_again: Duration,
    /// With less than this left, and no successor, the sandbox is paused rather than lost.
    pub last_resort: Duration,
    /// What a resumed sandbox gets.
    pub resumed: Duration,
    /// Before the one retry of a resume.
    pub resume_again: Duration,
    /// How long after somebody worked the keeper looks for a commit, and how often at the budgets.
    pub commit_look: Duration,
    pub budget_look: Duration,
    /// So long after a workspace was made, whoever looks after it makes sure that there is a snapshot of it.
    pub first_snapshot_for: Duration,
    /// Work that was touched is saved when the newest snapshot is older than this: at most so much is lost with a sandbox. Zero
    /// saves at pauses, commits and changes of sandbox only.
    pub save_interval: Duration,
    /// How long a resumed or restored workspace waits for its dev server. One that takes longer is left running.
    pub service_timeout: Duration,
    /// How long it may take to look for a commit.
    pub commit_patience: Duration,
    pub snapshot: SnapshotOptions,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clock: Clock::System,
            ttl: 30 * DAY,
            lease: Duration::from_secs(15),
            lease_wait: Duration::from_secs(20),
            fence_wait: HOUR,
            leave_wait: Duration::from_secs(30),
            look_every: MINUTE,
            extend_under: 5 * MINUTE,
            rotate_before: 5 * MINUTE,
            rotate_again: Duration::from_secs(15),
            last_resort: MINUTE,
            resumed: HOUR,
            resume_again: Duration::from_secs(5),
            commit_look: Duration::from_secs(5),
            budget_look: MINUTE,
            first_snapshot_for: 10 * MINUTE,
            save_interval: 10 * MINUTE,
            service_timeout: Duration::from_secs(20),
            commit_patience: Duration::from_secs(10),
            snapshot: SnapshotOptions::default(),
        }
    }
}
