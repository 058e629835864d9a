//! Timeouts and intervals. The defaults are the product's; tests shorten them.

use std::time::Duration;

use crate::clock::Clock;
use checkpoint::CheckpointOptions;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Timeouts and intervals of workspaces.
#[derive(Debug, Clone)]
pub struct Settings {
    pub clock: Clock,
    /// How long a workspace lives unless its setup says so.
    pub ttl: Duration,
    /// How long a lease lasts without renewal: a killed process blocks its workspaces for this
    /// long.
    pub lease: Duration,
    /// How long to wait for a workspace that another process holds.
    pub lease_timeout: Duration,
    /// How long a caller waits at the sandbox gate while the sandbox is being replaced.
    pub gate_timeout: Duration,
    /// How long a rotation waits for operations in progress.
    pub drain_timeout: Duration,
    /// How long the provider's answer about a sandbox's end is cached.
    pub inspect_interval: Duration,
    /// The supervisor extends a sandbox with less time left than this.
    pub extend_under: Duration,
    /// How long before an end that cannot be extended the sandbox is rotated.
    pub rotate_before: Duration,
    /// The delay before the next attempt after a failed rotation.
    pub rotate_backoff: Duration,
    /// With less time left than this and no successor, the sandbox is paused rather than lost.
    pub last_resort: Duration,
    /// The lifetime of a resumed sandbox.
    pub resumed: Duration,
    /// The delay before the one retry of a resume.
    pub resume_backoff: Duration,
    /// How long after use the supervisor checks for a commit, and how often it checks budgets.
    pub commit_check_delay: Duration,
    pub budget_check_interval: Duration,
    /// How long after creation the supervisor makes sure that there is a first checkpoint.
    pub first_checkpoint_for: Duration,
    /// A used workspace is checkpointed when the newest checkpoint is older than this, which bounds
    /// the loss with a sandbox. Zero checkpoints only at pauses, commits and changes of sandbox.
    pub save_interval: Duration,
    /// How long a resumed or restored workspace waits for its dev server. A slower one is left
    /// running.
    pub service_timeout: Duration,
    /// The timeout of a check for a commit.
    pub commit_timeout: Duration,
    pub checkpoint: CheckpointOptions,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clock: Clock::System,
            ttl: 30 * DAY,
            lease: Duration::from_secs(15),
            lease_timeout: Duration::from_secs(20),
            gate_timeout: HOUR,
            drain_timeout: Duration::from_secs(30),
            inspect_interval: MINUTE,
            extend_under: 5 * MINUTE,
            rotate_before: 5 * MINUTE,
            rotate_backoff: Duration::from_secs(15),
            last_resort: MINUTE,
            resumed: HOUR,
            resume_backoff: Duration::from_secs(5),
            commit_check_delay: Duration::from_secs(5),
            budget_check_interval: MINUTE,
            first_checkpoint_for: 10 * MINUTE,
            save_interval: 10 * MINUTE,
            service_timeout: Duration::from_secs(20),
            commit_timeout: Duration::from_secs(10),
            checkpoint: CheckpointOptions::default(),
        }
    }
}
