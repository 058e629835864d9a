//! Volumes: files that outlive sandboxes and can be mounted in several at once.
//!
//! Files are created before the record that names them and removed after it, so that the next start
//! sweeps whatever a killed server leaves.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::volume::VolumeDirectory;
use engine::{EngineError, FilesId, Mount};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::description::Description;
use crate::error::{FilesOwner, SandboxError};
use crate::id::{Token, new_files_id, random_name};
use crate::node::Node;
use crate::ports::{Records, RecordsError};

const LONGEST_NAME: usize = 128;

/// The record of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub id: String,
    pub name: String,
    /// Grants access to its content.
    pub token: Token,
    pub files: FilesId,
}

/// A mount of a volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub volume: String,
    /// The volume's name when the sandbox was created.
    pub name: String,
    /// The mount point in the sandbox.
    pub path: String,
    pub(crate) files: FilesId,
}

impl VolumeMount {
    pub(crate) fn to_mount(&self) -> Mount {
        Mount { files: self.files.clone(), at: self.path.clone().into() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("'{0}' cannot be the name of a volume: it needs 1 to 128 characters of a-z, A-Z, 0-9, _ and -")]
    InvalidName(String),
    #[error("volume '{0}' exists already")]
    Taken(String),
    #[error("volume '{0}' not found")]
    NotFound(String),
    #[error("volume '{name}' is mounted in sandbox {sandbox}")]
    InUse { name: String, sandbox: String },
    #[error(transparent)]
    Node(#[from] SandboxError),
}

impl From<RecordsError> for VolumeError {
    fn from(error: RecordsError) -> Self {
        Self::Node(error.into())
    }
}

impl From<EngineError> for VolumeError {
    fn from(error: EngineError) -> Self {
        Self::Node(error.into())
    }
}

struct Known {
    volume: Arc<Volume>,
    /// Opened only once: opening removes unfinished uploads, and another call may be uploading.
    directory: Arc<OnceCell<VolumeDirectory>>,
}

/// All volumes. Reads are served from memory; a change is recorded before it is visible.
pub(crate) struct Volumes {
    records: Arc<dyn Records>,
    known: RwLock<BTreeMap<String, Known>>,
    /// Serializes changes.
    changing: tokio::sync::Mutex<()>,
}

impl Volumes {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self { records, known: RwLock::default(), changing: tokio::sync::Mutex::default() }
    }

    /// Reads the recorded volumes.
    pub(crate) async fn load(&self) -> Result<(), RecordsError> {
        for volume in self.records.volumes().await? {
            self.insert(volume, OnceCell::new());
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Volume>> {
        let known = self.known.read();
        known.values().map(|known| Arc::clone(&known.volume)).collect()
    }

    /// Calls `register` if all these volumes exist. The lock prevents their deletion meanwhile;
    /// afterwards the registered sandbox does.
    pub(crate) async fn while_present(
        &self,
        mounts: &[VolumeMount],
        register: impl FnOnce() -> Result<(), SandboxError>,
    ) -> Result<(), SandboxError> {
        if mounts.is_empty() {
            return register();
        }
        let _guard = self.changing.lock().await;
        match mounts.iter().find(|mount| self.find(&mount.volume).is_none()) {
            Some(gone) => Err(SandboxError::VolumeGone(gone.name.clone())),
            None => register(),
        }
    }

    /// Records a volume whose files were recovered. Its name changes if another volume has it by
    /// now.
    pub(crate) async fn adopt(&self, mut volume: Volume) -> Result<Arc<Volume>, RecordsError> {
        let _guard = self.changing.lock().await;
        if self.all().iter().any(|known| known.name == volume.name) {
            volume.name = format!("{}-{}", volume.name.chars().take(LONGEST_NAME - 22).collect::<String>(), volume.id);
        }
        self.records.put_volume(&volume).await?;
        Ok(self.insert(volume, OnceCell::new()))
    }

    fn insert(&self, volume: Volume, directory: OnceCell<VolumeDirectory>) -> Arc<Volume> {
        let volume = Arc::new(volume);
        let known = Known { volume: Arc::clone(&volume), directory: Arc::new(directory) };
        self.known.write().insert(volume.id.clone(), known);
        volume
    }

    fn find(&self, id: &str) -> Option<(Arc<Volume>, Arc<OnceCell<VolumeDirectory>>)> {
        let known = self.known.read();
        known.get(id).map(|known| (Arc::clone(&known.volume), Arc::clone(&known.directory)))
    }
}

impl Node {
    /// All volumes, in no particular order.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.node_state.volumes.all()
    }

    pub fn volume(&self, id: &str) -> Result<Arc<Volume>, VolumeError> {
        self.node_state.volumes.find(id).map(|(volume, _)| volume).ok_or_else(|| VolumeError::NotFound(id.to_owned()))
    }

    /// Creates an empty volume.
    pub async fn create_volume(&self, name: &str) -> Result<Arc<Volume>, VolumeError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if !(1..=LONGEST_NAME).contains(&name.len()) || !name.bytes().all(plain) {
            return Err(VolumeError::InvalidName(name.to_owned()));
        }
        let (node_state, name) = (Arc::clone(&self.node_state), name.to_owned());
        self.complete(async move {
            let volumes = &node_state.volumes;
            let _guard = volumes.changing.lock().await;
            if volumes.all().iter().any(|volume| volume.name == name) {
                return Err(VolumeError::Taken(name));
            }
            let volume = Volume { id: random_name('v'), name, token: Token::random(), files: new_files_id() };
            let directory = node_state.engine.create_volume(&volume.files, node_state.config.volume_bytes()).await?;
            node_state.describe(&volume.files, &Description::for_volume(&volume)).await;
            if let Err(error) = volumes.records.put_volume(&volume).await {
                node_state.remove_unused(&[volume.files]).await;
                return Err(error.into());
            }
            Ok(volumes.insert(volume, OnceCell::new_with(Some(directory))))
        })
        .await
    }

    /// Removes a volume that no sandbox mounts, running or paused.
    pub async fn delete_volume(&self, id: &str) -> Result<(), VolumeError> {
        let (node_state, id) = (Arc::clone(&self.node_state), id.to_owned());
        self.complete(async move {
            let volumes = &node_state.volumes;
            let _guard = volumes.changing.lock().await;
            let (volume, _) = volumes.find(&id).ok_or_else(|| VolumeError::NotFound(id.clone()))?;
            let has = |record: &crate::Record| record.spec.volumes.iter().any(|mount| mount.volume == id);
            if let Some(view) = node_state.views().into_iter().find(|view| has(&view.record)) {
                let sandbox = view.record.id.to_string();
                return Err(VolumeError::InUse { name: volume.name.clone(), sandbox });
            }
            volumes.records.remove_volume(&id).await?;
            volumes.known.write().remove(&id);
            node_state.remove_unused(std::slice::from_ref(&volume.files)).await;
            Ok(())
        })
        .await
    }

    /// Opens the directory of a volume's files.
    pub async fn volume_directory(&self, id: &str) -> Result<VolumeDirectory, VolumeError> {
        let (volume, directory) =
            self.node_state.volumes.find(id).ok_or_else(|| VolumeError::NotFound(id.to_owned()))?;
        let open = || self.node_state.engine.open_volume(&volume.files, self.node_state.config.volume_bytes());
        let opened = directory.get_or_try_init(open).await;
        let opened = opened.map_err(|error| match error {
            EngineError::FilesMissing { path, .. } => {
                SandboxError::FilesMissing { owner: FilesOwner::Volume(volume.name.clone()), path }
            }
            other => other.into(),
        });
        Ok(opened?.clone())
    }

    /// A mount of the volume called `name` at `path`.
    pub fn volume_mount(&self, name: &str, path: &str) -> Result<VolumeMount, VolumeError> {
        let volumes = self.node_state.volumes.all();
        let volume = volumes.iter().find(|volume| volume.name == name);
        let volume = volume.ok_or_else(|| VolumeError::NotFound(name.to_owned()))?;
        Ok(VolumeMount {
            volume: volume.id.clone(),
            name: name.to_owned(),
            path: path.to_owned(),
            files: volume.files.clone(),
        })
    }
}
