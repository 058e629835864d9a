//! Captures one page in one viewport: new browser context, navigation, network idle, screenshot.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::debug;
use url::Url;

use crate::capture::{CaptureRequest, PageScreenshot, Viewport, merge_blocked};
use crate::cdp::CdpError;
use crate::config::Deadlines;
use crate::error::CaptureError;
use crate::image::{self, Clip, ImageInfo};
use crate::page::{Page, cut};
use crate::process::Process;
use crate::proxy::OriginProxy;

const QUALITY: u32 = 85;
/// Scripts often start drawing when everything has loaded. A blank screenshot is retried once after
/// this time.
const BLANK_RETRY_DELAY: Duration = Duration::from_millis(700);
/// Time for the next document to replace the previous one.
const DOCUMENT_RETRY_DELAY: Duration = Duration::from_millis(300);
/// Chromium's error for a redirect to a forbidden scheme.
const UNSAFE_REDIRECT: &str = "net::ERR_UNSAFE_REDIRECT";

/// State that all viewports of one capture share.
pub(crate) struct CaptureContext<'a> {
    pub(crate) process: &'a Process,
    pub(crate) proxy: &'a OriginProxy,
    pub(crate) listener: SocketAddr,
    pub(crate) request: &'a CaptureRequest,
    pub(crate) url: &'a Url,
    pub(crate) deadlines: Deadlines,
    /// Everything opened, so that it is closed on every path.
    pub(crate) opened: Opened,
}

/// Browser contexts and CDP sessions that a capture opened.
#[derive(Default)]
pub(crate) struct Opened(Mutex<Vec<(String, Option<String>)>>);

impl Opened {
    /// Closes everything. False if the browser does not respond.
    pub(crate) async fn close(&self, process: &Process, within: Duration) -> bool {
        let opened = std::mem::take(&mut *self.0.lock());
        let mut reacts = true;
        for (context, session) in opened {
            if let Some(session) = session {
                process.connection.forget(&session);
            }
            let params = json!({ "browserContextId": context });
            match process.connection.call(None, "Target.disposeBrowserContext", params, within).await {
                Err(CdpError::TimedOut { .. }) => reacts = false,
                Err(error) => debug!(%error, "browser context was not closed"),
                Ok(_) => {}
            }
        }
        reacts
    }

    fn add_context(&self, context: &str) {
        self.0.lock().push((context.to_owned(), None));
    }

    fn add_session(&self, context: &str, session: &str) {
        let mut opened = self.0.lock();
        if let Some((_, slot)) = opened.iter_mut().find(|(known, _)| known == context) {
            *slot = Some(session.to_owned());
        }
    }
}

impl From<CdpError> for CaptureError {
    fn from(error: CdpError) -> Self {
        match error {
            CdpError::Ended => Self::BrowserDied,
            CdpError::TimedOut { method, within } => Self::TimedOut { what: method.to_owned(), within },
            CdpError::Refused { method, message } => Self::Refused { method: method.to_owned(), message },
        }
    }
}

impl CaptureContext<'_> {
    /// Loads the page and takes a screenshot. Also returns the state of the page.
    pub(crate) async fn capture(
        &self,
        viewport: &Viewport,
    ) -> Result<(PageScreenshot, Arc<watch::Sender<Page>>), CaptureError> {
        let tab = self.open(viewport).await?;
        tab.prepare(viewport).await?;
        tab.navigate().await?;
        let idle = tab.wait_for_network_idle().await?;
        let screenshot = tab.screenshot(viewport, idle).await?;
        Ok((screenshot, tab.page))
    }

    async fn open(&self, viewport: &Viewport) -> Result<Tab<'_>, CaptureError> {
        let context = self
            .call(
                "Target.createBrowserContext",
                json!({
                    "disposeOnDetach": true,
                    "proxyServer": format!("http://{}", self.listener),
                    // Without this, Chromium bypasses the proxy for addresses that it considers
                    // local.
                    "proxyBypassList": "<-loopback>",
                }),
            )
            .await?;
        let context = text(&context["browserContextId"]);
        self.opened.add_context(&context);
        let deny = json!({ "behavior": "deny", "browserContextId": context });
        self.call("Browser.setDownloadBehavior", deny).await?;
        let window = json!({
            "url": "about:blank",
            "browserContextId": context,
            "newWindow": true,
            "width": viewport.width,
            "height": viewport.height,
        });
        let target = text(&self.call("Target.createTarget", window).await?["targetId"]);
        let attach = json!({ "targetId": target, "flatten": true });
        let session = text(&self.call("Target.attachToTarget", attach).await?["sessionId"]);
        self.opened.add_session(&context, &session);

        let page = Arc::new(watch::Sender::new(Page::new(self.request.origin.clone(), target.clone())));
        let (seen, command_sender) = (Arc::clone(&page), self.process.connection.command_sender(&session));
        let sink = move |method: &str, event: &Value| {
            if method == "Page.javascriptDialogOpening" {
                // A dialog blocks the page until it is answered.
                let accept = event["type"] == "beforeunload";
                command_sender.send("Page.handleJavaScriptDialog", &json!({ "accept": accept }));
            }
            seen.send_modify(|page| page.apply(method, event));
        };
        self.process.connection.listen(&session, Arc::new(sink));
        Ok(Tab { context: self, target, session, page })
    }

    async fn call(&self, method: &'static str, params: Value) -> Result<Value, CaptureError> {
        Ok(self.process.connection.call(None, method, params, self.deadlines.command).await?)
    }
}

struct Tab<'a> {
    context: &'a CaptureContext<'a>,
    target: String,
    session: String,
    page: Arc<watch::Sender<Page>>,
}

impl Tab<'_> {
    async fn prepare(&self, viewport: &Viewport) -> Result<(), CaptureError> {
        let mut commands = vec![
            ("Page.enable", json!({})),
            ("Page.setLifecycleEventsEnabled", json!({ "enabled": true })),
            // Response bodies are never read, so none are buffered.
            ("Network.enable", json!({ "maxTotalBufferSize": 0, "maxResourceBufferSize": 0 })),
            ("Runtime.enable", json!({})),
            ("Log.enable", json!({})),
            (
                "Emulation.setDeviceMetricsOverride",
                json!({
                    "width": viewport.width,
                    "height": viewport.height,
                    // One CSS pixel is one pixel of the image.
                    "deviceScaleFactor": 1,
                    "mobile": viewport.mobile,
                }),
            ),
            ("Emulation.setUserAgentOverride", self.user_agent(viewport)),
        ];
        if viewport.mobile {
            commands.push(("Emulation.setTouchEmulationEnabled", json!({ "enabled": true })));
        }
        let CaptureContext { request, .. } = self.context;
        if request.origin.is_https() && !request.upstream.headers.is_empty() {
            // The proxy cannot add headers inside the tunnel. It still limits where the browser
            // sends them.
            let headers = request.upstream.headers.iter();
            let headers: serde_json::Map<_, _> = headers
                .filter_map(|(name, value)| Some((name.to_string(), Value::from(value.to_str().ok()?))))
                .collect();
            commands.push(("Network.setExtraHTTPHeaders", json!({ "headers": headers })));
        }
        try_join_all(commands.into_iter().map(|(method, params)| self.call(method, params))).await?;
        Ok(())
    }

    fn user_agent(&self, viewport: &Viewport) -> Value {
        let desktop = &self.context.process.user_agent;
        if !viewport.mobile {
            return json!({ "userAgent": desktop });
        }
        // The format of Chrome on Android: a fixed device in brackets, and "Mobile" before
        // "Safari".
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
        let CaptureContext { url, deadlines, .. } = self.context;
        let navigated = self.call_within("Page.navigate", json!({ "url": url.as_str() }), deadlines.navigation).await;
        let navigated = navigated.map_err(|error| match error {
            CaptureError::TimedOut { within, .. } => {
                CaptureError::TimedOut { what: format!("waiting for an answer of {url}"), within }
            }
            other => other,
        })?;
        self.check_location()?;
        let Some(reason) = navigated["errorText"].as_str() else { return Ok(()) };
        let notes = self.context.proxy.notes();
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

    /// True if the network became idle before the deadline.
    async fn wait_for_network_idle(&self) -> Result<bool, CaptureError> {
        let mut seen = self.page.subscribe();
        let settled = seen.wait_for(|page| page.is_idle() || page.crashed || page.left_for.is_some());
        let idle = matches!(tokio::time::timeout(self.context.deadlines.idle, settled).await, Ok(Ok(_)));
        self.check_location()?;
        if let (Some(502), Some(reason)) = (self.page.borrow().status, self.context.proxy.notes().unreachable) {
            return Err(self.unreachable(reason));
        }
        Ok(idle)
    }

    /// Fails if the page crashed or left the origin.
    fn check_location(&self) -> Result<(), CaptureError> {
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
        let (blocked, _) = merge_blocked(std::slice::from_ref(&*page), &self.context.proxy.notes());
        CaptureError::LeftOrigin { url, blocked }
    }

    fn unreachable(&self, reason: String) -> CaptureError {
        CaptureError::Unreachable { origin: self.context.request.origin.to_string(), reason }
    }

    async fn screenshot(&self, viewport: &Viewport, idle: bool) -> Result<PageScreenshot, CaptureError> {
        let (mut webp, mut image, mut is_cut) = self.capture_image(viewport).await?;
        if image.blank {
            tokio::time::sleep(BLANK_RETRY_DELAY).await;
            self.check_location()?;
            (webp, image, is_cut) = self.capture_image(viewport).await?;
        }
        let target = self.context.call("Target.getTargetInfo", json!({ "targetId": self.target })).await?;
        let http_status = self.page.borrow().status;
        let error_text = match http_status {
            Some(400..) => self.page_text().await,
            _ => None,
        };
        self.check_location()?;
        let ImageInfo { width, height, blank } = image;
        Ok(PageScreenshot {
            name: viewport.name.clone(),
            webp,
            width,
            height,
            blank,
            is_cut,
            idle,
            http_status,
            final_url: cut(&text(&target["targetInfo"]["url"])),
            title: cut(&text(&target["targetInfo"]["title"])),
            error_text,
        })
    }

    /// The beginning of the page's text, if the page can be evaluated.
    async fn page_text(&self) -> Option<String> {
        let ask = json!({ "expression": "(document.body?.innerText ?? '').slice(0, 2000)", "returnByValue": true });
        let answer = self.call("Runtime.evaluate", ask).await.ok()?;
        answer["result"]["value"].as_str().map(str::to_owned)
    }

    async fn capture_image(&self, viewport: &Viewport) -> Result<(Bytes, ImageInfo, bool), CaptureError> {
        let mut params = json!({ "format": "webp", "quality": QUALITY });
        let mut clip = Clip::for_size(viewport.width.into(), viewport.height.into());
        if self.context.request.full_page {
            let metrics = self.call("Page.getLayoutMetrics", json!({})).await?;
            let side = |name: &str| metrics["cssContentSize"][name].as_f64().unwrap_or_default();
            clip = Clip::for_size(side("width"), side("height"));
            params["captureBeyondViewport"] = true.into();
        }
        if self.context.request.full_page || clip.scale < 1.0 {
            params["clip"] = json!({ "x": 0, "y": 0, "width": clip.width, "height": clip.height, "scale": clip.scale });
        }
        let undrawn = |error| match error {
            CaptureError::TimedOut { within, .. } => {
                let what = "drawing the page, one of whose scripts may run without end,".to_owned();
                CaptureError::TimedOut { what, within }
            }
            other => other,
        };
        let answer = match self.call("Page.captureScreenshot", params.clone()).await.map_err(undrawn) {
            // No document can be drawn between two navigations; a page that keeps navigating has
            // many such moments.
            Err(CaptureError::Refused { .. }) => {
                tokio::time::sleep(DOCUMENT_RETRY_DELAY).await;
                self.check_location()?;
                self.call("Page.captureScreenshot", params).await.map_err(undrawn)?
            }
            answer => answer?,
        };
        let unreadable = || CaptureError::Refused {
            method: "Page.captureScreenshot".to_owned(),
            message: "the picture cannot be read".to_owned(),
        };
        let webp = STANDARD.decode(answer["data"].as_str().unwrap_or_default()).map_err(|_| unreadable())?;
        if webp.len() > image::MAX_BYTES {
            let (viewport, limit) = (viewport.name.clone(), image::MAX_BYTES);
            return Err(CaptureError::TooLarge { viewport, bytes: webp.len(), limit });
        }
        let webp = Bytes::from(webp);
        let info = tokio::task::spawn_blocking({
            let webp = webp.clone();
            move || image::inspect(&webp)
        });
        let info = info.await.ok().flatten().ok_or_else(unreadable)?;
        Ok((webp, info, clip.is_cut))
    }

    async fn call(&self, method: &'static str, params: Value) -> Result<Value, CaptureError> {
        self.call_within(method, params, self.context.deadlines.command).await
    }

    /// Also watches for a crash: a crashed page never answers a command.
    async fn call_within(&self, method: &'static str, params: Value, within: Duration) -> Result<Value, CaptureError> {
        let mut seen = self.page.subscribe();
        let call = self.context.process.connection.call(Some(&self.session), method, params, within);
        tokio::select! {
            answer = call => Ok(answer?),
            Ok(_) = seen.wait_for(|page| page.crashed) => Err(CaptureError::PageCrashed),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
