//! What is asked for and what comes back.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use url::Url;

use crate::origin::{Origin, Upstream};
use crate::page::{Foreign, Page, cut};
use crate::proxy::{Notes, Refused};

/// A page of a sandbox to take pictures of.
#[derive(Debug, Clone)]
pub struct CaptureRequest {
    /// The origin as the page sees it, and the only one it can reach.
    pub origin: Origin,
    pub upstream: Upstream,
    /// Path and query, or a whole address of the origin.
    pub url_path: String,
    /// The whole page rather than what fits the window. It is scaled down to what models accept, and cut if it is very long.
    pub full_page: bool,
    /// One picture each. Every viewport loads the page anew, in a context of its own: a page that asks for its width once, when it
    /// starts, would else be shown on a telephone as it is on a desk.
    pub viewports: Vec<Viewport>,
}

impl CaptureRequest {
    /// The first page of `origin`, on a desk and on a telephone.
    pub fn new(origin: Origin, upstream: Upstream) -> Self {
        let viewports = vec![Viewport::desktop(), Viewport::mobile()];
        Self { origin, upstream, url_path: "/".to_owned(), full_page: false, viewports }
    }
}

/// A window to look through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Viewport {
    pub name: String,
    pub width: u32,
    pub height: u32,
    /// A telephone: touch, no scroll bars, the page's own viewport setting, a telephone's user agent.
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

/// Pictures of one page.
#[derive(Debug, Clone)]
pub struct Capture {
    /// One a viewport, in the order of the request.
    pub shots: Vec<Shot>,
    /// What the page asked for outside its origin. None of it left.
    pub blocked: Vec<BlockedRequest>,
    /// Blocked requests beyond those listed.
    pub blocked_more: usize,
    /// What the page's console shows as errors.
    pub console_errors: Vec<String>,
}

/// One picture.
#[derive(Clone)]
pub struct Shot {
    /// The viewport's name.
    pub name: String,
    pub webp: Bytes,
    /// Of the picture, in pixels.
    pub width: u32,
    pub height: u32,
    /// The picture has one colour all over.
    pub blank: bool,
    /// The page goes on below the picture although the whole was asked for.
    pub is_cut: bool,
    /// False if the network was still busy when the time for that was over.
    pub idle: bool,
    /// What the page's server answered.
    pub http_status: Option<u16>,
    pub final_url: String,
    pub title: String,
    /// How the text of a page begins whose status is an error: an edge that reaches nobody says so in words of its own.
    pub error_text: Option<String>,
}

impl fmt::Debug for Shot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, webp, width, height, blank, is_cut, idle, http_status, final_url, title, error_text } = self;
        f.debug_struct("Shot")
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

/// A request that was not let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockedRequest {
    /// For an encrypted connection of which no more is known: `https://host:port`.
    pub url: String,
    /// `document`, `image`, `fetch`, `websocket`, `ping`, `redirect`, `file`…; `request` or `connection` where only the proxy saw it.
    pub kind: String,
    pub reason: BlockReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockReason {
    /// Another host, port or scheme than the sandbox's own preview.
    ForeignOrigin,
    /// Not a web address: a file of the host, for example.
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

/// One list of what the browser's pages reported and what the proxy refused. The pages know kinds and whole addresses; the proxy also
/// sees what no page reports, such as a worker's requests.
pub(crate) fn blocked(pages: &[Page], notes: &Notes) -> (Vec<BlockedRequest>, usize) {
    let mut list: Vec<BlockedRequest> = Vec::new();
    let mut add = |url: &str, kind: &str| {
        // A fragment never travels.
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
            Refused::Tunnel(authority) if pages.iter().any(|page| page.knows(authority)) => {}
            // Tunnels are for encrypted pages and for web sockets; to another port than the usual it may be either.
            Refused::Tunnel(authority) => add(&format!("https://{authority}"), "connection"),
        }
    }
    let more = pages.iter().map(|page| page.foreign_more).sum::<usize>() + notes.refused_more;
    (list, more)
}

/// Kinds that say no more than that there was a request.
fn is_vague(kind: &str) -> bool {
    matches!(kind, "request" | "connection" | "redirect")
}
