//! Recovery of files that no record names: from the trash, or a volume that stayed in the pool.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use engine::{EngineError, FilesId, Resources, Trashed};
use jiff::Timestamp;
use protocol::SandboxId;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use uuid::Uuid;

use crate::clock::after;
use crate::config::SandboxesConfig;
use crate::description::{Description, read_description, write_description};
use crate::error::SandboxError;
use crate::id::{Token, is_of_sandbox, random_name};
use crate::lifecycle::{PauseMode, State};
use crate::log::LogLevel;
use crate::node::Node;
use crate::owner::Owner;
use crate::ports::RecordsError;
use crate::sandbox::{OnTimeout, PersistedState, Record, SandboxSpec};
use crate::state::NodeState;
use crate::template::{
    BASE_ID, Build, BuildFiles, BuildStatus, DEFAULT_TAG, Defaults, Size, Tag, Template, TemplateRecord,
};
use crate::volume::Volume;

/// Interval between two purges of the trash, which record what they have observed.
const TRASH_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Timeout of a recovered sandbox without a description.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Files that no record names.
#[derive(Debug, Clone, PartialEq)]
pub struct Recoverable {
    pub files: FilesId,
    /// When they were moved to the trash. `None` for a volume, which is never moved there.
    pub trashed_at: Option<Timestamp>,
    /// When they are deleted from the trash at the earliest.
    pub deleted_at: Option<Timestamp>,
    pub bytes: Option<u64>,
    /// `None` if there is no description.
    pub description: Option<Description>,
}

/// What was recovered.
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
    /// Lists the files that can be recovered, newest first.
    pub async fn recoverable(&self) -> Result<Vec<Recoverable>, SandboxError> {
        list_recoverable(&self.node_state).await
    }

    /// Recovers the files that `text` names: their id, the id of a sandbox, or the id or name of a
    /// template or volume. If several match, the newest.
    ///
    /// # Errors
    /// [`RecoverError::NotFound`] if nothing matches, also if another call has just recovered it.
    pub async fn recover(&self, text: &str) -> Result<Recovered, RecoverError> {
        let (node_state, tasks, text) = (Arc::clone(&self.node_state), self.tasks.clone(), text.to_owned());
        self.complete(async move {
            let is_meant = |entry: &Recoverable| {
                entry.files.as_str() == text || entry.description.as_ref().is_some_and(|known| known.is_called(&text))
            };
            let entry = list_recoverable(&node_state).await?.into_iter().find(is_meant);
            let entry = entry.ok_or_else(|| RecoverError::NotFound(text.clone()))?;
            let recovered = bring_back(&node_state, &tasks, entry).await?;
            info!(?recovered, "brought back");
            Ok(recovered)
        })
        .await
    }

    /// Writes descriptions that an older server did not write, then periodically deletes expired
    /// files from the trash until the server stops.
    pub(crate) async fn maintain_pool(node_state: Arc<NodeState>) {
        let stop = node_state.stop.clone();
        let mut watch = TrashWatch::new(&node_state);
        let prepared = stop.run_until_cancelled(async {
            watch.list(&node_state).await;
            describe_all(&node_state).await;
        });
        let mut runs = prepared.await.is_some();
        while runs {
            runs = stop.run_until_cancelled(tokio::time::sleep(TRASH_INTERVAL)).await.is_some();
            watch.record(&node_state).await;
            if runs {
                watch.delete_expired(&node_state).await;
                watch.list(&node_state).await;
            }
        }
    }
}

/// All file ids that records name.
pub(crate) fn named_files(node_state: &NodeState) -> HashSet<FilesId> {
    let mut named: HashSet<FilesId> = node_state.views().iter().map(|view| FilesId::from(&view.record.id)).collect();
    named.extend(node_state.templates.all().iter().flat_map(|template| template.files().cloned()));
    named.extend(node_state.builds.layers.files());
    named.extend(node_state.volumes.all().iter().map(|volume| volume.files.clone()));
    named
}

async fn list_recoverable(node_state: &NodeState) -> Result<Vec<Recoverable>, SandboxError> {
    let (now, kept) = (node_state.clock.now(), trash_time(&node_state.config));
    let entry = |trashed: Trashed| Recoverable {
        // Up to one interval was observed and is not recorded yet.
        deleted_at: Some(after(now, kept.saturating_sub(trashed.watched + TRASH_INTERVAL))),
        trashed_at: Some(Timestamp::try_from(trashed.since).unwrap_or(Timestamp::MAX)),
        files: trashed.files,
        bytes: trashed.bytes,
        description: trashed.note.and_then(Description::from_note),
    };
    let mut found: Vec<Recoverable> = node_state.engine.trash().await?.into_iter().map(entry).collect();
    let named = named_files(node_state);
    for files in node_state.engine.files().await? {
        if !named.contains(&files) && node_state.engine.is_volume(&files).await? {
            let description = read_description(&*node_state.engine, &files).await?;
            found.push(Recoverable { files, trashed_at: None, deleted_at: None, bytes: None, description });
        }
    }
    found.sort_by(|one, other| (other.trashed_at, &one.files).cmp(&(one.trashed_at, &other.files)));
    Ok(found)
}

async fn bring_back(
    node_state: &Arc<NodeState>,
    tasks: &TaskTracker,
    entry: Recoverable,
) -> Result<Recovered, RecoverError> {
    let Recoverable { files, trashed_at, description, .. } = entry;
    let is_named = named_files(node_state).contains(&files);
    if trashed_at.is_some() {
        node_state.engine.take_from_trash(&files).await?;
    }
    let description = match description {
        Some(description) => description,
        None => guess(node_state, &files).await?,
    };
    let now = node_state.clock.now();
    match description {
        Description::Sandbox(sandbox) => {
            let id: SandboxId = files.as_str().parse().map_err(|_| RecoverError::NotFound(files.to_string()))?;
            if !is_named {
                let names = sandbox.env_names.join(", ");
                register(node_state, tasks, sandbox.record(id.clone(), now), &names).await?;
            }
            Ok(Recovered::Sandbox(id))
        }
        Description::Template(build) => {
            let template = build.record(files, now);
            let id = template.id.clone();
            if !is_named {
                node_state.templates.adopt(template).await?;
            }
            Ok(Recovered::Template(id))
        }
        Description::Volume { id, name } => {
            if is_named {
                return Ok(Recovered::Volume { id, name });
            }
            let volume = Volume { id, name, token: Token::random(), files };
            let volume = node_state.volumes.adopt(volume).await?;
            Ok(Recovered::Volume { id: volume.id.clone(), name: volume.name.clone() })
        }
    }
}

/// Records and registers a sandbox that is paused with its files.
async fn register(
    node_state: &Arc<NodeState>,
    tasks: &TaskTracker,
    record: Record,
    env_names: &str,
) -> Result<(), RecordsError> {
    node_state.records.insert(&record, None).await?;
    let id = record.id.clone();
    let (owner, handle) = Owner::new(node_state, record, State::Paused(PauseMode::Filesystem));
    let lost = if env_names.is_empty() { String::new() } else { format!("; variables without a value: {env_names}") };
    let message = format!("brought back with its files; its tokens are new{lost}");
    handle.notes.log().write(node_state.clock.now(), LogLevel::Warn, &message);
    node_state.register(id, handle);
    tasks.spawn(owner.run());
    Ok(())
}

/// Derives a description of files that have none, from their id and content.
async fn guess(node_state: &NodeState, files: &FilesId) -> Result<Description, EngineError> {
    let (now, config) = (node_state.clock.now(), &node_state.config);
    if node_state.engine.is_volume(files).await? {
        return Ok(Description::Volume { id: random_name('v'), name: format!("recovered-{files}") });
    }
    let resources = Resources {
        cpu_count: config.cpu_count,
        memory_mb: config.memory_mb,
        disk_mb: config.disk_mb,
        pids: config.pids,
    };
    if is_of_sandbox(files) {
        let record = Record {
            id: files.as_str().parse().expect("the name of a sandbox's files is its id"),
            template: Template { id: BASE_ID.to_owned(), alias: None },
            standing: PersistedState::Paused(PauseMode::Filesystem),
            instance: None,
            started_at: now,
            end_at: now,
            lease: DEFAULT_TIMEOUT,
            spec: SandboxSpec {
                resources,
                // Its rules are unknown, so it may reach nothing.
                allow_internet: Some(false),
                egress: Default::default(),
                ingress: Default::default(),
                volumes: Vec::new(),
                on_timeout: OnTimeout::Pause(PauseMode::Filesystem),
                auto_resume: false,
                metadata: BTreeMap::new(),
                env_vars: BTreeMap::new(),
                mcp: None,
            },
            access_token: Some(Token::random()),
            traffic_token: None,
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

/// Writes the descriptions that versions without descriptions left out.
async fn describe_all(node_state: &NodeState) {
    let mut wanted = Vec::new();
    for view in node_state.views() {
        wanted.push((FilesId::from(&view.record.id), Description::for_sandbox(&view.record)));
    }
    for template in node_state.templates.all() {
        wanted.extend(Description::for_builds(&template));
    }
    wanted
        .extend(node_state.volumes.all().iter().map(|volume| (volume.files.clone(), Description::for_volume(volume))));
    for (files, description) in wanted {
        if matches!(read_description(&*node_state.engine, &files).await, Ok(None)) {
            // Ignored: files that were removed meanwhile, or are missing, need no description.
            let _ = write_description(&*node_state.engine, &files, &description).await;
        }
    }
}

/// How long the files in the trash have been observed there. Neither a jump of the wall clock nor a
/// wrong date at the start deletes anything: only time counts in which a server ran.
struct TrashWatch {
    watched: HashMap<FilesId, Duration>,
    /// The uptime up to which `watched` counts.
    until: Duration,
}

impl TrashWatch {
    fn new(node_state: &NodeState) -> Self {
        Self { watched: HashMap::new(), until: node_state.clock.uptime() }
    }

    /// Lists the trash again: files that are new begin with what earlier servers recorded.
    async fn list(&mut self, node_state: &NodeState) {
        match node_state.engine.trash().await {
            Ok(trash) => {
                let entry = |Trashed { files, watched, .. }: Trashed| {
                    let known = self.watched.get(&files).copied().unwrap_or(watched);
                    (files, known)
                };
                self.watched = trash.into_iter().map(entry).collect();
            }
            Err(error) => warn!(%error, "the trash cannot be listed, nothing more is deleted from it"),
        }
    }

    /// Counts the time since the previous call and records it.
    async fn record(&mut self, node_state: &NodeState) {
        let now = node_state.clock.uptime();
        let elapsed = now.saturating_sub(self.until);
        self.until = now;
        for (files, watched) in &mut self.watched {
            *watched += elapsed;
            match node_state.engine.record_watched(files, *watched).await {
                // Missing: they were recovered, and the next list leaves them out.
                Ok(()) | Err(EngineError::FilesMissing { .. }) => {}
                Err(error) => warn!(%files, %error, "the next server will keep files longer in the trash"),
            }
        }
    }

    async fn delete_expired(&self, node_state: &NodeState) {
        let kept = trash_time(&node_state.config);
        for (files, watched) in self.watched.iter().filter(|(_, watched)| **watched >= kept) {
            match node_state.engine.delete_from_trash(files).await {
                Ok(()) => info!(%files, hours = watched.as_secs() / 3600, "deleted from the trash"),
                Err(error) => warn!(%files, %error, "files stay in the trash"),
            }
        }
    }
}

fn trash_time(config: &SandboxesConfig) -> Duration {
    Duration::from_secs(24 * 60 * 60 * u64::from(config.trash_days))
}
