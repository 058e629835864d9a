//! The part of a result that programs read: a struct per tool, which also gives the tool's output
//! schema. On the wire it is one object: the facts of the call beside those of the tool.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use text::edit::Tier;
use text::encoding::LineEnding;

use crate::port::{FinishedTask, Survivor};
use crate::result::ErrorCode;

/// Facts for programs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StructuredResult {
    pub call: CallFacts,
    pub output: ToolOutput,
}

/// Facts that a result of any tool may have. Absent facts are left out on the wire.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct CallFacts {
    pub error: Option<ErrorFact>,
    /// Inputs that the tool does not know.
    pub ignored_inputs: Option<Vec<String>>,
    /// Set if the sandbox was resumed for this call.
    pub sandbox_resumed: Option<bool>,
    pub sandbox_waited_ms: Option<u64>,
    /// What did not survive a change of the sandbox.
    pub notices: Option<Vec<String>>,
    /// Background tasks of the session that ended since the last report. A command in the
    /// foreground always reports them.
    pub finished_tasks: Option<Vec<EndedTask>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorFact {
    /// Clients accept the codes of later releases.
    #[schemars(with = "String")]
    pub code: ErrorCode,
}

/// A background task that ended or was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EndedTask {
    pub task_id: String,
    /// `None` if it did not survive a pause or a change of sandbox.
    pub exit_code: Option<i32>,
    pub survived: bool,
    pub output_path: String,
}

/// What a tool did, or why it did not.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ToolOutput {
    /// The code says all.
    #[default]
    None,
    Failure(FailureFacts),
    ReadFile(ReadFileOutput),
    WriteFile(WriteFileOutput),
    EditFile(EditFileOutput),
    Bash(BashOutput),
    /// `bash` without a command.
    ShellRestarted(ShellRestarted),
    Grep(GrepOutput),
    Glob(GlobOutput),
    TakeScreenshot(TakeScreenshotOutput),
}

/// Facts about a failure of any tool. Absent facts are left out on the wire.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct FailureFacts {
    pub path: Option<String>,
    /// Paths of similar names.
    pub suggestions: Option<Vec<String>>,
    /// Of the file's current content.
    pub sha256: Option<String>,
    pub size: Option<u64>,
    pub mime: Option<String>,
    pub total_lines: Option<usize>,
    /// Number of replacements that were made.
    pub replacements: Option<usize>,
    /// Where the text to replace occurs.
    pub lines: Option<Vec<usize>>,
    pub workdir: Option<String>,
    pub port: Option<u16>,
    /// Tools that exist.
    pub tools: Option<Vec<String>>,
}

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

impl StructuredResult {
    /// The facts of a call that failed before its tool ran.
    pub fn from_code(code: ErrorCode) -> Self {
        Self { call: CallFacts { error: Some(ErrorFact { code }), ..CallFacts::default() }, output: ToolOutput::None }
    }

    /// The file or directory that the call is about.
    pub fn path(&self) -> Option<&str> {
        match &self.output {
            ToolOutput::Failure(failure) => failure.path.as_deref(),
            ToolOutput::ReadFile(read) => Some(&read.path),
            ToolOutput::WriteFile(written) => Some(&written.path),
            ToolOutput::EditFile(edited) => Some(&edited.path),
            ToolOutput::Grep(found) => Some(&found.path),
            ToolOutput::Glob(found) => Some(&found.path),
            ToolOutput::None | ToolOutput::Bash(_) | ToolOutput::ShellRestarted(_) | ToolOutput::TakeScreenshot(_) => {
                None
            }
        }
    }

    /// Whether the result lacks a part of what the tool found or read.
    pub fn is_truncated(&self) -> bool {
        match &self.output {
            ToolOutput::ReadFile(read) => read.truncated,
            ToolOutput::Bash(run) => run.truncated,
            ToolOutput::Grep(found) => found.truncated,
            ToolOutput::Glob(found) => found.truncated,
            _ => false,
        }
    }

    /// The command's result, if the tool ran one.
    pub fn as_bash(&self) -> Option<&BashOutput> {
        match &self.output {
            ToolOutput::Bash(run) => Some(run),
            _ => None,
        }
    }

    /// As on the wire.
    pub fn to_value(&self) -> Value {
        let output = match &self.output {
            ToolOutput::None => Map::new(),
            ToolOutput::Failure(failure) => present(failure),
            ToolOutput::ReadFile(output) => fields(output),
            ToolOutput::WriteFile(output) => fields(output),
            ToolOutput::EditFile(output) => fields(output),
            ToolOutput::Bash(output) => fields(output),
            ToolOutput::ShellRestarted(output) => fields(output),
            ToolOutput::Grep(output) => fields(output),
            ToolOutput::Glob(output) => fields(output),
            ToolOutput::TakeScreenshot(output) => fields(output),
        };
        let mut all = present(&self.call);
        all.extend(output);
        Value::Object(all)
    }
}

fn fields(facts: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(facts) {
        Ok(Value::Object(fields)) => fields,
        // These are structs of texts, numbers and lists with text keys, which always serialise.
        other => unreachable!("facts are an object: {other:?}"),
    }
}

/// The fields that are not null.
fn present(facts: &impl Serialize) -> Map<String, Value> {
    let mut fields = fields(facts);
    fields.retain(|_, value| !value.is_null());
    fields
}

impl Serialize for StructuredResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl From<&FinishedTask> for EndedTask {
    fn from(FinishedTask { task, exit_code, log }: &FinishedTask) -> Self {
        Self { task_id: task.clone(), exit_code: *exit_code, survived: exit_code.is_some(), output_path: log.clone() }
    }
}

/// The output schema of a tool: its own facts, those of any call, and `others`, the facts that
/// only its failures or a restart of the shell have. No field is required: a failure may have none.
pub(crate) fn schema<Output: JsonSchema>(others: &[&str]) -> Value {
    let mut all = properties::<CallFacts>(Nullable::No);
    let known = properties::<FailureFacts>(Nullable::No).into_iter().chain(properties::<ShellRestarted>(Nullable::No));
    all.extend(known.filter(|(name, _)| others.contains(&name.as_str())));
    all.extend(properties::<Output>(Nullable::Yes));
    json!({ "type": "object", "properties": all })
}

/// Whether an absent fact is null on the wire or left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nullable {
    Yes,
    No,
}

/// The properties of a struct, those of its flattened enum included. Formats, bounds and texts are
/// dropped: clients send the schemas of all tools to models.
fn properties<Facts: JsonSchema>(nullable: Nullable) -> Map<String, Value> {
    let generator = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true).into_generator();
    let mut schema = generator.into_root_schema_for::<Facts>();
    let mut strip = RecursiveTransform(|schema: &mut Schema| {
        for keyword in ["title", "description", "format", "minimum", "maximum"] {
            schema.remove(keyword);
        }
    });
    strip.transform(&mut schema);
    let mut properties = take_properties(schema.as_value().clone());
    if nullable == Nullable::No {
        properties.values_mut().for_each(remove_null);
    }
    properties
}

fn take_properties(mut schema: Value) -> Map<String, Value> {
    let mut properties = match schema["properties"].take() {
        Value::Object(properties) => properties,
        _ => Map::new(),
    };
    let Value::Array(variants) = schema["oneOf"].take() else { return properties };
    for (name, value) in variants.into_iter().flat_map(take_properties) {
        let Some(tag) = value.get("const").cloned() else {
            properties.insert(name, value);
            continue;
        };
        // The tag: each variant adds its name.
        let known = properties.entry(name).or_insert_with(|| json!({ "type": "string", "enum": [] }));
        if let Some(tags) = known["enum"].as_array_mut() {
            tags.push(tag);
        }
    }
    properties
}

/// `["string", "null"]` becomes `"string"`.
fn remove_null(schema: &mut Value) {
    if let Some([kind, _null]) = schema["type"].as_array().map(Vec::as_slice) {
        schema["type"] = kind.clone();
    }
}
