//! Volumes: storage that outlives sandboxes. [`Volume`] is one with its content.

mod content;

use http::Method;
use protocol::rest::volume::{NewVolume, Volume as ListedVolume, VolumeAndToken};

pub use content::{EntryOptions, Volume, VolumeError};

use super::query::encode;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};

/// The volumes of a service. From [`Client::volumes`].
///
/// ```no_run
/// # async fn example(client: sandbar_sdk::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let volume = client.volumes().create("cache").await?;
/// volume.write("/notes.txt", "kept").await?;
/// let create = sandbar_sdk::Create::template("base").volume("cache", "/mnt/cache");
/// let sandbox = client.create(create).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Volumes<'a> {
    client: &'a Client,
}

impl Client {
    /// The volumes of the service, which outlive sandboxes.
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes { client: self }
    }
}

impl Volumes<'_> {
    /// Lists all volumes.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn list(&self) -> Result<Vec<ListedVolume>, CallError> {
        let request = Request::new(self.client, Method::GET, "/volumes", "list volumes");
        request.json().await.map_err(|failure| failure.into_error(&request.call))
    }

    /// Creates an empty volume. A name has letters, digits, `_` and `-`.
    ///
    /// # Errors
    /// [`CallError::Invalid`] when the name is taken or invalid, or another [`CallError`].
    pub async fn create(&self, name: &str) -> Result<Volume, CallError> {
        let body = NewVolume { name: name.to_owned() };
        let request = Request::new(self.client, Method::POST, "/volumes", format!("create volume {name:?}"));
        let request = request.body(&body);
        let made = request.json::<VolumeAndToken>().await.map_err(|failure| failure.into_error(&request.call))?;
        Volume::new(self.client, made, &request.call)
    }

    /// One volume by its id, with its token.
    ///
    /// # Errors
    /// [`VolumeError::NotFound`], [`VolumeError::Call`].
    pub async fn get(&self, id: &str) -> Result<Volume, VolumeError> {
        let path = format!("/volumes/{}", encode(id));
        let request = Request::new(self.client, Method::GET, path, format!("get volume {id:?}"));
        match request.json::<VolumeAndToken>().await {
            Ok(found) => Ok(Volume::new(self.client, found, &request.call)?),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Err(VolumeError::NotFound { volume: id.to_owned() }),
            Err(failure) => Err(failure.into_error(&request.call).into()),
        }
    }

    /// Deletes a volume with its content. Returns false when it did not exist.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn delete(&self, id: &str) -> Result<bool, CallError> {
        let path = format!("/volumes/{}", encode(id));
        let request = Request::new(self.client, Method::DELETE, path, format!("delete volume {id:?}"));
        match request.send().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(false),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }
}
