//! Replacing a file whole or not at all, where the server can.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, Method};
use protocol::envd::WrittenFile;
use reqwest::Body;

use super::Files;
use super::body::Upload;
use super::error::FileError;
use super::write::{PLAIN, first};
use crate::transport::{Failure, Refusal, Repeat, read_json};

/// What must be at a path for it to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlyOver<'a> {
    /// Nothing.
    Absent,
    /// A file whose content has this SHA-256, as hexadecimal digits.
    Content(&'a str),
}

impl Files<'_> {
    /// Replaces a file, or makes one, whole or not at all; mode and owner of the one before stay. Only over what the
    /// caller saw there: between looking and replacing nobody else's change is lost.
    ///
    /// Sandbar's own: [`crate::Client::capabilities`] has `replaceFiles` where it works. Never sent twice.
    ///
    /// # Errors
    /// [`FileError::Changed`] when something else is there, and nothing was done; [`FileError::NoSpace`];
    /// [`crate::CallError::Unsupported`] on servers without it.
    pub async fn replace(
        &self,
        path: &str,
        content: impl Into<Bytes>,
        only_over: OnlyOver<'_>,
    ) -> Result<WrittenFile, FileError> {
        let (call, progress) = self.named("replace", path, Repeat::Never).progressing();
        let (condition, wanted): (HeaderName, String) = match only_over {
            OnlyOver::Absent => (IF_NONE_MATCH, "*".to_owned()),
            OnlyOver::Content(digest) => (IF_MATCH, format!("\"{digest}\"")),
        };
        let http = self.sandbox.client().shared().http.pooled();
        let request = self.sandbox.envd().request(http, Method::PUT, &self.target(Some(path)));
        let request = request.header(CONTENT_TYPE, PLAIN).header(condition, wanted);
        let body = Body::wrap(Upload::new([content.into()], progress));
        let answer = match self.sandbox.client().shared().http.send_body(&call, request.body(body)).await {
            Ok(response) => read_json(response, &call).await.map_err(Failure::Call),
            Err(failure) => Err(failure),
        };
        match answer {
            Ok(written) => first(written, &call),
            Err(Failure::Refused(Refusal { status: 412, .. })) => {
                Err(FileError::Changed { id: self.sandbox.id().clone(), path: path.to_owned() })
            }
            Err(failure) => Err(FileError::of(self.sandbox, &call, path, failure).await),
        }
    }
}
