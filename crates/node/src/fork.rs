//! Forks: new sandboxes that begin with the files of another, all of one moment.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::create::make;
use crate::error::SandboxError;
use crate::faults::Point;
use crate::id::{FilesId, SandboxId, Token};
use crate::node::Node;
use crate::owner::Command;
use crate::owner::change::Beginning;
use crate::sandbox::{Created, Record, Standing};
use crate::snapshot::sync_if_running;
use crate::world::World;

/// Children that boot at once.
const BOOTS: usize = 8;

impl Node {
    /// Makes `count` sandboxes that begin with the files of `id`, running or paused, and with its settings; each has tokens and
    /// a lease of its own. One entry a child: some may fail where others do not. The source stays as it is.
    ///
    /// Goes on when the caller stops waiting, as a create does.
    pub async fn fork(
        &self,
        id: &SandboxId,
        timeout: Duration,
        count: usize,
    ) -> Result<Vec<Result<Created, SandboxError>>, SandboxError> {
        let (world, tasks, id) = (Arc::clone(&self.world), self.tasks.clone(), id.clone());
        self.complete(async move {
            let children: Vec<SandboxId> = (0..count).map(|_| SandboxId::random()).collect();
            let Some(first) = children.first() else { return Ok(Vec::new()) };
            let to = FilesId::from(first);
            sync_if_running(&world, &id).await;
            let source = world.ask(&id, |reply| Command::CopyFiles { to, purpose: "a fork", reply }).await?;
            world.faults.pass(Point::ForkCopied);
            Ok(make_all(&world, &tasks, &source, children, timeout).await)
        })
        .await
    }
}

/// The first child has its files; the others get copies of them before it boots and changes its own.
async fn make_all(
    world: &Arc<World>,
    tasks: &TaskTracker,
    source: &Record,
    children: Vec<SandboxId>,
    timeout: Duration,
) -> Vec<Result<Created, SandboxError>> {
    let mut prepared = Vec::new();
    for (index, id) in children.iter().enumerate() {
        let copied = match index {
            0 => Ok(()),
            _ => world.engine.copy_files(&FilesId::from(&children[0]), &FilesId::from(id)).await,
        };
        prepared.push((id.clone(), copied));
    }
    world.faults.pass(Point::ForkPrepared);
    let boots = prepared.into_iter().map(|(id, copied)| async move {
        copied?;
        let record = child(world, source, id, timeout);
        let files = FilesId::from(&record.id);
        let made = make(world, tasks, record, Beginning::InPlace, None).await;
        world.faults.pass(Point::ForkMade);
        if made.is_err() {
            // Where there was no room, nothing has removed them yet. What fails here is swept at the next start.
            let _ = world.engine.remove_files(&files).await;
        }
        made
    });
    futures::stream::iter(boots).buffered(BOOTS).collect().await
}

fn child(world: &World, source: &Record, id: SandboxId, timeout: Duration) -> Record {
    let now = world.clock.now();
    Record {
        id,
        standing: Standing::Running,
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
