//! Connects the browser to the tools: takes screenshots of what a sandbox serves, through its edge,
//! and stores them.

use crate::config::{self, Config};
use crate::screenshot_host::ScreenshotHost;
use async_trait::async_trait;
use browser::store::{Occasion, ScreenshotStore, StoreConfig};
use browser::{Browser, BrowserConfig, CaptureRequest, Origin, Upstream};
use http::Uri;
use http::header::HOST;
use parking_lot::Mutex;
use sdk::{Connect, PortRoute, Sandbox};
use std::sync::{Arc, OnceLock};
use text::error_chain;
use tools::{Screenshot, ScreenshotError, ScreenshotProvider, ScreenshotRequest, ScreenshotSet};

/// Status of an edge's response when no process listens on the port.
const NOT_LISTENING_STATUS: u16 = 502;

/// One browser and one store for all sandboxes of this program. Both are opened at the first
/// screenshot.
pub(crate) struct ScreenshotService {
    config: Config,
    store: StoreConfig,
    tools: OnceLock<Result<Tools, ScreenshotError>>,
    /// URLs of the stored screenshots, in order.
    stored: Mutex<Vec<String>>,
}

struct Tools {
    browser: Browser,
    store: ScreenshotStore,
    /// Signs URLs of screenshots that are stored on this machine.
    host: Option<ScreenshotHost>,
}

impl ScreenshotService {
    /// Stores screenshots where the configuration says, else below the data directory.
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let store = config.screenshots.store(&config.data, config::variable);
        Arc::new(Self { config: config.clone(), store, tools: OnceLock::new(), stored: Mutex::default() })
    }

    /// The provider of screenshots for the tools of one sandbox.
    pub(crate) fn for_sandbox(self: &Arc<Self>, sandbox: Sandbox) -> Arc<dyn ScreenshotProvider> {
        Arc::new(SandboxScreenshots { screenshots: Arc::clone(self), sandbox })
    }

    /// Takes screenshots of a page of a running sandbox in all viewports, and stores them for
    /// `job`.
    pub(crate) async fn capture(
        &self,
        sandbox: &Sandbox,
        job: &str,
        occasion: &Occasion,
        capture: ScreenshotRequest,
    ) -> Result<ScreenshotSet, ScreenshotError> {
        let ScreenshotRequest { port, url_path, full_page } = capture;
        let Tools { browser, store, host } = self.tools()?;
        let (origin, upstream) = address(sandbox, port)?;
        let request = CaptureRequest { url_path, full_page, ..CaptureRequest::new(origin, upstream) };
        let seen = browser.capture(request).await.map_err(|error| explain(error, port))?;
        if seen.screenshots.iter().any(|shot| is_edge_error(shot, sandbox)) {
            return Err(ScreenshotError::NotServed { port });
        }
        let title = seen.screenshots.first().map(|shot| shot.title.clone()).filter(|title| !title.is_empty());
        let mut shots = Vec::new();
        for shot in seen.screenshots {
            let stored = store.put(job, occasion, &shot.name, shot.webp.clone()).await;
            let stored = stored.map_err(|error| ScreenshotError::Failed(error_chain(&error)))?;
            // A local path is useless to a model or a user on another machine, and not shown to
            // them.
            let place = stored.url.to_string();
            let url = match stored.url.scheme() {
                "file" => host.as_ref().and_then(|host| host.url(&stored.key)),
                _ => Some(stored.url.into()),
            };
            self.stored.lock().push(url.clone().unwrap_or(place));
            shots.push(Screenshot {
                viewport: shot.name,
                width: shot.width,
                height: shot.height,
                webp: shot.webp,
                key: stored.key,
                url,
                blank: shot.blank,
            });
        }
        if let Some(host) = host {
            host.enforce_retention().await;
        }
        let mut blocked: Vec<String> =
            seen.blocked.into_iter().map(|request| format!("{} {}", request.kind, request.url)).collect();
        if seen.blocked_more > 0 {
            blocked.push(format!("{} more", seen.blocked_more));
        }
        Ok(ScreenshotSet { screenshots: shots, title, blocked, console_errors: seen.console_errors })
    }

    fn tools(&self) -> Result<&Tools, ScreenshotError> {
        let started = self.tools.get_or_init(|| {
            // Profiles belong to the browser's own user, who cannot enter the data directory.
            let browser = Browser::start(BrowserConfig::new(std::env::temp_dir()));
            let browser = browser.map_err(|error| ScreenshotError::NoBrowser(error_chain(&error)))?;
            let store = ScreenshotStore::open(self.store.clone());
            let store = store.map_err(|error| ScreenshotError::Failed(error_chain(&error)))?;
            let host = ScreenshotHost::open(&self.config);
            let host = host.map_err(|error| ScreenshotError::Failed(error_chain(&error)))?;
            Ok(Tools { browser, store, host })
        });
        started.as_ref().map_err(Clone::clone)
    }

    /// URLs of the screenshots that were taken so far, in order.
    pub(crate) fn stored_urls(&self) -> Vec<String> {
        self.stored.lock().clone()
    }

    /// Ends the browser, if one was started.
    pub(crate) async fn close(&self) {
        if let Some(Ok(tools)) = self.tools.get() {
            tools.browser.close().await;
        }
    }
}

struct SandboxScreenshots {
    screenshots: Arc<ScreenshotService>,
    sandbox: Sandbox,
}

#[async_trait]
impl ScreenshotProvider for SandboxScreenshots {
    async fn capture(&self, capture: ScreenshotRequest) -> Result<ScreenshotSet, ScreenshotError> {
        let occasion = Occasion::Agent { at: jiff::Timestamp::now() };
        let sandbox = self.resume_if_paused().await?;
        self.screenshots.capture(&sandbox, sandbox.id().as_str(), &occasion, capture).await
    }
}

impl SandboxScreenshots {
    /// Resumes a paused sandbox, for which the edge would serve a page of its own.
    async fn resume_if_paused(&self) -> Result<Sandbox, ScreenshotError> {
        let failed = |error: &(dyn std::error::Error + 'static)| ScreenshotError::Failed(error_chain(error));
        if self.sandbox.is_running().await.map_err(|error| failed(&error))? {
            return Ok(self.sandbox.clone());
        }
        let connected = self.sandbox.client().connect(self.sandbox.id(), Connect::default()).await;
        connected.map_err(|error| failed(&error))
    }
}

/// Whether a page is the edge's error page for a port without a listener, which names the sandbox.
/// A page of the sandbox with the same status is an ordinary page.
fn is_edge_error(shot: &browser::PageScreenshot, sandbox: &Sandbox) -> bool {
    let says_so = |text: &str| text.contains(sandbox.id().as_str()) || text.contains("port is not open");
    shot.http_status == Some(NOT_LISTENING_STATUS) && shot.error_text.as_deref().is_none_or(says_so)
}

/// The origin of a port for the page, and the address and headers by which it is reached.
fn address(sandbox: &Sandbox, port: u16) -> Result<(Origin, Upstream), ScreenshotError> {
    let unusable = |what: &str| ScreenshotError::Failed(format!("the sandbox's address cannot be used: {what}"));
    let PortRoute { url, mut headers } = sandbox.route(port);
    // The browser sets the host of the origin.
    headers.remove(HOST);
    let route: Uri = url.parse().map_err(|_| unusable("it is no URL"))?;
    let host = route.host().ok_or_else(|| unusable("it has no host"))?;
    let (origin, address) = if route.scheme_str() == Some("http") {
        let edge = route.port_u16().unwrap_or(80);
        // An edge that routes by headers accepts any host name. Names below localhost are secure
        // contexts.
        let by_headers = || format!("http://{port}-{}.localhost:{edge}", sandbox.id());
        let origin = sandbox.client().sandbox_url().map_or_else(|| sandbox.url(port), |_| by_headers());
        (origin, format!("{host}:{edge}"))
    } else {
        let host = sandbox.host(port);
        (sandbox.url(port), if host.contains(':') { host } else { format!("{host}:443") })
    };
    let origin = origin.parse().map_err(|error: browser::InvalidOrigin| unusable(&error.to_string()))?;
    Ok((origin, Upstream { headers, ..Upstream::new(address) }))
}

/// Converts an error of the browser to one of the tools.
fn explain(error: browser::CaptureError, port: u16) -> ScreenshotError {
    use browser::CaptureError as Seen;
    match error {
        Seen::InvalidPath { .. } | Seen::LeftOrigin { .. } => ScreenshotError::Refused(error.to_string()),
        Seen::CircuitOpen { retry_in, last, .. } => {
            ScreenshotError::Resting { seconds: retry_in.as_secs().max(1), last }
        }
        Seen::Browser(cause) => ScreenshotError::NoBrowser(error_chain(&cause)),
        Seen::Unreachable { .. } => ScreenshotError::NotServed { port },
        Seen::TooLarge { .. } => ScreenshotError::Unusable(error.to_string()),
        Seen::Busy { .. }
        | Seen::BrowserDied
        | Seen::PageCrashed
        | Seen::NotShown { .. }
        | Seen::TimedOut { .. }
        | Seen::Refused { .. }
        | Seen::Closed => ScreenshotError::Failed(error_chain(&error)),
    }
}
