//! Converts tool results to MCP responses.

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde_json::json;
use tools::{Block, StructuredResult, ToolResult};

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
    let mut structured = result.structured.to_value();
    structured["sandbox_id"] = json!(context.sandbox);
    if let Some(session) = context.session {
        structured["session_id"] = json!(session);
    }
    let links = links(context.sandbox, &result.structured);

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
fn links(sandbox: &str, structured: &StructuredResult) -> Vec<Resource> {
    let Some(run) = structured.as_bash() else { return Vec::new() };
    let kept = run.foreground.as_ref().and_then(|end| end.output_path.as_deref());
    let log = run.background.as_ref().map(|task| task.output_path.as_str());
    let paths = kept.into_iter().chain(log).filter(|path| path.starts_with('/'));
    paths.map(|path| resource::link(sandbox, path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tools::{BackgroundTask, BashOutput, CallFacts, ForegroundEnd, Image, Survivor, ToolOutput};

    fn context(notice: Option<&str>) -> ResponseContext<'_> {
        ResponseContext { sandbox: "ifoo", session: None, notice: notice.map(str::to_owned) }
    }

    fn result(output: ToolOutput, content: Vec<Block>) -> ToolResult {
        let structured = StructuredResult { call: CallFacts::default(), output };
        ToolResult { is_error: false, code: None, content, structured }
    }

    #[test]
    fn exit_code_is_last_text_and_spilled_output_is_linked() {
        let foreground = ForegroundEnd {
            signal: None,
            cwd: None,
            output_lines: 1,
            output_path: Some("/tmp/.agent/out/c1.log".into()),
            still_running: Vec::new(),
        };
        let background = BackgroundTask {
            task_id: "b1".into(),
            pid: None,
            pgid: None,
            output_path: "/x/b1.log".into(),
            running: true,
        };
        let run = BashOutput { foreground: Some(foreground), background: Some(background), ..BashOutput::default() };
        let (answer, links) = from_tool_result(
            &result(ToolOutput::Bash(run), vec![Block::Text("hi\n[exit 0]".into())]),
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
        let survivor = Survivor { pid: 1, command: dirt.clone() };
        let foreground = ForegroundEnd {
            signal: None,
            cwd: None,
            output_lines: 1,
            output_path: None,
            still_running: vec![survivor; 20],
        };
        let run = BashOutput {
            stdout: dirt.clone(),
            stderr: dirt.clone(),
            foreground: Some(foreground),
            ..BashOutput::default()
        };
        let image = Image { media_type: "image/webp", bytes: Bytes::from(vec![7; 3 << 20]) };
        let content = vec![Block::Text(dirt), Block::Image(image)];
        let (answer, _) = from_tool_result(&result(ToolOutput::Bash(run), content), context(None));
        let wire = serde_json::to_value(&answer).expect("serialises");
        let image = wire["content"][1]["data"].as_str().expect("an image").len();
        assert_eq!(image, (3 << 20) / 3 * 4);
        assert!(size::serialized_len(&answer) - image < size::MAX_MESSAGE_BYTES);
        assert_eq!(wire["content"][0]["text"].as_str().map(str::len), Some(50_000), "the text is not touched");
    }
}
