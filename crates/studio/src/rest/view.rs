//! Wire types of responses, made from the studio's values field by field.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Dashboard, FileContent, FileEntry, FileKind, FileSource, Job, JobId, Listing, PlanUse, PreviewCheck, PreviewState,
    Project, ProjectId, Resumed, Screenshot, ScreenshotId, SnapshotView, Status, Totals, UsageLine, UsageReport,
};

/// Defines a wire enum from one of the studio's: a new variant does not compile until it is added.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident of $from:ident: $($case:ident),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub(super) enum $name {
            $($case),+
        }

        impl From<$from> for $name {
            fn from(value: $from) -> Self {
                match value {
                    $($from::$case => Self::$case),+
                }
            }
        }
    };
}

words!(
    /// The status of a build.
    JobStatus of Status: Queued, Provisioning, Building, Ready, Failed, Cancelled
);
words!(
    /// The state of a preview.
    PreviewStateView of PreviewState: Starting, Active, Blocked, Paused, Expired, Unreachable, None
);
words!(
    /// Where the files were read from.
    Source of FileSource: Sandbox, Snapshot
);
words!(EntryKind of FileKind: File, Directory, Link);

/// A build that was queued or changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StartedBuild {
    job_id: JobId,
    status: JobStatus,
}

impl From<Job> for StartedBuild {
    fn from(job: Job) -> Self {
        Self { job_id: job.id, status: job.status.into() }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GenerationStatus {
    job_id: JobId,
    status: JobStatus,
    /// The current stage, for people.
    stage_label: String,
    /// Null while the sandbox is paused.
    preview_url: Option<String>,
    /// Increases with every build of the project.
    build_version: u32,
    error_message: Option<String>,
    /// The name of the build in the server's logs.
    debug_id: String,
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    sandbox_expires_at: Option<Timestamp>,
    sandbox_paused: bool,
}

impl From<Job> for GenerationStatus {
    fn from(job: Job) -> Self {
        Self {
            job_id: job.id,
            status: job.status.into(),
            stage_label: job.stage_label,
            preview_url: job.preview_url,
            build_version: job.build_version,
            error_message: job.error_message,
            debug_id: job.debug_id,
            sandbox_expires_at: job.sandbox_expires_at,
            sandbox_paused: job.sandbox_paused,
        }
    }
}

/// A build.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Job")]
pub(super) struct JobView {
    job_id: JobId,
    project_id: ProjectId,
    project_name: String,
    goal: String,
    model: String,
    status: JobStatus,
    /// The current stage, for people.
    stage_label: String,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    finished_at: Option<Timestamp>,
    /// Increases with every build of the project.
    build_version: u32,
    /// Null while the sandbox is paused.
    preview_url: Option<String>,
    sandbox_paused: bool,
    sandbox_id: Option<String>,
    /// The cost of the model and the sandboxes.
    cost_usd: f64,
    /// Null while the sandbox is paused.
    screenshot_url: Option<String>,
    error_message: Option<String>,
    /// The name of the build in the server's logs.
    debug_id: String,
    rebuilt_from: Option<JobId>,
}

impl From<Job> for JobView {
    fn from(job: Job) -> Self {
        let Job {
            id,
            project,
            project_name,
            goal,
            model,
            status,
            stage_label,
            created_at,
            finished_at,
            build_version,
            preview_url,
            sandbox_paused,
            sandbox_id,
            sandbox_expires_at: _,
            cost_usd,
            screenshot,
            error_message,
            debug_id,
            rebuilt_from,
        } = job;
        Self {
            screenshot_url: screenshot.map(|screenshot| screenshot.url(&id)),
            job_id: id,
            project_id: project,
            project_name,
            goal,
            model,
            status: status.into(),
            stage_label,
            created_at,
            finished_at,
            build_version,
            preview_url,
            sandbox_paused,
            sandbox_id,
            cost_usd,
            error_message,
            debug_id,
            rebuilt_from,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Jobs {
    /// The newest first.
    jobs: Vec<JobView>,
}

impl From<Vec<Job>> for Jobs {
    fn from(jobs: Vec<Job>) -> Self {
        Self { jobs: jobs.into_iter().map(JobView::from).collect() }
    }
}

/// The authenticated user.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Me {
    pub(super) name: String,
    /// The remaining build credits.
    pub(super) credits: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Project")]
struct ProjectView {
    project_id: ProjectId,
    name: String,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    /// Includes deleted builds.
    cost_usd: f64,
}

impl From<Project> for ProjectView {
    fn from(Project { id, name, created_at, cost_usd }: Project) -> Self {
        Self { project_id: id, name, created_at, cost_usd }
    }
}

/// Used amounts and their limits.
#[derive(Debug, Serialize, JsonSchema)]
struct TotalUsage {
    total_usd: f64,
    month_usd: f64,
    budget_usd: Option<f64>,
    plans: Vec<PlanUsage>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PlanUsage {
    provider: String,
    what: String,
    used: f64,
    limit: f64,
}

impl From<Totals> for TotalUsage {
    fn from(Totals { total_usd, month_usd, budget_usd, plans }: Totals) -> Self {
        Self { total_usd, month_usd, budget_usd, plans: plans.into_iter().map(PlanUsage::from).collect() }
    }
}

impl From<PlanUse> for PlanUsage {
    fn from(PlanUse { provider, what, used, limit }: PlanUse) -> Self {
        Self { provider, what, used, limit }
    }
}

/// The user's projects, builds and usage.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Dashboard")]
pub(super) struct DashboardView {
    user: Me,
    projects: Vec<ProjectView>,
    jobs: Vec<JobView>,
    usage: TotalUsage,
    /// The models that can be chosen.
    models: Vec<String>,
    default_model: Option<String>,
}

impl From<Dashboard> for DashboardView {
    fn from(Dashboard { user, credits, projects, jobs, usage, models, default_model }: Dashboard) -> Self {
        Self {
            user: Me { name: user.name, credits },
            projects: projects.into_iter().map(ProjectView::from).collect(),
            jobs: jobs.into_iter().map(JobView::from).collect(),
            usage: usage.into(),
            models,
            default_model,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Paused {
    pub(super) job_id: JobId,
    pub(super) paused: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Resumed")]
pub(super) struct ResumedView {
    /// Null when the build has no page.
    preview_url: Option<String>,
    sandbox_id: String,
}

impl From<Resumed> for ResumedView {
    fn from(Resumed { preview_url, sandbox_id }: Resumed) -> Self {
        Self { preview_url, sandbox_id }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Preview {
    state: PreviewStateView,
    preview_url: Option<String>,
    /// For people.
    reason: Option<String>,
}

impl From<PreviewCheck> for Preview {
    fn from(PreviewCheck { state, preview_url, reason }: PreviewCheck) -> Self {
        Self { state: state.into(), preview_url, reason }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Screenshots {
    /// The newest first.
    screenshots: Vec<ScreenshotView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Screenshot")]
struct ScreenshotView {
    id: ScreenshotId,
    /// `desktop` or `mobile`.
    device: String,
    width: u32,
    height: u32,
    #[schemars(with = "String", extend("format" = "date-time"))]
    taken_at: Timestamp,
    reason: String,
    url: String,
}

impl Screenshots {
    pub(super) fn new(job: &JobId, screenshots: Vec<Screenshot>) -> Self {
        let view = |Screenshot { id, device, width, height, taken_at, reason }| {
            let url = id.url(job);
            ScreenshotView { id, device, width, height, taken_at, reason, url }
        };
        Self { screenshots: screenshots.into_iter().map(view).collect() }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Snapshots {
    /// The newest first.
    snapshots: Vec<Snapshot>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Snapshot {
    key: String,
    files: u64,
    bytes: u64,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    /// Whether its archive was read back and compared.
    verified: bool,
}

impl From<Vec<SnapshotView>> for Snapshots {
    fn from(snapshots: Vec<SnapshotView>) -> Self {
        let view = |SnapshotView { key, files, bytes, created_at, verified }| Snapshot {
            key,
            files,
            bytes,
            created_at,
            verified,
        };
        Self { snapshots: snapshots.into_iter().map(view).collect() }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileList {
    source: Source,
    path: String,
    /// Directories first, then by name.
    entries: Vec<Entry>,
    /// The directory has more entries than are listed.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Entry {
    name: String,
    /// Relative to the project.
    path: String,
    kind: EntryKind,
    bytes: u64,
}

impl From<Listing> for FileList {
    fn from(Listing { source, path, entries, truncated }: Listing) -> Self {
        let entry = |FileEntry { name, path, kind, bytes }| Entry { name, path, kind: EntryKind::from(kind), bytes };
        Self { source: source.into(), path, entries: entries.into_iter().map(entry).collect(), truncated }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileText {
    source: Source,
    path: String,
    /// Null for a binary file.
    text: Option<String>,
    /// The size of the whole file.
    bytes: u64,
    binary: bool,
    /// `text` is only the beginning of the file.
    truncated: bool,
}

impl From<FileContent> for FileText {
    fn from(FileContent { source, path, text, bytes, binary, truncated }: FileContent) -> Self {
        Self { source: source.into(), path, text, bytes, binary, truncated }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Usage {
    total_usd: f64,
    lines: Vec<Line>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UsageLine")]
struct Line {
    what: String,
    provider: Option<String>,
    model: Option<String>,
    quantity: f64,
    unit: &'static str,
    cost_usd: f64,
}

impl From<UsageReport> for Usage {
    fn from(UsageReport { total_usd, lines }: UsageReport) -> Self {
        let line = |UsageLine { what, provider, model, quantity, unit, cost_usd }| Line {
            what,
            provider,
            model,
            quantity,
            unit,
            cost_usd,
        };
        Self { total_usd, lines: lines.into_iter().map(line).collect() }
    }
}

/// An approval request that was answered.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApprovalAnswered {
    pub(super) id: String,
    pub(super) allowed: bool,
}
