//! What each tool reports of a call that worked.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use text::edit::Tier;
use text::encoding::LineEnding;

use crate::port::Survivor;

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ReadFileOutput {
    pub path: String,
    pub truncated: bool,
    #[serde(flatten)]
    pub content: ReadContent,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReadContent {
    Text(TextPage),
    Image(ImageFacts),
    Directory(DirectoryPage),
}

/// Lines of a text file.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TextPage {
    /// `None` if they were not counted.
    pub total_lines: Option<usize>,
    /// From 1, both included; 0 if the file is empty.
    pub start_line: usize,
    pub end_line: usize,
    pub next_offset: Option<usize>,
    pub line_ending: LineEnding,
    pub encoding: String,
    pub bom: bool,
    pub size: u64,
    /// `None` if only a part was read.
    pub sha256: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ImageFacts {
    pub mime: String,
    pub width: u32,
    pub height: u32,
    pub size: usize,
    /// Set if the image was scaled down or compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ShownImage")]
    pub shown: Option<ShownImage>,
}

/// The image of the result.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ShownImage {
    pub mime: String,
    pub width: u32,
    pub height: u32,
    pub size: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DirectoryPage {
    pub entries: Vec<String>,
    pub total_entries: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WriteFileOutput {
    pub path: String,
    pub created: bool,
    pub unchanged: bool,
    pub bytes: usize,
    pub lines: usize,
    pub old_sha256: Option<String>,
    pub sha256: String,
    /// `None` for a new, unchanged, binary or very different file.
    pub diff: Option<String>,
    #[schemars(with = "String")]
    pub line_ending: LineEnding,
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EditFileOutput {
    pub path: String,
    pub replacements: usize,
    /// First lines of the replacements.
    pub lines: Vec<usize>,
    pub tier: Tier,
    /// The file had changed since the session read it.
    pub stale: bool,
    pub created: bool,
    pub sha256: Option<String>,
    /// `None` if it is too long.
    pub diff: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct BashOutput {
    /// `None` while the command runs, and if its end is unknown.
    pub exit_code: Option<i32>,
    pub timed_out: bool,
    pub cancelled: bool,
    pub duration_ms: u64,
    pub stdout: String,
    pub stderr: String,
    pub truncated: bool,
    /// Of a command that began in the foreground.
    #[serde(flatten)]
    pub captured: Option<CapturedOutput>,
    /// Of a command that ended in the foreground.
    #[serde(flatten)]
    pub foreground: Option<ForegroundEnd>,
    /// Of a command that was started in the background or detached.
    pub background: Option<BackgroundTask>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CapturedOutput {
    pub output_bytes: u64,
    /// Bytes in the middle that were not kept.
    pub bytes_dropped: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ForegroundEnd {
    pub signal: Option<String>,
    /// The shell's directory after the command.
    pub cwd: Option<String>,
    pub output_lines: usize,
    /// File with the output that did not fit.
    pub output_path: Option<String>,
    pub still_running: Vec<Survivor>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BackgroundTask {
    pub task_id: String,
    pub pid: Option<u32>,
    pub pgid: Option<u32>,
    pub output_path: String,
    pub running: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ShellRestarted {
    pub exit_code: i32,
    pub restarted: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GrepOutput {
    pub mode: GrepMode,
    pub path: String,
    pub total_matches: u64,
    pub total_files: usize,
    pub files_searched: u64,
    pub skipped: SkippedFiles,
    pub timed_out: bool,
    pub truncated: bool,
    pub next_offset: Option<usize>,
    /// The page of the result, in the field of its mode. None has it if nothing matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<GrepMatch>")]
    pub matches: Option<Vec<GrepMatch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>")]
    pub files: Option<Vec<String>>,
    /// Matching lines by path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub counts: Option<BTreeMap<String, u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrepMode {
    Content,
    FilesWithMatches,
    Count,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SkippedFiles {
    pub ignored: u64,
    pub binary: u64,
    pub unreadable: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GrepMatch {
    pub path: String,
    pub line: u64,
    /// From 1, in characters.
    pub col: usize,
    pub text: String,
    pub before: Vec<String>,
    pub after: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GlobOutput {
    pub path: String,
    pub files: Vec<String>,
    pub total: usize,
    pub ignored: usize,
    /// Files that would match at any depth.
    pub deeper: u64,
    pub truncated: bool,
    pub timed_out: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TakeScreenshotOutput {
    pub port: u16,
    pub url_path: String,
    pub title: Option<String>,
    pub screenshots: Vec<ScreenshotFacts>,
    pub blocked: Vec<String>,
    pub console_errors: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ScreenshotFacts {
    #[schemars(extend("enum" = ["desktop", "mobile"]))]
    pub viewport: String,
    pub width: u32,
    pub height: u32,
    /// Its key in the screenshot store.
    pub key: String,
    pub url: Option<String>,
    pub bytes: usize,
    pub blank: bool,
}
