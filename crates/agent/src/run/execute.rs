//! Executes one tool call and always returns a result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use tokio::time::timeout;
use tools::{ErrorCode, OutputChunk, StructuredResult, ToolDispatcher, ToolResult, Watch};

use super::journal::DeltaSender;
use crate::event::Event;
use crate::message::ToolUse;

/// Time for a dispatcher to stop a cancelled call; together with the rest of the work it stays
/// within two seconds.
const CANCEL_GRACE: Duration = Duration::from_millis(1500);
/// A call that exceeds its own timeout by this much is abandoned.
const BACKSTOP_TIMEOUT: Duration = Duration::from_secs(600);
const BASH_DEFAULT_TIMEOUT: u64 = 60;

/// Publishes a command's output while it runs.
pub(super) fn output(delta_sender: &DeltaSender, id: &str) -> Arc<dyn Fn(OutputChunk) + Send + Sync> {
    let (delta_sender, id) = (delta_sender.clone(), id.to_owned());
    Arc::new(move |OutputChunk { stream, text }: OutputChunk| {
        let (id, stream) = (id.clone(), stream.as_str().to_owned());
        delta_sender.delta(|chunk| Event::ToolOutputDelta { id, stream, chunk }, &text);
    })
}

/// Executes one call. It returns a result whatever happens.
pub(super) async fn execute(
    tools: Arc<dyn ToolDispatcher>,
    call: ToolUse,
    watch: Watch,
) -> (ToolUse, ToolResult, Duration) {
    let begun = Instant::now();
    let cancel = watch.cancel.clone();
    let limit = call.input["timeout"].as_u64().unwrap_or(BASH_DEFAULT_TIMEOUT).min(3600);
    let work = AssertUnwindSafe(tools.dispatch_watched(&call.name, call.input.clone(), watch)).catch_unwind();
    let too_late = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    let result = tokio::select! {
        biased;
        result = timeout(Duration::from_secs(limit) + BACKSTOP_TIMEOUT, work) => match result {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => failure(ErrorCode::Internal, "The tool failed because of a mistake in itself."),
            Err(_) => failure(ErrorCode::Timeout, "outcome unknown: the call did not come back long after its time was up."),
        },
        () = too_late => failure(ErrorCode::Cancelled, "outcome unknown: the call was cancelled and did not end in time."),
    };
    (call, result, begun.elapsed())
}

fn failure(code: ErrorCode, text: &str) -> ToolResult {
    ToolResult {
        is_error: true,
        code: Some(code),
        content: vec![tools::Block::Text(text.into())],
        structured: StructuredResult::from_code(code),
    }
}
