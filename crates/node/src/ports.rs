//! Ports of the node to its records: [`crate::records::SqliteRecords`] and
//! `MemoryRecords` in tests. The port to the engine is [`engine::port`].

use std::error::Error;

use async_trait::async_trait;
use durable::Unwritable;
use engine::FilesId;
use jiff::Timestamp;
use protocol::SandboxId;

use crate::build::Layer;
use crate::sandbox::{Created, IdempotencyKey, Record};
use crate::secret::Secret;
use crate::template::TemplateRecord;
use crate::volume::Volume;

/// The database failed, or contains something that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the records of sandboxes")]
pub struct RecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

impl RecordsError {
    /// Why the database cannot be written, if that is the reason.
    pub fn unwritable(&self) -> Option<&Unwritable> {
        database::find_unwritable(self)
    }
}

/// A row of the records that this version cannot parse. The row and the files it names are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub table: &'static str,
    pub id: String,
    pub cause: String,
    pub files: Vec<FilesId>,
}

/// Records of templates, with the same guarantee as [`Records`].
#[async_trait]
pub trait TemplateRecords: Send + Sync {
    async fn templates(&self) -> Result<Vec<TemplateRecord>, RecordsError>;
    /// Writes a complete template, replacing its row.
    async fn put_template(&self, template: &TemplateRecord) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove_template(&self, id: &str) -> Result<(), RecordsError>;
    /// The cached states that builds start from.
    async fn layers(&self) -> Result<Vec<Layer>, RecordsError>;
    /// Writes a state, replacing the row of the same key.
    async fn put_layer(&self, layer: &Layer) -> Result<(), RecordsError>;
    async fn remove_layer(&self, key: &str) -> Result<(), RecordsError>;
}

/// Records of volumes, with the same guarantee as [`Records`].
#[async_trait]
pub trait VolumeRecords: Send + Sync {
    async fn volumes(&self) -> Result<Vec<Volume>, RecordsError>;
    /// Writes a new volume.
    async fn put_volume(&self, volume: &Volume) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove_volume(&self, id: &str) -> Result<(), RecordsError>;
}

/// Records of secrets, with the same guarantee as [`Records`]. Values are stored encrypted.
#[async_trait]
pub trait SecretRecords: Send + Sync {
    async fn secrets(&self) -> Result<Vec<Secret>, RecordsError>;
    /// Writes a complete secret, replacing its row.
    async fn put_secret(&self, secret: &Secret) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove_secret(&self, id: &str) -> Result<(), RecordsError>;
}

/// Records of sandboxes. What a call has acknowledged survives a crash of the machine.
#[async_trait]
pub trait Records: TemplateRecords + VolumeRecords + SecretRecords {
    /// Every sandbox that can be parsed; [`Records::unreadable`] has the rest.
    async fn all(&self) -> Result<Vec<Record>, RecordsError>;
    /// Rows of any table that earlier reads could not parse.
    async fn unreadable(&self) -> Result<Vec<Unreadable>, RecordsError> {
        Ok(Vec::new())
    }
    /// Writes a new sandbox together with its idempotency key, in one transaction.
    async fn insert(&self, record: &Record, idempotency: Option<&IdempotencyKey>) -> Result<(), RecordsError>;
    /// Writes the current record of a sandbox, also of one whose removal failed after it had
    /// removed the row: what this call acknowledges is there after a restart.
    async fn put(&self, record: &Record) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove(&self, id: &SandboxId) -> Result<(), RecordsError>;
    /// The fingerprint and the answer of an earlier create call with this key, also if its sandbox
    /// has ended.
    async fn creation(&self, key: &str) -> Result<Option<(String, Created)>, RecordsError>;
    /// Removes the keys of create calls before `before`.
    async fn forget_creations(&self, before: Timestamp) -> Result<(), RecordsError>;
    /// Why the records refuse changes, while they do. Reads a state that the records keep current;
    /// does no I/O.
    fn fault(&self) -> Option<Unwritable> {
        None
    }
}
