//! What all connections of a server share: the sandbox, who works in it, and what is under way.
//!
//! The sandbox is entered with the first call and left when nobody is there any more; the next call enters it again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{Resource, Tool};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tools::ToolDispatcher;
use tracing::{debug, warn};

use crate::server::Settings;
use crate::session::{Named, Session, Sessions};
use crate::workplace::{EnterError, Entered, Workplace, Workplaces};

/// Reading calls at the same time; further ones wait.
const READS_AT_ONCE: usize = 8;
/// Links that `resources/list` shows.
const MOST_LINKS: usize = 100;
/// For calls to end when the server does: commands are asked to first.
const END_WITHIN: Duration = Duration::from_secs(15);
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct Desk {
    workplaces: Arc<dyn Workplaces>,
    pub(crate) settings: Settings,
    /// In the order in which they are always listed.
    pub(crate) tools: Vec<Tool>,
    /// Held while the sandbox is being made, so that calls that arrive meanwhile share it.
    place: tokio::sync::Mutex<Option<Place>>,
    /// The session of those who name none.
    pub(crate) shared: Arc<Session>,
    sessions: Mutex<Sessions>,
    /// With the session that they belong to.
    links: Mutex<Vec<(Arc<Session>, Resource)>>,
    pub(crate) reads: Semaphore,
    /// Calls under way.
    pub(crate) calls: TaskTracker,
    /// Ends them.
    pub(crate) stop: CancellationToken,
    /// Connections with a handshake that have not ended.
    present: AtomicUsize,
    /// When somebody without a connection last called.
    passer_by: Mutex<Option<Instant>>,
    departures: mpsc::UnboundedSender<Arc<Session>>,
}

/// The sandbox while somebody works in it.
struct Place {
    workplace: Arc<dyn Workplace>,
    notice: Option<String>,
    dispatchers: HashMap<String, Arc<dyn ToolDispatcher>>,
}

/// What one call works with.
pub(crate) struct Seat {
    pub(crate) workplace: Arc<dyn Workplace>,
    pub(crate) tools: Arc<dyn ToolDispatcher>,
    pub(crate) notice: Option<String>,
}

/// Sessions whose connections ended.
pub(crate) type Departures = mpsc::UnboundedReceiver<Arc<Session>>;

impl Desk {
    pub(crate) fn new(
        workplaces: Arc<dyn Workplaces>,
        settings: Settings,
        tools: Vec<Tool>,
    ) -> (Arc<Self>, Departures) {
        let (departures, departed) = mpsc::unbounded_channel();
        let shared = settings.session.clone().map_or_else(Session::mint, Session::new);
        let desk = Self {
            workplaces,
            settings,
            tools,
            place: tokio::sync::Mutex::default(),
            shared,
            sessions: Mutex::default(),
            links: Mutex::default(),
            reads: Semaphore::new(READS_AT_ONCE),
            calls: TaskTracker::new(),
            stop: CancellationToken::new(),
            present: AtomicUsize::new(0),
            passer_by: Mutex::default(),
            departures,
        };
        (Arc::new(desk), departed)
    }

    /// A place to work for a session. Giving up the wait does not give up the sandbox that is being made.
    pub(crate) async fn sit(self: &Arc<Self>, session: &Session) -> Result<Seat, EnterError> {
        let (desk, session) = (Arc::clone(self), session.name.clone());
        let entering = self.calls.spawn(async move { desk.enter(&session).await });
        entering.await.unwrap_or_else(|_| {
            Err(EnterError("The sandbox could not be entered because of a mistake in the server.".into()))
        })
    }

    async fn enter(&self, session: &str) -> Result<Seat, EnterError> {
        let mut place = self.place.lock().await;
        let place = match &mut *place {
            Some(place) => place,
            none => {
                let Entered { workplace, notice } = self.workplaces.enter().await?;
                debug!(sandbox = workplace.sandbox(), "entered");
                none.insert(Place { workplace, notice, dispatchers: HashMap::new() })
            }
        };
        let tools = place.dispatchers.entry(session.to_owned()).or_insert_with(|| place.workplace.tools(session));
        Ok(Seat { workplace: Arc::clone(&place.workplace), tools: Arc::clone(tools), notice: place.notice.clone() })
    }

    /// The sandbox, for what needs no session.
    pub(crate) async fn workplace(self: &Arc<Self>) -> Result<Arc<dyn Workplace>, EnterError> {
        self.sit(&self.shared).await.map(|seat| seat.workplace)
    }

    /// The sandbox does not answer any more: the next call looks for it anew.
    pub(crate) async fn lose(&self, lost: &Arc<dyn Workplace>) {
        self.place.lock().await.take_if(|place| Arc::ptr_eq(&place.workplace, lost));
    }

    /// A session that a client names itself.
    pub(crate) fn named(&self, name: &str) -> Named {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.named(name, Instant::now())
    }

    pub(crate) fn remember(&self, session: &Arc<Session>, link: Resource) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|(_, known)| known.uri != link.uri);
        links.push((Arc::clone(session), link));
        let surplus = links.len().saturating_sub(MOST_LINKS);
        links.drain(..surplus);
    }

    /// Output that was too long for answers, the newest last.
    pub(crate) fn links(&self) -> Vec<Resource> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().map(|(_, link)| link.clone()).collect()
    }

    /// Somebody called without a connection to hold on to.
    pub(crate) fn passed_by(&self) {
        *self.passer_by.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Closes sessions that nobody uses any more, and leaves the sandbox when nobody is there.
    pub(crate) async fn look_after(&self) {
        let now = Instant::now();
        let old = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).forget(now);
        for session in old {
            self.close(&session).await;
        }
        let passed = *self.passer_by.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = passed.is_some_and(|at| now.duration_since(at) < self.settings.idle);
        if self.present.load(Ordering::SeqCst) > 0 || expected {
            return;
        }
        let mut place = self.place.lock().await;
        // A call that begins after this look waits for the lock and enters again.
        if place.is_some() && self.calls.is_empty() {
            *place = None;
            self.workplaces.leave().await;
        }
    }

    /// Ends a session: its background tasks and its kept output.
    pub(crate) async fn close(&self, session: &str) {
        let tools = self.place.lock().await.as_mut().and_then(|place| place.dispatchers.remove(session));
        if let Some(tools) = tools
            && timeout(CLOSE_WITHIN, tools.close()).await.is_err()
        {
            warn!(session, "a session did not close in time");
        }
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|(owner, _)| owner.name != session);
    }

    /// Ends calls, sessions and the stay in the sandbox.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.calls.close();
        if timeout(END_WITHIN, self.calls.wait()).await.is_err() {
            warn!("calls did not end in time");
        }
        let sessions: Vec<String> = match &*self.place.lock().await {
            Some(place) => place.dispatchers.keys().cloned().collect(),
            None => Vec::new(),
        };
        // A session that was given a name lives on in the sandbox.
        let kept = self.settings.session.as_deref();
        for session in sessions.iter().filter(|name| Some(name.as_str()) != kept) {
            self.close(session).await;
        }
        let entered = self.place.lock().await.take().is_some();
        if entered {
            self.workplaces.leave().await;
        }
    }
}

/// A connection with a handshake. While there is one, the sandbox is not left.
pub(crate) struct Presence {
    desk: Arc<Desk>,
    session: Arc<Session>,
}

impl Presence {
    pub(crate) fn new(desk: &Arc<Desk>, session: &Arc<Session>) -> Self {
        desk.present.fetch_add(1, Ordering::SeqCst);
        Self { desk: Arc::clone(desk), session: Arc::clone(session) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.desk.present.fetch_sub(1, Ordering::SeqCst);
        // Nobody listens when the server itself ends; then all sessions end.
        let _ = self.desk.departures.send(Arc::clone(&self.session));
    }
}
