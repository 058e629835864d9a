//! What is known of one page while it loads, folded from the browser's events. Every list in it has a bound.

use serde_json::Value;
use url::Url;

use crate::origin::Origin;

const MOST_LISTED: usize = 200;
const MOST_CONSOLE: usize = 50;
const LONGEST_TEXT: usize = 500;
/// What Chromium logs, followed by the address, when a page wants a file of this machine. There is no request to see.
const LOCAL_RESOURCE: &str = "Not allowed to load local resource: ";

#[derive(Debug, Clone)]
pub(crate) struct Page {
    origin: Origin,
    /// The main frame; Chromium gives it its target's name.
    frame: String,
    /// The document that the main frame shows now. `None` until the first one of the capture has come.
    loader: Option<String>,
    /// The document for which the network was idle last.
    idle: Option<String>,
    /// Of the main frame's newest answer.
    pub(crate) status: Option<u16>,
    /// Where the main frame is, or could not get to.
    pub(crate) address: Option<String>,
    /// A document outside the origin that the main frame asked for.
    pub(crate) left_for: Option<String>,
    pub(crate) crashed: bool,
    pub(crate) foreign: Vec<Foreign>,
    pub(crate) foreign_more: usize,
    pub(crate) console_errors: Vec<String>,
}

/// A request that leads out of the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Foreign {
    pub(crate) url: String,
    /// As Chromium classes it, in small letters: `document`, `image`, `fetch`, `websocket`, `ping`…
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

    /// Whether the document that is shown has had an idle network. One that was idle before it was replaced does not count.
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
                // An error page has an address of its own and names the one that was wanted.
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
                    // Listed as blocked already, or asked for by the browser and not by the page.
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

    /// Whether a request to `authority` (`host:port`) is listed already.
    pub(crate) fn knows(&self, authority: &str) -> bool {
        self.foreign.iter().any(|foreign| {
            Url::parse(&foreign.url).is_ok_and(|url| match (url.host_str(), url.port_or_known_default()) {
                (Some(host), Some(port)) => format!("{host}:{port}") == authority,
                _ => false,
            })
        })
    }

    /// Not of the origin, and not made by the page out of itself.
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
        if self.foreign.len() < MOST_LISTED {
            self.foreign.push(foreign);
        } else {
            self.foreign_more += 1;
        }
    }

    fn log(&mut self, line: &str) {
        let line = cut(line.trim());
        if self.console_errors.len() < MOST_CONSOLE && !self.console_errors.contains(&line) {
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

/// The beginning of a text that a page may have made as long as it likes.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST_TEXT) {
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
    fn only_the_document_on_show_counts_as_idle() {
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
    fn lists_are_bounded_and_without_repetition() {
        let mut page = page();
        for number in 0..1000 {
            let url = format!("http://evil.test/{}", number % 500);
            page.apply("Network.requestWillBeSent", &json!({"request": {"url": url}, "type": "Fetch", "frameId": "F"}));
            page.apply("Runtime.exceptionThrown", &json!({"exceptionDetails": {"text": format!("{number}")}}));
        }
        assert_eq!(page.foreign.len(), MOST_LISTED);
        assert!(page.foreign_more > 0 && page.left_for.is_none());
        assert_eq!(page.console_errors.len(), MOST_CONSOLE);
        page.apply("Network.webSocketCreated", &json!({"url": "ws://3000-i.localhost/live"}));
        page.apply("Network.requestWillBeSent", &json!({"request": {"url": "data:,x"}, "type": "Image"}));
        assert!(page.foreign.iter().all(|foreign| foreign.url.starts_with("http://evil.test/")));
    }
}
