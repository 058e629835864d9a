//! The parts of a backup: one manifest per backup, written last, and objects that backups share.
//!
//! ```text
//! manifests/STAMP-SHA256.json   the manifest; its own digest is in its name
//! objects/SHA256                a file, or the copy of a database
//! volumes/NAME/FINGERPRINT.tar.gz
//! ```

use crate::error::{During as _, Result, damaged, refused};
use checkpoint::{ObjectKey, Objects};
use engine::FileIds;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

const FOLDER: &str = "manifests";
/// Version of this layout.
const FORMAT: u32 = 1;
const STAMP_FORM: &str = "%Y%m%dT%H%M%SZ";

/// Which directory a file is restored below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SourceRoot {
    /// The server's data directory.
    Data,
    /// Records and snapshots of workspaces, where they are not below the data directory.
    Workspaces,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackedUpFile {
    pub root: SourceRoot,
    /// Relative to its root.
    pub path: String,
    pub mode: u32,
    pub bytes: u64,
    /// Nanoseconds since 1970. A file with the same size and time counts as unchanged.
    pub modified_ns: i64,
    pub sha256: String,
    /// A SQLite database, which is copied by SQLite and not byte by byte.
    #[serde(default)]
    pub database: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackedUpVolume {
    pub name: String,
    /// Digest of the names, sizes and times of all its files.
    pub fingerprint: String,
    /// Size of the archive.
    pub bytes: u64,
    pub sha256: String,
    /// What the volume was charged of its limit; unknown in older backups, and where nothing is
    /// charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_bytes: Option<u64>,
    /// Files changed while they were archived: each file of the archive is readable, together they
    /// may be no state that the volume ever had.
    #[serde(default)]
    pub inconsistent: bool,
}

/// What a backup has, and under which keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupManifest {
    pub(crate) format: u32,
    program: String,
    created_at: Timestamp,
    /// User and group ids of the files in volumes; unknown in older backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ids: Option<FileIds>,
    pub(crate) files: Vec<BackedUpFile>,
    pub(crate) volumes: Vec<BackedUpVolume>,
    /// Data outside of the copied directories, which this backup does not have.
    pub(crate) not_included: Vec<String>,
}

/// A manifest in numbers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupContents {
    /// The backup's stamp.
    pub backup: String,
    pub files: usize,
    pub volumes: usize,
    pub bytes: u64,
    /// Volumes whose files changed while they were archived.
    pub inconsistent_volumes: Vec<String>,
    /// Data outside of the copied directories, which the backup does not have.
    pub not_included: Vec<String>,
}

impl BackedUpFile {
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::from_iter(["objects", &self.sha256[..2], &self.sha256])
    }
}

impl BackedUpVolume {
    pub(crate) fn key(&self) -> ObjectKey {
        volume_key(&self.name, &self.fingerprint)
    }
}

pub(crate) fn volume_key(name: &str, fingerprint: &str) -> ObjectKey {
    ObjectKey::from_iter(["volumes".to_owned(), name.to_owned(), format!("{fingerprint}.tar.gz")])
}

pub(crate) fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl BackupManifest {
    pub(crate) fn new(files: Vec<BackedUpFile>, volumes: Vec<BackedUpVolume>, not_included: Vec<String>) -> Self {
        let (program, ids) = (env!("CARGO_PKG_VERSION").to_owned(), Some(FileIds::of_this_process()));
        Self { format: FORMAT, program, created_at: Timestamp::now(), ids, files, volumes, not_included }
    }

    pub(crate) fn stamp(&self) -> String {
        self.created_at.strftime(STAMP_FORM).to_string()
    }

    /// The names of volumes whose files changed while they were archived.
    pub(crate) fn inconsistent_volumes(&self) -> Vec<String> {
        self.volumes.iter().filter(|volume| volume.inconsistent).map(|volume| volume.name.clone()).collect()
    }

    pub fn contents(&self) -> BackupContents {
        BackupContents {
            backup: self.stamp(),
            files: self.files.len(),
            volumes: self.volumes.len(),
            bytes: self.objects().values().map(|(bytes, _)| bytes).sum(),
            inconsistent_volumes: self.inconsistent_volumes(),
            not_included: self.not_included.clone(),
        }
    }

    /// Every object of the backup, with size and digest.
    pub(crate) fn objects(&self) -> BTreeMap<ObjectKey, (u64, &str)> {
        let files = self.files.iter().map(|file| (file.key(), (file.bytes, file.sha256.as_str())));
        let volumes = self.volumes.iter().map(|volume| (volume.key(), (volume.bytes, volume.sha256.as_str())));
        files.chain(volumes).collect()
    }

    /// Writes the manifest, which makes the backup exist. All its objects are stored before.
    pub(crate) async fn store(&self, target: &Objects) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("a manifest is plain data");
        let name = format!("{}-{}.json", self.stamp(), hex(Sha256::digest(&text)));
        let mut upload = target.upload(ObjectKey::from_iter([FOLDER, &name]));
        upload.push(&text).await?;
        upload.finish().await.during(|| "cannot store the manifest".to_owned())
    }

    /// The stamps of all backups, oldest first.
    ///
    /// # Errors
    /// `Failed` if the store does not answer.
    pub async fn stamps(target: &Objects) -> Result<Vec<String>> {
        Ok(Self::list(target).await?.into_iter().map(|(stamp, _)| stamp).collect())
    }

    /// The stamps of all backups, oldest first, with their keys.
    async fn list(target: &Objects) -> Result<Vec<(String, ObjectKey)>> {
        let found = target.list(&ObjectKey::from(FOLDER)).await.during(|| "cannot list the backups".to_owned())?;
        let named = found.into_iter().filter_map(|object| {
            let stamp = object.location.filename()?.strip_suffix(".json")?.split_once('-')?.0.to_owned();
            Some((stamp, object.location))
        });
        let mut named: Vec<_> = named.collect();
        named.sort();
        Ok(named)
    }

    /// The newest backup, or the one made at `stamp`; [`None`] when there is no backup.
    ///
    /// # Errors
    /// `Refused` without a backup of this stamp and for one of another format; `Damaged`; `Failed`
    /// if the store does not answer.
    pub async fn load(target: &Objects, stamp: Option<&str>) -> Result<Option<Self>> {
        let all = Self::list(target).await?;
        let found = match stamp {
            None => all.into_iter().next_back(),
            Some(stamp) => match all.into_iter().find(|(known, _)| known == stamp) {
                None => return refused(format!("there is no backup {stamp}; --list names those there are")),
                found => found,
            },
        };
        let Some((stamp, key)) = found else { return Ok(None) };
        let text = target.get(&key).await.during(|| format!("cannot read the manifest of backup {stamp}"))?;
        let named =
            key.filename().and_then(|name| name.strip_suffix(".json")?.split_once('-')).map(|(_, digest)| digest);
        if named != Some(hex(Sha256::digest(&text)).as_str()) {
            return damaged(format!("the manifest of backup {stamp} is damaged; `--list` names the others"));
        }
        let manifest: Self = serde_json::from_slice(&text).during(|| format!("backup {stamp}"))?;
        if manifest.format != FORMAT {
            return refused(format!(
                "backup {stamp} was made by sandbar {}, which has another format; use that version",
                manifest.program
            ));
        }
        Ok(Some(manifest))
    }
}
