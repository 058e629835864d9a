//! Cache of file states that builds start from instead of repeating steps. The cache owns each
//! state's files; templates have copies, so a state can be removed at any time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use engine::FilesId;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use crate::ports::{Records, RecordsError};

/// Most states that are kept; those unused for longest are removed first.
const MOST_LAYERS: usize = 500;

/// The files after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Digest of the steps that lead to this state.
    pub key: String,
    pub files: FilesId,
    pub used_at: Timestamp,
}

pub(crate) struct Layers {
    records: Arc<dyn Records>,
    known: Mutex<HashMap<String, Layer>>,
    /// Held while a state is recorded: of two builds that end the same steps concurrently, one
    /// finds the state of the other.
    recording: tokio::sync::Mutex<()>,
}

impl Layers {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self { records, known: Mutex::default(), recording: tokio::sync::Mutex::default() }
    }

    /// Reads the recorded states. A state whose files are not `present` is removed, and the next
    /// build repeats its steps.
    pub(crate) async fn load(&self, present: &HashSet<FilesId>) -> Result<(), RecordsError> {
        let (layers, lost): (Vec<Layer>, Vec<Layer>) =
            self.records.layers().await?.into_iter().partition(|layer| present.contains(&layer.files));
        for layer in lost {
            self.records.remove_layer(&layer.key).await?;
        }
        *self.known() = layers.into_iter().map(|layer| (layer.key.clone(), layer)).collect();
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Layer>> {
        self.known.lock()
    }

    pub(crate) fn files(&self) -> Vec<FilesId> {
        self.known().values().map(|layer| layer.files.clone()).collect()
    }

    pub(crate) fn find(&self, key: &str) -> Option<FilesId> {
        self.known().get(key).map(|layer| layer.files.clone())
    }

    /// Records that a build used the state.
    pub(crate) async fn touch(&self, key: &str, now: Timestamp) -> Result<(), RecordsError> {
        let layer = self.known().get_mut(key).map(|layer| {
            layer.used_at = now;
            layer.clone()
        });
        match layer {
            Some(layer) => self.records.put_layer(&layer).await,
            None => Ok(()),
        }
    }

    /// Keeps a state and returns the files that are no longer used. If two builds ran the same
    /// steps concurrently, the first state stays, since other builds may have started from it;
    /// `replace` replaces it.
    pub(crate) async fn put(&self, layer: Layer, replace: bool) -> Result<Vec<FilesId>, RecordsError> {
        let _recording = self.recording.lock().await;
        if !replace && self.known().contains_key(&layer.key) {
            return Ok(vec![layer.files]);
        }
        self.records.put_layer(&layer).await?;
        let mut unused = Vec::new();
        let excess: Vec<String> = {
            let mut known = self.known();
            unused.extend(known.insert(layer.key.clone(), layer).map(|before| before.files));
            let mut by_age: Vec<(Timestamp, String)> =
                known.values().map(|layer| (layer.used_at, layer.key.clone())).collect();
            by_age.sort();
            by_age.into_iter().map(|(_, key)| key).take(known.len().saturating_sub(MOST_LAYERS)).collect()
        };
        for key in excess {
            self.records.remove_layer(&key).await?;
            unused.extend(self.known().remove(&key).map(|layer| layer.files));
        }
        Ok(unused)
    }
}
