//! Result of a tool call: blocks for a model and a value for programs, both made from one outcome.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::definitions::NAMES;
use crate::structured::{CallFacts, EndedTask, ErrorFact, FailureFacts, StructuredResult, ToolOutput};

/// The result of one tool call. It serialises to `{"is_error", "code", "content", "structured"}`,
/// where `content` goes unchanged into the `content` of an Anthropic `tool_result`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolResult {
    pub is_error: bool,
    /// Absent on success, stable between releases.
    pub code: Option<ErrorCode>,
    pub content: Vec<Block>,
    /// Conforms to the tool's output schema, on success and on failure.
    pub structured: StructuredResult,
}

/// One block of content.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    Text(String),
    Image(Image),
}

/// An image file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Media type, for example `image/webp`.
    pub media_type: &'static str,
    pub bytes: Bytes,
}

/// Why a call failed, for programs. The text explains it to models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    UnknownTool,
    InvalidInput,
    NotFound,
    IsDirectory,
    NotAFile,
    PermissionDenied,
    BinaryFile,
    TooLarge,
    OffsetOutOfRange,
    NotRead,
    Stale,
    Conflict,
    NoMatch,
    NotUnique,
    NoChange,
    InvalidRegex,
    InvalidGlob,
    CommandFailed,
    Timeout,
    Cancelled,
    OutputLimit,
    SpawnFailed,
    NoDisplay,
    CaptureFailed,
    ImageUnusable,
    SandboxUnavailable,
    Internal,
}

impl ErrorCode {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownTool => "unknown_tool",
            Self::InvalidInput => "invalid_input",
            Self::NotFound => "not_found",
            Self::IsDirectory => "is_directory",
            Self::NotAFile => "not_a_file",
            Self::PermissionDenied => "permission_denied",
            Self::BinaryFile => "binary_file",
            Self::TooLarge => "too_large",
            Self::OffsetOutOfRange => "offset_out_of_range",
            Self::NotRead => "not_read",
            Self::Stale => "stale",
            Self::Conflict => "conflict",
            Self::NoMatch => "no_match",
            Self::NotUnique => "not_unique",
            Self::NoChange => "no_change",
            Self::InvalidRegex => "invalid_regex",
            Self::InvalidGlob => "invalid_glob",
            Self::CommandFailed => "command_failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::OutputLimit => "output_limit",
            Self::SpawnFailed => "spawn_failed",
            Self::NoDisplay => "no_display",
            Self::CaptureFailed => "capture_failed",
            Self::ImageUnusable => "image_unusable",
            Self::SandboxUnavailable => "sandbox_unavailable",
            Self::Internal => "internal",
        }
    }
}

impl ToolResult {
    /// The result of a call of a tool that does not exist. It names those that do.
    pub fn for_unknown_tool(tool_name: &str) -> Self {
        let facts = FailureFacts { tools: Some(NAMES.map(str::to_owned).to_vec()), ..FailureFacts::default() };
        let failure = Failure::new(ErrorCode::UnknownTool, format!("[{tool_name}: unknown tool]"));
        conclude(Err(failure.with(facts)), &[])
    }

    /// All text of the result, with blocks joined by newlines.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.content.iter().filter_map(Block::as_text).collect();
        texts.join("\n")
    }

    /// The images of the result, in order.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.content.iter().filter_map(|block| match block {
            Block::Image(image) => Some(image),
            Block::Text(_) => None,
        })
    }
}

impl Block {
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }
}

impl Image {
    pub fn base64(&self) -> String {
        STANDARD.encode(&self.bytes)
    }

    /// Width and height, from its bytes.
    pub fn size(&self) -> Option<(u32, u32)> {
        crate::image::size(self.media_type, &self.bytes)
    }
}

/// Serialises in the format of Anthropic's content blocks.
impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        match self {
            Self::Text(text) => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
            }
            Self::Image(image) => {
                map.serialize_entry("type", "image")?;
                let source = json!({ "type": "base64", "media_type": image.media_type, "data": image.base64() });
                map.serialize_entry("source", &source)?;
            }
        }
        map.end()
    }
}

/// What a tool did, before it becomes a [`ToolResult`].
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) content: Vec<Block>,
    pub(crate) output: ToolOutput,
    /// The background tasks that a command in the foreground reports.
    pub(crate) finished_tasks: Option<Vec<EndedTask>>,
    /// Set if the call worked but its effect is a failure to the model: a command that failed, for
    /// example.
    pub(crate) code: Option<ErrorCode>,
}

impl Done {
    pub(crate) fn new(content: Vec<Block>, output: ToolOutput) -> Self {
        Self { content, output, finished_tasks: None, code: None }
    }

    pub(crate) fn text(text: String, output: ToolOutput) -> Self {
        Self::new(vec![Block::Text(text)], output)
    }

    pub(crate) fn failing(self, code: Option<ErrorCode>) -> Self {
        Self { code, ..self }
    }
}

/// Why a tool failed: one sentence of fact, one of cause, one of the next step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
    pub(crate) facts: Option<Box<FailureFacts>>,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), facts: None }
    }

    /// Adds facts for programs.
    pub(crate) fn with(self, facts: FailureFacts) -> Self {
        Self { facts: Some(Box::new(facts)), ..self }
    }
}

pub(crate) type Outcome = Result<Done, Failure>;

/// Converts an outcome to a result. `ignored` are inputs that no tool knows.
pub(crate) fn conclude(outcome: Outcome, ignored: &[String]) -> ToolResult {
    let (code, content, output, finished_tasks) = match outcome {
        Ok(Done { content, output, finished_tasks, code }) => (code, content, output, finished_tasks),
        Err(Failure { code, message, facts }) => {
            let output = facts.map_or(ToolOutput::None, |facts| ToolOutput::Failure(*facts));
            (Some(code), vec![Block::Text(message)], output, None)
        }
    };
    let call = CallFacts {
        error: code.map(|code| ErrorFact { code }),
        ignored_inputs: (!ignored.is_empty()).then(|| ignored.to_vec()),
        finished_tasks,
        ..CallFacts::default()
    };
    ToolResult { is_error: code.is_some(), code, content, structured: StructuredResult { call, output } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structured::{DirectoryPage, ReadContent, ReadFileOutput};

    #[test]
    fn result_serialises_as_anthropic_tool_result() {
        let image = Image { media_type: "image/webp", bytes: Bytes::from_static(b"RIFF") };
        let output = ToolOutput::ReadFile(ReadFileOutput {
            path: "/x".into(),
            truncated: false,
            content: ReadContent::Directory(DirectoryPage { entries: Vec::new(), total_entries: 0 }),
        });
        let done = Done::new(vec![Block::Text("hi".into()), Block::Image(image)], output);
        let wire = serde_json::to_value(conclude(Ok(done), &[])).expect("a result serialises");
        let content = json!([
            { "type": "text", "text": "hi" },
            { "type": "image", "source": { "type": "base64", "media_type": "image/webp", "data": "UklGRg==" } }
        ]);
        let structured =
            json!({ "path": "/x", "kind": "directory", "entries": [], "total_entries": 0, "truncated": false });
        assert_eq!(wire, json!({ "is_error": false, "code": null, "content": content, "structured": structured }));
    }

    #[test]
    fn code_names_match_serialisation() {
        let result = conclude(Err(Failure::new(ErrorCode::NotAFile, "no")), &["extra".into()]);
        let wire = serde_json::to_value(&result).expect("a result serialises");
        assert_eq!(wire["code"], "not_a_file");
        assert_eq!(wire["structured"], json!({ "error": { "code": "not_a_file" }, "ignored_inputs": ["extra"] }));
    }
}
