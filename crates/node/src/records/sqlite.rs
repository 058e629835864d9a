//! Records in one SQLite file. There is one connection, so that there is one writer and no lock
//! contention; every commit is on the disk before it returns (`synchronous = FULL`).

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use database::{Database, SetAside, SetAsideRow, Unwritable};
use engine::{FilesId, Instance, Resources};
use jiff::Timestamp;
use protocol::SandboxId;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, EntityTrait, IntoActiveModel, Iterable, QueryFilter, Set};
use tracing::warn;

use super::entity::{creation, layer, sandbox, secret, template, volume};
use super::migration::Migrator;
use super::seal::Seal;
use crate::build::Layer;
use crate::lifecycle::PauseMode;
use crate::ports::{Records, RecordsError, SecretRecords, TemplateRecords, Unreadable, VolumeRecords};
use crate::sandbox::{Created, IdempotencyKey, OnTimeout, PersistedState, Record, SandboxSpec};
use crate::secret::Secret;
use crate::template::{Template, TemplateRecord};
use crate::volume::Volume;

/// Tables whose rows name files of the pool.
const SANDBOXES: &str = "sandbox";
const TEMPLATES: &str = "template";
const LAYERS: &str = "layer";
const VOLUMES: &str = "volume";
/// A letter and 20 more letters or digits.
const FILES_ID_LENGTH: usize = 21;

/// The records of one data directory.
#[derive(Debug)]
pub struct SqliteRecords {
    database: Database,
    seal: Seal,
    set_aside: SetAside,
}

fn cannot<E: Into<Box<dyn Error + Send + Sync>>>(what: &'static str) -> impl FnOnce(E) -> RecordsError {
    move |error| RecordsError { what, source: database::unwrap_cause(error.into()) }
}

impl SqliteRecords {
    /// Opens the database at `file`, creates it if it is absent, and applies the migrations.
    pub async fn open(file: &Path) -> Result<Self, RecordsError> {
        let database = database::open_file(file).await.map_err(cannot("open"))?;
        database::migrate::<Migrator>(&database).await.map_err(cannot("migrate"))?;
        Ok(Self { database, seal: Seal::for_database(file), set_aside: SetAside::default() })
    }
}

#[async_trait]
impl Records for SqliteRecords {
    async fn all(&self) -> Result<Vec<Record>, RecordsError> {
        let rows = sandbox::Entity::find().all(&self.database).await.map_err(cannot("read"))?;
        let read = |row: sandbox::Model| {
            let id = row.id.clone();
            self.set_aside.keep(SANDBOXES, &id, from_row(row))
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    async fn unreadable(&self) -> Result<Vec<Unreadable>, RecordsError> {
        let mut unreadable = Vec::new();
        for SetAsideRow { table, id, cause } in self.set_aside.rows() {
            let files = match table {
                TEMPLATES => {
                    let row = template::Entity::find_by_id(&id).one(&self.database).await.map_err(cannot("read"))?;
                    row.map(|row| files_in(&row.document)).unwrap_or_default()
                }
                VOLUMES => {
                    let row = volume::Entity::find_by_id(&id).one(&self.database).await.map_err(cannot("read"))?;
                    row.and_then(|row| row.files.parse().ok()).into_iter().collect()
                }
                LAYERS => {
                    let row = layer::Entity::find_by_id(&id).one(&self.database).await.map_err(cannot("read"))?;
                    row.and_then(|row| row.files.parse().ok()).into_iter().collect()
                }
                _ => id.parse().ok().into_iter().collect(),
            };
            unreadable.push(Unreadable { table, id, cause, files });
        }
        Ok(unreadable)
    }

    async fn insert(&self, record: &Record, idempotency: Option<&IdempotencyKey>) -> Result<(), RecordsError> {
        let row = to_row(record).map_err(cannot("write"))?.into_active_model();
        let Some(IdempotencyKey { key, fingerprint }) = idempotency else {
            return sandbox::Entity::insert(row)
                .exec_without_returning(&self.database)
                .await
                .map(|_| ())
                .map_err(cannot("write"));
        };
        let creation = creation::ActiveModel {
            key: Set(key.clone()),
            fingerprint: Set(fingerprint.clone()),
            created_at_us: Set(record.started_at.as_microsecond()),
            sandbox_id: Set(record.id.to_string()),
            template_id: Set(record.template.id.clone()),
            template_alias: Set(alias_text(&record.template)),
            access_token: Set(record.access_token.as_ref().map(|token| token.reveal().to_owned())),
            traffic_token: Set(record.traffic_token.as_ref().map(|token| token.reveal().to_owned())),
        };
        let both = async {
            let transaction = self.database.begin().await?;
            sandbox::Entity::insert(row).exec_without_returning(&transaction).await?;
            creation::Entity::insert(creation).exec_without_returning(&transaction).await?;
            transaction.commit().await
        };
        both.await.map_err(cannot("write"))
    }

    async fn put(&self, record: &Record) -> Result<(), RecordsError> {
        let row = to_row(record).map_err(cannot("write"))?.into_active_model();
        let columns = sandbox::Column::iter().filter(|column| !matches!(column, sandbox::Column::Id));
        let replace = OnConflict::column(sandbox::Column::Id).update_columns(columns).to_owned();
        let stored = sandbox::Entity::insert(row).on_conflict(replace).exec_without_returning(&self.database).await;
        stored.map(|_| ()).map_err(cannot("write"))
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), RecordsError> {
        let removed = sandbox::Entity::delete_by_id(id.to_string()).exec(&self.database).await;
        removed.map(|_| ()).map_err(cannot("change"))
    }

    async fn creation(&self, key: &str) -> Result<Option<(String, Created)>, RecordsError> {
        let row = creation::Entity::find_by_id(key).one(&self.database).await.map_err(cannot("read"))?;
        let Some(row) = row else { return Ok(None) };
        let created = Created {
            id: row.sandbox_id.parse().map_err(cannot("understand"))?,
            template: to_template(row.template_id, row.template_alias),
            access_token: row.access_token.map(Into::into),
            traffic_token: row.traffic_token.map(Into::into),
        };
        Ok(Some((row.fingerprint, created)))
    }

    async fn forget_creations(&self, before: Timestamp) -> Result<(), RecordsError> {
        let removed = creation::Entity::delete_many()
            .filter(creation::Column::CreatedAtUs.lt(before.as_microsecond()))
            .exec(&self.database)
            .await;
        removed.map(|_| ()).map_err(cannot("change"))
    }

    fn fault(&self) -> Option<Unwritable> {
        self.database.fault()
    }
}

#[async_trait]
impl TemplateRecords for SqliteRecords {
    async fn templates(&self) -> Result<Vec<TemplateRecord>, RecordsError> {
        let rows = template::Entity::find().all(&self.database).await.map_err(cannot("read"))?;
        let read = |row: &template::Model| self.set_aside.keep(TEMPLATES, &row.id, serde_json::from_str(&row.document));
        Ok(rows.iter().filter_map(read).collect())
    }

    async fn put_template(&self, template: &TemplateRecord) -> Result<(), RecordsError> {
        let document = serde_json::to_string(template).map_err(cannot("write"))?;
        let row = template::ActiveModel { id: Set(template.id.clone()), document: Set(document) };
        let replace = OnConflict::column(template::Column::Id).update_column(template::Column::Document).to_owned();
        let stored = template::Entity::insert(row).on_conflict(replace).exec_without_returning(&self.database).await;
        stored.map(|_| ()).map_err(cannot("write"))
    }

    async fn remove_template(&self, id: &str) -> Result<(), RecordsError> {
        let removed = template::Entity::delete_by_id(id).exec(&self.database).await;
        removed.map(|_| ()).map_err(cannot("change"))
    }

    async fn layers(&self) -> Result<Vec<Layer>, RecordsError> {
        let rows = layer::Entity::find().all(&self.database).await.map_err(cannot("read"))?;
        let read = |row: layer::Model| {
            let key = row.key.clone();
            self.set_aside.keep(LAYERS, &key, to_layer(row))
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    async fn put_layer(&self, layer: &Layer) -> Result<(), RecordsError> {
        let row = layer::ActiveModel {
            key: Set(layer.key.clone()),
            files: Set(layer.files.to_string()),
            used_at_us: Set(layer.used_at.as_microsecond()),
        };
        let columns = [layer::Column::Files, layer::Column::UsedAtUs];
        let replace = OnConflict::column(layer::Column::Key).update_columns(columns).to_owned();
        let stored = layer::Entity::insert(row).on_conflict(replace).exec_without_returning(&self.database).await;
        stored.map(|_| ()).map_err(cannot("write"))
    }

    async fn remove_layer(&self, key: &str) -> Result<(), RecordsError> {
        let removed = layer::Entity::delete_by_id(key).exec(&self.database).await;
        removed.map(|_| ()).map_err(cannot("change"))
    }
}

#[async_trait]
impl VolumeRecords for SqliteRecords {
    async fn volumes(&self) -> Result<Vec<Volume>, RecordsError> {
        let rows = volume::Entity::find().all(&self.database).await.map_err(cannot("read"))?;
        let read = |volume::Model { id, name, token, files }| {
            let files = self.set_aside.keep(VOLUMES, &id, files.parse())?;
            Some(Volume { id, name, token: token.into(), files })
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    async fn put_volume(&self, volume: &Volume) -> Result<(), RecordsError> {
        let row = volume::ActiveModel {
            id: Set(volume.id.clone()),
            name: Set(volume.name.clone()),
            token: Set(volume.token.reveal().to_owned()),
            files: Set(volume.files.to_string()),
        };
        let stored = volume::Entity::insert(row).exec_without_returning(&self.database).await;
        stored.map(|_| ()).map_err(cannot("write"))
    }

    async fn remove_volume(&self, id: &str) -> Result<(), RecordsError> {
        let removed = volume::Entity::delete_by_id(id).exec(&self.database).await;
        removed.map(|_| ()).map_err(cannot("change"))
    }
}

#[async_trait]
impl SecretRecords for SqliteRecords {
    async fn secrets(&self) -> Result<Vec<Secret>, RecordsError> {
        let rows = secret::Entity::find().all(&self.database).await.map_err(cannot("read"))?;
        let mut secrets = Vec::new();
        for row in rows {
            // A lost key makes a secret unusable, not the server.
            match self.seal.decrypt(&row.id, &row.sealed) {
                Ok(value) => {
                    let id = row.id.clone();
                    secrets.extend(self.set_aside.keep("secret", &id, to_secret(row, value)));
                }
                Err(error) => warn!(secret = row.name, %error, "egress secret could not be decrypted"),
            }
        }
        Ok(secrets)
    }

    async fn put_secret(&self, secret: &Secret) -> Result<(), RecordsError> {
        let row = secret::ActiveModel {
            id: Set(secret.id.clone()),
            name: Set(secret.name.clone()),
            sealed: Set(self.seal.encrypt(&secret.id, secret.value.reveal()).map_err(cannot("seal"))?),
            version: Set(secret.version.try_into().map_err(cannot("write"))?),
            metadata: Set(serde_json::to_string(&secret.metadata).map_err(cannot("write"))?),
            created_at_us: Set(secret.created_at.as_microsecond()),
            updated_at_us: Set(secret.updated_at.as_microsecond()),
        };
        let replace = OnConflict::column(secret::Column::Id)
            .update_columns([
                secret::Column::Sealed,
                secret::Column::Version,
                secret::Column::Metadata,
                secret::Column::UpdatedAtUs,
            ])
            .to_owned();
        let stored = secret::Entity::insert(row).on_conflict(replace).exec_without_returning(&self.database).await;
        stored.map(|_| ()).map_err(cannot("write"))
    }

    async fn remove_secret(&self, id: &str) -> Result<(), RecordsError> {
        let removed = secret::Entity::delete_by_id(id).exec(&self.database).await;
        removed.map(|_| ()).map_err(cannot("change"))
    }
}

/// All file ids in a document that cannot be parsed as a template.
fn files_in(document: &str) -> Vec<FilesId> {
    let words = document.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| word.len() == FILES_ID_LENGTH).filter_map(|word| word.parse().ok()).collect()
}

fn to_secret(row: secret::Model, value: String) -> Result<Secret, Damage> {
    Ok(Secret {
        id: row.id,
        name: row.name,
        value: value.into(),
        version: row.version.try_into()?,
        metadata: serde_json::from_str(&row.metadata)?,
        created_at: Timestamp::from_microsecond(row.created_at_us)?,
        updated_at: Timestamp::from_microsecond(row.updated_at_us)?,
    })
}

fn to_layer(row: layer::Model) -> Result<Layer, Damage> {
    Ok(Layer { key: row.key, files: row.files.parse()?, used_at: Timestamp::from_microsecond(row.used_at_us)? })
}

/// The column is not nullable.
fn alias_text(template: &Template) -> String {
    template.alias.clone().unwrap_or_default()
}

fn to_template(id: String, alias: String) -> Template {
    Template { id, alias: Some(alias).filter(|alias| !alias.is_empty()) }
}

type Damage = Box<dyn Error + Send + Sync>;

fn to_row(record: &Record) -> Result<sandbox::Model, Damage> {
    Ok(sandbox::Model {
        id: record.id.to_string(),
        template_id: record.template.id.clone(),
        template_alias: alias_text(&record.template),
        standing: match record.standing {
            PersistedState::Running => "running",
            PersistedState::Paused(PauseMode::Full) => "paused_memory",
            PersistedState::Paused(PauseMode::Filesystem) => "paused_files",
        }
        .to_owned(),
        pid: record.instance.map(|instance| i64::from(instance.pid)),
        start_time: record.instance.map(|instance| i64::try_from(instance.start_time)).transpose()?,
        started_at_us: record.started_at.as_microsecond(),
        end_at_us: record.end_at.as_microsecond(),
        lease_us: i64::try_from(record.lease.as_micros())?,
        cpu_count: record.spec.resources.cpu_count.into(),
        memory_mb: record.spec.resources.memory_mb.into(),
        disk_mb: record.spec.resources.disk_mb.into(),
        pids: record.spec.resources.pids.into(),
        access_token: record.access_token.as_ref().map(|token| token.reveal().to_owned()),
        traffic_token: record.traffic_token.as_ref().map(|token| token.reveal().to_owned()),
        allow_internet: record.spec.allow_internet,
        on_timeout: match record.spec.on_timeout {
            OnTimeout::Kill => "kill",
            OnTimeout::Pause(PauseMode::Full) => "pause_memory",
            OnTimeout::Pause(PauseMode::Filesystem) => "pause_files",
        }
        .to_owned(),
        auto_resume: record.spec.auto_resume,
        metadata: serde_json::to_string(&record.spec.metadata)?,
        env_vars: serde_json::to_string(&record.spec.env_vars)?,
        mcp: record.spec.mcp.as_ref().map(serde_json::to_string).transpose()?,
        boot_id: record.boot_id.clone(),
        defaults: Some(serde_json::to_string(&record.defaults)?),
        egress: Some(serde_json::to_string(&record.spec.egress)?),
        ingress: Some(serde_json::to_string(&record.spec.ingress)?),
        volumes: Some(serde_json::to_string(&record.spec.volumes)?),
    })
}

fn from_row(row: sandbox::Model) -> Result<Record, Damage> {
    let instance = match (row.pid, row.start_time) {
        (Some(pid), Some(start)) => Some(Instance { pid: pid.try_into()?, start_time: start.try_into()? }),
        _ => None,
    };
    Ok(Record {
        id: row.id.parse()?,
        template: to_template(row.template_id, row.template_alias),
        standing: match row.standing.as_str() {
            "running" => PersistedState::Running,
            "paused_memory" => PersistedState::Paused(PauseMode::Full),
            "paused_files" => PersistedState::Paused(PauseMode::Filesystem),
            other => return Err(format!("unknown standing `{other}`").into()),
        },
        instance,
        started_at: Timestamp::from_microsecond(row.started_at_us)?,
        end_at: Timestamp::from_microsecond(row.end_at_us)?,
        lease: Duration::from_micros(row.lease_us.try_into()?),
        spec: SandboxSpec {
            resources: Resources {
                cpu_count: row.cpu_count.try_into()?,
                memory_mb: row.memory_mb.try_into()?,
                disk_mb: row.disk_mb.try_into()?,
                pids: row.pids.try_into()?,
            },
            allow_internet: row.allow_internet,
            on_timeout: match row.on_timeout.as_str() {
                "kill" => OnTimeout::Kill,
                "pause_memory" => OnTimeout::Pause(PauseMode::Full),
                "pause_files" => OnTimeout::Pause(PauseMode::Filesystem),
                other => return Err(format!("unknown end of lease `{other}`").into()),
            },
            auto_resume: row.auto_resume,
            metadata: serde_json::from_str(&row.metadata)?,
            env_vars: serde_json::from_str(&row.env_vars)?,
            mcp: row.mcp.as_deref().map(serde_json::from_str).transpose()?,
            egress: row.egress.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default(),
            ingress: row.ingress.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default(),
            volumes: row.volumes.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default(),
        },
        access_token: row.access_token.map(Into::into),
        traffic_token: row.traffic_token.map(Into::into),
        boot_id: row.boot_id,
        defaults: row.defaults.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default(),
    })
}
