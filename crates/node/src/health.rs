//! Whether this machine accepts changes. A part that refuses them reports a [`Fault`] until it has
//! recovered by itself.
//!
//! Both parts report the same way: the port's `fault` is a cheap read of a state that the adapter
//! keeps current (no I/O, no wait), so that `/health` and `/ready` can read it on every request.

use std::fmt;

pub use durable::Unwritable;

use crate::node::Node;
use crate::ports::{RecordsError, Unreadable};

/// A part of the node that refuses changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The database of sandboxes cannot be written: full disk, I/O error, damaged file.
    RecordsReadOnly(Unwritable),
    /// The kernel aborted the pool's file system or mounted it read-only.
    PoolReadOnly(Unwritable),
}

impl Fault {
    /// The part's name in `/ready`.
    pub fn part(&self) -> &'static str {
        match self {
            Self::RecordsReadOnly(_) => "records",
            Self::PoolReadOnly(_) => "pool",
        }
    }

    pub fn unwritable(&self) -> &Unwritable {
        match self {
            Self::RecordsReadOnly(unwritable) | Self::PoolReadOnly(unwritable) => unwritable,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.part(), self.unwritable())
    }
}

/// All faults of the node at one moment; empty if it accepts changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    pub faults: Vec<Fault>,
}

impl Health {
    pub fn is_ok(&self) -> bool {
        self.faults.is_empty()
    }
}

impl Node {
    /// Returns the rows of the records that this version cannot parse. They and their files are
    /// kept.
    ///
    /// # Errors
    /// [`RecordsError`] if the records cannot be read at all.
    pub async fn unreadable(&self) -> Result<Vec<Unreadable>, RecordsError> {
        self.node_state.records.unreadable().await
    }

    /// Reads the faults that the ports report; does no I/O.
    pub fn health(&self) -> Health {
        let records = self.node_state.records.fault().map(Fault::RecordsReadOnly);
        let pool = self.node_state.engine.fault().map(Fault::PoolReadOnly);
        Health { faults: records.into_iter().chain(pool).collect() }
    }
}
