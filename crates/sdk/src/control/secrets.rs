//! Secrets that a sandbox's requests carry without the sandbox seeing them. Values go in and never come out: in rules of the
//! network `${e2b.secrets.NAME}` stands for one.

use std::collections::BTreeMap;

use futures::Stream;
use http::Method;
use protocol::rest::secret::{NewSecret, SecretInfo, SecretUpdate};

use super::pages::rows;
use super::query::{Path, encode};
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::secret::Secret;
use crate::transport::{Failure, Refusal};

/// Something that could not be done to a secret.
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
    /// Secrets for requests of sandboxes.
    pub fn secrets(&self) -> Secrets<'_> {
        Secrets { client: self }
    }
}

impl Secrets<'_> {
    /// All secrets, page after page, without their values.
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

    /// Makes a secret. The name is of up to 128 letters, digits, `_` and `-`.
    ///
    /// # Errors
    /// [`CallError::Invalid`] when the name is taken or wrong, or what may happen to any call.
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

    /// What may be known of a secret, by id or name.
    ///
    /// # Errors
    /// [`SecretError::NotFound`], or what may happen to any call.
    pub async fn get(&self, secret: &str) -> Result<SecretInfo, SecretError> {
        let path = format!("/secrets/{}", encode(secret));
        let request = Request::new(self.client, Method::GET, path, format!("look at secret {secret:?}"));
        request.json().await.map_err(|failure| of(failure, secret, &request))
    }

    /// Gives a secret a new value. Metadata stays unless given.
    ///
    /// Not repeated after a lost answer, since each update is a version of its own.
    ///
    /// # Errors
    /// [`SecretError::NotFound`], or what may happen to any call.
    pub async fn update(
        &self,
        secret: &str,
        value: &Secret,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<SecretInfo, SecretError> {
        let body = SecretUpdate { value: value.expose().to_owned(), metadata };
        let path = format!("/secrets/{}", encode(secret));
        let request = Request::new(self.client, Method::POST, path, format!("change secret {secret:?}")).body(&body);
        request.json().await.map_err(|failure| of(failure, secret, &request))
    }

    /// Deletes a secret. False when there was none.
    ///
    /// # Errors
    /// What may happen to any call.
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

fn of(failure: Failure, secret: &str, request: &Request<'_>) -> SecretError {
    match failure {
        Failure::Refused(Refusal { status: 404, .. }) => SecretError::NotFound { secret: secret.to_owned() },
        other => SecretError::Call(other.into_error(&request.call)),
    }
}
