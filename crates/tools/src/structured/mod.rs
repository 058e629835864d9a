//! The part of a result that programs read: a struct per tool, which also gives the tool's output
//! schema. On the wire it is one object: the facts of the call beside those of the tool.

mod output;
mod schema;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::port::FinishedTask;
use crate::result::ErrorCode;
pub use output::{
    BackgroundTask, BashOutput, CapturedOutput, DirectoryPage, EditFileOutput, ForegroundEnd, GlobOutput, GrepMatch,
    GrepMode, GrepOutput, ImageFacts, ReadContent, ReadFileOutput, ScreenshotFacts, ShellRestarted, ShownImage,
    SkippedFiles, TakeScreenshotOutput, TextPage, WriteFileOutput,
};
pub(crate) use schema::schema;

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
