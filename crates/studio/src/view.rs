//! Values that the studio returns. The REST layer converts them into its own types.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::id::{ProjectId, ScreenshotId, UserId};
use crate::job::Job;

/// A user of the studio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub id: UserId,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Project {
    pub id: ProjectId,
    pub name: String,
    pub created_at: Timestamp,
    pub cost_usd: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Dashboard {
    pub user: User,
    pub credits: i64,
    /// The newest first.
    pub projects: Vec<Project>,
    /// The newest first.
    pub jobs: Vec<Job>,
    pub usage: Totals,
    pub models: Vec<String>,
    pub default_model: Option<String>,
}

/// Used amounts and their limits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    pub total_usd: f64,
    pub month_usd: f64,
    /// The monthly budget, where one is configured.
    pub budget_usd: Option<f64>,
    pub plans: Vec<PlanUse>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PlanUse {
    pub provider: String,
    pub what: String,
    pub used: f64,
    pub limit: f64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageReport {
    pub total_usd: f64,
    pub lines: Vec<UsageLine>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct UsageLine {
    pub what: String,
    pub provider: Option<String>,
    pub model: Option<String>,
    pub quantity: f64,
    pub unit: &'static str,
    pub cost_usd: f64,
}

/// A preview whose application responds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    pub preview_url: Option<String>,
    pub sandbox_id: String,
}

/// The state of a preview. Reading it never resumes the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewCheck {
    pub state: PreviewState,
    pub preview_url: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PreviewState {
    /// The sandbox runs, and its application does not respond yet.
    Starting,
    Active,
    /// The application forbids other pages to embed it.
    Blocked,
    Paused,
    /// The sandbox is gone and cannot be resumed.
    Expired,
    Unreachable,
    /// The job has no preview.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screenshot {
    pub id: ScreenshotId,
    pub device: String,
    pub width: u32,
    pub height: u32,
    pub taken_at: Timestamp,
    /// Why it was taken, for people.
    pub reason: String,
}

/// The content of a screenshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenshotFile {
    /// `image/webp` for screenshots that the studio took.
    pub media_type: String,
    pub content: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotView {
    pub key: String,
    pub files: u64,
    pub bytes: u64,
    pub created_at: Timestamp,
    /// Whether its archive was read back and compared.
    pub verified: bool,
}

/// Where the files were read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileSource {
    Sandbox,
    Snapshot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub source: FileSource,
    /// Relative to the project; empty for the project itself.
    pub path: String,
    /// Directories first, then by name.
    pub entries: Vec<FileEntry>,
    /// The directory has more entries than are listed.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    pub name: String,
    /// Relative to the project.
    pub path: String,
    pub kind: FileKind,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    Directory,
    File,
    Link,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub source: FileSource,
    pub path: String,
    /// None for a binary file.
    pub text: Option<String>,
    /// The size of the whole file.
    pub bytes: u64,
    pub binary: bool,
    /// `text` is only the beginning of the file.
    pub truncated: bool,
}

/// An event on a job's timeline: one JSON object.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelineEvent {
    /// The event's number, from 1, without gaps. Deltas are not recorded and have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    pub ts: Timestamp,
    /// `type` and the fields of that type.
    #[serde(flatten)]
    pub body: Map<String, Value>,
}
