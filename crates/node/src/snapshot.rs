//! Snapshots: states of a sandbox's files that new sandboxes can begin with. Each is a build of a template, which the others
//! of the same name are builds of, too.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;
use uuid::Uuid;

use crate::error::SandboxError;
use crate::faults::Point;
use crate::id::{FilesId, SandboxId};
use crate::lifecycle::State;
use crate::list::Cursor;
use crate::node::Node;
use crate::owner::Command;
use crate::ports::RecordsError;
use crate::sandbox::Record;
use crate::template::{
    Build, BuildFiles, BuildStatus, DEFAULT_TAG, Reference, Size, TemplateError, TemplateRecord, base_alias,
};
use crate::world::World;

/// Longest wait for what machines have changed to be written out. A snapshot that is made before that takes longer, with the
/// sandbox frozen.
const SYNC_PATIENCE: Duration = Duration::from_secs(60);

/// A snapshot as it is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// A reference that creates understand.
    pub id: String,
    pub names: Vec<String>,
}

/// Which snapshots to list.
#[derive(Debug, Clone)]
pub struct SnapshotQuery {
    pub of: Option<SandboxId>,
    pub name: Option<Reference>,
    pub limit: usize,
    pub after: Option<Cursor>,
}

pub struct SnapshotPage {
    pub snapshots: Vec<Snapshot>,
    /// Present when there is more.
    pub next: Option<Cursor>,
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    Name(#[from] TemplateError),
    #[error("the name '{0}' belongs to a template of this server")]
    Taken(String),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl From<RecordsError> for SnapshotError {
    fn from(error: RecordsError) -> Self {
        Self::Sandbox(error.into())
    }
}

impl Node {
    /// Keeps the files of a sandbox, running or paused, as they are now. The same name again adds a newer state.
    pub async fn snapshot(&self, id: &SandboxId, name: Option<&str>) -> Result<Snapshot, SnapshotError> {
        let name = name.map(Reference::parse).transpose()?;
        let (world, id) = (Arc::clone(&self.world), id.clone());
        self.complete(async move {
            if let Some(name) = &name {
                check_name(&world, name)?;
            }
            let files = FilesId::random();
            sync_if_running(&world, &id).await;
            let to = files.clone();
            let source = world.ask(&id, |reply| Command::CopyFiles { to, purpose: "a snapshot", reply }).await?;
            world.faults.pass(Point::SnapshotCopied);
            let kept = keep(&world, &source, name.as_ref(), files.clone()).await;
            if kept.is_err() {
                world.remove_unused(&[files]).await;
            }
            kept
        })
        .await
    }

    /// Snapshots by the moment of their first state, newest first.
    pub fn snapshots(&self, query: &SnapshotQuery) -> SnapshotPage {
        let matches = |template: &TemplateRecord| {
            let is_named = |name: &Reference| {
                name.is_local() && (template.id == name.alias || template.name.as_deref() == Some(&name.alias))
            };
            template.is_snapshot()
                && template.is_usable()
                && query.of.as_ref().is_none_or(|sandbox| template.is_snapshot_of(sandbox))
                && query.name.as_ref().is_none_or(is_named)
        };
        let found = self.world.templates.all().into_iter().filter(|template| matches(template));
        let (page, next) = page(found, query.limit, query.after.as_ref(), |template| {
            Cursor::new(template.created_at, template.id.clone())
        });
        let snapshots = page.iter().map(|template| shown(template, template.leading_tag())).collect();
        SnapshotPage { snapshots, next }
    }
}

/// A name of ours that no built template has.
fn check_name(world: &World, name: &Reference) -> Result<(), SnapshotError> {
    if !name.is_local() {
        return Err(TemplateError::NotFound(name.name()).into());
    }
    let built = world.templates.find(name).is_some_and(|known| !known.is_snapshot());
    if built || base_alias(name).is_some() {
        return Err(SnapshotError::Taken(name.name()));
    }
    Ok(())
}

async fn keep(
    world: &World,
    source: &Record,
    name: Option<&Reference>,
    files: FilesId,
) -> Result<Snapshot, SnapshotError> {
    let now = world.clock.now();
    let tag = name.map_or(DEFAULT_TAG, Reference::tag).to_owned();
    let build = build_of(source, &tag, now);
    let (id, defaults) = (build.id, source.defaults.clone());
    let alias = name.map(|name| name.alias.as_str());
    let kept = world.templates.change_or_make(alias, now, |template| {
        template.builds.push(build);
        template.finish(id, BuildFiles::Kept(files), defaults, now)
    });
    let (template, unused) = kept.await?;
    world.describe_template(&template).await;
    world.faults.pass(Point::SnapshotRecorded);
    world.remove_unused(&unused?).await;
    Ok(shown(&template, &tag))
}

/// Writes out what a running sandbox has changed before it is frozen, to keep that short.
pub(crate) async fn sync_if_running(world: &World, id: &SandboxId) {
    if world.view(id).is_some_and(|view| view.state == State::Running) {
        let synced = tokio::time::timeout(SYNC_PATIENCE, world.engine.sync_files()).await;
        if !matches!(synced, Ok(Ok(()))) {
            warn!(sandbox = %id, "files were not written out before a copy");
        }
    }
}

/// The first rows after `after`, newest first, and where the next page begins.
pub(crate) fn page<T>(
    rows: impl Iterator<Item = T>,
    limit: usize,
    after: Option<&Cursor>,
    cursor: impl Fn(&T) -> Cursor,
) -> (Vec<T>, Option<Cursor>) {
    let mut rows: Vec<(Cursor, T)> = rows.map(|row| (cursor(&row), row)).collect();
    rows.retain(|(cursor, _)| after.is_none_or(|after| cursor < after));
    rows.sort_by(|(one, _), (other, _)| other.cmp(one));
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|(cursor, _)| cursor.clone());
    (rows.into_iter().map(|(_, row)| row).collect(), next)
}

fn shown(template: &TemplateRecord, tag: &str) -> Snapshot {
    Snapshot { id: template.reference(tag), names: template.names() }
}

fn build_of(source: &Record, tag: &str, now: Timestamp) -> Build {
    Build {
        id: Uuid::new_v4(),
        status: BuildStatus::Ready,
        files: BuildFiles::Base,
        defaults: source.defaults.clone(),
        size: Size {
            cpu_count: source.resources.cpu_count,
            memory_mb: source.resources.memory_mb,
            disk_mb: source.resources.disk_mb,
        },
        of: Some(source.id.to_string()),
        wanted_tags: vec![tag.to_owned()],
        created_at: now,
        finished_at: None,
        failure: None,
    }
}
