//! One call, from its beginning to a result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use tokio::time::timeout;
use tools::{ErrorCode, Said, ToolDispatcher, ToolResult, Watch};

use super::journal::Teller;
use crate::event::Event;
use crate::message::ToolUse;

/// For a dispatcher to end what was cancelled; with the rest of the work this stays within two seconds.
const CANCEL_GRACE: Duration = Duration::from_millis(1500);
/// A call that takes this much longer than it may has been forgotten.
const BACKSTOP: Duration = Duration::from_secs(600);
const BASH_DEFAULT: u64 = 60;

/// Tells what a call's command says while it runs.
pub(super) fn output(teller: &Teller, id: &str) -> Arc<dyn Fn(Said) + Send + Sync> {
    let (teller, id) = (teller.clone(), id.to_owned());
    Arc::new(move |Said { stream, text }: Said| {
        let (id, stream) = (id.clone(), stream.as_str().to_owned());
        teller.delta(|chunk| Event::ToolOutputDelta { id, stream, chunk }, &text);
    })
}

/// Makes one call. Whatever happens, there is a result.
pub(super) async fn execute(
    tools: Arc<dyn ToolDispatcher>,
    call: ToolUse,
    watch: Watch,
) -> (ToolUse, ToolResult, Duration) {
    let begun = Instant::now();
    let cancel = watch.cancel.clone();
    let limit = call.input["timeout"].as_u64().unwrap_or(BASH_DEFAULT).min(3600);
    let work = AssertUnwindSafe(tools.dispatch_watched(&call.name, call.input.clone(), watch)).catch_unwind();
    let too_late = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    let result = tokio::select! {
        biased;
        result = timeout(Duration::from_secs(limit) + BACKSTOP, work) => match result {
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
        structured: serde_json::json!({ "error": { "code": code.as_str() } }),
    }
}
