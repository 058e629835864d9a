//! Joins the browser to the tools: pictures of what a sandbox serves, taken through its edge and kept in the store.

use crate::config::{self, Config};
use crate::screenshot_host::ScreenshotHost;
use async_trait::async_trait;
use browser::store::{Occasion, ScreenshotStore, StoreConfig};
use browser::{Browser, BrowserConfig, CaptureRequest, Origin, Upstream};
use http::Uri;
use http::header::HOST;
use sdk::{Connect, PortRoute, Sandbox};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tools::{Capture, CaptureError, Screenshots, Shot, Shots};

/// What an edge answers when nobody listens on a port.
const NOBODY_THERE: u16 = 502;

/// One browser and one store for all sandboxes of this program. Both begin with the first picture.
pub(crate) struct Pictures {
    config: Config,
    store: StoreConfig,
    tools: OnceLock<Result<Tools, CaptureError>>,
    /// Where those are that were taken, in order.
    stored: Mutex<Vec<String>>,
}

struct Tools {
    browser: Browser,
    store: ScreenshotStore,
    /// For pictures that only this machine has.
    host: Option<ScreenshotHost>,
}

impl Pictures {
    /// Kept where the configuration says, else below the data directory.
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let store = config.screenshots.store(&config.data, config::variable);
        Arc::new(Self { config: config.clone(), store, tools: OnceLock::new(), stored: Mutex::default() })
    }

    /// What an agent asks for in one sandbox.
    pub(crate) fn of(self: &Arc<Self>, sandbox: Sandbox) -> Arc<dyn Screenshots> {
        Arc::new(Preview { pictures: Arc::clone(self), sandbox })
    }

    /// Takes a page of a sandbox that runs, in all viewports, and keeps it for `job`.
    pub(crate) async fn capture(
        &self,
        sandbox: &Sandbox,
        job: &str,
        occasion: &Occasion,
        capture: Capture,
    ) -> Result<Shots, CaptureError> {
        let Capture { port, url_path, full_page } = capture;
        let Tools { browser, store, host } = self.tools()?;
        let (origin, upstream) = address(sandbox, port)?;
        let request = CaptureRequest { url_path, full_page, ..CaptureRequest::new(origin, upstream) };
        let seen = browser.capture(request).await.map_err(|error| explain(error, port))?;
        if seen.shots.iter().any(|shot| is_of_the_edge(shot, sandbox)) {
            return Err(CaptureError::NotServed { port });
        }
        let title = seen.shots.first().map(|shot| shot.title.clone()).filter(|title| !title.is_empty());
        let mut shots = Vec::new();
        for shot in seen.shots {
            let stored = store.put(job, occasion, &shot.name, shot.webp.clone()).await;
            let stored = stored.map_err(|error| CaptureError::Failed(told(&error)))?;
            // A path of this machine says nothing to a model or to a person at another one, and is none of theirs.
            let place = stored.url.to_string();
            let url = match stored.url.scheme() {
                "file" => host.as_ref().and_then(|host| host.url(&stored.key)),
                _ => Some(stored.url.into()),
            };
            self.stored.lock().unwrap_or_else(PoisonError::into_inner).push(url.clone().unwrap_or(place));
            shots.push(Shot {
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
        Ok(Shots { shots, title, blocked, console_errors: seen.console_errors })
    }

    fn tools(&self) -> Result<&Tools, CaptureError> {
        let started = self.tools.get_or_init(|| {
            // Profiles are directories of the browser's own user, who cannot pass through the data directory.
            let browser = Browser::start(BrowserConfig::new(std::env::temp_dir()));
            let browser = browser.map_err(|error| CaptureError::NoBrowser(told(&error)))?;
            let store = ScreenshotStore::open(self.store.clone());
            let store = store.map_err(|error| CaptureError::Failed(told(&error)))?;
            let host = ScreenshotHost::open(&self.config);
            let host = host.map_err(|error| CaptureError::Failed(told(&error)))?;
            Ok(Tools { browser, store, host })
        });
        started.as_ref().map_err(Clone::clone)
    }

    /// Where the screenshots are that were taken so far, in order.
    pub(crate) fn stored(&self) -> Vec<String> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the browser, if there is one.
    pub(crate) async fn close(&self) {
        if let Some(Ok(tools)) = self.tools.get() {
            tools.browser.close().await;
        }
    }
}

struct Preview {
    pictures: Arc<Pictures>,
    sandbox: Sandbox,
}

#[async_trait]
impl Screenshots for Preview {
    async fn capture(&self, capture: Capture) -> Result<Shots, CaptureError> {
        let occasion = Occasion::Agent { at: jiff::Timestamp::now() };
        let sandbox = self.awake().await?;
        self.pictures.capture(&sandbox, sandbox.id().as_str(), &occasion, capture).await
    }
}

impl Preview {
    /// The sandbox, woken if it sleeps: an edge shows a page of its own for one that does.
    async fn awake(&self) -> Result<Sandbox, CaptureError> {
        let failed = |error: &(dyn std::error::Error + 'static)| CaptureError::Failed(told(error));
        if self.sandbox.is_running().await.map_err(|error| failed(&error))? {
            return Ok(self.sandbox.clone());
        }
        let connected = self.sandbox.client().connect(self.sandbox.id(), Connect::default()).await;
        connected.map_err(|error| failed(&error))
    }
}

/// Whether a page is the edge's own word that nobody answers. It names the sandbox; a page of the sandbox that answers with the
/// same status is a page like any other.
fn is_of_the_edge(shot: &browser::Shot, sandbox: &Sandbox) -> bool {
    let says_so = |text: &str| text.contains(sandbox.id().as_str()) || text.contains("port is not open");
    shot.http_status == Some(NOBODY_THERE) && shot.error_text.as_deref().is_none_or(says_so)
}

/// The origin of a port as a page sees it, and how it is reached.
fn address(sandbox: &Sandbox, port: u16) -> Result<(Origin, Upstream), CaptureError> {
    let unusable = |what: &str| CaptureError::Failed(format!("the sandbox's address cannot be used: {what}"));
    let PortRoute { url, mut headers } = sandbox.route(port);
    // The browser names the host of the origin.
    headers.remove(HOST);
    let route: Uri = url.parse().map_err(|_| unusable("it is no URL"))?;
    let host = route.host().ok_or_else(|| unusable("it has no host"))?;
    let (origin, address) = if route.scheme_str() == Some("http") {
        let edge = route.port_u16().unwrap_or(80);
        // Where the edge goes by headers, any name does; every one below localhost is a secure context.
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

/// What the browser says, in the tools' words.
fn explain(error: browser::CaptureError, port: u16) -> CaptureError {
    use browser::CaptureError as Seen;
    match error {
        Seen::InvalidPath { .. } | Seen::LeftOrigin { .. } => CaptureError::Refused(error.to_string()),
        Seen::CircuitOpen { retry_in, last, .. } => CaptureError::Resting { seconds: retry_in.as_secs().max(1), last },
        Seen::Browser(cause) => CaptureError::NoBrowser(told(&cause)),
        Seen::Unreachable { .. } => CaptureError::NotServed { port },
        Seen::TooLarge { .. } => CaptureError::Unusable(error.to_string()),
        Seen::Busy { .. }
        | Seen::BrowserDied
        | Seen::PageCrashed
        | Seen::NotShown { .. }
        | Seen::TimedOut { .. }
        | Seen::Refused { .. }
        | Seen::Closed => CaptureError::Failed(told(&error)),
    }
}

/// An error with its causes on one line.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
