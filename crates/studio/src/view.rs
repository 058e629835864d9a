//! What the studio returns. The REST API sends these types as they are.

use bytes::Bytes;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::id::{JobId, ProjectId, ScreenshotId, UserId};
use crate::job::Status;

/// A user of the studio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub id: UserId,
    pub name: String,
}

/// The authenticated user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Me {
    pub name: String,
    /// The remaining build credits.
    pub credits: i64,
}

/// A build.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Job {
    #[serde(rename = "job_id")]
    pub id: JobId,
    #[serde(rename = "project_id")]
    pub project: ProjectId,
    pub project_name: String,
    pub goal: String,
    pub model: String,
    pub status: Status,
    /// The current stage, for people.
    pub stage_label: String,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub created_at: Timestamp,
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub finished_at: Option<Timestamp>,
    /// Increases with every build of the project.
    pub build_version: u32,
    /// Null while the sandbox is paused.
    pub preview_url: Option<String>,
    pub sandbox_paused: bool,
    pub sandbox_id: Option<String>,
    /// When the sandbox expires, as far as it is known.
    #[serde(skip)]
    pub sandbox_expires_at: Option<Timestamp>,
    /// The cost of the model and the sandboxes.
    pub cost_usd: f64,
    /// Null while the sandbox is paused.
    pub screenshot_url: Option<String>,
    /// What failed, and what to do next.
    pub error_message: Option<String>,
    /// The name of the build in the server's logs.
    pub debug_id: String,
    pub rebuilt_from: Option<JobId>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Project {
    #[serde(rename = "project_id")]
    pub id: ProjectId,
    pub name: String,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub created_at: Timestamp,
    /// Includes deleted builds.
    pub cost_usd: f64,
}

/// The user's projects, builds and usage.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Dashboard {
    pub user: Me,
    /// The newest first.
    pub projects: Vec<Project>,
    /// The newest first.
    pub jobs: Vec<Job>,
    pub usage: Totals,
    /// The models that can be chosen.
    pub models: Vec<String>,
    pub default_model: Option<String>,
}

/// Used amounts and their limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "TotalUsage")]
pub struct Totals {
    pub total_usd: f64,
    pub month_usd: f64,
    /// The monthly budget, where one is configured.
    pub budget_usd: Option<f64>,
    pub plans: Vec<PlanUse>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PlanUsage")]
pub struct PlanUse {
    pub provider: String,
    pub what: String,
    pub used: f64,
    pub limit: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
pub struct UsageReport {
    pub total_usd: f64,
    pub lines: Vec<UsageLine>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct UsageLine {
    pub what: String,
    pub provider: Option<String>,
    pub model: Option<String>,
    pub quantity: f64,
    pub unit: &'static str,
    pub cost_usd: f64,
}

/// A preview whose application responds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Resumed")]
pub struct ResumedPreview {
    /// Null when the build has no page.
    pub preview_url: Option<String>,
    pub sandbox_id: String,
}

/// The state of a preview. Reading it never resumes the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Preview")]
pub struct PreviewCheck {
    pub state: PreviewState,
    pub preview_url: Option<String>,
    /// For people.
    pub reason: Option<String>,
}

/// The state of a preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PreviewStateView")]
pub enum PreviewState {
    // Comments and not docs, so that the document lists the words alone.
    // The sandbox runs, and its application does not respond yet.
    Starting,
    Active,
    // The application forbids other pages to embed it.
    Blocked,
    Paused,
    // The sandbox is gone and cannot be resumed.
    Expired,
    Unreachable,
    // The job has no preview.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Screenshot")]
pub struct ScreenshotView {
    pub id: ScreenshotId,
    /// `desktop` or `mobile`.
    pub device: String,
    pub width: u32,
    pub height: u32,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub taken_at: Timestamp,
    /// Why it was taken, for people.
    pub reason: String,
    pub url: String,
}

/// The content of a screenshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenshotFile {
    /// `image/webp` for screenshots that the studio took.
    pub media_type: String,
    pub content: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Snapshot")]
pub struct SnapshotView {
    pub key: String,
    pub files: u64,
    pub bytes: u64,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub created_at: Timestamp,
    /// Whether its archive was read back and compared.
    pub verified: bool,
}

/// Where the files were read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Source")]
pub enum FileSource {
    Sandbox,
    Snapshot,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "FileList")]
pub struct Listing {
    pub source: FileSource,
    /// Relative to the project; empty for the project itself.
    pub path: String,
    /// Directories first, then by name.
    pub entries: Vec<FileEntry>,
    /// The directory has more entries than are listed.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Entry")]
pub struct FileEntry {
    pub name: String,
    /// Relative to the project.
    pub path: String,
    pub kind: FileKind,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "EntryKind")]
pub enum FileKind {
    Directory,
    File,
    Link,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "FileText")]
pub struct FileContent {
    pub source: FileSource,
    pub path: String,
    /// Null for a binary file.
    pub text: Option<String>,
    /// The size of the whole file.
    pub bytes: u64,
    pub binary: bool,
    /// `text` is only the beginning of the file.
    pub truncated: bool,
}
