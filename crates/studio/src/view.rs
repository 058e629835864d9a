//! What the studio shows: plain values, from records and sandboxes, which the REST face puts into its own words.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::id::{ProjectId, ScreenshotId, UserId};
use crate::job::Job;

/// Somebody who may use the studio.
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

/// What was used, against what there is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    pub total_usd: f64,
    pub month_usd: f64,
    /// The month's, where one is configured.
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

/// A preview that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    pub preview_url: Option<String>,
    pub sandbox_id: String,
}

/// How a preview is. Looking never wakes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewCheck {
    pub state: PreviewState,
    pub preview_url: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PreviewState {
    /// The sandbox runs, and nothing answers yet.
    Starting,
    Active,
    /// The application forbids to be shown inside of another page.
    Blocked,
    Paused,
    /// Gone for good.
    Expired,
    Unreachable,
    /// The job has none.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screenshot {
    pub id: ScreenshotId,
    pub device: String,
    pub width: u32,
    pub height: u32,
    pub taken_at: Timestamp,
    /// Why it was taken.
    pub reason: String,
}

/// A picture itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureFile {
    /// `image/webp` for those that the studio has taken.
    pub media_type: String,
    pub content: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotView {
    pub key: String,
    pub files: u64,
    pub bytes: u64,
    pub created_at: Timestamp,
    /// Whether it was seen to be whole.
    pub verified: bool,
}

/// Where files were read.
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
    /// None for one that is no text.
    pub text: Option<String>,
    /// Of the whole file.
    pub bytes: u64,
    pub binary: bool,
    /// The text is only the beginning.
    pub truncated: bool,
}

/// Something that happened in a job: one JSON object.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelineEvent {
    /// Its place, from 1, without gaps. Deltas have none: they are for eyes only and not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    pub ts: Timestamp,
    /// `type` and what belongs to it.
    #[serde(flatten)]
    pub body: Map<String, Value>,
}
