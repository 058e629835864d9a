//! Reading: whole, as text, or as a stream with memory for one chunk.

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
use crate::transport::{Call, Idempotency};

/// The most bytes to preallocate for a known length; beyond it the buffer grows.
const MAX_PREALLOCATION: u64 = 64 * 1024 * 1024;

/// Shorter pieces are copied, which costs less than retaining their receive buffer.
const COPY_THRESHOLD: usize = 16 * 1024;

/// The content of a file as it arrives. Dropping it aborts the download.
pub struct FileStream {
    size: Option<u64>,
    chunks: BoxStream<'static, Result<Bytes, FileError>>,
}

impl FileStream {
    /// The total length, if the server reports it; absent for files like those in `/proc`.
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
    /// Reads a whole file.
    ///
    /// The deadline applies to the response head and to each wait for data, so that the size does
    /// not matter.
    ///
    /// # Errors
    /// [`FileError::NotFound`]; [`FileError::Invalid`] for a directory;
    /// [`FileError::ConnectionLost`] when the file does not arrive completely; [`FileError::Call`].
    pub async fn read(&self, path: &str) -> Result<Bytes, FileError> {
        let mut download = self.download(path).await?;
        let Some(first) = download.next().await? else { return Ok(Bytes::new()) };
        let Some(second) = download.next().await? else { return Ok(compact(first)) };
        let size = download.size.unwrap_or(0).min(MAX_PREALLOCATION);
        let mut whole = BytesMut::with_capacity(usize::try_from(size).unwrap_or(0).max(first.len() + second.len()));
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&second);
        while let Some(chunk) = download.next().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    /// Reads a whole text file.
    ///
    /// # Errors
    /// Those of [`Files::read`], and [`FileError::NotText`].
    pub async fn read_text(&self, path: &str) -> Result<String, FileError> {
        let bytes = self.read(path).await?;
        String::from_utf8(bytes.into()).map_err(|error| FileError::NotText {
            id: self.sandbox.id().clone(),
            path: path.to_owned(),
            at: error.utf8_error().valid_up_to(),
        })
    }

    /// Streams a file in constant memory. A stream that ends without an error has delivered the
    /// whole file.
    ///
    /// ```no_run
    /// # use std::error::Error;
    /// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), Box<dyn Error>> {
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
    /// Those of [`Files::read`].
    pub async fn read_stream(&self, path: &str) -> Result<FileStream, FileError> {
        let download = self.download(path).await?;
        let size = download.size;
        let chunks = stream::try_unfold(download, |mut download| async move {
            Ok(download.next().await?.map(|chunk| (chunk, download)))
        });
        Ok(FileStream { size, chunks: chunks.boxed() })
    }

    async fn download(&self, path: &str) -> Result<Download, FileError> {
        let call = self.new_call("read", path, Idempotency::Idempotent);
        let target = self.target(Some(path));
        let envd = self.sandbox.envd();
        let make = |http: &reqwest::Client| envd.request(http, Method::GET, &target);
        match self.sandbox.client().shared().http.send(&call, make).await {
            Ok(response) => {
                let size = response.content_length();
                let sandbox = self.sandbox.clone();
                Ok(Download { response, size, arrived: 0, sandbox, call, path: path.to_owned() })
            }
            Err(failure) => Err(FileError::from_failure(self.sandbox, &call, path, failure).await),
        }
    }
}

/// Copies a short piece, which is a slice of a much larger buffer and would retain it.
fn compact(piece: Bytes) -> Bytes {
    if piece.len() < COPY_THRESHOLD { Bytes::copy_from_slice(&piece) } else { piece }
}

/// A download in progress.
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
        let idle_timeout = self.sandbox.client().deadline();
        let cause = match tokio::time::timeout(idle_timeout, self.response.chunk()).await {
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
            Err(_) => return Err(self.call.deadline_exceeded().into()),
        };
        Err(FileError::from_stream_end(&self.sandbox, &self.call, &self.path, self.sandbox.diagnose(cause).await))
    }
}
