//! Secrets that the egress adds to a sandbox's requests without exposing them to the sandbox. The
//! service never returns a value: network rules refer to one as `${e2b.secrets.NAME}`.

use std::collections::BTreeMap;

use futures::Stream;
use http::Method;
use protocol::rest::secret::{NewSecret, SecretInfo, SecretUpdate};

use super::pages::rows;
use super::query::{Path, encode};
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};
use secret::Secret;

/// A failed operation on a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    #[error("secret {secret:?} does not exist")]
    NotFound { secret: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The secrets of a service. From [`Client::secrets`].
#[derive(Debug, Clone)]
pub struct Secrets<'a> {
    client: &'a Client,
}

impl Client {
    /// The secrets for requests of sandboxes.
    pub fn secrets(&self) -> Secrets<'_> {
        Secrets { client: self }
    }
}

impl Secrets<'_> {
    /// Streams all secrets without their values, page by page.
    pub fn list(&self) -> impl Stream<Item = Result<SecretInfo, CallError>> + Send + use<> {
        let client = self.client.clone();
        rows(move |token: Option<String>| {
            let client = client.clone();
            async move {
                let path = Path::new("/secrets").with("nextToken", token.as_deref());
                let request = Request::new(&client, Method::GET, path, "list secrets");
                let page = request.page().await.map_err(|failure| failure.into_error(&request.call))?;
                Ok(page.0)
            }
        })
    }

    /// Creates a secret. A name has up to 128 letters, digits, `_` and `-`.
    ///
    /// # Errors
    /// [`CallError::Invalid`] when the name is taken or invalid, or another [`CallError`].
    pub async fn create(
        &self,
        name: &str,
        value: &Secret,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<SecretInfo, CallError> {
        let body = NewSecret { name: name.to_owned(), value: value.expose().to_owned(), metadata };
        let request =
            Request::new(self.client, Method::POST, "/secrets", format!("create secret {name:?}")).body(&body);
        request.json().await.map_err(|failure| failure.into_error(&request.call))
    }

    /// A secret without its value, by id or name.
    ///
    /// # Errors
    /// [`SecretError::NotFound`], [`SecretError::Call`].
    pub async fn get(&self, secret: &str) -> Result<SecretInfo, SecretError> {
        let path = format!("/secrets/{}", encode(secret));
        let request = Request::new(self.client, Method::GET, path, format!("get secret {secret:?}"));
        request.json().await.map_err(|failure| map_failure(failure, secret, &request))
    }

    /// Sets a new value. Metadata is kept unless given.
    ///
    /// Not retried after a lost response, because each update creates a version.
    ///
    /// # Errors
    /// [`SecretError::NotFound`], [`SecretError::Call`].
    pub async fn update(
        &self,
        secret: &str,
        value: &Secret,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<SecretInfo, SecretError> {
        let body = SecretUpdate { value: value.expose().to_owned(), metadata };
        let path = format!("/secrets/{}", encode(secret));
        let request = Request::new(self.client, Method::POST, path, format!("change secret {secret:?}")).body(&body);
        request.json().await.map_err(|failure| map_failure(failure, secret, &request))
    }

    /// Deletes a secret. Returns false when it did not exist.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn delete(&self, secret: &str) -> Result<bool, CallError> {
        let path = format!("/secrets/{}", encode(secret));
        let request = Request::new(self.client, Method::DELETE, path, format!("delete secret {secret:?}"));
        match request.send().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(false),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }
}

fn map_failure(failure: Failure, secret: &str, request: &Request<'_>) -> SecretError {
    match failure {
        Failure::Refused(Refusal { status: 404, .. }) => SecretError::NotFound { secret: secret.to_owned() },
        other => SecretError::Call(other.into_error(&request.call)),
    }
}
