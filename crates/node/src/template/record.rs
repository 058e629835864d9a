//! What is known of a template. The whole of one is a document: it is stored and replaced as a whole.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::reference::{DEFAULT_TAG, NAMESPACE};
use crate::id::{FilesId, SandboxId};

/// A template that exists, and the name it was asked for by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub id: String,
    pub alias: Option<String>,
}

/// What sandboxes of a template start with, besides its files.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Defaults {
    pub env: BTreeMap<String, String>,
    /// Absent: `user`.
    pub user: Option<String>,
    /// Absent: the user's home.
    pub workdir: Option<String>,
    /// Run at every boot: no memory is kept in which it would still run.
    pub start_command: Option<String>,
    /// Succeeds when what the start command started can be used.
    pub ready_command: Option<String>,
}

/// Variables and commands may hold secrets.
impl fmt::Debug for Defaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Defaults").field("user", &self.user).field("workdir", &self.workdir).finish_non_exhaustive()
    }
}

/// What a sandbox of a template gets unless its create says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
}

/// A template with every build of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TemplateRecord {
    pub id: String,
    /// Without the namespace.
    pub name: Option<String>,
    pub public: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Oldest first.
    pub builds: Vec<Build>,
    pub tags: BTreeMap<String, Tag>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    pub build: Uuid,
    pub created_at: Timestamp,
}

/// One state of a template's files and settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Build {
    pub id: Uuid,
    pub status: BuildStatus,
    pub files: BuildFiles,
    pub defaults: Defaults,
    pub size: Size,
    /// The sandbox it is a snapshot of.
    pub of: Option<String>,
    /// Tags it gets when it is ready.
    pub wanted_tags: Vec<String>,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub failure: Option<BuildFailure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuildStatus {
    /// Asked for, not started.
    Waiting,
    Building,
    Ready,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuildFiles {
    /// None yet, or nothing but the base itself.
    Base,
    Kept(FilesId),
    /// No tag led to them any more.
    Removed,
}

/// Why a build failed: `step` is its number from 1 on, `base` or `finalize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildFailure {
    pub message: String,
    pub step: Option<String>,
}

impl TemplateRecord {
    /// The names by which it can be asked for, namespace included.
    pub fn names(&self) -> Vec<String> {
        self.name.iter().map(|name| format!("{NAMESPACE}/{name}")).collect()
    }

    pub fn build(&self, id: Uuid) -> Option<&Build> {
        self.builds.iter().find(|build| build.id == id)
    }

    pub(super) fn build_mut(&mut self, id: Uuid) -> Option<&mut Build> {
        self.builds.iter_mut().find(|build| build.id == id)
    }

    /// The build that `tag` stands for.
    pub fn tagged(&self, tag: &str) -> Option<&Build> {
        self.build(self.tags.get(tag)?.build)
    }

    /// Whether sandboxes can be made from it.
    pub fn is_usable(&self) -> bool {
        !self.tags.is_empty()
    }

    pub fn is_snapshot(&self) -> bool {
        self.builds.iter().any(|build| build.of.is_some())
    }

    pub fn is_snapshot_of(&self, sandbox: &SandboxId) -> bool {
        self.builds.iter().any(|build| build.of.as_deref() == Some(sandbox.as_str()))
    }

    /// The reference under which `tag` of it is handed out.
    pub fn reference(&self, tag: &str) -> String {
        match &self.name {
            Some(name) => format!("{NAMESPACE}/{name}:{tag}"),
            None => format!("{}:{tag}", self.id),
        }
    }

    /// The tag that stands for the whole: the default one, else the newest.
    pub fn leading_tag(&self) -> &str {
        let newest = || self.tags.iter().max_by_key(|(_, tag)| tag.created_at).map(|(name, _)| name.as_str());
        if self.tags.contains_key(DEFAULT_TAG) { DEFAULT_TAG } else { newest().unwrap_or(DEFAULT_TAG) }
    }

    /// Everything kept for it.
    pub fn files(&self) -> impl Iterator<Item = &FilesId> {
        self.builds.iter().filter_map(|build| match &build.files {
            BuildFiles::Kept(files) => Some(files),
            BuildFiles::Base | BuildFiles::Removed => None,
        })
    }

    pub(super) fn assign(&mut self, tag: &str, build: Uuid, now: Timestamp) {
        self.tags.insert(tag.to_owned(), Tag { build, created_at: now });
    }
}
