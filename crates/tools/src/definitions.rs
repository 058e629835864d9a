//! Tool definitions as data, in the formats of model providers and MCP clients.

use serde_json::{Value, json};

use crate::structured::{
    BashOutput, EditFileOutput, GlobOutput, GrepOutput, ReadFileOutput, TakeScreenshotOutput, WriteFileOutput, schema,
};

/// The tools in their fixed order: a stable order keeps prompt caches valid.
pub const NAMES: [&str; 7] = ["read_file", "write_file", "edit_file", "bash", "grep", "glob", "take_screenshot"];

/// One tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// For models.
    pub description: &'static str,
    pub input_schema: Value,
    /// Schema of `structured`, on success and on failure.
    pub output_schema: Value,
    pub annotations: Annotations,
}

/// Hints with which MCP clients decide whether a tool may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotations {
    pub read_only: bool,
    pub destructive: Option<bool>,
    pub idempotent: Option<bool>,
    pub open_world: bool,
}

const READS: Annotations = Annotations { read_only: true, destructive: None, idempotent: None, open_world: false };

impl Definition {
    /// In the format of Anthropic's `tools`.
    pub fn anthropic(&self) -> Value {
        json!({ "name": self.name, "description": self.description, "input_schema": self.input_schema })
    }

    /// In the format of MCP's `tools/list`.
    pub fn mcp(&self) -> Value {
        let Annotations { read_only, destructive, idempotent, open_world } = self.annotations;
        let mut annotations = json!({ "title": self.title, "readOnlyHint": read_only, "openWorldHint": open_world });
        if let Some(destructive) = destructive {
            annotations["destructiveHint"] = json!(destructive);
        }
        if let Some(idempotent) = idempotent {
            annotations["idempotentHint"] = json!(idempotent);
        }
        json!({
            "name": self.name, "title": self.title, "description": self.description, "inputSchema": self.input_schema,
            "outputSchema": self.output_schema, "annotations": annotations,
        })
    }
}

/// All seven, in the order of [`NAMES`].
pub fn definitions() -> Vec<Definition> {
    vec![read_file(), write_file(), edit_file(), bash(), grep(), glob(), take_screenshot()]
}

fn object(required: &[&str], properties: Value) -> Value {
    let mut schema = json!({ "type": "object", "additionalProperties": false, "required": required });
    schema["properties"] = properties;
    schema
}

fn read_file() -> Definition {
    Definition {
        name: "read_file",
        title: "Read file",
        description: "Reads a text file with line numbers (number, tab, text), a picture (png, jpeg, gif, webp), or lists a directory. Long files \
                      come in pages: continue with the offset that the answer names. Reading a file is needed before write_file may \
                      replace it.",
        input_schema: object(
            &["path"],
            json!({
                "path": { "type": "string", "description": "Absolute path (relative paths resolve against the shell's current directory)." },
                "offset": { "type": "integer", "description": "First line to return, 1-based. Negative counts from the end (-100 = last 100 lines)." },
                "limit": { "type": "integer", "minimum": 1, "maximum": 10000, "default": 2000, "description": "Maximum number of lines." },
            }),
        ),
        output_schema: schema::<ReadFileOutput>(&["suggestions"]),
        annotations: READS,
    }
}

fn write_file() -> Definition {
    Definition {
        name: "write_file",
        title: "Write file",
        description: "Creates a file, or replaces all of one that was read before and has not changed since. Missing directories are made. \
                      For a partial change use edit_file.",
        input_schema: object(
            &["path", "content"],
            json!({
                "path": { "type": "string", "description": "Absolute path (relative paths resolve against the shell's current directory)." },
                "content": { "type": "string", "description": "Complete new content. Never abbreviate with placeholders such as '... rest unchanged'." },
            }),
        ),
        output_schema: schema::<WriteFileOutput>(&[]),
        annotations: Annotations {
            read_only: false,
            destructive: Some(true),
            idempotent: Some(true),
            open_world: false,
        },
    }
}

fn edit_file() -> Definition {
    Definition {
        name: "edit_file",
        title: "Edit file",
        description: "Replaces one exact text of a file by another. The text must occur exactly once, unless replace_all is set. Encoding, line \
                      ends and everything else of the file stay as they are.",
        input_schema: object(
            &["path", "old_string", "new_string"],
            json!({
                "path": { "type": "string", "description": "Absolute path (relative paths resolve against the shell's current directory)." },
                "old_string": { "type": "string", "description": "Exact text to replace, without line-number prefixes. Must occur exactly once unless replace_all. Empty: create the file." },
                "new_string": { "type": "string", "description": "The text to put in its place." },
                "replace_all": { "type": "boolean", "default": false, "description": "Replace every occurrence." },
            }),
        ),
        output_schema: schema::<EditFileOutput>(&["size", "suggestions"]),
        annotations: Annotations {
            read_only: false,
            destructive: Some(true),
            idempotent: Some(false),
            open_world: false,
        },
    }
}

fn bash() -> Definition {
    Definition {
        name: "bash",
        title: "Run command",
        description: "Runs a bash command line in the sandbox and returns its output and exit code. Each call is a new shell; the current directory \
                      and exported variables carry over, functions and aliases do not. There is no terminal and no input: use \
                      non-interactive flags. For servers and other long work set run_in_background; its output goes to a file \
                      that read_file can read.",
        input_schema: object(
            &["command"],
            json!({
                "command": { "type": "string", "description": "Bash command line; may contain newlines and heredocs. Not interactive: stdin is empty and there is no terminal." },
                "timeout": { "type": "integer", "minimum": 1, "maximum": 3600, "default": 60, "description": "Seconds." },
                "description": { "type": "string", "description": "5–10 words on what the command does." },
                "run_in_background": { "type": "boolean", "default": false, "description": "Return at once and let it run." },
                "workdir": { "type": "string", "description": "Directory for this call only." },
                "restart": { "type": "boolean", "default": false, "description": "Forget carried directory and variables. command may be empty." },
            }),
        ),
        output_schema: schema::<BashOutput>(&["restarted", "workdir"]),
        annotations: Annotations {
            read_only: false,
            destructive: Some(true),
            idempotent: Some(false),
            open_world: true,
        },
    }
}

fn grep() -> Definition {
    Definition {
        name: "grep",
        title: "Search contents",
        description: "Searches the contents of files with a regular expression, newest files first. Hidden files are searched; .git and what \
                      .gitignore names are not, unless include_ignored is set. The first line of the answer says how many matches there \
                      are in all.",
        input_schema: object(
            &["pattern"],
            json!({
                "pattern": { "type": "string", "description": "Regular expression (Rust/ripgrep syntax: no look-around or backreferences). Escape literal braces: interface\\{\\}." },
                "path": { "type": "string", "description": "File or directory; default current directory." },
                "glob": { "type": "string", "description": "Only files matching this glob, e.g. \"*.ts\", \"src/**/*.{c,h}\", \"!**/test/**\"." },
                "type": { "type": "string", "description": "ripgrep file type: rust, py, js, ts, go, java, cpp, …" },
                "output_mode": { "enum": ["content", "files_with_matches", "count"], "default": "content" },
                "-i": { "type": "boolean", "default": false, "description": "Ignore case." },
                "-n": { "type": "boolean", "default": true, "description": "Show line numbers." },
                "-A": { "type": "integer", "minimum": 0, "maximum": 100, "description": "Lines after each match." },
                "-B": { "type": "integer", "minimum": 0, "maximum": 100, "description": "Lines before each match." },
                "-C": { "type": "integer", "minimum": 0, "maximum": 100, "description": "Lines around each match." },
                "multiline": { "type": "boolean", "default": false, "description": "Let . match line ends and patterns span lines." },
                "literal": { "type": "boolean", "default": false, "description": "The pattern is plain text." },
                "head_limit": { "type": "integer", "minimum": 1, "maximum": 5000, "default": 250, "description": "Most rows to return." },
                "offset": { "type": "integer", "minimum": 0, "default": 0, "description": "Rows to skip." },
                "include_ignored": { "type": "boolean", "default": false },
            }),
        ),
        output_schema: schema::<GrepOutput>(&["suggestions"]),
        annotations: READS,
    }
}

fn glob() -> Definition {
    Definition {
        name: "glob",
        title: "Find files",
        description: "Finds files by name, newest first, as absolute paths. Dot-files match; .git and what .gitignore names are left out and \
                      counted.",
        input_schema: object(
            &["pattern"],
            json!({
                "pattern": { "type": "string", "description": "Glob: *, ?, **, [a-z], [!x], {a,b}. \"*.rs\" matches in the search directory only; \"**/*.rs\" at any depth. A trailing / finds directories." },
                "path": { "type": "string", "description": "Directory to search; default current directory." },
                "limit": { "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 },
                "include_ignored": { "type": "boolean", "default": false },
            }),
        ),
        output_schema: schema::<GlobOutput>(&["suggestions"]),
        annotations: READS,
    }
}

fn take_screenshot() -> Definition {
    Definition {
        name: "take_screenshot",
        title: "Take screenshot",
        description: "Shows what the sandbox's web server looks like, on a desktop (1280x800) and on a phone (390x844). Only the sandbox's own \
                      ports can be captured. Start the server first with bash and run_in_background.",
        input_schema: object(
            &[],
            json!({
                "port": { "type": "integer", "minimum": 1, "maximum": 65535, "description": "Port of the server; default the preview port, 3000." },
                "url_path": { "type": "string", "default": "/", "description": "Path of the page, e.g. /about?tab=2." },
                "full_page": { "type": "boolean", "default": false, "description": "Capture the whole page, not only what is visible at first." },
            }),
        ),
        output_schema: schema::<TakeScreenshotOutput>(&[]),
        annotations: Annotations { open_world: true, ..READS },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_required_fields_are_fixed() {
        let all = definitions();
        assert_eq!(all.iter().map(|tool| tool.name).collect::<Vec<_>>(), NAMES);
        let required = |name: &str| {
            let tool = all.iter().find(|tool| tool.name == name).expect("a tool");
            tool.anthropic()["input_schema"]["required"].clone()
        };
        assert_eq!(required("read_file"), json!(["path"]));
        assert_eq!(required("write_file"), json!(["path", "content"]));
        assert_eq!(required("edit_file"), json!(["path", "old_string", "new_string"]));
        assert_eq!(required("bash"), json!(["command"]));
        assert_eq!(required("grep"), json!(["pattern"]));
        assert_eq!(required("glob"), json!(["pattern"]));
        assert_eq!(required("take_screenshot"), json!([]));
    }

    #[test]
    fn every_input_schema_is_strict() {
        for tool in definitions() {
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            let mcp = tool.mcp();
            assert_eq!(mcp["inputSchema"], tool.input_schema);
            assert_eq!(mcp["outputSchema"]["type"], "object");
        }
    }
}
