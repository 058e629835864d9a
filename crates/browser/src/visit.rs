//! One page seen through one viewport: a fresh context, navigation, quiet, picture.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::debug;
use url::Url;

use crate::capture::{CaptureRequest, Shot, Viewport, blocked};
use crate::cdp::OrderError;
use crate::config::Deadlines;
use crate::error::CaptureError;
use crate::page::{Page, cut};
use crate::picture::{self, Clip, Look};
use crate::process::Process;
use crate::proxy::Gate;

const QUALITY: u32 = 85;
/// Programs that draw a page often begin when everything has arrived. A blank picture is taken once more after this time.
const BLANK_AGAIN: Duration = Duration::from_millis(700);
/// For a document to follow another.
const BETWEEN_DOCUMENTS: Duration = Duration::from_millis(300);
/// What Chromium calls a redirect to a scheme that pages may not open.
const UNSAFE_REDIRECT: &str = "net::ERR_UNSAFE_REDIRECT";

/// What all viewports of one capture share.
pub(crate) struct Visit<'a> {
    pub(crate) process: &'a Process,
    pub(crate) gate: &'a Gate,
    pub(crate) lane: SocketAddr,
    pub(crate) request: &'a CaptureRequest,
    pub(crate) url: &'a Url,
    pub(crate) deadlines: Deadlines,
    /// What was opened, to be closed whatever happens.
    pub(crate) opened: Opened,
}

/// Contexts and sessions that exist in the browser because of a capture.
#[derive(Default)]
pub(crate) struct Opened(Mutex<Vec<(String, Option<String>)>>);

impl Opened {
    /// Closes everything. False if the browser does not react.
    pub(crate) async fn close(&self, process: &Process, within: Duration) -> bool {
        let opened = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut reacts = true;
        for (context, session) in opened {
            if let Some(session) = session {
                process.connection.forget(&session);
            }
            let params = json!({ "browserContextId": context });
            match process.connection.order(None, "Target.disposeBrowserContext", params, within).await {
                Err(OrderError::TimedOut { .. }) => reacts = false,
                Err(error) => debug!(%error, "a context was not closed"),
                Ok(_) => {}
            }
        }
        reacts
    }

    fn add_context(&self, context: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((context.to_owned(), None));
    }

    fn add_session(&self, context: &str, session: &str) {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slot)) = opened.iter_mut().find(|(known, _)| known == context) {
            *slot = Some(session.to_owned());
        }
    }
}

impl From<OrderError> for CaptureError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Ended => Self::BrowserDied,
            OrderError::TimedOut { method, within } => Self::TimedOut { what: method.to_owned(), within },
            OrderError::Refused { method, message } => Self::Refused { method: method.to_owned(), message },
        }
    }
}

impl Visit<'_> {
    /// Loads the page and takes its picture. What was seen of the page comes along.
    pub(crate) async fn take(&self, viewport: &Viewport) -> Result<(Shot, Arc<watch::Sender<Page>>), CaptureError> {
        let tab = self.open(viewport).await?;
        tab.prepare(viewport).await?;
        tab.navigate().await?;
        let idle = tab.wait_for_quiet().await?;
        let shot = tab.picture(viewport, idle).await?;
        Ok((shot, tab.page))
    }

    async fn open(&self, viewport: &Viewport) -> Result<Tab<'_>, CaptureError> {
        let context = self
            .order(
                "Target.createBrowserContext",
                json!({
                    "disposeOnDetach": true,
                    "proxyServer": format!("http://{}", self.lane),
                    // Without this the browser takes its own way to whatever it considers local.
                    "proxyBypassList": "<-loopback>",
                }),
            )
            .await?;
        let context = text(&context["browserContextId"]);
        self.opened.add_context(&context);
        let deny = json!({ "behavior": "deny", "browserContextId": context });
        self.order("Browser.setDownloadBehavior", deny).await?;
        let window = json!({
            "url": "about:blank",
            "browserContextId": context,
            "newWindow": true,
            "width": viewport.width,
            "height": viewport.height,
        });
        let target = text(&self.order("Target.createTarget", window).await?["targetId"]);
        let attach = json!({ "targetId": target, "flatten": true });
        let session = text(&self.order("Target.attachToTarget", attach).await?["sessionId"]);
        self.opened.add_session(&context, &session);

        let page = Arc::new(watch::Sender::new(Page::new(self.request.origin.clone(), target.clone())));
        let (seen, teller) = (Arc::clone(&page), self.process.connection.teller(&session));
        let sink = move |method: &str, event: &Value| {
            if method == "Page.javascriptDialogOpening" {
                // Nobody is there to answer, and until then the page stands still.
                let accept = event["type"] == "beforeunload";
                teller.tell("Page.handleJavaScriptDialog", &json!({ "accept": accept }));
            }
            seen.send_modify(|page| page.apply(method, event));
        };
        self.process.connection.listen(&session, Arc::new(sink));
        Ok(Tab { visit: self, target, session, page })
    }

    async fn order(&self, method: &'static str, params: Value) -> Result<Value, CaptureError> {
        Ok(self.process.connection.order(None, method, params, self.deadlines.command).await?)
    }
}

struct Tab<'a> {
    visit: &'a Visit<'a>,
    target: String,
    session: String,
    page: Arc<watch::Sender<Page>>,
}

impl Tab<'_> {
    async fn prepare(&self, viewport: &Viewport) -> Result<(), CaptureError> {
        let mut orders = vec![
            ("Page.enable", json!({})),
            ("Page.setLifecycleEventsEnabled", json!({ "enabled": true })),
            // Nobody asks for the bodies of answers, so none are kept.
            ("Network.enable", json!({ "maxTotalBufferSize": 0, "maxResourceBufferSize": 0 })),
            ("Runtime.enable", json!({})),
            ("Log.enable", json!({})),
            (
                "Emulation.setDeviceMetricsOverride",
                json!({
                    "width": viewport.width,
                    "height": viewport.height,
                    // One pixel of the page is one of the picture.
                    "deviceScaleFactor": 1,
                    "mobile": viewport.mobile,
                }),
            ),
            ("Emulation.setUserAgentOverride", self.user_agent(viewport)),
        ];
        if viewport.mobile {
            orders.push(("Emulation.setTouchEmulationEnabled", json!({ "enabled": true })));
        }
        let Visit { request, .. } = self.visit;
        if request.origin.is_https() && !request.upstream.headers.is_empty() {
            // The proxy cannot look into the tunnel; it still keeps these from going anywhere else.
            let headers = request.upstream.headers.iter();
            let headers: serde_json::Map<_, _> = headers
                .filter_map(|(name, value)| Some((name.to_string(), Value::from(value.to_str().ok()?))))
                .collect();
            orders.push(("Network.setExtraHTTPHeaders", json!({ "headers": headers })));
        }
        try_join_all(orders.into_iter().map(|(method, params)| self.order(method, params))).await?;
        Ok(())
    }

    fn user_agent(&self, viewport: &Viewport) -> Value {
        let desktop = &self.visit.process.user_agent;
        if !viewport.mobile {
            return json!({ "userAgent": desktop });
        }
        // Chromium's own on a telephone: the machine in brackets is always this one, and "Mobile" stands before "Safari".
        let mobile = match (desktop.find('('), desktop.find(')')) {
            (Some(start), Some(end)) if start < end => {
                format!("{}(Linux; Android 10; K{}", &desktop[..start], &desktop[end..])
            }
            _ => desktop.clone(),
        };
        let mobile = mobile.replace(" Safari/", " Mobile Safari/");
        json!({
            "userAgent": mobile,
            "platform": "Linux armv81",
            "userAgentMetadata":
                { "platform": "Android", "platformVersion": "10", "architecture": "", "model": "K", "mobile": true },
        })
    }

    async fn navigate(&self) -> Result<(), CaptureError> {
        let Visit { url, deadlines, .. } = self.visit;
        let navigated = self.order_within("Page.navigate", json!({ "url": url.as_str() }), deadlines.navigation).await;
        let navigated = navigated.map_err(|error| match error {
            CaptureError::TimedOut { within, .. } => {
                CaptureError::TimedOut { what: format!("waiting for an answer of {url}"), within }
            }
            other => other,
        })?;
        self.check_place()?;
        let Some(reason) = navigated["errorText"].as_str() else { return Ok(()) };
        let notes = self.visit.gate.notes();
        if reason == UNSAFE_REDIRECT
            && let Some(target) = notes.foreign_redirects.last()
        {
            return Err(self.left(cut(target)));
        }
        if let Some(reason) = notes.unreachable {
            return Err(self.unreachable(reason));
        }
        let reason = match navigated["isDownload"].as_bool() {
            Some(true) => "it is a download, not a page".to_owned(),
            _ => reason.to_owned(),
        };
        Err(CaptureError::NotShown { url: url.to_string(), reason })
    }

    /// True when the network is idle, false when the time for that is over.
    async fn wait_for_quiet(&self) -> Result<bool, CaptureError> {
        let mut seen = self.page.subscribe();
        let settled = seen.wait_for(|page| page.is_idle() || page.crashed || page.left_for.is_some());
        let idle = matches!(tokio::time::timeout(self.visit.deadlines.idle, settled).await, Ok(Ok(_)));
        self.check_place()?;
        if let (Some(502), Some(reason)) = (self.page.borrow().status, self.visit.gate.notes().unreachable) {
            return Err(self.unreachable(reason));
        }
        Ok(idle)
    }

    /// Whether there is still a page, and of the origin.
    fn check_place(&self) -> Result<(), CaptureError> {
        let (crashed, left_for) = {
            let page = self.page.borrow();
            (page.crashed, page.left_for.clone())
        };
        match (crashed, left_for) {
            (true, _) => Err(CaptureError::PageCrashed),
            (false, Some(url)) => Err(self.left(url)),
            (false, None) => Ok(()),
        }
    }

    fn left(&self, url: String) -> CaptureError {
        let page = self.page.borrow();
        let (blocked, _) = blocked(std::slice::from_ref(&*page), &self.visit.gate.notes());
        CaptureError::LeftOrigin { url, blocked }
    }

    fn unreachable(&self, reason: String) -> CaptureError {
        CaptureError::Unreachable { origin: self.visit.request.origin.to_string(), reason }
    }

    async fn picture(&self, viewport: &Viewport, idle: bool) -> Result<Shot, CaptureError> {
        let (mut webp, mut look, mut is_cut) = self.shoot(viewport).await?;
        if look.blank {
            tokio::time::sleep(BLANK_AGAIN).await;
            self.check_place()?;
            (webp, look, is_cut) = self.shoot(viewport).await?;
        }
        let info = self.visit.order("Target.getTargetInfo", json!({ "targetId": self.target })).await?;
        let http_status = self.page.borrow().status;
        let error_text = match http_status {
            Some(400..) => self.words().await,
            _ => None,
        };
        self.check_place()?;
        let Look { width, height, blank } = look;
        Ok(Shot {
            name: viewport.name.clone(),
            webp,
            width,
            height,
            blank,
            is_cut,
            idle,
            http_status,
            final_url: cut(&text(&info["targetInfo"]["url"])),
            title: cut(&text(&info["targetInfo"]["title"])),
            error_text,
        })
    }

    /// How the page's text begins. A page that does not let itself be asked has none.
    async fn words(&self) -> Option<String> {
        let ask = json!({ "expression": "(document.body?.innerText ?? '').slice(0, 2000)", "returnByValue": true });
        let answer = self.order("Runtime.evaluate", ask).await.ok()?;
        answer["result"]["value"].as_str().map(str::to_owned)
    }

    async fn shoot(&self, viewport: &Viewport) -> Result<(Bytes, Look, bool), CaptureError> {
        let mut params = json!({ "format": "webp", "quality": QUALITY });
        let mut clip = Clip::of(viewport.width.into(), viewport.height.into());
        if self.visit.request.full_page {
            let metrics = self.order("Page.getLayoutMetrics", json!({})).await?;
            let side = |name: &str| metrics["cssContentSize"][name].as_f64().unwrap_or_default();
            clip = Clip::of(side("width"), side("height"));
            params["captureBeyondViewport"] = true.into();
        }
        if self.visit.request.full_page || clip.scale < 1.0 {
            params["clip"] = json!({ "x": 0, "y": 0, "width": clip.width, "height": clip.height, "scale": clip.scale });
        }
        let undrawn = |error| match error {
            CaptureError::TimedOut { within, .. } => {
                let what = "drawing the page, one of whose scripts may run without end,".to_owned();
                CaptureError::TimedOut { what, within }
            }
            other => other,
        };
        let answer = match self.order("Page.captureScreenshot", params.clone()).await.map_err(undrawn) {
            // Between two documents there is nothing to see; a page that replaces itself again and again has many such moments.
            Err(CaptureError::Refused { .. }) => {
                tokio::time::sleep(BETWEEN_DOCUMENTS).await;
                self.check_place()?;
                self.order("Page.captureScreenshot", params).await.map_err(undrawn)?
            }
            answer => answer?,
        };
        let unreadable = || CaptureError::Refused {
            method: "Page.captureScreenshot".to_owned(),
            message: "the picture cannot be read".to_owned(),
        };
        let webp = STANDARD.decode(answer["data"].as_str().unwrap_or_default()).map_err(|_| unreadable())?;
        if webp.len() > picture::MOST_BYTES {
            let (viewport, limit) = (viewport.name.clone(), picture::MOST_BYTES);
            return Err(CaptureError::TooLarge { viewport, bytes: webp.len(), limit });
        }
        let webp = Bytes::from(webp);
        let look = tokio::task::spawn_blocking({
            let webp = webp.clone();
            move || picture::look_at(&webp)
        });
        let look = look.await.ok().flatten().ok_or_else(unreadable)?;
        Ok((webp, look, clip.is_cut))
    }

    async fn order(&self, method: &'static str, params: Value) -> Result<Value, CaptureError> {
        self.order_within(method, params, self.visit.deadlines.command).await
    }

    /// A crashed page answers nothing any more, so its end is watched, too.
    async fn order_within(&self, method: &'static str, params: Value, within: Duration) -> Result<Value, CaptureError> {
        let mut seen = self.page.subscribe();
        let order = self.visit.process.connection.order(Some(&self.session), method, params, within);
        tokio::select! {
            answer = order => Ok(answer?),
            Ok(_) = seen.wait_for(|page| page.crashed) => Err(CaptureError::PageCrashed),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
