//! One request to the control plane.

use std::sync::atomic::Ordering;

use http::{HeaderMap, Method};
use protocol::headers::{API_KEY, IDEMPOTENCY_KEY, NEXT_TOKEN};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::pages::Page;
use crate::client::Client;
use crate::config::join;
use crate::transport::{Call, Failure, Idempotency, Refusal, read_json};

/// A request: method, encoded path with query, optional body.
pub(crate) struct Request<'a> {
    client: &'a Client,
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
    key: Option<String>,
    pub(crate) call: Call,
}

impl<'a> Request<'a> {
    /// `what` completes "could not …" and names the sandbox. All methods except POST are
    /// idempotent.
    pub(crate) fn new(client: &'a Client, method: Method, path: impl Into<String>, what: impl Into<String>) -> Self {
        let idempotency = if method == Method::POST { Idempotency::NotIdempotent } else { Idempotency::Idempotent };
        let call = Call::new(what, idempotency, client.deadline()).with_max_backoff(client.max_backoff());
        Self { client, method, path: path.into(), body: None, key: None, call }
    }

    /// Marks a POST as idempotent: it sets an absolute state.
    pub(crate) fn idempotent(mut self) -> Self {
        let call = Call::new(self.call.what, Idempotency::Idempotent, self.client.deadline());
        self.call = call.with_max_backoff(self.client.max_backoff());
        self
    }

    /// Adds an idempotency key, which makes the request retryable.
    pub(crate) fn with_idempotency_key(mut self, key: String) -> Self {
        self.key = Some(key);
        self.idempotent()
    }

    pub(crate) fn body(mut self, body: &impl Serialize) -> Self {
        self.body = Some(serde_json::to_vec(body).expect("bodies of the protocol are JSON"));
        self
    }

    /// The same request for API version 1, with the remaining time. Version 1 has no idempotency
    /// keys, so a request that was idempotent by its key no longer is.
    fn to_v1(&self, path: impl Into<String>) -> Self {
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

    /// One page of a list: the rows, and the headers, which hold the next token.
    pub(crate) async fn page<T: DeserializeOwned>(&self) -> Result<(Page<T>, HeaderMap), Failure> {
        let response = self.send().await?;
        let headers = response.headers().clone();
        let items = read_json(response, &self.call).await.map_err(Failure::Call)?;
        Ok((Page { items, next: next_token(&headers) }, headers))
    }

    /// An object, and the date of the response by the server's clock.
    pub(crate) async fn json_and_date<T: DeserializeOwned>(&self) -> Result<(T, Option<jiff::Timestamp>), Failure> {
        let response = self.send().await?;
        let date = response.headers().get(http::header::DATE).and_then(|value| value.to_str().ok());
        let date = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok()).map(|date| date.timestamp());
        Ok((read_json(response, &self.call).await.map_err(Failure::Call)?, date))
    }

    /// An object that holds one page of a list, and the next token.
    pub(crate) async fn json_and_next<T: DeserializeOwned>(&self) -> Result<(T, Option<String>), Failure> {
        let response = self.send().await?;
        let next = next_token(response.headers());
        Ok((read_json(response, &self.call).await.map_err(Failure::Call)?, next))
    }

    /// Sends to the path of API version 2, and to `first` of version 1 on servers without it. For
    /// create and connect, which were introduced together: the version one of them detects applies
    /// to both.
    ///
    /// A 404 is ambiguous, so the client also tries version 1 until the version is known, and
    /// returns its response.
    pub(crate) async fn json_with_v1_fallback<T: DeserializeOwned>(&self, first: &str) -> Result<T, Failure> {
        let old = &self.client.shared().only_api_v1;
        if old.load(Ordering::Relaxed) {
            return self.to_v1(first).json().await;
        }
        match self.json().await {
            Err(Failure::Refused(refusal)) if lacks_path(&refusal) => {
                let answer = self.to_v1(first).json().await;
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

/// Whether a refusal may mean that the server lacks the call.
pub(crate) fn lacks_path(refusal: &Refusal) -> bool {
    // Sandbar's and E2B's messages for a missing template or tag; the path exists.
    let names_template = refusal.message.contains("template '") || refusal.message.contains("tag '");
    matches!(refusal.status, 404 | 405 | 501) && !names_template
}
