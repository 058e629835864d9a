//! Why a snapshot was taken, which decides how long it is kept.

use serde::{Deserialize, Serialize};

/// In the order in which snapshots give way to newer ones: the first ones first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// The keeper saves work that was touched, every few minutes.
    Interval,
    /// Before the sandbox stops or is replaced: a pause, a rotation, a move, the end.
    Stop,
    /// A person, a program or the set-up asked for it. Also what older programs saved, which did
    /// not say why.
    #[default]
    Requested,
    /// A phase of the work was committed.
    Phase,
}
