//! State of one page while it loads, folded from CDP events. Every list in it is bounded.

use serde_json::Value;
use url::Url;

use crate::origin::Origin;

const MAX_LISTED: usize = 200;
const MAX_CONSOLE_LINES: usize = 50;
const MAX_TEXT: usize = 500;
/// Chromium logs this, followed by the URL, when a page requests a local file; there is no network
/// event.
const LOCAL_RESOURCE: &str = "Not allowed to load local resource: ";

#[derive(Debug, Clone)]
pub(crate) struct Page {
    origin: Origin,
    /// The main frame; Chromium gives it the id of its target.
    frame: String,
    /// The current document of the main frame. `None` until the capture's first document has
    /// arrived.
    loader: Option<String>,
    /// The latest document whose network became idle.
    idle: Option<String>,
    /// HTTP status of the main frame's latest response.
    pub(crate) status: Option<u16>,
    /// URL of the main frame, or the URL that it failed to load.
    pub(crate) address: Option<String>,
    /// A document outside the origin that the main frame requested.
    pub(crate) left_for: Option<String>,
    pub(crate) crashed: bool,
    pub(crate) foreign: Vec<Foreign>,
    pub(crate) foreign_more: usize,
    pub(crate) console_errors: Vec<String>,
}

/// A request to another origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Foreign {
    pub(crate) url: String,
    /// Chromium's resource type in lower case: `document`, `image`, `fetch`, `websocket`, `ping`…
    pub(crate) kind: String,
}

impl Page {
    pub(crate) fn new(origin: Origin, frame: String) -> Self {
        Self {
            origin,
            frame,
            loader: None,
            idle: None,
            status: None,
            address: None,
            left_for: None,
            crashed: false,
            foreign: Vec::new(),
            foreign_more: 0,
            console_errors: Vec::new(),
        }
    }

    /// Whether the network of the current document became idle. A replaced document does not count.
    pub(crate) fn is_idle(&self) -> bool {
        self.loader.is_some() && self.idle == self.loader
    }

    pub(crate) fn apply(&mut self, method: &str, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match method {
            "Page.lifecycleEvent" if event["frameId"] == *self.frame && event["name"] == "networkIdle" => {
                self.idle = Some(text(&event["loaderId"]));
            }
            "Page.frameNavigated" if event["frame"]["id"] == *self.frame => {
                let frame = &event["frame"];
                self.loader = Some(text(&frame["loaderId"]));
                // An error page has a URL of its own and names the one that failed.
                let unreachable = frame["unreachableUrl"].as_str();
                self.address = Some(cut(unreachable.unwrap_or(frame["url"].as_str().unwrap_or_default())));
            }
            "Network.responseReceived" if event["type"] == "Document" && event["frameId"] == *self.frame => {
                self.status = event["response"]["status"].as_u64().and_then(|status| u16::try_from(status).ok());
            }
            "Network.requestWillBeSent" => {
                let (url, kind) = (text(&event["request"]["url"]), text(&event["type"]).to_lowercase());
                if self.is_foreign(&url) {
                    if kind == "document" && event["frameId"] == *self.frame {
                        self.left_for = Some(cut(&url));
                    }
                    self.list(&url, kind);
                }
            }
            "Network.webSocketCreated" => {
                let url = text(&event["url"]);
                if self.is_foreign(&url) {
                    self.list(&url, "websocket".to_owned());
                }
            }
            "Runtime.exceptionThrown" => {
                let details = &event["exceptionDetails"];
                let description = details["exception"]["description"].as_str();
                self.log(description.unwrap_or(details["text"].as_str().unwrap_or_default()));
            }
            "Runtime.consoleAPICalled" if matches!(event["type"].as_str(), Some("error" | "assert")) => {
                self.log(&console_text(&event["args"]));
            }
            "Log.entryAdded" if event["entry"]["level"] == "error" => {
                let line = text(&event["entry"]["text"]);
                if let Some(url) = line.strip_prefix(LOCAL_RESOURCE) {
                    self.list(url, "file".to_owned());
                }
                match event["entry"]["url"].as_str() {
                    // Already listed as blocked, or requested by the browser rather than by the
                    // page.
                    Some(url)
                        if event["entry"]["source"] == "network"
                            && (self.is_foreign(url) || url.ends_with("/favicon.ico")) => {}
                    Some(url) if !line.contains(url) => self.log(&format!("{line} ({url})")),
                    _ => self.log(&line),
                }
            }
            "Inspector.targetCrashed" => self.crashed = true,
            _ => {}
        }
    }

    /// Whether a request to `authority` (`host:port`) is already listed.
    pub(crate) fn lists(&self, authority: &str) -> bool {
        self.foreign.iter().any(|foreign| {
            Url::parse(&foreign.url).is_ok_and(|url| match (url.host_str(), url.port_or_known_default()) {
                (Some(host), Some(port)) => format!("{host}:{port}") == authority,
                _ => false,
            })
        })
    }

    /// Whether `url` belongs to another origin and is is no `data:`, `blob:` or `about:` URL.
    fn is_foreign(&self, url: &str) -> bool {
        match Url::parse(url) {
            Ok(url) if matches!(url.scheme(), "data" | "blob" | "about") => false,
            Ok(url) => !self.origin.covers(&url),
            Err(_) => false,
        }
    }

    fn list(&mut self, url: &str, kind: String) {
        let foreign = Foreign { url: cut(url), kind };
        if self.foreign.contains(&foreign) {
            return;
        }
        if self.foreign.len() < MAX_LISTED {
            self.foreign.push(foreign);
        } else {
            self.foreign_more += 1;
        }
    }

    fn log(&mut self, line: &str) {
        let line = cut(line.trim());
        if self.console_errors.len() < MAX_CONSOLE_LINES && !self.console_errors.contains(&line) {
            self.console_errors.push(line);
        }
    }
}

fn console_text(arguments: &Value) -> String {
    let texts = arguments.as_array().into_iter().flatten().map(|argument| match &argument["value"] {
        Value::String(text) => text.clone(),
        Value::Null => argument["description"].as_str().unwrap_or_default().to_owned(),
        other => other.to_string(),
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// The beginning of a text whose length the page controls.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page() -> Page {
        Page::new("http://3000-i.localhost".parse().expect("valid"), "F".to_owned())
    }

    fn navigated(loader: &str) -> Value {
        json!({"frame": {"id": "F", "loaderId": loader, "url": "http://3000-i.localhost/"}})
    }

    fn idle(frame: &str, loader: &str) -> Value {
        json!({"frameId": frame, "loaderId": loader, "name": "networkIdle"})
    }

    #[test]
    fn only_the_current_document_counts_as_idle() {
        let mut page = page();
        page.apply("Page.lifecycleEvent", &idle("F", "blank"));
        assert!(!page.is_idle(), "the empty page before the first");
        page.apply("Page.frameNavigated", &navigated("1"));
        page.apply("Page.lifecycleEvent", &idle("inner", "1"));
        assert!(!page.is_idle(), "a frame inside");
        page.apply("Page.lifecycleEvent", &idle("F", "1"));
        assert!(page.is_idle());
        page.apply("Page.frameNavigated", &navigated("2"));
        assert!(!page.is_idle(), "the page has sent the browser on");
    }

    #[test]
    fn lists_are_bounded_and_deduplicated() {
        let mut page = page();
        for number in 0..1000 {
            let url = format!("http://evil.test/{}", number % 500);
            page.apply("Network.requestWillBeSent", &json!({"request": {"url": url}, "type": "Fetch", "frameId": "F"}));
            page.apply("Runtime.exceptionThrown", &json!({"exceptionDetails": {"text": format!("{number}")}}));
        }
        assert_eq!(page.foreign.len(), MAX_LISTED);
        assert!(page.foreign_more > 0 && page.left_for.is_none());
        assert_eq!(page.console_errors.len(), MAX_CONSOLE_LINES);
        page.apply("Network.webSocketCreated", &json!({"url": "ws://3000-i.localhost/live"}));
        page.apply("Network.requestWillBeSent", &json!({"request": {"url": "data:,x"}, "type": "Image"}));
        assert!(page.foreign.iter().all(|foreign| foreign.url.starts_with("http://evil.test/")));
    }
}
