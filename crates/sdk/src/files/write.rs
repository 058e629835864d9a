//! Writing: bytes, streams, many files at once.
//!
//! A file is uploaded as raw bytes where the daemon supports it, and as a form otherwise. Many
//! files share one form, which costs one request instead of one each.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use protocol::envd::WrittenFile;
use protocol::headers::METADATA_PREFIX;
use reqwest::Body;

use super::Files;
use super::body::{Pieces, Upload};
use super::error::FileError;
use crate::transport::{Call, Failure, Idempotency, read_json};
use crate::version::Feature;

pub(super) const PLAIN: &str = "application/octet-stream";
/// Concurrent uploads of files whose names a form cannot carry.
const CONCURRENT_UPLOADS: usize = 8;

impl Files<'_> {
    /// Writes a file, replacing its content; creates missing parents.
    ///
    /// Dropping the future may leave a part of it written. The deadline limits silence, not the
    /// whole transfer.
    ///
    /// # Errors
    /// [`FileError::NoSpace`]; [`FileError::Invalid`] for a directory; [`FileError::Call`].
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<WrittenFile, FileError> {
        let content = content.into();
        let call = self.new_call("write", path, Idempotency::Idempotent);
        let (call, progress) = call.with_progress();
        let form = self.form();
        let (head, tail) = form.as_ref().map_or_else(Default::default, |form| (form.head(""), form.tail()));
        let pieces = [Bytes::from(head), content, Bytes::from(tail)];
        let body = || Body::wrap(Upload::new(pieces.clone(), progress.clone()));
        let written = self.upload(&call, Some(path), form.as_ref(), body).await?;
        first(written, &call)
    }

    /// Writes a file from a stream, in constant memory. Like [`Files::write`], but never retried.
    ///
    /// ```no_run
    /// # use std::error::Error;
    /// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), Box<dyn Error>> {
    /// use bytes::Bytes;
    /// use futures::stream;
    ///
    /// let lines = (0..1_000_000).map(|n| std::io::Result::Ok(Bytes::from(format!("{n}\n"))));
    /// sandbox.files().write_stream("numbers.txt", stream::iter(lines)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Files::write`], and [`FileError::Source`] when the stream fails; a part may be in
    /// the file.
    pub async fn write_stream<E>(
        &self,
        path: &str,
        content: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Result<WrittenFile, FileError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let (call, progress) = self.new_call("write", path, Idempotency::NotIdempotent).with_progress();
        let failed: Arc<Mutex<Option<Box<dyn Error + Send + Sync>>>> = Arc::default();
        let form = self.form();
        let content = {
            let failed = Arc::clone(&failed);
            content.map(move |item| {
                progress.note();
                item.map_err(|error| {
                    *failed.lock() = Some(error.into());
                    "the source failed"
                })
            })
        };
        let body = match &form {
            None => Body::wrap_stream(content),
            Some(form) => {
                let around = |text: String| stream::iter([Ok::<_, &'static str>(Bytes::from(text))]);
                Body::wrap_stream(around(form.head("")).chain(content).chain(around(form.tail())))
            }
        };
        let request = self.request(Some(path), form.as_ref())?.body(body);
        let answer = match self.sandbox.client().shared().http.send_body(&call, request).await {
            Ok(response) => read_json(response, &call).await.map_err(Failure::Call),
            Err(failure) => Err(failure),
        };
        match answer {
            Ok(written) => first(written, &call),
            Err(failure) => {
                let source = failed.lock().take();
                Err(match source {
                    Some(source) => {
                        let (id, path) = (self.sandbox.id().clone(), path.to_owned());
                        FileError::Source { id, path, source: source.into() }
                    }
                    None => FileError::from_failure(self.sandbox, &call, path, failure).await,
                })
            }
        }
    }

    /// Writes many files, most of them in one request; returns the results in the order given.
    /// Sends no request without files.
    ///
    /// When one fails, others may have been written.
    ///
    /// # Errors
    /// Those of [`Files::write`], and [`FileError::Invalid`] when a path is given twice.
    pub async fn write_many<P: Into<String>, C: Into<Bytes>>(
        &self,
        files: impl IntoIterator<Item = (P, C)>,
    ) -> Result<Vec<WrittenFile>, FileError> {
        let files: Vec<(String, Bytes)> =
            files.into_iter().map(|(path, content)| (path.into(), content.into())).collect();
        let (plain, odd): (Vec<usize>, Vec<usize>) = (0..files.len()).partition(|&index| fits_in_form(&files[index].0));
        let mut written: Vec<Option<WrittenFile>> = vec![None; files.len()];
        if let [index] = plain[..] {
            written[index] = Some(self.write(&files[index].0, files[index].1.clone()).await?);
        } else if !plain.is_empty() {
            let together = self.write_form(plain.iter().map(|&index| &files[index])).await?;
            for (index, file) in plain.iter().zip(together) {
                written[*index] = Some(file);
            }
        }
        let alone = odd.into_iter().map(|index| {
            let (path, content) = &files[index];
            async move { Ok::<_, FileError>((index, self.write(path, content.clone()).await?)) }
        });
        let mut alone = stream::iter(alone).buffer_unordered(CONCURRENT_UPLOADS);
        while let Some((index, file)) = alone.try_next().await? {
            written[index] = Some(file);
        }
        Ok(written.into_iter().flatten().collect())
    }

    async fn write_form(
        &self,
        files: impl ExactSizeIterator<Item = &(String, Bytes)>,
    ) -> Result<Vec<WrittenFile>, FileError> {
        let count = files.len();
        let what = format!("write {count} files in sandbox {}", self.sandbox.id());
        let (call, progress) =
            Call::new(what, Idempotency::Idempotent, self.sandbox.client().deadline()).with_progress();
        let form = Form::new();
        let mut pieces = Pieces::default();
        for (number, (path, content)) in files.enumerate() {
            pieces.push_slice(if number == 0 { b"" } else { b"\r\n" });
            pieces.push_slice(form.head(path).as_bytes());
            pieces.push(content);
        }
        pieces.push_slice(form.tail().as_bytes());
        let pieces = pieces.finish();
        let body = || Body::wrap(Upload::new(pieces.clone(), progress.clone()));
        let written = self.upload(&call, None, Some(&form), body).await?;
        if written.len() != count {
            return Err(call
                .protocol_error(format!("it names {} files where {count} were sent", written.len()))
                .into());
        }
        Ok(written)
    }

    async fn upload(
        &self,
        call: &Call,
        path: Option<&str>,
        form: Option<&Form>,
        body: impl Fn() -> Body,
    ) -> Result<Vec<WrittenFile>, FileError> {
        let request = self.request(path, form)?;
        let make = |_: &reqwest::Client| {
            let again = request.try_clone().expect("a request without a body can be cloned");
            again.body(body())
        };
        let answer = match self.sandbox.client().shared().http.send(call, make).await {
            Ok(response) => read_json(response, call).await.map_err(Failure::Call),
            Err(failure) => Err(failure),
        };
        match answer {
            Ok(written) => Ok(written),
            Err(failure) => {
                Err(FileError::from_failure(self.sandbox, call, path.unwrap_or("one of the files"), failure).await)
            }
        }
    }

    /// The request without its body.
    fn request(&self, path: Option<&str>, form: Option<&Form>) -> Result<reqwest::RequestBuilder, FileError> {
        let http = self.sandbox.client().shared().http.pooled();
        let kind = form.map_or_else(|| PLAIN.to_owned(), Form::content_type);
        let request = self.sandbox.envd().request(http, Method::POST, &self.target(path));
        Ok(request.header(CONTENT_TYPE, kind).headers(self.metadata_headers(path.unwrap_or_default())?))
    }

    fn metadata_headers(&self, path: &str) -> Result<HeaderMap, FileError> {
        let mut headers = HeaderMap::new();
        if self.metadata.is_empty() {
            return Ok(headers);
        }
        self.sandbox.require(Feature::Metadata, &format!("write {path:?} in sandbox {}", self.sandbox.id()))?;
        for (key, value) in &self.metadata {
            let name = HeaderName::from_bytes(format!("{METADATA_PREFIX}{key}").as_bytes()).ok();
            let printable = value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
            match (name, HeaderValue::from_str(value)) {
                (Some(name), Ok(value)) if printable => headers.insert(name, value),
                _ => {
                    let message = format!("metadata {key:?} cannot be sent: keys are tokens, values printable ASCII");
                    return Err(FileError::Invalid { id: self.sandbox.id().clone(), path: path.to_owned(), message });
                }
            };
        }
        Ok(headers)
    }

    /// The form around a single file, for daemons without raw uploads.
    fn form(&self) -> Option<Form> {
        if self.sandbox.has(Feature::PlainUpload) { None } else { Some(Form::new()) }
    }
}

pub(super) fn first(written: Vec<WrittenFile>, call: &Call) -> Result<WrittenFile, FileError> {
    let first = written.into_iter().next();
    first.ok_or_else(|| call.protocol_error("it names no file".into()).into())
}

/// Whether every parser reads this path unchanged from a form's header.
fn fits_in_form(path: &str) -> bool {
    path.bytes().all(|byte| (0x20..0x7f).contains(&byte) && !matches!(byte, b'"' | b'\\' | b'%'))
}

/// `multipart/form-data` with one part per file.
struct Form {
    boundary: String,
}

impl Form {
    fn new() -> Self {
        // Random and long, so that no content contains it by accident or intention.
        Self { boundary: format!("sandbar-{:032x}", rand::random::<u128>()) }
    }

    fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={}", self.boundary)
    }

    fn head(&self, path: &str) -> String {
        let name = if path.is_empty() { "file" } else { path };
        format!(
            "--{}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: {PLAIN}\r\n\r\n",
            self.boundary
        )
    }

    fn tail(&self) -> String {
        format!("\r\n--{}--\r\n", self.boundary)
    }
}
