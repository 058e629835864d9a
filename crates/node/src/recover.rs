//! Bringing back what no record names: from the trash, or a volume that stayed where it was.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use uuid::Uuid;

use crate::description::Description;
use crate::error::SandboxError;
use crate::id::{FilesId, SandboxId, Token, random_name};
use crate::lifecycle::{Kept, State};
use crate::log::LogLevel;
use crate::node::Node;
use crate::owner::Owner;
use crate::ports::{EngineError, RecordsError, Trashed};
use crate::sandbox::{OnTimeout, Record, Resources, Standing};
use crate::template::{
    BASE_ID, Build, BuildFiles, BuildStatus, DEFAULT_TAG, Defaults, Size, Tag, Template, TemplateRecord,
};
use crate::volume::Volume;
use crate::world::World;

/// Between two looks at the trash. The first look is this long after the start, so that a clock
/// which is wrong at boot has time to be set right before anything is deleted by it.
const TRASH_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Lease of a recovered sandbox of which nothing is known.
const LEASE: Duration = Duration::from_secs(300);

/// Files that no record names.
#[derive(Debug, Clone, PartialEq)]
pub struct Recoverable {
    pub files: FilesId,
    /// Since when they are in the trash. None: a volume, which is never moved there.
    pub trashed_at: Option<Timestamp>,
    /// When the trash is emptied of them.
    pub deleted_at: Option<Timestamp>,
    pub bytes: Option<u64>,
    /// None when nothing was kept about them.
    pub description: Option<Description>,
}

/// What was brought back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// Paused, with its files.
    Sandbox(SandboxId),
    /// By its id.
    Template(String),
    Volume {
        id: String,
        name: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("neither the trash nor the volumes without a record have '{0}'")]
    NotFound(String),
    #[error(transparent)]
    Node(#[from] SandboxError),
}

impl From<EngineError> for RecoverError {
    fn from(error: EngineError) -> Self {
        Self::Node(error.into())
    }
}

impl From<RecordsError> for RecoverError {
    fn from(error: RecordsError) -> Self {
        Self::Node(error.into())
    }
}

impl Node {
    /// What can be brought back, newest first.
    pub async fn recoverable(&self) -> Result<Vec<Recoverable>, SandboxError> {
        recoverable(&self.world).await
    }

    /// Brings back what `text` names: the name of files, the id of a sandbox, the id or name of a
    /// template or volume. Where several bear that name, the newest.
    ///
    /// # Errors
    /// [`RecoverError::NotFound`] when there is nothing of that name, also when another call has
    /// just brought it back.
    pub async fn recover(&self, text: &str) -> Result<Recovered, RecoverError> {
        let (world, tasks, text) = (Arc::clone(&self.world), self.tasks.clone(), text.to_owned());
        self.complete(async move {
            let is_meant = |entry: &Recoverable| {
                entry.files.as_str() == text || entry.description.as_ref().is_some_and(|known| known.is_called(&text))
            };
            let entry = recoverable(&world).await?.into_iter().find(is_meant);
            let entry = entry.ok_or_else(|| RecoverError::NotFound(text.clone()))?;
            let recovered = bring_back(&world, &tasks, entry).await?;
            info!(?recovered, "brought back");
            Ok(recovered)
        })
        .await
    }

    /// Describes what an older server left without a description, then empties the trash of what
    /// was in it for long enough, until the server stops.
    pub(crate) async fn maintain_pool(world: Arc<World>) {
        let stop = world.stop.clone();
        stop.run_until_cancelled(async {
            describe_all(&world).await;
            loop {
                tokio::time::sleep(TRASH_INTERVAL).await;
                if let Err(error) = empty_trash(&world).await {
                    warn!(%error, "the trash was not emptied");
                }
            }
        })
        .await;
    }
}

/// Every file name that a record has.
pub(crate) fn named_files(world: &World) -> HashSet<FilesId> {
    let mut named: HashSet<FilesId> = world.views().iter().map(|view| FilesId::from(&view.record.id)).collect();
    named.extend(world.templates.all().iter().flat_map(|template| template.files().cloned()));
    named.extend(world.builds.layers.files());
    named.extend(world.volumes.all().iter().map(|volume| volume.files.clone()));
    named
}

async fn recoverable(world: &World) -> Result<Vec<Recoverable>, SandboxError> {
    let kept = SignedDuration::from_hours(24 * i64::from(world.config.trash_days));
    let entry = |trashed: Trashed| Recoverable {
        deleted_at: trashed.since.checked_add(kept).ok(),
        trashed_at: Some(trashed.since),
        files: trashed.files,
        bytes: trashed.bytes,
        description: trashed.description,
    };
    let mut found: Vec<Recoverable> = world.engine.trash().await?.into_iter().map(entry).collect();
    let named = named_files(world);
    for files in world.engine.files().await? {
        if !named.contains(&files) && world.engine.is_volume(&files).await? {
            let description = world.engine.description(&files).await?;
            found.push(Recoverable { files, trashed_at: None, deleted_at: None, bytes: None, description });
        }
    }
    found.sort_by(|one, other| (other.trashed_at, &one.files).cmp(&(one.trashed_at, &other.files)));
    Ok(found)
}

async fn bring_back(world: &Arc<World>, tasks: &TaskTracker, entry: Recoverable) -> Result<Recovered, RecoverError> {
    let Recoverable { files, trashed_at, description, .. } = entry;
    let is_named = named_files(world).contains(&files);
    if trashed_at.is_some() {
        world.engine.take_from_trash(&files).await?;
    }
    let description = match description {
        Some(description) => description,
        None => guess(world, &files).await?,
    };
    let now = world.clock.now();
    match description {
        Description::Sandbox(sandbox) => {
            let id: SandboxId = files.as_str().parse().map_err(|_| RecoverError::NotFound(files.to_string()))?;
            if !is_named {
                let names = sandbox.env_names.join(", ");
                register(world, tasks, sandbox.record(id.clone(), now), &names).await?;
            }
            Ok(Recovered::Sandbox(id))
        }
        Description::Template(build) => {
            let template = build.record(files, now);
            let id = template.id.clone();
            if !is_named {
                world.templates.adopt(template).await?;
            }
            Ok(Recovered::Template(id))
        }
        Description::Volume { id, name } => {
            if is_named {
                return Ok(Recovered::Volume { id, name });
            }
            let volume = Volume { id, name, token: Token::random(), files };
            let volume = world.volumes.adopt(volume).await?;
            Ok(Recovered::Volume { id: volume.id.clone(), name: volume.name.clone() })
        }
    }
}

/// Makes a sandbox known that is paused with its files.
async fn register(
    world: &Arc<World>,
    tasks: &TaskTracker,
    record: Record,
    env_names: &str,
) -> Result<(), RecordsError> {
    world.records.insert(&record, None).await?;
    let id = record.id.clone();
    let (owner, handle) = Owner::new(world, record, State::Paused(Kept::Files));
    let lost = if env_names.is_empty() { String::new() } else { format!("; variables without a value: {env_names}") };
    let message = format!("brought back with its files; its tokens are new{lost}");
    handle.notes.log().write(world.clock.now(), LogLevel::Warn, &message);
    world.register(id, handle);
    tasks.spawn(owner.run());
    Ok(())
}

/// What files without a description are taken for, by their name and content.
async fn guess(world: &World, files: &FilesId) -> Result<Description, EngineError> {
    let (now, config) = (world.clock.now(), &world.config);
    if world.engine.is_volume(files).await? {
        return Ok(Description::Volume { id: random_name('v'), name: format!("recovered-{files}") });
    }
    let resources = Resources {
        cpu_count: config.cpu_count,
        memory_mb: config.memory_mb,
        disk_mb: config.disk_mb,
        pids: config.pids,
    };
    if files.is_sandbox() {
        let record = Record {
            id: files.as_str().parse().expect("the name of a sandbox's files is its id"),
            template: Template { id: BASE_ID.to_owned(), alias: None },
            standing: Standing::Paused(Kept::Files),
            instance: None,
            started_at: now,
            end_at: now,
            lease: LEASE,
            resources,
            access_token: Some(Token::random()),
            traffic_token: None,
            // What it might reach is not known, so it reaches nothing.
            allow_internet: Some(false),
            egress: Default::default(),
            ingress: Default::default(),
            volumes: Vec::new(),
            on_timeout: OnTimeout::Pause(Kept::Files),
            auto_resume: false,
            metadata: BTreeMap::new(),
            env_vars: BTreeMap::new(),
            mcp: None,
            boot_id: String::new(),
            defaults: Defaults::default(),
        };
        return Ok(Description::for_sandbox(&record));
    }
    let build = Build {
        id: Uuid::new_v4(),
        status: BuildStatus::Ready,
        files: BuildFiles::Kept(files.clone()),
        defaults: Defaults::default(),
        size: Size { cpu_count: resources.cpu_count, memory_mb: resources.memory_mb, disk_mb: resources.disk_mb },
        of: None,
        wanted_tags: Vec::new(),
        created_at: now,
        finished_at: Some(now),
        failure: None,
    };
    let template = TemplateRecord {
        id: random_name('t'),
        name: Some(format!("recovered-{files}")),
        public: false,
        created_at: now,
        updated_at: now,
        tags: BTreeMap::from([(DEFAULT_TAG.to_owned(), Tag { build: build.id, created_at: now })]),
        builds: vec![build],
    };
    let described = Description::for_builds(&template).into_iter().map(|(_, description)| description).next();
    Ok(described.expect("its one build has files"))
}

/// Those from before there were descriptions.
async fn describe_all(world: &World) {
    let mut wanted = Vec::new();
    for view in world.views() {
        wanted.push((FilesId::from(&view.record.id), Description::for_sandbox(&view.record)));
    }
    for template in world.templates.all() {
        wanted.extend(Description::for_builds(&template));
    }
    wanted.extend(world.volumes.all().iter().map(|volume| (volume.files.clone(), Description::for_volume(volume))));
    for (files, description) in wanted {
        if matches!(world.engine.description(&files).await, Ok(None)) {
            // Files that went meanwhile, or are missing, need none.
            let _ = world.engine.describe(&files, &description).await;
        }
    }
}

async fn empty_trash(world: &World) -> Result<(), EngineError> {
    let (now, kept) = (world.clock.now(), SignedDuration::from_hours(24 * i64::from(world.config.trash_days)));
    for trashed in world.engine.trash().await? {
        if now.duration_since(trashed.since) >= kept {
            match world.engine.delete_from_trash(&trashed.files).await {
                Ok(()) => info!(files = %trashed.files, since = %trashed.since, "deleted from the trash"),
                Err(error) => warn!(files = %trashed.files, %error, "files stay in the trash"),
            }
        }
    }
    Ok(())
}
