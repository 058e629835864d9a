//! Why the edge does not forward a request, as JSON for programs and as a [page](super::page) for
//! people.
//!
//! SDKs decide by the texts: "was not found" means not running, "port is not open" means running
//! but not reachable.

use http::{HeaderMap, Response, StatusCode, header};
use serde::Serialize;

use super::page;
use crate::body::{self, Body};
use crate::routing::Target;

pub(super) const NOT_FOUND: &str = "The sandbox was not found";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    NotFound,
    /// Paused without auto-resume. Programs get E2B's message: that it was not found.
    Paused,
    PortClosed,
    /// The service closed the connection without a response.
    NoAnswer,
    /// `httpsPorts` names the port, and its service does not speak TLS.
    NotSecured,
    TrafficTokenMissing,
    TrafficTokenWrong,
    /// Paused, and the request does not have the token that resumes it.
    AccessTokenMissing,
    /// Paused, and a browser sends a CORS preflight for the guest: answered without a resume.
    Preflight,
    /// Traffic has resumed it too often.
    ResumedTooOften,
    Changing,
    Full,
    /// Its files are missing from the pool.
    FilesMissing,
    CannotResume,
}

/// The format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Json,
    Page,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    sandbox_id: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
}

impl Refusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::NotFound
            | Self::Paused
            | Self::PortClosed
            | Self::NoAnswer
            | Self::NotSecured
            | Self::CannotResume => StatusCode::BAD_GATEWAY,
            Self::TrafficTokenMissing | Self::TrafficTokenWrong => StatusCode::FORBIDDEN,
            Self::AccessTokenMissing => StatusCode::UNAUTHORIZED,
            Self::Preflight => StatusCode::NO_CONTENT,
            Self::Changing => StatusCode::CONFLICT,
            Self::Full | Self::ResumedTooOften => StatusCode::TOO_MANY_REQUESTS,
            Self::FilesMissing => StatusCode::GONE,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::NotFound | Self::Paused => NOT_FOUND,
            Self::PortClosed => "The sandbox is running but port is not open",
            Self::NoAnswer => "The sandbox closed the connection without an answer",
            Self::NotSecured => "The sandbox does not speak TLS on this port, though httpsPorts names it",
            Self::TrafficTokenMissing => "The sandbox is private: header e2b-traffic-access-token is missing",
            Self::TrafficTokenWrong => "The sandbox is private: header e2b-traffic-access-token is wrong",
            Self::AccessTokenMissing => "The sandbox is paused, and only a valid header X-Access-Token resumes it",
            Self::Preflight => "",
            Self::ResumedTooOften => "The sandbox was resumed too often; try again in a few seconds",
            Self::Changing => "The sandbox is being paused or resumed",
            Self::Full => "The sandbox cannot be resumed: the machine has no room for it",
            Self::FilesMissing => "The sandbox cannot be resumed: its files are missing from the server's pool",
            Self::CannotResume => "The sandbox could not be resumed",
        }
    }

    pub(super) fn answer(self, target: &Target, style: Style) -> Response<Body> {
        let (status, message) = (self.status(), self.message());
        match style {
            Style::Json => body::json(
                status,
                &Wire {
                    sandbox_id: target.id.as_str(),
                    message,
                    port: (self == Self::PortClosed).then_some(target.port),
                    code: status.as_u16(),
                },
            ),
            Style::Page => page::answer(self, target),
        }
    }
}

impl Style {
    /// A page only for navigation in a browser.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        let accept = text(header::ACCEPT.as_str());
        let wants_json = accept.contains("json") && !accept.contains("html");
        let scripted = ["cors", "no-cors", "same-origin", "websocket"].contains(&text("sec-fetch-mode"));
        let browser = text(header::USER_AGENT.as_str()).starts_with("Mozilla/");
        let json = wants_json || scripted || headers.contains_key("x-requested-with") || !browser;
        if json { Self::Json } else { Self::Page }
    }
}

/// The response for a route of the guest that the edge does not serve.
pub(super) fn control_route(path: &str) -> Response<Body> {
    #[derive(Serialize)]
    struct Wire<'a> {
        message: &'a str,
        path: &'a str,
        code: u16,
    }
    body::json(StatusCode::NOT_FOUND, &Wire { message: "Not found", path, code: 404 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(headers: &[(&'static str, &'static str)], expected: Style) {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
            .collect();
        assert_eq!(Style::from_headers(&headers), expected, "{headers:?}");
    }

    #[test]
    fn only_navigating_browsers_get_a_page() {
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux)");
        check(&[], Style::Json);
        check(&[("user-agent", "curl/8")], Style::Json);
        check(&[browser], Style::Page);
        check(&[browser, ("accept", "text/html,application/json")], Style::Page);
        check(&[browser, ("accept", "application/json")], Style::Json);
        check(&[browser, ("sec-fetch-mode", "cors")], Style::Json);
        check(&[browser, ("sec-fetch-mode", "navigate")], Style::Page);
        check(&[browser, ("x-requested-with", "XMLHttpRequest")], Style::Json);
    }
}
