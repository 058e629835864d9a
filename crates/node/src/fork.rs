//! Forks: new sandboxes with the files of another one at one moment.

use std::sync::Arc;
use std::time::Duration;

use engine::FilesId;
use futures::StreamExt;
use protocol::SandboxId;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::create::make;
use crate::error::SandboxError;
use crate::faults::Point;
use crate::id::{Token, new_sandbox_id};
use crate::node::Node;
use crate::owner::Command;
use crate::owner::change::RootfsSource;
use crate::sandbox::{Created, PersistedState, Record};
use crate::snapshot::sync_if_running;
use crate::state::NodeState;

/// Children that boot concurrently.
const CONCURRENT_BOOTS: usize = 8;

impl Node {
    /// Creates `count` sandboxes with the settings of `id`, which is running or paused, and with
    /// its files at one moment; each child has its own tokens and timeout. The result has one entry
    /// per child, since some may fail while others start. The source does not change.
    ///
    /// Continues if the caller stops waiting, like a create call.
    pub async fn fork(
        &self,
        id: &SandboxId,
        timeout: Duration,
        count: usize,
    ) -> Result<Vec<Result<Created, SandboxError>>, SandboxError> {
        let (node_state, tasks, id) = (Arc::clone(&self.node_state), self.tasks.clone(), id.clone());
        self.complete(async move {
            let children: Vec<SandboxId> = (0..count).map(|_| new_sandbox_id()).collect();
            let Some(first) = children.first() else { return Ok(Vec::new()) };
            let to = FilesId::from(first);
            sync_if_running(&node_state, &id).await;
            let source = node_state.ask(&id, |reply| Command::CopyFiles { to, purpose: "a fork", reply }).await?;
            node_state.faults.pass(Point::ForkCopied);
            Ok(make_all(&node_state, &tasks, &source, children, timeout).await)
        })
        .await
    }
}

/// The first child has its files; the others get copies of them before the first one boots and
/// changes its own.
async fn make_all(
    node_state: &Arc<NodeState>,
    tasks: &TaskTracker,
    source: &Record,
    children: Vec<SandboxId>,
    timeout: Duration,
) -> Vec<Result<Created, SandboxError>> {
    let mut prepared = Vec::new();
    for (index, id) in children.iter().enumerate() {
        let copied = match index {
            0 => Ok(()),
            _ => node_state.engine.copy_files(&FilesId::from(&children[0]), &FilesId::from(id)).await,
        };
        prepared.push((id.clone(), copied));
    }
    node_state.faults.pass(Point::ForkPrepared);
    let boots = prepared.into_iter().map(|(id, copied)| async move {
        copied?;
        let record = child_record(node_state, source, id, timeout);
        let files = FilesId::from(&record.id);
        let made = make(node_state, tasks, record, RootfsSource::InPlace, None).await;
        node_state.faults.pass(Point::ForkMade);
        if made.is_err() {
            // If the machine was full, nothing has removed the files yet. Files that stay are swept
            // at the next start.
            let _ = node_state.engine.remove_files(&files).await;
        }
        made
    });
    futures::stream::iter(boots).buffered(CONCURRENT_BOOTS).collect().await
}

fn child_record(node_state: &NodeState, source: &Record, id: SandboxId, timeout: Duration) -> Record {
    let now = node_state.clock.now();
    Record {
        id,
        standing: PersistedState::Running,
        instance: None,
        started_at: now,
        end_at: clock::after(now, timeout),
        lease: timeout,
        access_token: source.access_token.as_ref().map(|_| Token::random()),
        traffic_token: source.traffic_token.as_ref().map(|_| Token::random()),
        boot_id: uuid::Uuid::new_v4().to_string(),
        ..source.clone()
    }
}
