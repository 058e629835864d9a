//! One tool call: its sandbox, its patience, its heartbeats and its end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::CallToolResult;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Map, Value};
use tokio::time::Instant;
use tools::{ErrorCode, Progress, Watch};

use crate::answer::{self, About};
use crate::desk::Desk;
use crate::heartbeat::{self, Latest};
use crate::session::Session;

/// A command is given at least so long before it is detached, however long its sandbox took to come.
const AT_LEAST: Duration = Duration::from_secs(1);

pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) reads: bool,
    pub(crate) input: Map<String, Value>,
    pub(crate) session: Arc<Session>,
    /// Whether the client names its session and wants to hear its name.
    pub(crate) named: bool,
}

impl Call {
    /// Does it, tells the client meanwhile, and gives it up when the client does. Giving up waits until nothing runs any more.
    pub(crate) async fn run(self, desk: &Arc<Desk>, context: &RequestContext<RoleServer>) -> CallToolResult {
        let _under_way = desk.calls.token();
        let cancel = desk.stop.child_token();
        let latest = Latest::default();
        let token = context.meta.get_progress_token();
        let watch = Watch {
            cancel: cancel.clone(),
            // A client that is told how it goes waits; others give up after a minute.
            detach_after: token.is_none().then_some(desk.settings.detach_after),
            progress: token.as_ref().map(|_| {
                let latest = latest.clone();
                Arc::new(move |progress: Progress| latest.set(progress)) as _
            }),
            output: None,
        };
        let work = async {
            let mut work = pin!(self.work(desk, watch));
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = context.ct.cancelled() => cancel.cancel(),
            }
            work.await
        };
        match token {
            Some(token) => heartbeat::during(&context.peer, &token, &latest, &context.ct, work).await,
            None => work.await,
        }
    }

    async fn work(self, desk: &Arc<Desk>, mut watch: Watch) -> CallToolResult {
        let begun = Instant::now();
        let seat = match watch.cancel.run_until_cancelled(desk.sit(&self.session)).await {
            Some(Ok(seat)) => seat,
            Some(Err(error)) => return answer::failure(ErrorCode::SandboxUnavailable.as_str(), &error.to_string()),
            None => return answer::failure(ErrorCode::Cancelled.as_str(), "Not executed: cancelled."),
        };
        let _turn = match self.reads {
            // Never closed.
            true => desk.reads.acquire().await.ok(),
            false => None,
        };
        watch.detach_after = watch.detach_after.map(|after| after.saturating_sub(begun.elapsed()).max(AT_LEAST));
        let result = seat.tools.dispatch_watched(&self.tool, Value::Object(self.input), watch).await;
        if result.code == Some(ErrorCode::SandboxUnavailable) {
            desk.lose(&seat.workplace).await;
        }
        let sandbox = seat.workplace.sandbox();
        let notice = seat.notice.filter(|_| self.session.tell(sandbox));
        let session = self.named.then_some(self.session.name.as_str());
        let (answer, links) = answer::from(&result, About { sandbox, session, notice });
        links.into_iter().for_each(|link| desk.remember(&self.session, link));
        answer
    }
}
