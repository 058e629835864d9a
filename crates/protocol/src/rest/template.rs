//! Bodies of the template calls: build one, list templates, change their names and tags.

mod build;

use serde::{Deserialize, Serialize};

use super::null_is_empty;
pub use build::{
    ArchiveFormat, ArchiveOrigin, BuildFailure, BuildLogEntry, BuildLogPage, BuildProgress, BuildStage, BuildStart,
    BuildStatus, FileUpload, NewBuild, RequestedBuild, StagedBuildStart, Step,
};

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
