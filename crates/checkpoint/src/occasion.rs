//! The occasion of a checkpoint, which decides how long it is retained.

use serde::{Deserialize, Serialize};

/// Ordered by rank: lower ones are pruned first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveOccasion {
    /// The supervisor saves a used workspace every few minutes.
    Interval,
    /// Before the sandbox stops or is replaced: a pause, a rotation, a move, the end.
    Stop,
    /// A user, a program or the setup requested it. Also the default for checkpoints of older
    /// programs, which recorded no occasion.
    #[default]
    Requested,
    /// A phase of the work was committed.
    Phase,
}
