//! Bodies of the template calls: request a build, upload its files, start it, watch it, list
//! templates.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{LogLevel, null_is_empty};

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

/// One template of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Template {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID", default)]
    pub build_id: String,
    #[serde(default)]
    pub cpu_count: u32,
    #[serde(rename = "memoryMB", default)]
    pub memory_mb: u32,
    #[serde(rename = "diskSizeMB", default)]
    pub disk_size_mb: u32,
    #[serde(default)]
    pub public: bool,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub aliases: Vec<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub names: Vec<String>,
    #[serde(default)]
    pub created_at: String,
    #[serde(default)]
    pub updated_at: String,
    #[serde(default)]
    pub created_by: Option<TeamUser>,
    #[serde(default)]
    pub last_spawned_at: Option<String>,
    #[serde(default)]
    pub spawn_count: u64,
    #[serde(default)]
    pub build_count: u64,
    #[serde(default)]
    pub envd_version: String,
    #[serde(default = "unknown")]
    pub build_status: BuildStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_default: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

fn unknown() -> BuildStatus {
    BuildStatus::Unknown
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TeamUser {
    pub id: String,
    #[serde(default)]
    pub email: Option<String>,
}

/// `GET /templates/{id}`; servers omit the fields that the list takes from the latest build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TemplateWithBuilds {
    #[serde(flatten)]
    pub template: Template,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub builds: Vec<TemplateBuild>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TemplateBuild {
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub status: BuildStatus,
    pub created_at: String,
    pub updated_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    #[serde(rename = "diskSizeMB", default, skip_serializing_if = "Option::is_none")]
    pub disk_size_mb: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_version: Option<String>,
}

/// `GET /templates/aliases/{alias}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TemplateAlias {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(default)]
    pub public: bool,
}

/// `PATCH /v2/templates/{id}`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TemplateUpdate {
    /// Recorded and shown; one key reads all templates anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TemplateUpdated {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub names: Vec<String>,
}

/// `POST /templates/tags`: `target` is `name[:tag]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AssignTags {
    /// `NAME` or `NAME:TAG`: the build that gets the tags.
    pub target: String,
    /// The tags.
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AssignedTags {
    #[serde(rename = "buildID")]
    pub build_id: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub tags: Vec<String>,
}

/// `DELETE /templates/tags`: `name` has no tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RemoveTags {
    /// The name, without a tag.
    pub name: String,
    /// The tags.
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TemplateTag {
    pub tag: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub created_at: String,
}
