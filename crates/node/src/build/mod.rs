//! Building templates: a build is asked for, fed with archives, started, watched.
//!
//! Every step that changes files is followed by a copy of them, which costs the same whatever they hold, so states never pile
//! up in layers. The copies are a cache: a build whose first steps are those of an earlier one begins where they part.

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
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use futures::Stream;
use tokio::sync::Semaphore;
use tracing::{info, warn};
use uuid::Uuid;

use crate::error::SandboxError;
use crate::faults::Point;
use crate::log::LogLevel;
use crate::node::Node;
use crate::ports::{Records, RecordsError};
use crate::sandbox::Resources;
use crate::template::{
    Build, BuildFiles, BuildStatus, ChangeError, Defaults, Reference, Size, TemplateError, TemplateRecord, base_alias,
};
use crate::world::World;

pub use layers::Layer;
pub use log::{BuildLine, BuildLog};
pub use origin::{ArchiveFormat, Origin};
pub use plan::{PlanError, Step};
pub use uploads::{MOST_BYTES as MOST_UPLOAD_BYTES, UploadError};

use layers::Layers;
use runner::{Failed, Job, Reporter};
use uploads::Uploads;

/// Builds that run at once; others wait for their turn.
const AT_ONCE: usize = 4;
/// Builds whose logs are remembered.
const MOST_LOGS: usize = 200;

/// What builds share.
pub(crate) struct Builds {
    pub(crate) layers: Layers,
    /// By the image's key: two builds that want the same image share one pull, and a slow registry delays no other image.
    pulling: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    pub(crate) uploads: Uploads,
    turns: Semaphore,
    logs: Mutex<Logs>,
}

/// What builds said, and in which order they began.
#[derive(Default)]
struct Logs {
    order: VecDeque<Uuid>,
    known: HashMap<Uuid, Arc<BuildLog>>,
}

impl Builds {
    pub(crate) fn new(records: Arc<dyn Records>, uploads: &Path) -> Self {
        Self {
            layers: Layers::new(records),
            pulling: Mutex::default(),
            uploads: Uploads::new(uploads),
            turns: Semaphore::new(AT_ONCE),
            logs: Mutex::default(),
        }
    }

    /// To be locked while the image `key` is pulled.
    fn pulling(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut known = self.pulling.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = known.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::<tokio::sync::Mutex<()>>::default();
        known.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }

    /// The log of a build; an empty one when it was forgotten, or written by an earlier server.
    fn log(&self, build: Uuid) -> Arc<BuildLog> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
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

/// What a build is to do. The last stage becomes the template.
#[derive(Debug, Clone)]
pub struct BuildRequest {
    pub stages: Vec<StageRequest>,
    /// Do everything anew.
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
    /// Asks for a build of the template `name`, which may carry a tag; makes the template if there is none.
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
        if self.world.templates.find(&reference).is_some_and(|known| known.is_snapshot()) {
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
        let now = self.world.clock.now();
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
        // An ID is a name, too: builds of a known template may be asked for by it.
        let known = self.world.templates.find(&reference).and_then(|known| known.name.clone());
        let alias = known.unwrap_or(reference.alias);
        let add = |template: &mut TemplateRecord| template.builds.push(build);
        let (template, ()) = self.world.templates.change_or_make(Some(&alias), now, add).await?;
        Ok((template, asked))
    }

    /// Whether an archive is there already, and a token to send it with.
    pub fn upload_link(&self, template: &str, hash: &str) -> Result<(bool, crate::id::Token), BuildError> {
        let template = self.template(template)?;
        let uploads = &self.world.builds.uploads;
        let path = uploads.path(&template.id, hash).ok_or_else(|| BuildError::InvalidHash(hash.to_owned()))?;
        Ok((path.is_file(), uploads.link(&template.id, hash)))
    }

    /// Keeps an archive of `length` bytes that a client sends with a link.
    pub async fn store_upload<E>(
        &self,
        template: &str,
        hash: &str,
        token: &str,
        length: u64,
        body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<(), UploadError> {
        self.world.builds.uploads.store((template, hash, token), length, body).await
    }

    /// A build with its log.
    pub fn build(
        &self,
        template: &str,
        build: &str,
    ) -> Result<(Arc<TemplateRecord>, Build, Arc<BuildLog>), BuildError> {
        let found = self.template(template)?;
        let unknown = || BuildError::Unknown { template: template.to_owned(), build: build.to_owned() };
        let id = Uuid::parse_str(build).map_err(|_| unknown())?;
        let build = found.build(id).ok_or_else(unknown)?.clone();
        Ok((found, build, self.world.builds.log(id)))
    }

    /// Starts a build that waits. What cannot be done whatever the files are is refused before anything runs.
    pub async fn start_build(&self, template: &str, build: &str, request: BuildRequest) -> Result<(), BuildError> {
        let (template, build, log) = self.build(template, build)?;
        check(&request)?;
        let Size { cpu_count, memory_mb, disk_mb } = build.size;
        let resources = Resources { cpu_count, memory_mb, disk_mb, pids: self.world.config.pids };
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
        self.world.templates.change(&template.id, begin).await?;
        let world = Arc::clone(&self.world);
        self.tasks.spawn(async move { carry_out(&world, &job, id).await });
        Ok(())
    }
}

/// Refuses steps that cannot be done whatever the files are. What stages begin with may say more about settings; it is not known yet.
fn check(request: &BuildRequest) -> Result<(), PlanError> {
    let (mut first, mut earlier) = (1, Vec::new());
    for StageRequest { origin, steps } in &request.stages {
        if let Origin::Stage(stage) = origin
            && *stage >= earlier.len()
        {
            return Err(PlanError { step: first, message: format!("there is no stage {stage} before this one") });
        }
        let ground = plan::Ground { key: "", settings: &Defaults::default(), first, earlier: &earlier };
        let planned = plan::plan(&ground, steps, request.force)?;
        first += steps.len();
        earlier.push(planned.key);
    }
    Ok(())
}

/// Does a build and records how it ended.
async fn carry_out(world: &Arc<World>, job: &Job, build: Uuid) {
    let Ok(_turn) = world.builds.turns.acquire().await else { return };
    let outcome = job.run(world).await;
    let now = world.clock.now();
    let finish = |step| Reporter { world, log: &job.log, step };
    let recorded = match outcome {
        Ok((files, settings)) => {
            finish(None).write(LogLevel::Info, "build finished");
            let kept = files.clone();
            let change =
                |template: &mut TemplateRecord| Ok::<_, ChangeError>(template.finish(build, kept, settings, now)?);
            let recorded = world.templates.change(&job.template, change).await;
            if let (Err(_), BuildFiles::Kept(files)) = (&recorded, files) {
                world.remove_unused(&[files]).await;
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
            world.templates.change(&job.template, change).await
        }
    };
    world.faults.pass(Point::BuildRecorded);
    match recorded {
        Ok(unused) => {
            if let Some(template) = world.templates.get(&job.template) {
                world.describe_template(&template).await;
            }
            world.remove_unused(&unused).await;
            info!(template = job.template, %build, "a build has ended");
        }
        Err(error) => warn!(template = job.template, %build, %error, "the end of a build was not recorded"),
    }
}
