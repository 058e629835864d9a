//! Template builds: a client requests a build, uploads archives, starts the build and polls it.
//!
//! After every step that changes files the server copies them, at a cost that does not depend on
//! their size, so that states do not form chains of layers. The copies are a cache: a build that
//! begins with the steps of an earlier one starts after the last step they share.

mod layers;
mod log;
mod machine;
mod origin;
mod plan;
mod runner;
mod scripts;
mod steps;
mod uploads;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use engine::Resources;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::{info, warn};
use uuid::Uuid;

use crate::error::SandboxError;
use crate::faults::Point;
use crate::log::LogLevel;
use crate::node::Node;
use crate::ports::{Records, RecordsError};
use crate::state::NodeState;
use crate::template::{
    Build, BuildFiles, BuildStatus, ChangeError, Defaults, Reference, Size, TemplateError, TemplateRecord, base_alias,
};

pub use layers::Layer;
pub use log::{BuildLine, BuildLog};
pub use origin::{ArchiveFormat, Origin};
pub use plan::{PlanError, Step};
pub use uploads::{MOST_BYTES as MOST_UPLOAD_BYTES, UploadError};

use layers::Layers;
use runner::{Failed, Job, Reporter};
use uploads::Uploads;

/// Builds that run concurrently; others wait for a permit.
const MAX_CONCURRENT_BUILDS: usize = 4;
/// Most builds whose logs are kept in memory.
const MOST_LOGS: usize = 200;

/// State that all builds share.
pub(crate) struct Builds {
    pub(crate) layers: Layers,
    /// By image key: builds of the same image share one pull, and a slow registry delays no other
    /// image.
    pull_locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    pub(crate) uploads: Uploads,
    permits: Semaphore,
    logs: Mutex<Logs>,
}

/// Logs of builds, and the order in which they started.
#[derive(Default)]
struct Logs {
    order: VecDeque<Uuid>,
    known: HashMap<Uuid, Arc<BuildLog>>,
}

impl Builds {
    pub(crate) fn new(records: Arc<dyn Records>, uploads: &Path) -> Self {
        Self {
            layers: Layers::new(records),
            pull_locks: Mutex::default(),
            uploads: Uploads::new(uploads),
            permits: Semaphore::new(MAX_CONCURRENT_BUILDS),
            logs: Mutex::default(),
        }
    }

    /// The lock that a build holds while it pulls the image `key`.
    fn pull_lock(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut known = self.pull_locks.lock();
        known.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = known.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::<tokio::sync::Mutex<()>>::default();
        known.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }

    /// The log of a build; empty if it was evicted or written by an earlier server.
    fn log(&self, build: Uuid) -> Arc<BuildLog> {
        let mut logs = self.logs.lock();
        let Logs { order, known } = &mut *logs;
        if let Some(log) = known.get(&build) {
            return Arc::clone(log);
        }
        order.push_back(build);
        if order.len() > MOST_LOGS
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        Arc::clone(known.entry(build).or_default())
    }
}

/// A request to build a template. The last stage becomes the template.
#[derive(Debug, Clone)]
pub struct BuildRequest {
    pub stages: Vec<StageRequest>,
    /// Run every step, without the cache.
    pub force: bool,
    pub start_command: Option<String>,
    pub ready_command: Option<String>,
}

/// One stage of a build.
#[derive(Debug, Clone)]
pub struct StageRequest {
    pub origin: Origin,
    pub steps: Vec<Step>,
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("the name '{0}' belongs to a template of this server")]
    Fixed(String),
    #[error("the name '{0}' belongs to a snapshot")]
    IsSnapshot(String),
    #[error("'{0}' cannot be a tag")]
    InvalidTag(String),
    #[error("template '{template}' has no build '{build}'")]
    Unknown { template: String, build: String },
    #[error("build '{0}' is not in waiting state")]
    NotWaiting(Uuid),
    #[error("'{0}' is no SHA-256 in lower-case hex digits")]
    InvalidHash(String),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Node(#[from] SandboxError),
}

impl From<RecordsError> for BuildError {
    fn from(error: RecordsError) -> Self {
        Self::Node(error.into())
    }
}

impl Node {
    /// Requests a build of the template `name`, which may include a tag; creates the template if it
    /// does not exist.
    ///
    /// # Errors
    /// [`BuildError::Template`], [`BuildError::Fixed`], [`BuildError::IsSnapshot`] or
    /// [`BuildError::InvalidTag`] if the name or a tag is not allowed; [`BuildError::Node`] if it
    /// cannot be recorded.
    pub async fn request_build(
        &self,
        name: &str,
        tags: &[String],
        size: Size,
    ) -> Result<(TemplateRecord, Build), BuildError> {
        let reference = Reference::parse(name)?;
        if !reference.is_local() {
            return Err(TemplateError::NotFound(reference.name()).into());
        }
        if base_alias(&reference).is_some() {
            return Err(BuildError::Fixed(reference.name()));
        }
        if self.node_state.templates.find(&reference).is_some_and(|known| known.is_snapshot()) {
            return Err(BuildError::IsSnapshot(reference.name()));
        }
        if let Some(bad) = tags.iter().find(|tag| !crate::template::is_tag(tag)) {
            return Err(BuildError::InvalidTag(bad.clone()));
        }
        let mut wanted: Vec<String> = reference.tag.iter().chain(tags).cloned().collect();
        if wanted.is_empty() {
            wanted.push(crate::template::DEFAULT_TAG.to_owned());
        }
        wanted.dedup();
        let now = self.node_state.clock.now();
        let build = Build {
            id: Uuid::new_v4(),
            status: BuildStatus::Waiting,
            files: BuildFiles::Base,
            defaults: Defaults::default(),
            size,
            of: None,
            wanted_tags: wanted,
            created_at: now,
            finished_at: None,
            failure: None,
        };
        let asked = build.clone();
        // An ID is a name, too: callers may request builds of a known template by it.
        let known = self.node_state.templates.find(&reference).and_then(|known| known.name.clone());
        let alias = known.unwrap_or(reference.alias);
        let add = |template: &mut TemplateRecord| template.builds.push(build);
        let (template, ()) = self.node_state.templates.change_or_make(Some(&alias), now, add).await?;
        Ok((template, asked))
    }

    /// Returns whether the archive was uploaded already, and a token to upload it with.
    pub fn upload_link(&self, template: &str, hash: &str) -> Result<(bool, crate::id::Token), BuildError> {
        let template = self.template(template)?;
        let uploads = &self.node_state.builds.uploads;
        let path = uploads.path(&template.id, hash).ok_or_else(|| BuildError::InvalidHash(hash.to_owned()))?;
        Ok((path.is_file(), uploads.link(&template.id, hash)))
    }

    /// Keeps an archive of `length` bytes that a client uploads with a link.
    pub async fn store_upload<E>(
        &self,
        template: &str,
        hash: &str,
        token: &str,
        length: u64,
        body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<(), UploadError> {
        self.node_state.builds.uploads.store((template, hash, token), length, body).await
    }

    /// Returns a build with its log.
    pub fn build(
        &self,
        template: &str,
        build: &str,
    ) -> Result<(Arc<TemplateRecord>, Build, Arc<BuildLog>), BuildError> {
        let found = self.template(template)?;
        let unknown = || BuildError::Unknown { template: template.to_owned(), build: build.to_owned() };
        let id = Uuid::parse_str(build).map_err(|_| unknown())?;
        let build = found.build(id).ok_or_else(unknown)?.clone();
        Ok((found, build, self.node_state.builds.log(id)))
    }

    /// Starts a waiting build. Steps that cannot succeed with any files are refused before anything
    /// runs.
    pub async fn start_build(&self, template: &str, build: &str, request: BuildRequest) -> Result<(), BuildError> {
        let (template, build, log) = self.build(template, build)?;
        check(&request)?;
        let Size { cpu_count, memory_mb, disk_mb } = build.size;
        let resources = Resources { cpu_count, memory_mb, disk_mb, pids: self.node_state.config.pids };
        let job = Job { template: template.id.clone(), request, resources, log };
        let id = build.id;
        if self.tasks.is_closed() {
            return Err(SandboxError::Stopping.into());
        }
        let begin = |template: &mut TemplateRecord| {
            let waiting = |build: &&mut Build| build.id == id && build.status == BuildStatus::Waiting;
            let found = template.builds.iter_mut().find(waiting).ok_or(BuildError::NotWaiting(id))?;
            found.status = BuildStatus::Building;
            Ok::<_, BuildError>(())
        };
        self.node_state.templates.change(&template.id, begin).await?;
        let node_state = Arc::clone(&self.node_state);
        self.tasks.spawn(async move { run_build(&node_state, &job, id).await });
        Ok(())
    }
}

/// Refuses steps that cannot succeed with any files. The stages' origins may contribute further
/// settings, which are not known yet.
fn check(request: &BuildRequest) -> Result<(), PlanError> {
    let (mut first, mut earlier) = (1, Vec::new());
    for StageRequest { origin, steps } in &request.stages {
        if let Origin::Stage(stage) = origin
            && *stage >= earlier.len()
        {
            return Err(PlanError { step: first, message: format!("there is no stage {stage} before this one") });
        }
        let context = plan::StageContext { key: "", settings: &Defaults::default(), first, earlier: &earlier };
        let planned = plan::plan(&context, steps, request.force)?;
        first += steps.len();
        earlier.push(planned.key);
    }
    Ok(())
}

/// Runs a build and records its result.
async fn run_build(node_state: &Arc<NodeState>, job: &Job, build: Uuid) {
    let Ok(_permit) = node_state.builds.permits.acquire().await else { return };
    let outcome = job.run(node_state).await;
    let now = node_state.clock.now();
    let finish = |step| Reporter { node_state, log: &job.log, step };
    let recorded = match outcome {
        Ok((files, settings)) => {
            finish(None).write(LogLevel::Info, "build finished");
            let kept = files.clone();
            let change =
                |template: &mut TemplateRecord| Ok::<_, ChangeError>(template.finish(build, kept, settings, now)?);
            let recorded = node_state.templates.change(&job.template, change).await;
            if let (Err(_), BuildFiles::Kept(files)) = (&recorded, files) {
                node_state.remove_unused(&[files]).await;
            }
            recorded
        }
        Err(Failed { message, step }) => {
            finish(step.clone()).write(LogLevel::Error, &message);
            let change = |template: &mut TemplateRecord| {
                if let Some(build) = template.builds.iter_mut().find(|known| known.id == build) {
                    build.fail(now, message, step);
                }
                Ok::<_, ChangeError>(Vec::new())
            };
            node_state.templates.change(&job.template, change).await
        }
    };
    node_state.faults.pass(Point::BuildRecorded);
    match recorded {
        Ok(unused) => {
            if let Some(template) = node_state.templates.get(&job.template) {
                node_state.describe_template(&template).await;
            }
            node_state.remove_unused(&unused).await;
            info!(template = job.template, %build, "a build has ended");
        }
        Err(error) => warn!(template = job.template, %build, %error, "the end of a build was not recorded"),
    }
}
