//! Bodies of a build: request it, upload its files, start it, watch it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rest::{LogLevel, null_is_empty};

/// `POST /v3/templates`: requests a build; `name` may include a tag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NewBuild {
    /// `NAME`, or `NAME:TAG`.
    pub name: String,
    /// More tags of the build.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Processors of its sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// MiB of memory of its sandboxes.
    #[serde(rename = "memoryMB", skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// MiB that sandboxes may write at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_free_disk_mb: Option<u32>,
}

/// A build that waits for its files and its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestedBuild {
    /// The template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The build.
    #[serde(rename = "buildID")]
    pub build_id: String,
    #[serde(default)]
    pub public: bool,
    /// Names of the template.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub names: Vec<String>,
    /// Tags of the build.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub tags: Vec<String>,
    /// Names without a namespace.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub aliases: Vec<String>,
}

/// `GET /templates/{id}/files/{hash}`: whether the server has the archive, and the upload URL if
/// not.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileUpload {
    /// The server has the archive.
    pub present: bool,
    /// Where to upload it, by `PUT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// To be sent with the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
}

/// Redacts the signed URL.
impl fmt::Debug for FileUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileUpload").field("present", &self.present).finish_non_exhaustive()
    }
}

/// `POST /v2/templates/{id}/builds/{buildID}`: starts a build. Exactly one of `from_image` and
/// `from_template` is set.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BuildStart {
    /// An image of a registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_image: Option<String>,
    /// A template or snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_template: Option<String>,
    /// Credentials of the registry: `type`, `username`, `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_image_registry: Option<Value>,
    /// Use nothing of the cache.
    pub force: bool,
    /// The instructions, in order.
    pub steps: Vec<Step>,
    /// Runs in every sandbox from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_cmd: Option<String>,
    /// Ends with 0 once a sandbox is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_cmd: Option<String>,
}

/// `POST /sandbar/templates/{id}/builds/{buildID}`: starts a build that E2B's call cannot express.
/// The last stage becomes the template; the others are bases or copy sources. Steps are numbered
/// across all stages.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct StagedBuildStart {
    /// In order; the last becomes the template.
    pub stages: Vec<BuildStage>,
    /// Use nothing of the cache.
    pub force: bool,
    /// Runs in every sandbox from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_cmd: Option<String>,
    /// Ends with 0 once a sandbox is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_cmd: Option<String>,
}

/// One stage with at most one of the four origins; without an origin it starts from the default
/// image.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BuildStage {
    /// An image of a registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_image: Option<String>,
    /// A template or snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_template: Option<String>,
    /// Index of an earlier stage, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_stage: Option<usize>,
    /// An archive that was uploaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_archive: Option<ArchiveOrigin>,
    /// Credentials of the registry: `type`, `username`, `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_image_registry: Option<Value>,
    /// The instructions, in order.
    pub steps: Vec<Step>,
}

/// An archive uploaded like the archives of copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ArchiveOrigin {
    /// Its digest, as it was uploaded.
    pub files_hash: String,
    /// What it has.
    pub format: ArchiveFormat,
}

/// The content of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ArchiveFormat {
    /// An image, as an OCI layout or as `docker save` writes it.
    Image,
    /// A file tree.
    Files,
}

/// Redacts registry passwords and arguments, which may contain secrets.
impl fmt::Debug for StagedBuildStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedBuildStart").field("stages", &self.stages.len()).finish_non_exhaustive()
    }
}

/// Redacts registry passwords and arguments, which may contain secrets.
impl fmt::Debug for BuildStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildStage").field("from_image", &self.from_image).finish_non_exhaustive()
    }
}

/// Redacts registry passwords and arguments, which may contain secrets.
impl fmt::Debug for BuildStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildStart")
            .field("from_image", &self.from_image)
            .field("from_template", &self.from_template)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

/// One instruction.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// `COPY`, `RUN`, `ENV`, `WORKDIR` or `USER`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// COPY: the archive that was uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_hash: Option<String>,
    /// Do not take this step and those after it from the cache.
    #[serde(default)]
    pub force: bool,
    /// A COPY reads its source from this stage instead of an archive; see [`StagedBuildStart`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_stage: Option<usize>,
    /// A COPY unpacks a source that is a tar archive; see [`StagedBuildStart`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unpack: bool,
}

/// Redacts the arguments, which may contain secrets.
impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BuildStatus {
    Waiting,
    Building,
    Ready,
    Error,
    /// Templates built before the server recorded statuses.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BuildLogEntry {
    pub timestamp: String,
    pub level: LogLevel,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// Why a build failed. `step` is the step's number from 1, `base` or `finalize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BuildFailure {
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub log_entries: Vec<BuildLogEntry>,
}

/// `GET /templates/{id}/builds/{buildID}/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BuildProgress {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub status: BuildStatus,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub logs: Vec<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub log_entries: Vec<BuildLogEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<BuildFailure>,
}

/// `GET /templates/{id}/builds/{buildID}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BuildLogPage {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub logs: Vec<BuildLogEntry>,
}
