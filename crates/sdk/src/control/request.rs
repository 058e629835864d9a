//! One request to the control plane.

use std::sync::atomic::Ordering;

use http::{HeaderMap, Method};
use protocol::headers::{API_KEY, IDEMPOTENCY_KEY, NEXT_TOKEN};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::pages::Page;
use crate::client::Client;
use crate::config::join;
use crate::transport::{Call, Failure, Refusal, Repeat, read_json};

/// A request to be sent: method, encoded path with query, and perhaps a body.
pub(crate) struct Request<'a> {
    client: &'a Client,
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
    key: Option<String>,
    pub(crate) call: Call,
}

impl<'a> Request<'a> {
    /// `what` completes "could not …" and names the sandbox. A request that is not a POST may be repeated.
    pub(crate) fn new(client: &'a Client, method: Method, path: impl Into<String>, what: impl Into<String>) -> Self {
        let repeat = if method == Method::POST { Repeat::Never } else { Repeat::Harmless };
        let call = Call::new(what, repeat, client.deadline()).waiting_at_most(client.longest_wait());
        Self { client, method, path: path.into(), body: None, key: None, call }
    }

    /// A POST that sets what it names, so that a second one changes nothing.
    pub(crate) fn harmless(mut self) -> Self {
        let call = Call::new(self.call.what, Repeat::Harmless, self.client.deadline());
        self.call = call.waiting_at_most(self.client.longest_wait());
        self
    }

    /// Makes repeats of this request one request.
    pub(crate) fn keyed(mut self, key: String) -> Self {
        self.key = Some(key);
        self.harmless()
    }

    pub(crate) fn body(mut self, body: &impl Serialize) -> Self {
        self.body = Some(serde_json::to_vec(body).expect("bodies of the protocol are JSON"));
        self
    }

    /// The same request to the first generation, with what is left of its time. That one knows no idempotency keys, so a
    /// request that was harmless for its key no longer is.
    fn at_first(&self, path: impl Into<String>) -> Self {
        let Self { client, method, body, key, call, .. } = self;
        let call = if key.is_some() { call.clone().once() } else { call.clone() };
        Self { client, method: method.clone(), path: path.into(), body: body.clone(), key: None, call }
    }

    pub(crate) async fn send(&self) -> Result<reqwest::Response, Failure> {
        let shared = self.client.shared();
        let url = join(&shared.endpoints.api_url, &self.path);
        let make = |http: &reqwest::Client| {
            let mut request = http.request(self.method.clone(), url.clone());
            request = request.header(API_KEY, shared.endpoints.api_key.expose());
            if let Some(key) = &self.key {
                request = request.header(IDEMPOTENCY_KEY, key);
            }
            match &self.body {
                Some(body) => request.header(http::header::CONTENT_TYPE, "application/json").body(body.clone()),
                None => request,
            }
        };
        shared.http.send(&self.call, make).await
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        read_json(self.send().await?, &self.call).await.map_err(Failure::Call)
    }

    /// One page of a list: the rows, and the headers, which say where the next begins.
    pub(crate) async fn page<T: DeserializeOwned>(&self) -> Result<(Page<T>, HeaderMap), Failure> {
        let response = self.send().await?;
        let headers = response.headers().clone();
        let items = read_json(response, &self.call).await.map_err(Failure::Call)?;
        Ok((Page { items, next: next_token(&headers) }, headers))
    }

    /// An object, and when it was sent by the server's clock.
    pub(crate) async fn json_and_date<T: DeserializeOwned>(&self) -> Result<(T, Option<jiff::Timestamp>), Failure> {
        let response = self.send().await?;
        let date = response.headers().get(http::header::DATE).and_then(|value| value.to_str().ok());
        let date = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok()).map(|date| date.timestamp());
        Ok((read_json(response, &self.call).await.map_err(Failure::Call)?, date))
    }

    /// An object whose list goes on in further answers, and where the next begins.
    pub(crate) async fn json_and_next<T: DeserializeOwned>(&self) -> Result<(T, Option<String>), Failure> {
        let response = self.send().await?;
        let next = next_token(response.headers());
        Ok((read_json(response, &self.call).await.map_err(Failure::Call)?, next))
    }

    /// Sends to the second generation's path, and to the first's on servers that have no other. For create and connect,
    /// which came together: what one finds out serves the others.
    ///
    /// A 404 may mean either, so as long as the generation is not known the first is asked as well, and its word counts.
    pub(crate) async fn json_of_either<T: DeserializeOwned>(&self, first: &str) -> Result<T, Failure> {
        let old = &self.client.shared().first_generation;
        if old.load(Ordering::Relaxed) {
            return self.at_first(first).json().await;
        }
        match self.json().await {
            Err(Failure::Refused(refusal)) if lacks_path(&refusal) => {
                let answer = self.at_first(first).json().await;
                if answer.is_ok() {
                    old.store(true, Ordering::Relaxed);
                }
                answer
            }
            answer => answer,
        }
    }
}

fn next_token(headers: &HeaderMap) -> Option<String> {
    let token = headers.get(NEXT_TOKEN).and_then(|value| value.to_str().ok());
    token.filter(|token| !token.is_empty()).map(str::to_owned)
}

/// Whether a refusal may mean that the server does not have the call at all.
pub(crate) fn lacks_path(refusal: &Refusal) -> bool {
    // Our word and E2B's for a template or tag that does not exist; the path is there.
    let names_template = refusal.message.contains("template '") || refusal.message.contains("tag '");
    matches!(refusal.status, 404 | 405 | 501) && !names_template
}
