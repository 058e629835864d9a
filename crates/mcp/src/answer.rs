//! A tool's result as MCP has it.

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde_json::{Value, json};
use tools::{Block, ToolResult};

use crate::resource;
use crate::size;

/// What an answer says besides the result.
pub(crate) struct About<'a> {
    pub(crate) sandbox: &'a str,
    /// Only where clients name their sessions.
    pub(crate) session: Option<&'a str>,
    pub(crate) notice: Option<String>,
}

/// The answer, and links to the output that did not fit into it.
pub(crate) fn from(result: &ToolResult, about: About<'_>) -> (CallToolResult, Vec<Resource>) {
    let mut structured = result.structured.clone();
    if !structured.is_object() {
        structured = json!({});
    }
    structured["sandbox_id"] = json!(about.sandbox);
    if let Some(session) = about.session {
        structured["session_id"] = json!(session);
    }
    let links = links(about.sandbox, &structured);

    // First, because the last line of a command's result is its exit code.
    let mut content: Vec<ContentBlock> = about.notice.into_iter().map(ContentBlock::text).collect();
    content.extend(result.content.iter().map(|block| match block {
        Block::Text(text) => ContentBlock::text(text),
        Block::Image(image) => ContentBlock::image(image.base64(), image.media_type),
    }));
    content.extend(links.iter().cloned().map(ContentBlock::resource_link));

    let texts: usize = content.iter().filter(|block| block.as_image().is_none()).map(size::of).sum();
    size::fit(&mut structured, size::MOST.saturating_sub(size::ENVELOPE + texts));
    let mut answer = if result.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    answer.structured_content = Some(structured);
    (answer, links)
}

/// A call that never came to a tool.
pub(crate) fn failure(code: &str, text: &str) -> CallToolResult {
    let mut answer = CallToolResult::error(vec![ContentBlock::text(text)]);
    answer.structured_content = Some(json!({ "error": { "code": code } }));
    answer
}

/// Files of the sandbox that hold what the answer leaves out.
fn links(sandbox: &str, structured: &Value) -> Vec<Resource> {
    let paths = [&structured["output_path"], &structured["background"]["output_path"]];
    let mut paths: Vec<&str> =
        paths.into_iter().filter_map(Value::as_str).filter(|path| path.starts_with('/')).collect();
    paths.dedup();
    paths.into_iter().map(|path| resource::link(sandbox, path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tools::Image;

    fn about(notice: Option<&str>) -> About<'_> {
        About { sandbox: "ifoo", session: None, notice: notice.map(str::to_owned) }
    }

    fn result(structured: Value, content: Vec<Block>) -> ToolResult {
        ToolResult { is_error: false, code: None, content, structured }
    }

    #[test]
    fn the_exit_code_stays_the_last_line_of_text_and_output_is_linked() {
        let structured = json!({ "exit_code": 0, "output_path": "/tmp/.agent/out/c1.log", "background": { "output_path": "/x/b1.log" } });
        let (answer, links) =
            from(&result(structured, vec![Block::Text("hi\n[exit 0]".into())]), about(Some("[In ifoo.]")));
        let wire = serde_json::to_value(&answer).expect("serialises");
        assert_eq!(wire["content"][0]["text"], "[In ifoo.]");
        assert_eq!(wire["content"][1]["text"], "hi\n[exit 0]");
        assert_eq!(wire["content"][2]["type"], "resource_link");
        assert_eq!(wire["content"][2]["uri"], "sandbox://ifoo/tmp/.agent/out/c1.log");
        assert_eq!(wire["content"][3]["uri"], "sandbox://ifoo/x/b1.log");
        assert_eq!(wire["structuredContent"]["sandbox_id"], "ifoo");
        assert_eq!(links.len(), 2);
    }

    #[test]
    fn an_answer_fits_whatever_the_tool_says_and_pictures_do_not_count() {
        let dirt = "\u{1}".repeat(50_000);
        let structured = json!({ "stdout": dirt, "stderr": dirt, "matches": vec![dirt.clone(); 20] });
        let picture = Image { media_type: "image/webp", bytes: Bytes::from(vec![7; 3 << 20]) };
        let content = vec![Block::Text(dirt), Block::Image(picture)];
        let (answer, _) = from(&result(structured, content), about(None));
        let wire = serde_json::to_value(&answer).expect("serialises");
        let picture = wire["content"][1]["data"].as_str().expect("a picture").len();
        assert_eq!(picture, (3 << 20) / 3 * 4);
        assert!(size::of(&answer) - picture < size::MOST);
        assert_eq!(wire["content"][0]["text"].as_str().map(str::len), Some(50_000), "the text is not touched");
    }
}
