//! Reading: whole, as text, or as a stream that needs no more memory than a chunk.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use http::Method;

use super::Files;
use super::error::FileError;
use crate::error::CallError;
use crate::sandbox::Sandbox;
use crate::transport::{Call, Repeat};

/// Set aside at once for a file that says how long it is; more grows as it comes.
const SET_ASIDE: u64 = 64 * 1024 * 1024;

/// Copying so little costs less than keeping what it arrived in.
const SHORT: usize = 16 * 1024;

/// The content of a file as it arrives. Dropping it ends the download.
pub struct FileStream {
    size: Option<u64>,
    chunks: BoxStream<'static, Result<Bytes, FileError>>,
}

impl FileStream {
    /// How many bytes are to come in all, when the server says; it does not for files like those in `/proc`.
    pub fn size(&self) -> Option<u64> {
        self.size
    }
}

impl Stream for FileStream {
    type Item = Result<Bytes, FileError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.chunks.poll_next_unpin(context)
    }
}

impl fmt::Debug for FileStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStream").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Files<'_> {
    /// The content of a file.
    ///
    /// The deadline is for the answer to begin and for each wait within it, so that any size may take its time.
    ///
    /// # Errors
    /// [`FileError::NotFound`]; [`FileError::Invalid`] for a directory. A file that does not arrive whole is an error.
    pub async fn read(&self, path: &str) -> Result<Bytes, FileError> {
        let mut download = self.download(path).await?;
        let Some(first) = download.next().await? else { return Ok(Bytes::new()) };
        let Some(second) = download.next().await? else { return Ok(lean(first)) };
        let size = download.size.unwrap_or(0).min(SET_ASIDE);
        let mut whole = BytesMut::with_capacity(usize::try_from(size).unwrap_or(0).max(first.len() + second.len()));
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&second);
        while let Some(chunk) = download.next().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    /// The content of a file that is text.
    ///
    /// # Errors
    /// As [`Files::read`], and [`FileError::NotText`].
    pub async fn read_text(&self, path: &str) -> Result<String, FileError> {
        let bytes = self.read(path).await?;
        String::from_utf8(bytes.into()).map_err(|error| FileError::NotText {
            id: self.sandbox.id().clone(),
            path: path.to_owned(),
            at: error.utf8_error().valid_up_to(),
        })
    }

    /// The content of a file as it arrives, in constant memory. A stream that ends without an error has brought the
    /// whole file.
    ///
    /// ```no_run
    /// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), Box<dyn std::error::Error>> {
    /// use futures::TryStreamExt;
    ///
    /// let mut log = sandbox.files().read_stream("/var/log/big.log").await?;
    /// let mut bytes = 0;
    /// while let Some(chunk) = log.try_next().await? {
    ///     bytes += chunk.len();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn read_stream(&self, path: &str) -> Result<FileStream, FileError> {
        let download = self.download(path).await?;
        let size = download.size;
        let chunks = stream::try_unfold(download, |mut download| async move {
            Ok(download.next().await?.map(|chunk| (chunk, download)))
        });
        Ok(FileStream { size, chunks: chunks.boxed() })
    }

    async fn download(&self, path: &str) -> Result<Download, FileError> {
        let call = self.named("read", path, Repeat::Harmless);
        let target = self.target(Some(path));
        let envd = self.sandbox.envd();
        let make = |http: &reqwest::Client| envd.request(http, Method::GET, &target);
        match self.sandbox.client().shared().http.send(&call, make).await {
            Ok(response) => {
                let size = response.content_length();
                let sandbox = self.sandbox.clone();
                Ok(Download { response, size, arrived: 0, sandbox, call, path: path.to_owned() })
            }
            Err(failure) => Err(FileError::of(self.sandbox, &call, path, failure).await),
        }
    }
}

/// A short piece is a slice of a much longer buffer, which it would keep.
fn lean(piece: Bytes) -> Bytes {
    if piece.len() < SHORT { Bytes::copy_from_slice(&piece) } else { piece }
}

/// A file on its way.
struct Download {
    response: reqwest::Response,
    size: Option<u64>,
    arrived: u64,
    sandbox: Sandbox,
    call: Call,
    path: String,
}

impl Download {
    async fn next(&mut self) -> Result<Option<Bytes>, FileError> {
        let patience = self.sandbox.client().deadline();
        let cause = match tokio::time::timeout(patience, self.response.chunk()).await {
            Ok(Ok(Some(chunk))) => {
                self.arrived += chunk.len() as u64;
                return Ok(Some(chunk));
            }
            Ok(Ok(None)) => match self.size {
                Some(size) if size != self.arrived => format!("it ended after {} of {size} bytes", self.arrived),
                _ => return Ok(None),
            },
            Ok(Err(error)) => match self.call.lost(&error) {
                CallError::ConnectionLost { cause, .. } => cause,
                other => return Err(other.into()),
            },
            Err(_) => return Err(self.call.out_of_time().into()),
        };
        Err(FileError::of_end(&self.sandbox, &self.call, &self.path, self.sandbox.fate(cause).await))
    }
}
