//! The warm browser that captures share: started when first needed, replaced when it dies, ended when unused.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::try_join_all;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, instrument};
use url::Url;

use crate::breaker::Breakers;
use crate::capture::{Capture, CaptureRequest, Shot, blocked};
use crate::config::{BrowserConfig, RunAs};
use crate::error::{BrowserError, CaptureError};
use crate::page::Page;
use crate::process::Process;
use crate::proxy::Gate;
use crate::visit::{Opened, Visit};

/// More would only make all of them slow.
const MOST_AT_ONCE: usize = 16;
/// For contexts of a capture that is over; a browser that takes longer is replaced.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Takes pictures of sandboxes' pages. Clones share one browser.
///
/// Dropping the last one kills the browser; [`close`](Self::close) ends it in order.
#[derive(Clone)]
pub struct Browser {
    inner: Arc<Inner>,
}

struct Inner {
    config: BrowserConfig,
    program: PathBuf,
    /// Held while a browser starts, so that captures that arrive meanwhile share it.
    process: AsyncMutex<Option<Arc<Process>>>,
    turns: Semaphore,
    used: Mutex<Instant>,
    breakers: Mutex<Breakers>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Browser {
    /// Checks the configuration; the browser itself starts with the first capture. Needs a running tokio runtime from then on.
    ///
    /// # Errors
    /// [`BrowserError::NotFound`] without a browser, [`BrowserError::Root`] if it would run as root.
    pub fn start(mut config: BrowserConfig) -> Result<Self, BrowserError> {
        let program =
            config.find_program().ok_or_else(|| BrowserError::NotFound { program: config.program.clone() })?;
        let root = match config.run_as {
            RunAs::Itself => rustix::process::geteuid().is_root(),
            RunAs::Ids { uid, gid } => uid == 0 || gid == 0,
        };
        if root {
            return Err(BrowserError::Root);
        }
        config.most_at_once = config.most_at_once.clamp(1, MOST_AT_ONCE);
        let inner = Inner {
            program,
            process: AsyncMutex::default(),
            turns: Semaphore::new(config.most_at_once),
            used: Mutex::new(Instant::now()),
            breakers: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            config,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Loads a page in every viewport of the request and takes its pictures.
    ///
    /// Dropping the future gives the capture up; what it opened in the browser is closed in the background. A browser that
    /// dies meanwhile is replaced once, and the capture begins again: loading a page is something it may do twice.
    pub async fn capture(&self, request: CaptureRequest) -> Result<Capture, CaptureError> {
        let origin = request.origin.to_string();
        let url = request
            .origin
            .page(&request.url_path)
            .ok_or_else(|| CaptureError::InvalidPath { path: request.url_path.clone(), origin: origin.clone() })?;
        self.inner.breakers().check(&origin, std::time::Instant::now())?;
        let stop = self.inner.stop.child_token();
        let _stop_with_caller = stop.clone().drop_guard();
        let inner = Arc::clone(&self.inner);
        let capture = self.inner.tasks.spawn(async move { inner.run(&request, &url, &stop).await });
        let result = match capture.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(CaptureError::Closed),
            },
        };
        match &result {
            Ok(_) => self.inner.breakers().succeeded(&origin),
            Err(error) if error.is_failure() => {
                self.inner.breakers().failed(&origin, error, std::time::Instant::now());
            }
            Err(_) => {}
        }
        result
    }

    /// Ends captures under way with [`CaptureError::Closed`], then the browser. Later captures are refused.
    pub async fn close(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        let process = self.inner.process.lock().await.take();
        if let Some(process) = process {
            process.close().await;
        }
    }
}

impl Inner {
    fn breakers(&self) -> std::sync::MutexGuard<'_, Breakers> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    #[instrument(skip_all, fields(origin = %request.origin))]
    async fn run(
        self: &Arc<Self>,
        request: &CaptureRequest,
        url: &Url,
        stop: &CancellationToken,
    ) -> Result<Capture, CaptureError> {
        let started = Instant::now();
        let until = started + self.config.deadlines.whole;
        let turn = tokio::select! {
            turn = timeout_at(until, self.turns.acquire()) => turn,
            () = stop.cancelled() => return Err(CaptureError::Closed),
        };
        let Ok(Ok(_turn)) = turn else {
            return Err(CaptureError::Busy { most: self.config.most_at_once, waited: started.elapsed() });
        };
        self.touch();
        let mut again = true;
        let result = loop {
            let process = self.process(stop).await?;
            match self.attempt(&process, request, url, until, stop).await {
                Err(CaptureError::BrowserDied) if again => {
                    info!("the browser ended during a capture; starting another");
                    again = false;
                }
                result => break result,
            }
        };
        self.touch();
        debug!(took = ?started.elapsed(), ok = result.is_ok(), "capture ended");
        result
    }

    /// The browser that runs, or a new one.
    async fn process(self: &Arc<Self>, stop: &CancellationToken) -> Result<Arc<Process>, CaptureError> {
        let launch = async {
            let mut slot = self.process.lock().await;
            if let Some(process) = slot.as_ref().filter(|process| process.is_alive()) {
                return Ok(Arc::clone(process));
            }
            *slot = None;
            let process = Process::launch(&self.config, self.program.clone()).await?;
            *slot = Some(Arc::clone(&process));
            self.tasks.spawn(retire(Arc::downgrade(self), Arc::downgrade(&process), self.stop.clone()));
            Ok(process)
        };
        stop.run_until_cancelled(launch).await.unwrap_or(Err(CaptureError::Closed))
    }

    async fn attempt(
        &self,
        process: &Process,
        request: &CaptureRequest,
        url: &Url,
        until: Instant,
        stop: &CancellationToken,
    ) -> Result<Capture, CaptureError> {
        let deadlines = self.config.deadlines;
        // Turns and lanes are equally many; none is left only in the moment in which a predecessor gives its own back.
        let lane =
            process.take_lane().ok_or(CaptureError::Busy { most: self.config.most_at_once, waited: Duration::ZERO })?;
        let gate = Gate::to(request.origin.clone(), request.upstream.clone());
        let visit =
            Visit { process, gate: &gate, lane: lane.address, request, url, deadlines, opened: Opened::default() };
        let seen = tokio::select! {
            seen = timeout_at(until, try_join_all(request.viewports.iter().map(|viewport| visit.take(viewport)))) => {
                seen.unwrap_or_else(|_| Err(CaptureError::TimedOut {
                    what: format!("the capture of {url}"),
                    within: deadlines.whole,
                }))
            }
            () = gate.serve(&lane.listener) => Err(CaptureError::Closed),
            () = stop.cancelled() => Err(CaptureError::Closed),
            () = process.connection.ended() => Err(CaptureError::BrowserDied),
        };
        if !visit.opened.close(process, CLOSE_WITHIN).await {
            info!("the browser does not react and is replaced");
            process.kill();
        }
        gate.close().await;
        process.return_lane(lane);
        seen.map(|seen| summarise(seen, &gate))
    }
}

fn summarise(seen: Vec<(Shot, Arc<watch::Sender<Page>>)>, gate: &Gate) -> Capture {
    let (shots, pages): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    let pages: Vec<Page> = pages.into_iter().map(|page| page.borrow().clone()).collect();
    let (blocked, blocked_more) = blocked(&pages, &gate.notes());
    let mut console_errors: Vec<String> = Vec::new();
    for line in pages.into_iter().flat_map(|page| page.console_errors) {
        if !console_errors.contains(&line) {
            console_errors.push(line);
        }
    }
    Capture { shots, blocked, blocked_more, console_errors }
}

/// Ends a browser that nobody has used for long. Ends with it.
async fn retire(inner: Weak<Inner>, process: Weak<Process>, stop: CancellationToken) {
    loop {
        let due = {
            let (Some(inner), Some(process)) = (inner.upgrade(), process.upgrade()) else { return };
            if !process.is_alive() {
                return;
            }
            let used = *inner.used.lock().unwrap_or_else(PoisonError::into_inner);
            let in_use = inner.turns.available_permits() < inner.config.most_at_once;
            let due = if in_use { Instant::now() + inner.config.keep_warm } else { used + inner.config.keep_warm };
            if due <= Instant::now() {
                let unused = inner.process.lock().await.take_if(|current| Arc::ptr_eq(current, &process));
                drop(unused);
                debug!("the browser was not used and ends");
                return process.close().await;
            }
            due
        };
        if stop.run_until_cancelled(tokio::time::sleep_until(due)).await.is_none() {
            return;
        }
    }
}
