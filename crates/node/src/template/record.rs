//! The record of a template: one document, which is stored and replaced as a whole.

use std::collections::BTreeMap;
use std::fmt;

use engine::FilesId;
use jiff::Timestamp;
use protocol::SandboxId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::reference::{DEFAULT_TAG, NAMESPACE};

/// A template that exists, and the name it was requested by.
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
    /// Runs at every boot: no memory is kept in which it would still run.
    pub start_command: Option<String>,
    /// Succeeds when the program that the start command started can be used.
    pub ready_command: Option<String>,
}

/// Without variables and commands, which may contain secrets.
impl fmt::Debug for Defaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Defaults").field("user", &self.user).field("workdir", &self.workdir).finish_non_exhaustive()
    }
}

/// Resources of a template's sandboxes, unless the create call has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
}

/// A template with all its builds.
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
    /// The sandbox that it is a snapshot of.
    pub of: Option<String>,
    /// Tags that it gets when it is ready.
    pub wanted_tags: Vec<String>,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub failure: Option<BuildFailure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuildStatus {
    /// Requested, not started.
    Waiting,
    Building,
    Ready,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuildFiles {
    /// No files yet, or the base without changes.
    Base,
    Kept(FilesId),
    /// The files were removed because no tag led to them.
    Removed,
}

/// Why a build failed: `step` is the number of the step, from 1, or `base` or `finalize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildFailure {
    pub message: String,
    pub step: Option<String>,
}

impl TemplateRecord {
    /// Its names, with the namespace.
    pub fn names(&self) -> Vec<String> {
        self.name.iter().map(|name| format!("{NAMESPACE}/{name}")).collect()
    }

    pub fn build(&self, id: Uuid) -> Option<&Build> {
        self.builds.iter().find(|build| build.id == id)
    }

    pub(super) fn build_mut(&mut self, id: Uuid) -> Option<&mut Build> {
        self.builds.iter_mut().find(|build| build.id == id)
    }

    /// The build that `tag` points to.
    pub fn tagged(&self, tag: &str) -> Option<&Build> {
        self.build(self.tags.get(tag)?.build)
    }

    /// Whether sandboxes can be created from it.
    pub fn is_usable(&self) -> bool {
        !self.tags.is_empty()
    }

    pub fn is_snapshot(&self) -> bool {
        self.builds.iter().any(|build| build.of.is_some())
    }

    pub fn is_snapshot_of(&self, sandbox: &SandboxId) -> bool {
        self.builds.iter().any(|build| build.of.as_deref() == Some(sandbox.as_str()))
    }

    /// The reference of its tag `tag`.
    pub fn reference(&self, tag: &str) -> String {
        match &self.name {
            Some(name) => format!("{NAMESPACE}/{name}:{tag}"),
            None => format!("{}:{tag}", self.id),
        }
    }

    /// The tag that represents the template: the default one, else the newest.
    pub fn leading_tag(&self) -> &str {
        let newest = || self.tags.iter().max_by_key(|(_, tag)| tag.created_at).map(|(name, _)| name.as_str());
        if self.tags.contains_key(DEFAULT_TAG) { DEFAULT_TAG } else { newest().unwrap_or(DEFAULT_TAG) }
    }

    /// All its files.
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
