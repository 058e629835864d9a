//! Writing: bytes, streams, many files at once.
//!
//! A file is sent as nothing but its bytes where the daemon takes that, and as a form before. Many files are one form,
//! which costs one request instead of one each.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use protocol::envd::WrittenFile;
use protocol::headers::METADATA_PREFIX;
use reqwest::Body;

use super::Files;
use super::body::{Pieces, Upload};
use super::error::FileError;
use crate::transport::{Call, Failure, Repeat, read_json};
use crate::version::Feature;

pub(super) const PLAIN: &str = "application/octet-stream";
/// Files whose names no form can carry are sent by themselves, so many at a time.
const AT_ONCE: usize = 8;

impl Files<'_> {
    /// Writes a file, in place of what was there; missing directories above it are made.
    ///
    /// Dropping the future may leave a part of it written. The deadline is for silence, not for the whole.
    ///
    /// # Errors
    /// [`FileError::NoSpace`]; [`FileError::Invalid`] for a directory.
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<WrittenFile, FileError> {
        let content = content.into();
        let call = self.named("write", path, Repeat::Harmless);
        let (call, progress) = call.progressing();
        let form = self.form();
        let (head, tail) = form.as_ref().map_or_else(Default::default, |form| (form.head(""), form.tail()));
        let pieces = [Bytes::from(head), content, Bytes::from(tail)];
        let body = || Body::wrap(Upload::new(pieces.clone(), progress.clone()));
        let written = self.upload(&call, Some(path), form.as_ref(), body).await?;
        first(written, &call)
    }

    /// Writes what a stream brings, in constant memory. As [`Files::write`], but never tried a second time.
    ///
    /// ```no_run
    /// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), Box<dyn std::error::Error>> {
    /// use bytes::Bytes;
    /// use futures::stream;
    ///
    /// let lines = stream::iter((0..1_000_000).map(|n| Ok::<_, std::io::Error>(Bytes::from(format!("{n}\n")))));
    /// sandbox.files().write_stream("numbers.txt", lines).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Files::write`], and [`FileError::Source`] when the stream fails; then a part may be in the file.
    pub async fn write_stream<E>(
        &self,
        path: &str,
        content: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Result<WrittenFile, FileError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let (call, progress) = self.named("write", path, Repeat::Never).progressing();
        let failed: Arc<Mutex<Option<Box<dyn Error + Send + Sync>>>> = Arc::default();
        let form = self.form();
        let content = {
            let failed = Arc::clone(&failed);
            content.map(move |item| {
                progress.note();
                item.map_err(|error| {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
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
                let source = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(match source {
                    Some(source) => {
                        let (id, path) = (self.sandbox.id().clone(), path.to_owned());
                        FileError::Source { id, path, source: source.into() }
                    }
                    None => FileError::of(self.sandbox, &call, path, failure).await,
                })
            }
        }
    }

    /// Writes many files, most of them in one request, and answers in the order given. No files, no request.
    ///
    /// When one fails, others may have been written.
    ///
    /// # Errors
    /// As [`Files::write`], and [`FileError::Invalid`] when a path is given twice.
    pub async fn write_many<P: Into<String>, C: Into<Bytes>>(
        &self,
        files: impl IntoIterator<Item = (P, C)>,
    ) -> Result<Vec<WrittenFile>, FileError> {
        let files: Vec<(String, Bytes)> =
            files.into_iter().map(|(path, content)| (path.into(), content.into())).collect();
        let (plain, odd): (Vec<usize>, Vec<usize>) = (0..files.len()).partition(|&index| fits_a_form(&files[index].0));
        let mut written: Vec<Option<WrittenFile>> = vec![None; files.len()];
        if let [index] = plain[..] {
            written[index] = Some(self.write(&files[index].0, files[index].1.clone()).await?);
        } else if !plain.is_empty() {
            let together = self.write_together(plain.iter().map(|&index| &files[index])).await?;
            for (index, file) in plain.iter().zip(together) {
                written[*index] = Some(file);
            }
        }
        let alone = odd.into_iter().map(|index| {
            let (path, content) = &files[index];
            async move { Ok::<_, FileError>((index, self.write(path, content.clone()).await?)) }
        });
        let mut alone = stream::iter(alone).buffer_unordered(AT_ONCE);
        while let Some((index, file)) = alone.try_next().await? {
            written[index] = Some(file);
        }
        Ok(written.into_iter().flatten().collect())
    }

    async fn write_together(
        &self,
        files: impl ExactSizeIterator<Item = &(String, Bytes)>,
    ) -> Result<Vec<WrittenFile>, FileError> {
        let count = files.len();
        let what = format!("write {count} files in sandbox {}", self.sandbox.id());
        let (call, progress) = Call::new(what, Repeat::Harmless, self.sandbox.client().deadline()).progressing();
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
            return Err(call.misunderstood(format!("it names {} files where {count} were sent", written.len())).into());
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
            Err(failure) => Err(FileError::of(self.sandbox, call, path.unwrap_or("one of the files"), failure).await),
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

    /// What a single file is wrapped in, for daemons that know nothing else.
    fn form(&self) -> Option<Form> {
        if self.sandbox.has(Feature::PlainUpload) { None } else { Some(Form::new()) }
    }
}

pub(super) fn first(written: Vec<WrittenFile>, call: &Call) -> Result<WrittenFile, FileError> {
    let first = written.into_iter().next();
    first.ok_or_else(|| call.misunderstood("it names no file".into()).into())
}

/// Whether a path stands in a form's head as it is, whoever reads it.
fn fits_a_form(path: &str) -> bool {
    path.bytes().all(|byte| (0x20..0x7f).contains(&byte) && !matches!(byte, b'"' | b'\\' | b'%'))
}

/// `multipart/form-data` with one part a file.
struct Form {
    boundary: String,
}

impl Form {
    fn new() -> Self {
        // Long enough that no content holds it by chance, and unknown to who made the content.
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
