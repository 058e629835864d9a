//! State that all connections of a server share: the sandbox, the sessions and the running calls.
//!
//! The first call acquires the sandbox. An idle server releases it; the next call acquires it
//! again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::{Resource, Tool};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tools::{AcquireError, ToolDispatcher};
use tracing::{debug, warn};

use crate::provider::{AcquiredSandbox, SandboxHandle, SandboxProvider};
use crate::server::Settings;
use crate::session::{Session, SessionLookup, Sessions};

/// Read-only calls that run at the same time; further ones wait.
const MAX_CONCURRENT_READS: usize = 8;
/// Links that `resources/list` returns at most.
const MAX_LINKS: usize = 100;
/// Time for running calls to end at shutdown: commands get SIGTERM first.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);
const SESSION_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct ServerState {
    provider: Arc<dyn SandboxProvider>,
    pub(crate) settings: Settings,
    /// In the fixed order of `tools/list`.
    pub(crate) tools: Vec<Tool>,
    /// Locked while the sandbox is being acquired, so that concurrent calls share it.
    active: tokio::sync::Mutex<Option<ActiveSandbox>>,
    /// The session of calls that name none.
    pub(crate) shared: Arc<Session>,
    sessions: Mutex<Sessions>,
    /// Each with the session that owns it.
    links: Mutex<Vec<(Arc<Session>, Resource)>>,
    pub(crate) reads: Semaphore,
    /// Running calls.
    pub(crate) calls: TaskTracker,
    /// Cancels the running calls.
    pub(crate) stop: CancellationToken,
    /// Open connections with a handshake.
    connections: AtomicUsize,
    /// Time of the last call without a connection.
    last_stateless_call: Mutex<Option<Instant>>,
    closed_sessions: mpsc::UnboundedSender<Arc<Session>>,
}

/// The acquired sandbox with one dispatcher per session.
struct ActiveSandbox {
    handle: Arc<dyn SandboxHandle>,
    notice: Option<String>,
    dispatchers: HashMap<String, Arc<dyn ToolDispatcher>>,
}

/// Everything one call needs.
pub(crate) struct CallContext {
    pub(crate) handle: Arc<dyn SandboxHandle>,
    pub(crate) tools: Arc<dyn ToolDispatcher>,
    pub(crate) notice: Option<String>,
}

/// Receives the sessions whose connections ended.
pub(crate) type ClosedSessions = mpsc::UnboundedReceiver<Arc<Session>>;

impl ServerState {
    pub(crate) fn new(
        provider: Arc<dyn SandboxProvider>,
        settings: Settings,
        tools: Vec<Tool>,
    ) -> (Arc<Self>, ClosedSessions) {
        let (closed_sessions, closed_receiver) = mpsc::unbounded_channel();
        let shared = settings.session.clone().map_or_else(Session::with_random_name, Session::new);
        let state = Self {
            provider,
            settings,
            tools,
            active: tokio::sync::Mutex::default(),
            shared,
            sessions: Mutex::default(),
            links: Mutex::default(),
            reads: Semaphore::new(MAX_CONCURRENT_READS),
            calls: TaskTracker::new(),
            stop: CancellationToken::new(),
            connections: AtomicUsize::new(0),
            last_stateless_call: Mutex::default(),
            closed_sessions,
        };
        (Arc::new(state), closed_receiver)
    }

    /// Acquires the sandbox for a session. Dropping this future does not cancel the acquisition.
    pub(crate) async fn acquire(self: &Arc<Self>, session: &Session) -> Result<CallContext, AcquireError> {
        let (state, session) = (Arc::clone(self), session.name.clone());
        let acquiring = self.calls.spawn(async move { state.acquire_now(&session).await });
        acquiring.await.unwrap_or_else(|_| {
            Err(AcquireError("The sandbox could not be entered because of a mistake in the server.".into()))
        })
    }

    async fn acquire_now(&self, session: &str) -> Result<CallContext, AcquireError> {
        let mut active = self.active.lock().await;
        let active = match &mut *active {
            Some(active) => active,
            none => {
                let AcquiredSandbox { handle, notice } = self.provider.acquire().await?;
                debug!(sandbox = handle.sandbox_id(), "sandbox acquired");
                none.insert(ActiveSandbox { handle, notice, dispatchers: HashMap::new() })
            }
        };
        let tools = active.dispatchers.entry(session.to_owned()).or_insert_with(|| active.handle.tools(session));
        Ok(CallContext { handle: Arc::clone(&active.handle), tools: Arc::clone(tools), notice: active.notice.clone() })
    }

    /// The sandbox, for requests that belong to no session.
    pub(crate) async fn handle(self: &Arc<Self>) -> Result<Arc<dyn SandboxHandle>, AcquireError> {
        self.acquire(&self.shared).await.map(|context| context.handle)
    }

    /// Drops a sandbox that stopped answering; the next call acquires it again.
    pub(crate) async fn discard(&self, lost: &Arc<dyn SandboxHandle>) {
        self.active.lock().await.take_if(|active| Arc::ptr_eq(&active.handle, lost));
    }

    /// Looks up or creates a session that the client names.
    pub(crate) fn resolve_session(&self, name: &str) -> SessionLookup {
        let mut sessions = self.sessions.lock();
        sessions.resolve(name, Instant::now())
    }

    pub(crate) fn add_link(&self, session: &Arc<Session>, link: Resource) {
        let mut links = self.links.lock();
        links.retain(|(_, known)| known.uri != link.uri);
        links.push((Arc::clone(session), link));
        let surplus = links.len().saturating_sub(MAX_LINKS);
        links.drain(..surplus);
    }

    /// Links to output that was too long for responses, newest last.
    pub(crate) fn links(&self) -> Vec<Resource> {
        let links = self.links.lock();
        links.iter().map(|(_, link)| link.clone()).collect()
    }

    /// Marks the server as in use by a client that holds no connection.
    pub(crate) fn record_stateless_call(&self) {
        *self.last_stateless_call.lock() = Some(Instant::now());
    }

    /// Closes sessions past their idle timeout, and releases the sandbox if no client uses it.
    pub(crate) async fn release_if_idle(&self) {
        let now = Instant::now();
        let old = self.sessions.lock().remove_expired(now);
        for session in old {
            self.close_session(&session).await;
        }
        let passed = *self.last_stateless_call.lock();
        let expected = passed.is_some_and(|at| now.duration_since(at) < self.settings.idle_timeout);
        if self.connections.load(Ordering::SeqCst) > 0 || expected {
            return;
        }
        let mut active = self.active.lock().await;
        // A call that starts after this check waits for the lock and acquires the sandbox again.
        if active.is_some() && self.calls.is_empty() {
            *active = None;
            self.provider.release().await;
        }
    }

    /// Closes a session: ends its background tasks and deletes its kept output.
    pub(crate) async fn close_session(&self, session: &str) {
        let tools = self.active.lock().await.as_mut().and_then(|active| active.dispatchers.remove(session));
        if let Some(tools) = tools
            && timeout(SESSION_CLOSE_TIMEOUT, tools.close()).await.is_err()
        {
            warn!(session, "session did not close in time");
        }
        let mut links = self.links.lock();
        links.retain(|(owner, _)| owner.name != session);
    }

    /// Cancels calls, closes sessions and releases the sandbox.
    pub(crate) async fn shut_down(&self) {
        self.stop.cancel();
        self.calls.close();
        if timeout(SHUTDOWN_TIMEOUT, self.calls.wait()).await.is_err() {
            warn!("calls did not end in time");
        }
        let sessions: Vec<String> = match &*self.active.lock().await {
            Some(active) => active.dispatchers.keys().cloned().collect(),
            None => Vec::new(),
        };
        // A session with a configured name persists in the sandbox.
        let kept = self.settings.session.as_deref();
        for session in sessions.iter().filter(|name| Some(name.as_str()) != kept) {
            self.close_session(session).await;
        }
        let acquired = self.active.lock().await.take().is_some();
        if acquired {
            self.provider.release().await;
        }
    }
}

/// Counts one connection with a handshake. While one exists, the sandbox is not released.
pub(crate) struct ConnectionGuard {
    state: Arc<ServerState>,
    session: Arc<Session>,
}

impl ConnectionGuard {
    pub(crate) fn new(state: &Arc<ServerState>, session: &Arc<Session>) -> Self {
        state.connections.fetch_add(1, Ordering::SeqCst);
        Self { state: Arc::clone(state), session: Arc::clone(session) }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.state.connections.fetch_sub(1, Ordering::SeqCst);
        // The receiver is gone once the server shuts down, which closes every session itself.
        let _ = self.state.closed_sessions.send(Arc::clone(&self.session));
    }
}
