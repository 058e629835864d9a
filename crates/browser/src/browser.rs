//! The browser that captures share: started on first use, replaced when it dies, closed when idle.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, instrument};
use url::Url;

use crate::breaker::Breakers;
use crate::capture::{Capture, CaptureRequest, PageScreenshot, merge_blocked};
use crate::config::{BrowserConfig, RunAs};
use crate::error::{BrowserError, CaptureError};
use crate::page::Page;
use crate::process::Process;
use crate::proxy::OriginProxy;
use crate::tab::{CaptureContext, Opened};

/// More concurrent captures would slow all of them down.
const MAX_CONCURRENT: usize = 16;
/// Time to dispose of a capture's contexts; a browser that takes longer is replaced.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes screenshots of pages. Clones share one browser.
///
/// Dropping the last clone kills the browser; [`close`](Self::close) shuts it down in order.
#[derive(Clone)]
pub struct Browser {
    inner: Arc<Inner>,
}

struct Inner {
    config: BrowserConfig,
    program: PathBuf,
    /// Locked while a browser starts, so that concurrent captures share it.
    process: AsyncMutex<Option<Arc<Process>>>,
    permits: Semaphore,
    used: Mutex<Instant>,
    breakers: Mutex<Breakers>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Browser {
    /// Validates the configuration. The browser itself starts with the first capture, which needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`BrowserError::NotFound`] if no browser is installed, [`BrowserError::Root`] if it would
    /// run as root.
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
        config.max_concurrent = config.max_concurrent.clamp(1, MAX_CONCURRENT);
        let inner = Inner {
            program,
            process: AsyncMutex::default(),
            permits: Semaphore::new(config.max_concurrent),
            used: Mutex::new(Instant::now()),
            breakers: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            config,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Loads a page in every viewport of the request and takes a screenshot of each.
    ///
    /// Dropping the future cancels the capture; a background task closes what it opened. If the
    /// browser dies during the capture, a new one is started and the capture is retried once:
    /// loading a page is idempotent enough for that.
    ///
    /// # Errors
    /// [`CaptureError::InvalidPath`] for an address outside the origin,
    /// [`CaptureError::CircuitOpen`] after repeated failures, [`CaptureError::Busy`] if no permit
    /// becomes free; the other variants tell how the page or the browser failed.
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
            Ok(_) => self.inner.breakers().record_success(&origin),
            Err(error) if error.is_failure() => {
                self.inner.breakers().record_failure(&origin, error, std::time::Instant::now());
            }
            Err(_) => {}
        }
        result
    }

    /// Cancels running captures with [`CaptureError::Closed`], then closes the browser. Later
    /// captures are refused.
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
    fn breakers(&self) -> parking_lot::MutexGuard<'_, Breakers> {
        self.breakers.lock()
    }

    fn touch(&self) {
        *self.used.lock() = Instant::now();
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
            turn = timeout_at(until, self.permits.acquire()) => turn,
            () = stop.cancelled() => return Err(CaptureError::Closed),
        };
        let Ok(Ok(_turn)) = turn else {
            return Err(CaptureError::Busy { most: self.config.max_concurrent, waited: started.elapsed() });
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

    /// The running browser, or a new one.
    async fn process(self: &Arc<Self>, stop: &CancellationToken) -> Result<Arc<Process>, CaptureError> {
        let launch = async {
            let mut slot = self.process.lock().await;
            if let Some(process) = slot.as_ref().filter(|process| process.is_alive()) {
                return Ok(Arc::clone(process));
            }
            *slot = None;
            let process = Process::launch(&self.config, self.program.clone()).await?;
            *slot = Some(Arc::clone(&process));
            self.tasks.spawn(close_when_idle(Arc::downgrade(self), Arc::downgrade(&process), self.stop.clone()));
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
        // There are as many listeners as permits; none is free only while the previous capture is
        // returning its own.
        let listener = process
            .take_listener()
            .ok_or(CaptureError::Busy { most: self.config.max_concurrent, waited: Duration::ZERO })?;
        let proxy = OriginProxy::new(request.origin.clone(), request.upstream.clone());
        let context = CaptureContext {
            process,
            proxy: &proxy,
            listener: listener.address,
            request,
            url,
            deadlines,
            opened: Opened::default(),
        };
        let seen = tokio::select! {
            seen = timeout_at(until, try_join_all(request.viewports.iter().map(|viewport| context.capture(viewport)))) => {
                seen.unwrap_or_else(|_| Err(CaptureError::TimedOut {
                    what: format!("the capture of {url}"),
                    within: deadlines.whole,
                }))
            }
            () = proxy.serve(&listener.listener) => Err(CaptureError::Closed),
            () = stop.cancelled() => Err(CaptureError::Closed),
            () = process.connection.wait_for_end() => Err(CaptureError::BrowserDied),
        };
        if !context.opened.close(process, CLOSE_TIMEOUT).await {
            info!("browser does not respond and is replaced");
            process.kill();
        }
        proxy.close().await;
        process.return_listener(listener);
        seen.map(|seen| merge_results(seen, &proxy))
    }
}

fn merge_results(seen: Vec<(PageScreenshot, Arc<watch::Sender<Page>>)>, proxy: &OriginProxy) -> Capture {
    let (screenshots, pages): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    let pages: Vec<Page> = pages.into_iter().map(|page| page.borrow().clone()).collect();
    let (blocked, blocked_more) = merge_blocked(&pages, &proxy.notes());
    let mut console_errors: Vec<String> = Vec::new();
    for line in pages.into_iter().flat_map(|page| page.console_errors) {
        if !console_errors.contains(&line) {
            console_errors.push(line);
        }
    }
    Capture { screenshots, blocked, blocked_more, console_errors }
}

/// Closes the browser after its idle timeout. Ends with the browser.
async fn close_when_idle(inner: Weak<Inner>, process: Weak<Process>, stop: CancellationToken) {
    loop {
        let due = {
            let (Some(inner), Some(process)) = (inner.upgrade(), process.upgrade()) else { return };
            if !process.is_alive() {
                return;
            }
            let used = *inner.used.lock();
            let in_use = inner.permits.available_permits() < inner.config.max_concurrent;
            let due =
                if in_use { Instant::now() + inner.config.idle_timeout } else { used + inner.config.idle_timeout };
            if due <= Instant::now() {
                let unused = inner.process.lock().await.take_if(|current| Arc::ptr_eq(current, &process));
                drop(unused);
                debug!("browser is idle and closes");
                return process.close().await;
            }
            due
        };
        if stop.run_until_cancelled(tokio::time::sleep_until(due)).await.is_none() {
            return;
        }
    }
}
