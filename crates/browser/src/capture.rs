//! Requests and results of a capture.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use url::Url;

use crate::origin::{Origin, Upstream};
use crate::page::{Foreign, Page, cut};
use crate::proxy::{ProxyNotes, Refused};

/// A page to capture.
#[derive(Debug, Clone)]
pub struct CaptureRequest {
    /// The origin as the page sees it, and the only one it can reach.
    pub origin: Origin,
    pub upstream: Upstream,
    /// Path and query, or a URL within the origin.
    pub url_path: String,
    /// Captures the whole page rather than the window. The image is scaled down to what models
    /// accept, and cut if the page is very long.
    pub full_page: bool,
    /// One screenshot each. Every viewport loads the page in its own browser context, because a
    /// page that reads its width only once, at start, would look the same in all of them.
    pub viewports: Vec<Viewport>,
}

impl CaptureRequest {
    /// The root page of `origin`, in a desktop and a mobile viewport.
    pub fn new(origin: Origin, upstream: Upstream) -> Self {
        let viewports = vec![Viewport::desktop(), Viewport::mobile()];
        Self { origin, upstream, url_path: "/".to_owned(), full_page: false, viewports }
    }
}

/// Size and kind of a browser window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Viewport {
    pub name: String,
    pub width: u32,
    pub height: u32,
    /// Emulates a phone: touch, no scroll bars, the page's viewport meta tag, a mobile user agent.
    pub mobile: bool,
}

impl Viewport {
    pub fn desktop() -> Self {
        Self { name: "desktop".to_owned(), width: 1280, height: 800, mobile: false }
    }

    pub fn mobile() -> Self {
        Self { name: "mobile".to_owned(), width: 390, height: 844, mobile: true }
    }
}

/// The result of a capture.
#[derive(Debug, Clone)]
pub struct Capture {
    /// One per viewport, in the order of the request.
    pub screenshots: Vec<PageScreenshot>,
    /// Requests of the page to other origins. None of them left the browser's namespace.
    pub blocked: Vec<BlockedRequest>,
    /// Number of blocked requests beyond those listed.
    pub blocked_more: usize,
    /// Errors on the page's console.
    pub console_errors: Vec<String>,
}

/// A screenshot in one viewport.
#[derive(Clone)]
pub struct PageScreenshot {
    /// Name of the viewport.
    pub name: String,
    pub webp: Bytes,
    /// Size of the image, in pixels.
    pub width: u32,
    pub height: u32,
    /// The image has a single colour.
    pub blank: bool,
    /// The page is longer than the image, although the whole page was requested.
    pub is_cut: bool,
    /// False if the network was still busy at the deadline.
    pub idle: bool,
    /// HTTP status of the page.
    pub http_status: Option<u16>,
    pub final_url: String,
    pub title: String,
    /// Beginning of the page's text if the status is an error: the edge reports an unreachable port
    /// this way.
    pub error_text: Option<String>,
}

impl fmt::Debug for PageScreenshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, webp, width, height, blank, is_cut, idle, http_status, final_url, title, error_text } = self;
        f.debug_struct("PageScreenshot")
            .field("name", name)
            .field("bytes", &webp.len())
            .field("size", &(width, height))
            .field("blank", blank)
            .field("is_cut", is_cut)
            .field("idle", idle)
            .field("http_status", http_status)
            .field("final_url", final_url)
            .field("title", title)
            .field("error_text", error_text)
            .finish()
    }
}

/// A request that the proxy refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockedRequest {
    /// `https://host:port` for a tunnel, of which the proxy knows no more.
    pub url: String,
    /// `document`, `image`, `fetch`, `websocket`, `ping`, `redirect`, `file`…; `request` or
    /// `connection` if only the proxy saw it.
    pub kind: String,
    pub reason: BlockReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockReason {
    /// Another host, port or scheme than the sandbox's preview.
    ForeignOrigin,
    /// Not HTTP: a `file:` URL, for example.
    ForbiddenScheme,
}

impl fmt::Display for BlockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForeignOrigin => "outside the sandbox's own origin",
            Self::ForbiddenScheme => "not a web address",
        })
    }
}

/// Merges the requests that pages reported with those that the proxy refused. Pages know resource
/// types and full URLs; only the proxy sees others, such as a worker's requests.
pub(crate) fn merge_blocked(pages: &[Page], notes: &ProxyNotes) -> (Vec<BlockedRequest>, usize) {
    let mut list: Vec<BlockedRequest> = Vec::new();
    let mut add = |url: &str, kind: &str| {
        // Fragments are never sent.
        let url = url.split('#').next().unwrap_or_default();
        if !list.iter().any(|blocked| blocked.url == url && (blocked.kind == kind || is_vague(kind))) {
            let reason = match Url::parse(url) {
                Ok(url) if matches!(url.scheme(), "http" | "https" | "ws" | "wss") => BlockReason::ForeignOrigin,
                _ => BlockReason::ForbiddenScheme,
            };
            list.push(BlockedRequest { url: url.to_owned(), kind: kind.to_owned(), reason });
        }
    };
    for Foreign { url, kind } in pages.iter().flat_map(|page| &page.foreign) {
        add(url, kind);
    }
    for url in &notes.foreign_redirects {
        add(&cut(url), "redirect");
    }
    for refused in &notes.refused {
        match refused {
            Refused::Request(url) => add(&cut(url), "request"),
            Refused::Tunnel(authority) if pages.iter().any(|page| page.lists(authority)) => {}
            // Browsers open tunnels for HTTPS and for WebSockets; on an unusual port it may be
            // either.
            Refused::Tunnel(authority) => add(&format!("https://{authority}"), "connection"),
        }
    }
    let more = pages.iter().map(|page| page.foreign_more).sum::<usize>() + notes.refused_more;
    (list, more)
}

/// Kinds that tell only that a request was made.
fn is_vague(kind: &str) -> bool {
    matches!(kind, "request" | "connection" | "redirect")
}
