//! Converts tool results to MCP responses.

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde_json::{Value, json};
use tools::{Block, ToolResult};

use crate::resource;
use crate::size;

/// Facts that a response carries besides the tool's result.
pub(crate) struct ResponseContext<'a> {
    pub(crate) sandbox: &'a str,
    /// Set only if the client names its session in each call.
    pub(crate) session: Option<&'a str>,
    pub(crate) notice: Option<String>,
}

/// Converts a result. Also returns links to output that did not fit into the response.
pub(crate) fn from_tool_result(result: &ToolResult, context: ResponseContext<'_>) -> (CallToolResult, Vec<Resource>) {
    let mut structured = result.structured.clone();
    if !structured.is_object() {
        structured = json!({});
    }
    structured["sandbox_id"] = json!(context.sandbox);
    if let Some(session) = context.session {
        structured["session_id"] = json!(session);
    }
    let links = links(context.sandbox, &structured);

    // The notice comes first: clients expect the exit code in the last line.
    let mut content: Vec<ContentBlock> = context.notice.into_iter().map(ContentBlock::text).collect();
    content.extend(result.content.iter().map(|block| match block {
        Block::Text(text) => ContentBlock::text(text),
        Block::Image(image) => ContentBlock::image(image.base64(), image.media_type),
    }));
    content.extend(links.iter().cloned().map(ContentBlock::resource_link));

    let texts: usize = content.iter().filter(|block| block.as_image().is_none()).map(size::serialized_len).sum();
    size::shrink_to_fit(&mut structured, size::MAX_MESSAGE_BYTES.saturating_sub(size::ENVELOPE_BYTES + texts));
    let mut answer = if result.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    answer.structured_content = Some(structured);
    (answer, links)
}

/// A response for a call that reached no tool.
pub(crate) fn from_error(code: &str, text: &str) -> CallToolResult {
    let mut answer = CallToolResult::error(vec![ContentBlock::text(text)]);
    answer.structured_content = Some(json!({ "error": { "code": code } }));
    answer
}

/// Links to the files that hold the full output.
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

    fn context(notice: Option<&str>) -> ResponseContext<'_> {
        ResponseContext { sandbox: "ifoo", session: None, notice: notice.map(str::to_owned) }
    }

    fn result(structured: Value, content: Vec<Block>) -> ToolResult {
        ToolResult { is_error: false, code: None, content, structured }
    }

    #[test]
    fn exit_code_is_last_text_and_spilled_output_is_linked() {
        let structured = json!({ "exit_code": 0, "output_path": "/tmp/.agent/out/c1.log", "background": { "output_path": "/x/b1.log" } });
        let (answer, links) = from_tool_result(
            &result(structured, vec![Block::Text("hi\n[exit 0]".into())]),
            context(Some("[In ifoo.]")),
        );
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
    fn response_fits_its_limit_without_counting_images() {
        let dirt = "\u{1}".repeat(50_000);
        let structured = json!({ "stdout": dirt, "stderr": dirt, "matches": vec![dirt.clone(); 20] });
        let image = Image { media_type: "image/webp", bytes: Bytes::from(vec![7; 3 << 20]) };
        let content = vec![Block::Text(dirt), Block::Image(image)];
        let (answer, _) = from_tool_result(&result(structured, content), context(None));
        let wire = serde_json::to_value(&answer).expect("serialises");
        let image = wire["content"][1]["data"].as_str().expect("an image").len();
        assert_eq!(image, (3 << 20) / 3 * 4);
        assert!(size::serialized_len(&answer) - image < size::MAX_MESSAGE_BYTES);
        assert_eq!(wire["content"][0]["text"].as_str().map(str::len), Some(50_000), "the text is not touched");
    }
}
