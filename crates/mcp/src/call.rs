//! Runs one tool call: acquires the sandbox, sends heartbeats, detaches or cancels in time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::CallToolResult;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Map, Value};
use tokio::time::Instant;
use tools::{ErrorCode, Progress, Watch};

use crate::heartbeat::{self, Latest};
use crate::response::{self, ResponseContext};
use crate::session::Session;
use crate::state::ServerState;

/// Least time a command gets before it is detached, however long acquiring its sandbox took.
const MIN_DETACH_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) reads: bool,
    pub(crate) input: Map<String, Value>,
    pub(crate) session: Arc<Session>,
    /// The client names its session in each call, so the response names it too.
    pub(crate) named: bool,
}

impl Call {
    /// Runs the tool, sends progress meanwhile, and cancels the tool when the client cancels. A
    /// cancelled call returns only after its processes have ended.
    pub(crate) async fn run(self, state: &Arc<ServerState>, context: &RequestContext<RoleServer>) -> CallToolResult {
        let _under_way = state.calls.token();
        let cancel = state.stop.child_token();
        let latest = Latest::default();
        let token = context.meta.get_progress_token();
        let watch = Watch {
            cancel: cancel.clone(),
            // Clients that receive progress keep waiting; others time out after a minute.
            detach_after: token.is_none().then_some(state.settings.detach_after),
            progress: token.as_ref().map(|_| {
                let latest = latest.clone();
                Arc::new(move |progress: Progress| latest.set(progress)) as _
            }),
            output: None,
        };
        let work = async {
            let mut work = pin!(self.work(state, watch));
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = context.ct.cancelled() => cancel.cancel(),
            }
            work.await
        };
        match token {
            Some(token) => heartbeat::run_with_heartbeat(&context.peer, &token, &latest, &context.ct, work).await,
            None => work.await,
        }
    }

    async fn work(self, state: &Arc<ServerState>, mut watch: Watch) -> CallToolResult {
        let started = Instant::now();
        let call = match watch.cancel.run_until_cancelled(state.acquire(&self.session)).await {
            Some(Ok(call)) => call,
            Some(Err(error)) => {
                return response::from_error(ErrorCode::SandboxUnavailable.as_str(), &error.to_string());
            }
            None => return response::from_error(ErrorCode::Cancelled.as_str(), "Not executed: cancelled."),
        };
        let _permit = match self.reads {
            // `acquire` fails only on a closed semaphore, and this one is never closed.
            true => state.reads.acquire().await.ok(),
            false => None,
        };
        watch.detach_after =
            watch.detach_after.map(|after| after.saturating_sub(started.elapsed()).max(MIN_DETACH_AFTER));
        let result = call.tools.dispatch_watched(&self.tool, Value::Object(self.input), watch).await;
        if result.code == Some(ErrorCode::SandboxUnavailable) {
            state.discard(&call.handle).await;
        }
        let sandbox = call.handle.sandbox_id();
        let notice = call.notice.filter(|_| self.session.announce(sandbox));
        let session = self.named.then_some(self.session.name.as_str());
        let (answer, links) = response::from_tool_result(&result, ResponseContext { sandbox, session, notice });
        links.into_iter().for_each(|link| state.add_link(&self.session, link));
        answer
    }
}
