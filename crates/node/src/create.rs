//! Creates sandboxes, at most once per idempotency key.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use protocol::SandboxId;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::error::{CreateError, SandboxError};
use crate::id::{Token, new_sandbox_id};
use crate::lifecycle::State;
use crate::log::LogLevel;
use crate::node::Node;
use crate::owner::Owner;
use crate::owner::change::RootfsSource;
use crate::sandbox::{Created, IdempotencyKey, NewSandbox, PersistedState, Record};
use crate::spares;
use crate::start_command::{self, GuestAccess};
use crate::state::NodeState;
use crate::template::Resolved;

/// How long the answer to an idempotency key is kept.
const KEY_RETENTION: SignedDuration = SignedDuration::from_hours(24);
/// How long a create call waits for the template's ready command: SDKs time out after 60 s.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

impl Node {
    /// Creates a sandbox. A repeated call with the same idempotency key returns the first answer.
    ///
    /// Continues if the caller stops waiting: an incomplete sandbox would be lost otherwise, and
    /// the timeout ends one that no caller uses.
    ///
    /// # Errors
    /// [`CreateError::KeyMismatch`] or [`CreateError::KeyInProgress`] because of the key, otherwise
    /// [`CreateError::Sandbox`]; nothing of the sandbox is left, and the caller can retry.
    pub async fn create(&self, new: NewSandbox, idempotency: Option<IdempotencyKey>) -> Result<Created, CreateError> {
        let guard = match &idempotency {
            Some(IdempotencyKey { key, .. }) => Some(KeyGuard::take(&self.keys_in_progress, key)?),
            None => None,
        };
        let (node_state, tasks) = (Arc::clone(&self.node_state), self.tasks.clone());
        let making = self.complete(async move {
            let _guard = guard;
            if let Some(earlier) = find_earlier(&node_state, idempotency.as_ref()).await? {
                return Ok(earlier);
            }
            let origin = new.from.files.clone();
            let spare = node_state.spares.take(&origin);
            let record = new_record(&node_state, spare.clone().unwrap_or_else(new_sandbox_id), new);
            let rootfs = origin.clone().map_or(RootfsSource::Base, RootfsSource::CopyOf);
            let rootfs = if spare.is_some() { RootfsSource::Spare(Box::new(rootfs)) } else { rootfs };
            let made = make(&node_state, &tasks, record, rootfs, idempotency.as_ref()).await;
            if made.is_err() {
                // The sandbox may have failed before it took the spare.
                spares::remove(&node_state, spare).await;
            }
            tasks.spawn(spares::refill(Arc::clone(&node_state), origin));
            Ok(made?)
        });
        making.await
    }
}

/// Boots the sandbox of `record` and returns when it can be used. If that fails, nothing of it is
/// left.
pub(crate) async fn make(
    node_state: &Arc<NodeState>,
    tasks: &TaskTracker,
    record: Record,
    rootfs: RootfsSource,
    idempotency: Option<&IdempotencyKey>,
) -> Result<Created, SandboxError> {
    let (created, defaults) = (Created::from(&record), record.defaults.clone());
    let (mut owner, handle) = Owner::new(node_state, record, State::Starting);
    node_state
        .volumes
        .while_present(&owner.record().spec.volumes, || node_state.register_within_limit(created.id.clone(), handle))
        .await?;
    owner.start(rootfs, idempotency).await?;
    tasks.spawn(owner.run());
    if let Some(live) = node_state.view(&created.id).and_then(|view| view.live) {
        let guest = GuestAccess { socket: live.machine.guest_socket(), token: created.access_token.as_ref() };
        if !start_command::wait_until_ready(guest, &defaults, READY_TIMEOUT).await
            && let Some(handle) = node_state.find(&created.id)
        {
            let message = "the template's ready command has not succeeded yet";
            handle.notes.log().write(node_state.clock.now(), LogLevel::Warn, message);
        }
    }
    Ok(created)
}

async fn find_earlier(
    node_state: &NodeState,
    idempotency: Option<&IdempotencyKey>,
) -> Result<Option<Created>, CreateError> {
    let Some(IdempotencyKey { key, fingerprint }) = idempotency else { return Ok(None) };
    if let Ok(before) = node_state.clock.now().checked_sub(KEY_RETENTION) {
        node_state.records.forget_creations(before).await.map_err(SandboxError::from)?;
    }
    match node_state.records.creation(key).await.map_err(SandboxError::from)? {
        Some((known, created)) if known == *fingerprint => Ok(Some(created)),
        Some(_) => Err(CreateError::KeyMismatch),
        None => Ok(None),
    }
}

fn new_record(node_state: &NodeState, id: SandboxId, new: NewSandbox) -> Record {
    let NewSandbox {
        from: Resolved { template, defaults, files: _, size: _, build: _ },
        timeout,
        secure,
        public_traffic,
        spec,
    } = new;
    let now = node_state.clock.now();
    Record {
        id,
        template,
        standing: PersistedState::Running,
        instance: None,
        started_at: now,
        end_at: clock::after(now, timeout),
        lease: timeout,
        spec,
        access_token: secure.then(Token::random),
        traffic_token: (!public_traffic).then(Token::random),
        boot_id: uuid::Uuid::new_v4().to_string(),
        defaults,
    }
}

/// The right to use an idempotency key, until it is dropped.
struct KeyGuard {
    keys: Arc<Mutex<HashSet<String>>>,
    key: String,
}

impl KeyGuard {
    fn take(keys: &Arc<Mutex<HashSet<String>>>, key: &str) -> Result<Self, CreateError> {
        if !keys.lock().insert(key.to_owned()) {
            return Err(CreateError::KeyInProgress);
        }
        Ok(Self { keys: Arc::clone(keys), key: key.to_owned() })
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        self.keys.lock().remove(&self.key);
    }
}
