//! Spares: root file systems prepared ahead of the create calls that will use them.
//!
//! Files are safe from a power cut only after the pool has committed them, which takes as long as
//! the rest of a create call. So the node keeps some committed files ready for the base and for
//! each recently used template, under the ids of sandboxes that do not exist yet. A create call
//! without a spare prepares its files itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use engine::FilesId;
use parking_lot::{Mutex, MutexGuard};
use protocol::SandboxId;
use tracing::debug;

use crate::id::new_sandbox_id;
use crate::state::NodeState;

/// What a sandbox's files start from: a copy of a template's files, or the base without changes.
type Origin = Option<FilesId>;

/// Most origins with spares; the least recently used one is dropped.
const MAX_ORIGINS: usize = 3;
/// Shorter than the time between two create calls of a client that uses what it creates, so that
/// the refill does not slow down the call that took a spare.
const REFILL_DELAY: Duration = Duration::from_millis(15);

/// The spares of one node.
#[derive(Debug)]
pub(crate) struct Spares {
    /// Spares per origin; 0 keeps none.
    count: usize,
    /// Most recently used last.
    origins: Mutex<Vec<OriginSpares>>,
}

#[derive(Debug)]
struct OriginSpares {
    origin: Origin,
    ids: VecDeque<SandboxId>,
    /// Only one task at a time prepares spares of one origin.
    refilling: bool,
}

impl Spares {
    pub(crate) fn new(count: u32) -> Self {
        Self { count: usize::try_from(count).unwrap_or(usize::MAX), origins: Mutex::default() }
    }

    /// Returns the id of a spare of `origin`, if there is one. It belongs to the caller.
    pub(crate) fn take(&self, origin: &Origin) -> Option<SandboxId> {
        let mut origins = self.origins();
        let index = origins.iter().position(|entry| entry.origin == *origin)?;
        let mut entry = origins.remove(index);
        let id = entry.ids.pop_front();
        origins.push(entry);
        id
    }

    /// Returns the ids of all spares of `files`, which are about to be removed, and stops preparing
    /// them.
    pub(crate) fn take_all(&self, files: &FilesId) -> Vec<SandboxId> {
        let mut origins = self.origins();
        let index = origins.iter().position(|entry| entry.origin.as_ref() == Some(files));
        index.map(|index| origins.remove(index).ids.into()).unwrap_or_default()
    }

    /// The id that the next [`Spares::take`] of each origin returns.
    pub(crate) fn next(&self) -> Vec<SandboxId> {
        self.origins().iter().filter_map(|entry| entry.ids.front().cloned()).collect()
    }

    /// Returns the ids of all spares and stops preparing them.
    pub(crate) fn close(&self) -> Vec<SandboxId> {
        let origins = std::mem::take(&mut *self.origins());
        origins.into_iter().flat_map(|entry| entry.ids).collect()
    }

    /// Starts a refill of `origin` if at most half of its spares are left: returns how many to
    /// prepare, and the spares of an origin that is no longer among the most recently used.
    fn begin_refill(&self, origin: &Origin) -> Option<(usize, Vec<SandboxId>)> {
        if self.count == 0 {
            return None;
        }
        let mut origins = self.origins();
        if !origins.iter().any(|entry| entry.origin == *origin) {
            origins.push(OriginSpares { origin: origin.clone(), ids: VecDeque::new(), refilling: false });
        }
        let dropped = if origins.len() > MAX_ORIGINS { origins.remove(0).ids.into() } else { Vec::new() };
        let entry = origins.iter_mut().find(|entry| entry.origin == *origin)?;
        if entry.refilling || entry.ids.len() > self.count / 2 {
            return (!dropped.is_empty()).then_some((0, dropped));
        }
        entry.refilling = true;
        Some((self.count - entry.ids.len(), dropped))
    }

    /// Ends a refill with the spares it prepared; returns those whose origin was dropped.
    fn end_refill(&self, origin: &Origin, made: Vec<SandboxId>) -> Vec<SandboxId> {
        match self.origins().iter_mut().find(|entry| entry.origin == *origin) {
            Some(entry) => {
                entry.refilling = false;
                entry.ids.extend(made);
                Vec::new()
            }
            None => made,
        }
    }

    fn origins(&self) -> MutexGuard<'_, Vec<OriginSpares>> {
        self.origins.lock()
    }
}

/// Prepares spares of `origin` if they run low, and the boots of the next ones, in the background
/// of the create call that used one.
pub(crate) async fn refill(node_state: Arc<NodeState>, origin: Origin) {
    let expect_next = || node_state.engine.expect(&node_state.spares.next());
    // The next ones may be there already, and making others waits for the disk.
    expect_next();
    make_missing(&node_state, origin).await;
    expect_next();
}

async fn make_missing(node_state: &NodeState, origin: Origin) {
    if origin.is_some() && !node_state.engine.capabilities().instant_copies {
        return;
    }
    let Some((missing, dropped)) = node_state.spares.begin_refill(&origin) else { return };
    remove(node_state, dropped).await;
    if missing == 0 || node_state.stop.run_until_cancelled(tokio::time::sleep(REFILL_DELAY)).await.is_none() {
        return;
    }
    let ids: Vec<_> = (0..missing).map(|_| new_sandbox_id()).collect();
    let made = node_state.engine.make_spares(&ids, origin.as_ref()).await;
    let (ready, unused) = match made {
        Ok(()) => (ids, Vec::new()),
        // The next create call prepares its own files and reports what is wrong with the pool.
        Err(error) => {
            debug!(%error, "no spare files were made");
            (Vec::new(), ids)
        }
    };
    let stale = node_state.spares.end_refill(&origin, ready);
    remove(node_state, unused.into_iter().chain(stale)).await;
}

/// Removes spares. Those that stay are removed at the next start.
pub(crate) async fn remove(node_state: &NodeState, ids: impl IntoIterator<Item = SandboxId>) {
    for id in ids {
        if let Err(error) = node_state.engine.remove_spare(&id).await {
            debug!(sandbox = %id, %error, "spare files are left until the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::new_files_id;

    fn ids(count: usize) -> Vec<SandboxId> {
        (0..count).map(|_| new_sandbox_id()).collect()
    }

    #[test]
    fn a_refill_starts_below_half_and_once() {
        let spares = Spares::new(4);
        assert_eq!(spares.take(&None), None);
        assert_eq!(spares.begin_refill(&None), Some((4, Vec::new())));
        assert_eq!(spares.begin_refill(&None), None, "one is under way");
        let made = ids(4);
        assert!(spares.end_refill(&None, made.clone()).is_empty());
        assert_eq!(spares.take(&None), Some(made[0].clone()), "the oldest first");
        assert_eq!(spares.begin_refill(&None), None, "three are left");
        assert_eq!(spares.take(&None), Some(made[1].clone()));
        assert_eq!(spares.begin_refill(&None), Some((2, Vec::new())));
    }

    #[test]
    fn the_least_recently_used_origin_is_dropped() {
        let spares = Spares::new(1);
        let origins: Vec<Origin> = (0..MAX_ORIGINS).map(|_| Some(new_files_id())).collect();
        let made = ids(MAX_ORIGINS);
        for (origin, id) in origins.iter().zip(&made) {
            assert_eq!(spares.begin_refill(origin), Some((1, Vec::new())));
            spares.end_refill(origin, vec![id.clone()]);
        }
        assert_eq!(spares.take(&origins[0]), Some(made[0].clone()), "used again");
        assert_eq!(spares.begin_refill(&None), Some((1, vec![made[1].clone()])));
        assert_eq!(spares.take(&origins[1]), None);
    }

    #[test]
    fn removed_files_have_no_spares() {
        let (spares, files) = (Spares::new(2), new_files_id());
        let (origin, made) = (Some(files.clone()), ids(2));
        spares.begin_refill(&origin);
        assert!(spares.take_all(&files).is_empty(), "they are being made");
        assert_eq!(spares.end_refill(&origin, made.clone()), made, "for the caller to remove");
        spares.begin_refill(&origin);
        spares.end_refill(&origin, made.clone());
        assert_eq!(spares.take_all(&files), made);
    }

    #[test]
    fn zero_switches_spares_off() {
        assert_eq!(Spares::new(0).begin_refill(&None), None);
    }
}
