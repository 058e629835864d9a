//! Snapshots: states of a sandbox's files that new sandboxes can be created from. Each is a build
//! of a template; snapshots of the same name are builds of the same template.

use std::sync::Arc;
use std::time::Duration;

use engine::FilesId;
use jiff::Timestamp;
use protocol::SandboxId;
use tracing::warn;
use uuid::Uuid;

use crate::error::SandboxError;
use crate::faults::Point;
use crate::id::new_files_id;
use crate::lifecycle::State;
use crate::list::Cursor;
use crate::node::Node;
use crate::owner::Command;
use crate::ports::RecordsError;
use crate::sandbox::Record;
use crate::state::NodeState;
use crate::template::{
    Build, BuildFiles, BuildStatus, DEFAULT_TAG, Reference, Size, TemplateError, TemplateRecord, base_alias,
};

/// Longest wait for the sync of files before a copy. Without the sync the copy takes longer, with
/// the sandbox frozen.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// A snapshot as the API returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// A reference that create calls accept.
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
    /// Present if there are more pages.
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
    /// Keeps the current files of a sandbox, running or paused. A snapshot with an existing name
    /// adds a newer build to it.
    pub async fn snapshot(&self, id: &SandboxId, name: Option<&str>) -> Result<Snapshot, SnapshotError> {
        let name = name.map(Reference::parse).transpose()?;
        let (node_state, id) = (Arc::clone(&self.node_state), id.clone());
        self.complete(async move {
            if let Some(name) = &name {
                check_name(&node_state, name)?;
            }
            let files = new_files_id();
            sync_if_running(&node_state, &id).await;
            let to = files.clone();
            let source = node_state.ask(&id, |reply| Command::CopyFiles { to, purpose: "a snapshot", reply }).await?;
            node_state.faults.pass(Point::SnapshotCopied);
            let kept = keep(&node_state, &source, name.as_ref(), files.clone()).await;
            if kept.is_err() {
                node_state.remove_unused(&[files]).await;
            }
            kept
        })
        .await
    }

    /// Lists snapshots by the time of their first build, newest first.
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
        let found = self.node_state.templates.all().into_iter().filter(|template| matches(template));
        let (page, next) = page(found, query.limit, query.after.as_ref(), |template| {
            Cursor::new(template.created_at, template.id.clone())
        });
        let snapshots = page.iter().map(|template| to_snapshot(template, template.leading_tag())).collect();
        SnapshotPage { snapshots, next }
    }
}

/// Checks that the name is local and that no built template has it.
fn check_name(node_state: &NodeState, name: &Reference) -> Result<(), SnapshotError> {
    if !name.is_local() {
        return Err(TemplateError::NotFound(name.name()).into());
    }
    let built = node_state.templates.find(name).is_some_and(|known| !known.is_snapshot());
    if built || base_alias(name).is_some() {
        return Err(SnapshotError::Taken(name.name()));
    }
    Ok(())
}

async fn keep(
    node_state: &NodeState,
    source: &Record,
    name: Option<&Reference>,
    files: FilesId,
) -> Result<Snapshot, SnapshotError> {
    let now = node_state.clock.now();
    let tag = name.map_or(DEFAULT_TAG, Reference::tag).to_owned();
    let build = new_build(source, &tag, now);
    let (id, defaults) = (build.id, source.defaults.clone());
    let alias = name.map(|name| name.alias.as_str());
    let kept = node_state.templates.change_or_make(alias, now, |template| {
        template.builds.push(build);
        template.finish(id, BuildFiles::Kept(files), defaults, now)
    });
    let (template, unused) = kept.await?;
    node_state.describe_template(&template).await;
    node_state.faults.pass(Point::SnapshotRecorded);
    node_state.remove_unused(&unused?).await;
    Ok(to_snapshot(&template, &tag))
}

/// Syncs the files of a running sandbox before it is frozen, to keep the freeze short.
pub(crate) async fn sync_if_running(node_state: &NodeState, id: &SandboxId) {
    if node_state.view(id).is_some_and(|view| view.state == State::Running) {
        let synced = tokio::time::timeout(SYNC_TIMEOUT, node_state.engine.sync_files()).await;
        if !matches!(synced, Ok(Ok(()))) {
            warn!(sandbox = %id, "files were not written out before a copy");
        }
    }
}

/// Returns the first rows after `after`, newest first, and the cursor of the next page.
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

fn to_snapshot(template: &TemplateRecord, tag: &str) -> Snapshot {
    Snapshot { id: template.reference(tag), names: template.names() }
}

fn new_build(source: &Record, tag: &str, now: Timestamp) -> Build {
    Build {
        id: Uuid::new_v4(),
        status: BuildStatus::Ready,
        files: BuildFiles::Base,
        defaults: source.defaults.clone(),
        size: Size {
            cpu_count: source.spec.resources.cpu_count,
            memory_mb: source.spec.resources.memory_mb,
            disk_mb: source.spec.resources.disk_mb,
        },
        of: Some(source.id.to_string()),
        wanted_tags: vec![tag.to_owned()],
        created_at: now,
        finished_at: None,
        failure: None,
    }
}
