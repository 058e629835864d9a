//! Volumes: storage that outlives sandboxes. Here are the volumes; [`Volume`] is one with its content.

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
/// let sandbox = client.create(sandbar_sdk::Create::template("base").volume("cache", "/mnt/cache")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Volumes<'a> {
    client: &'a Client,
}

impl Client {
    /// Storage that outlives sandboxes.
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes { client: self }
    }
}

impl Volumes<'_> {
    /// All volumes.
    ///
    /// # Errors
    /// What may happen to any call.
    pub async fn list(&self) -> Result<Vec<ListedVolume>, CallError> {
        let request = Request::new(self.client, Method::GET, "/volumes", "list volumes");
        request.json().await.map_err(|failure| failure.into_error(&request.call))
    }

    /// Makes an empty volume. The name is of letters, digits, `_` and `-`.
    ///
    /// # Errors
    /// [`CallError::Invalid`] when the name is taken or wrong, or what may happen to any call.
    pub async fn create(&self, name: &str) -> Result<Volume, CallError> {
        let body = NewVolume { name: name.to_owned() };
        let request = Request::new(self.client, Method::POST, "/volumes", format!("create volume {name:?}"));
        let request = request.body(&body);
        let made = request.json::<VolumeAndToken>().await.map_err(|failure| failure.into_error(&request.call))?;
        Volume::new(self.client, made, &request.call)
    }

    /// One volume by its id, opened.
    ///
    /// # Errors
    /// [`VolumeError::NotFound`], or what may happen to any call.
    pub async fn get(&self, id: &str) -> Result<Volume, VolumeError> {
        let path = format!("/volumes/{}", encode(id));
        let request = Request::new(self.client, Method::GET, path, format!("look at volume {id:?}"));
        match request.json::<VolumeAndToken>().await {
            Ok(found) => Ok(Volume::new(self.client, found, &request.call)?),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Err(VolumeError::NotFound { volume: id.to_owned() }),
            Err(failure) => Err(failure.into_error(&request.call).into()),
        }
    }

    /// Deletes a volume with its content. False when there was none.
    ///
    /// # Errors
    /// What may happen to any call.
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
