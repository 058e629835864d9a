//! Making sandboxes, at most once for each idempotency key.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::error::{CreateError, SandboxError};
use crate::id::{SandboxId, Token};
use crate::lifecycle::State;
use crate::log::LogLevel;
use crate::node::Node;
use crate::owner::Owner;
use crate::owner::change::Beginning;
use crate::sandbox::{Created, NewSandbox, Record, Repeatable, Standing};
use crate::start_command::{self, Guest};
use crate::template::Resolved;
use crate::world::World;

/// How long a create can be repeated.
const KEYS_KEPT: SignedDuration = SignedDuration::from_hours(24);
/// How long a create waits for what its template starts: SDKs give up after 60 s.
const READY_PATIENCE: Duration = Duration::from_secs(30);

impl Node {
    /// Makes a sandbox. A repeated create answers what the first one answered.
    ///
    /// Goes on when the caller stops waiting: a half-made sandbox would be lost otherwise, and a lease ends an unwanted one.
    pub async fn create(&self, new: NewSandbox, repeatable: Option<Repeatable>) -> Result<Created, CreateError> {
        let claim = match &repeatable {
            Some(Repeatable { key, .. }) => Some(Claim::take(&self.keys_in_progress, key)?),
            None => None,
        };
        let (world, tasks) = (Arc::clone(&self.world), self.tasks.clone());
        let making = self.complete(async move {
            let _claim = claim;
            if let Some(earlier) = earlier(&world, repeatable.as_ref()).await? {
                return Ok(earlier);
            }
            let beginning = new.from.files.clone().map_or(Beginning::Base, Beginning::CopyOf);
            let record = draft(&world, new);
            Ok(make(&world, &tasks, record, beginning, repeatable.as_ref()).await?)
        });
        making.await
    }
}

/// Boots the sandbox of `record` and answers when it can be used. When that fails nothing is left of it.
pub(crate) async fn make(
    world: &Arc<World>,
    tasks: &TaskTracker,
    record: Record,
    beginning: Beginning,
    repeatable: Option<&Repeatable>,
) -> Result<Created, SandboxError> {
    let (created, defaults) = (Created::from(&record), record.defaults.clone());
    let (mut owner, handle) = Owner::new(world, record, State::Starting);
    world.volumes.while_there(&owner.record().volumes, || world.register_if_room(created.id.clone(), handle)).await?;
    owner.start(beginning, repeatable).await?;
    tasks.spawn(owner.run());
    if let Some(live) = world.view(&created.id).and_then(|view| view.live) {
        let guest = Guest { socket: live.machine.guest_socket(), token: created.access_token.as_ref() };
        if !start_command::wait_until_ready(guest, &defaults, READY_PATIENCE).await
            && let Some(handle) = world.find(&created.id)
        {
            let message = "the template's ready command has not succeeded yet";
            handle.notes.log().write(world.clock.now(), LogLevel::Warn, message);
        }
    }
    Ok(created)
}

async fn earlier(world: &World, repeatable: Option<&Repeatable>) -> Result<Option<Created>, CreateError> {
    let Some(Repeatable { key, fingerprint }) = repeatable else { return Ok(None) };
    if let Ok(before) = world.clock.now().checked_sub(KEYS_KEPT) {
        world.records.forget_creations(before).await.map_err(SandboxError::from)?;
    }
    match world.records.creation(key).await.map_err(SandboxError::from)? {
        Some((known, created)) if known == *fingerprint => Ok(Some(created)),
        Some(_) => Err(CreateError::KeyMismatch),
        None => Ok(None),
    }
}

fn draft(world: &World, new: NewSandbox) -> Record {
    let NewSandbox {
        from: Resolved { template, defaults, files: _, size: _, build: _ },
        timeout,
        resources,
        secure,
        public_traffic,
        allow_internet,
        egress,
        ingress,
        volumes,
        on_timeout,
        auto_resume,
        metadata,
        env_vars,
        mcp,
    } = new;
    let now = world.clock.now();
    Record {
        id: SandboxId::random(),
        template,
        standing: Standing::Running,
        instance: None,
        started_at: now,
        end_at: clock::after(now, timeout),
        lease: timeout,
        resources,
        access_token: secure.then(Token::random),
        traffic_token: (!public_traffic).then(Token::random),
        allow_internet,
        egress,
        ingress,
        volumes,
        on_timeout,
        auto_resume,
        metadata,
        env_vars,
        mcp,
        boot_id: uuid::Uuid::new_v4().to_string(),
        defaults,
    }
}

/// The right to use a key; given back when dropped.
struct Claim {
    keys: Arc<Mutex<HashSet<String>>>,
    key: String,
}

fn lock(keys: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Claim {
    fn take(keys: &Arc<Mutex<HashSet<String>>>, key: &str) -> Result<Self, CreateError> {
        if !lock(keys).insert(key.to_owned()) {
            return Err(CreateError::KeyInProgress);
        }
        Ok(Self { keys: Arc::clone(keys), key: key.to_owned() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.keys).remove(&self.key);
    }
}
