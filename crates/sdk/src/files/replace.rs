//! Atomic replacement of a file, on servers that support it.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, Method};
use protocol::envd::WrittenFile;
use reqwest::Body;

use super::Files;
use super::body::Upload;
use super::error::FileError;
use super::write::{PLAIN, first};
use crate::transport::{Failure, Idempotency, Refusal, read_json};

/// The precondition of a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlyOver<'a> {
    /// The path does not exist.
    Absent,
    /// The content has this SHA-256, in hexadecimal.
    Content(&'a str),
}

impl Files<'_> {
    /// Replaces or creates a file atomically; keeps mode and owner of an existing one. Writes only
    /// if the precondition holds (compare-and-swap): a concurrent change is never overwritten.
    ///
    /// A Sandbar extension: [`crate::Client::capabilities`] lists `replaceFiles` where it works.
    /// Never retried.
    ///
    /// # Errors
    /// [`FileError::Changed`] when the precondition fails, and nothing was written;
    /// [`FileError::NoSpace`]; [`FileError::Call`] with [`crate::CallError::Unsupported`] on
    /// servers without it.
    pub async fn replace(
        &self,
        path: &str,
        content: impl Into<Bytes>,
        only_over: OnlyOver<'_>,
    ) -> Result<WrittenFile, FileError> {
        let (call, progress) = self.new_call("replace", path, Idempotency::NotIdempotent).with_progress();
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
            Err(failure) => Err(FileError::from_failure(self.sandbox, &call, path, failure).await),
        }
    }
}
