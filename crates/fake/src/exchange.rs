//! Requests and responses of the fake server.

use std::pin::Pin;

use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use percent_encoding::percent_decode_str;
use protocol::rest::ErrorBody;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A request with its whole body.
#[derive(Debug)]
pub(crate) struct FakeRequest {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl FakeRequest {
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Split before decoding: a template reference may contain an encoded slash.
    pub(crate) fn segments(&self) -> Vec<String> {
        self.path().split('/').filter(|part| !part.is_empty()).map(decode).collect()
    }

    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?')?.1;
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let value = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value.replace('+', " ")).next()?;
        Some(decode(&value)).filter(|value| !value.is_empty())
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body; an empty one is an empty object.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, FakeResponse> {
        let body: &[u8] = if self.body.is_empty() { b"{}" } else { &self.body };
        serde_json::from_slice(body).map_err(|error| refuse(400, format!("the body cannot be read: {error}")))
    }
}

pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// `METHOD /path`, where `*` matches one segment.
#[derive(Debug)]
pub(crate) struct FaultRule {
    method: Method,
    segments: Vec<String>,
}

impl FaultRule {
    pub(crate) fn parse(text: &str) -> Self {
        let (method, path) = text.split_once(' ').expect("a rule is `METHOD /path`");
        let method = method.parse().expect("a rule begins with a method");
        Self { method, segments: path.trim_start_matches('/').split('/').map(str::to_owned).collect() }
    }

    pub(crate) fn matches(&self, method: &Method, path: &str) -> bool {
        let path: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        self.method == method
            && path.len() == self.segments.len()
            && path.iter().zip(&self.segments).all(|(part, rule)| rule == "*" || rule == part)
    }
}

pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, CutConnection>> + Send>>;

/// Closes the connection immediately.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut on purpose")]
pub(crate) struct CutConnection;

pub(crate) struct FakeResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) content: FakeContent,
}

pub(crate) enum FakeContent {
    Whole(Bytes),
    Stream(Pieces),
}

impl FakeResponse {
    pub(crate) fn new(status: u16, kind: &'static str, content: impl Into<Bytes>) -> Self {
        let headers = vec![(http::header::CONTENT_TYPE, HeaderValue::from_static(kind))];
        Self { status, headers, content: FakeContent::Whole(content.into()) }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("the fake's headers are text");
        self.headers.push((HeaderName::from_static(name), value));
        self
    }
}

pub(crate) fn json(status: u16, body: &impl Serialize) -> FakeResponse {
    FakeResponse::new(status, "application/json", serde_json::to_vec(body).expect("bodies of the protocol are JSON"))
}

pub(crate) fn empty(status: u16) -> FakeResponse {
    FakeResponse { status, headers: Vec::new(), content: FakeContent::Whole(Bytes::new()) }
}

pub(crate) fn refuse(status: u16, message: impl Into<String>) -> FakeResponse {
    json(status, &ErrorBody { code: status, message: message.into(), error_code: None })
}

/// One page of `rows`, as the query asks.
pub(crate) fn page<T: Serialize>(request: &FakeRequest, rows: &[T]) -> FakeResponse {
    let limit = request.query("limit").map_or(Some(100), |text| text.parse().ok());
    let Some(limit) = limit.filter(|limit| (1..=100).contains(limit)) else {
        return refuse(400, "limit must be between 1 and 100");
    };
    let Some(from) = request.query("nextToken").map_or(Some(0), |token| token.strip_prefix("from-")?.parse().ok())
    else {
        return refuse(400, "Invalid next token");
    };
    let shown: Vec<&T> = rows.iter().skip(from).take(limit).collect();
    let answer = json(200, &shown);
    if from + limit < rows.len() {
        return answer.with(protocol::headers::NEXT_TOKEN, &format!("from-{}", from + limit));
    }
    answer
}
