//! `POST /files`: one file as raw bytes, or many as a form, streamed to disk. `PUT /files`: one
//! file, replaced atomically.
//!
//! ```text
//! socket -> batch -> (gunzip) -> (multipart) -> file     writes a batch while the next arrives
//! ```

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use protocol::envd::WrittenFile;
use protocol::signature::Operation;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::timeout;

use super::incoming::IncomingFile;
use super::metadata::{self, Metadata};
use super::multipart::{self, FormEvent, Malformed, Multipart};
use super::replace::{Condition, Draft};
use super::writer::FileWriter;
use super::{BATCH, resolve, user_from_query};
use crate::http::{HttpError, QueryString, Reply, check_files, json};
use crate::state::Guest;
use crate::thread_pool;
use crate::users::User;

/// A client that sends nothing for this long counts as disconnected.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a client may continue to send after its upload failed, so that it reads the error
/// response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn upload(guest: &Arc<Guest>, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let (head, mut body) = request.into_parts();
    let query = QueryString::from_uri(&head.uri);
    let plan = check_files(guest, &head.headers, &query, Operation::Write)
        .and_then(|()| Upload::plan(guest, &head.method, &head.headers, &query));
    let written = match plan {
        Ok(upload) => receive(upload, &mut body).await,
        Err(refusal) => Err(refusal),
    };
    guest.memory_trimmer.schedule();
    if written.is_err() {
        let _gave_up = timeout(DRAIN_TIMEOUT, async { while let Some(Ok(_)) = body.frame().await {} }).await;
    }
    Ok(json(StatusCode::OK, &written?))
}

/// Feeds the body to the upload, one batch at a time.
async fn receive(upload: Upload, body: &mut Incoming) -> Result<Vec<WrittenFile>, HttpError> {
    let mut batch = gather(body).await?;
    let mut upload = upload;
    loop {
        let last = batch.last;
        if last {
            return interrupted(thread_pool::spawn(move || upload.take(batch).and_then(Upload::finish)).await)?;
        }
        let job = thread_pool::spawn(move || upload.take(batch));
        let (taken, next) = tokio::join!(job, gather(body));
        upload = interrupted(taken)??;
        batch = next?;
    }
}

fn interrupted<T>(result: Result<T, RecvError>) -> Result<T, HttpError> {
    result.map_err(|_| HttpError::internal("writing was interrupted"))
}

struct Batch {
    pieces: Vec<Bytes>,
    /// The last batch of the body.
    last: bool,
}

async fn gather(body: &mut Incoming) -> Result<Batch, HttpError> {
    let mut pieces = Vec::new();
    let mut size = 0;
    while size < BATCH {
        let frame = timeout(IDLE_TIMEOUT, body.frame()).await;
        let frame = frame.map_err(|_| HttpError::new(StatusCode::REQUEST_TIMEOUT, "the upload stopped"))?;
        let Some(frame) = frame else { return Ok(Batch { pieces, last: true }) };
        let frame = frame.map_err(|error| HttpError::bad_request(format!("the upload broke off: {error}")))?;
        if let Ok(piece) = frame.into_data() {
            size += piece.len();
            pieces.push(piece);
        }
    }
    Ok(Batch { pieces, last: false })
}

/// An upload in progress. All methods block.
enum Upload {
    Plain(Box<Target>),
    Gzip(Box<MultiGzDecoder<Unpacked>>),
}

impl Upload {
    fn plan(guest: &Arc<Guest>, method: &Method, headers: &HeaderMap, query: &QueryString) -> Result<Self, HttpError> {
        let condition = if method == Method::PUT { Some(Condition::from_headers(headers)?) } else { None };
        let user = user_from_query(guest, query)?;
        let metadata = metadata::from_headers(headers)?;
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let destination = Destination { guest: Arc::clone(guest), user, metadata };
        let path = query.non_empty("path").map(str::to_owned);
        let target = match content_type.split(';').next().map(|kind| kind.trim().to_ascii_lowercase()).as_deref() {
            Some("multipart/form-data") if condition.is_none() => {
                let boundary = multipart::boundary(content_type)
                    .ok_or_else(|| HttpError::bad_request("the content type names no multipart boundary"))?;
                Target::Form { parser: Multipart::new(&boundary), files: Box::new(Files::new(destination, path)) }
            }
            Some("application/octet-stream") => {
                let path = path.ok_or_else(|| HttpError::bad_request("the query parameter 'path' is required"))?;
                match condition {
                    None => Target::File { destination, path, file: None },
                    Some(condition) => Target::Replacement { destination, path, condition, draft: None },
                }
            }
            _ => return Err(HttpError::bad_request(format!("unsupported content type: '{content_type}'"))),
        };
        let encoding = headers.get(CONTENT_ENCODING).map_or("", |value| value.to_str().unwrap_or("?")).trim();
        match encoding.to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Plain(Box::new(target))),
            "gzip" | "x-gzip" => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(Unpacked { target, refusal: None })))),
            _ => Err(HttpError::bad_request(format!("unsupported content encoding: '{encoding}'"))),
        }
    }

    fn take(mut self, batch: Batch) -> Result<Self, HttpError> {
        for piece in batch.pieces {
            match &mut self {
                Self::Plain(target) => target.take(&piece)?,
                Self::Gzip(decoder) => {
                    let result = decoder.write_all(&piece);
                    result.map_err(|error| unpack_error(decoder.get_mut(), &error))?;
                }
            }
        }
        Ok(self)
    }

    fn finish(self) -> Result<Vec<WrittenFile>, HttpError> {
        match self {
            Self::Plain(target) => target.finish(),
            Self::Gzip(mut decoder) => {
                if let Err(error) = decoder.try_finish() {
                    return Err(unpack_error(decoder.get_mut(), &error));
                }
                match decoder.finish() {
                    Ok(unpacked) => unpacked.target.finish(),
                    Err(error) => Err(HttpError::bad_request(format!("invalid gzip data: {error}"))),
                }
            }
        }
    }
}

/// The sink of the decompressor, which supports only I/O errors: keeps the real error.
struct Unpacked {
    target: Target,
    refusal: Option<HttpError>,
}

impl Write for Unpacked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.target.take(bytes).map_err(|refusal| {
            self.refusal = Some(refusal);
            io::Error::other("refused")
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unpack_error(unpacked: &mut Unpacked, error: &io::Error) -> HttpError {
    unpacked.refusal.take().unwrap_or_else(|| HttpError::bad_request(format!("invalid gzip data: {error}")))
}

/// Owner and metadata of the written files.
struct Destination {
    guest: Arc<Guest>,
    user: User,
    metadata: Metadata,
}

/// The format of the body.
enum Target {
    /// The existing file stays until all bytes have arrived.
    File {
        destination: Destination,
        path: String,
        file: Option<IncomingFile>,
    },
    /// Written to a draft until it is complete.
    Replacement {
        destination: Destination,
        path: String,
        condition: Condition,
        draft: Option<(FileWriter, Draft)>,
    },
    Form {
        parser: Multipart,
        files: Box<Files>,
    },
}

impl Target {
    fn take(&mut self, bytes: &[u8]) -> Result<(), HttpError> {
        match self {
            Self::Replacement { destination, path, draft, .. } => {
                let (writer, _) = match draft {
                    Some(draft) => draft,
                    None => draft.insert(new_draft(destination, path)?),
                };
                writer.write(bytes)
            }
            Self::File { destination, path, file } => {
                let file = match file {
                    Some(file) => file,
                    None => file.insert(incoming(destination, path)?),
                };
                file.write(bytes)
            }
            Self::Form { parser, files } => parser.push(bytes, |event| files.handle(event)),
        }
    }

    fn finish(self) -> Result<Vec<WrittenFile>, HttpError> {
        match self {
            Self::File { destination, path, file } => {
                let file = match file {
                    Some(file) => file,
                    None => incoming(&destination, &path)?,
                };
                Ok(vec![file.finish(&destination.metadata)?])
            }
            Self::Replacement { destination, path, condition, draft } => {
                let (writer, draft) = match draft {
                    Some(draft) => draft,
                    None => new_draft(&destination, &path)?,
                };
                let mut written = writer.finish(&destination.metadata)?;
                let path = draft.commit(&condition)?;
                written.name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                written.path = path.to_string_lossy().into_owned();
                Ok(vec![written])
            }
            Self::Form { parser, files } => {
                parser.finish()?;
                Ok(files.written)
            }
        }
    }
}

fn incoming(destination: &Destination, path: &str) -> Result<IncomingFile, HttpError> {
    let path = resolve(&destination.guest, &destination.user, path)?;
    Ok(IncomingFile::new(path, destination.user.clone()))
}

fn new_draft(destination: &Destination, path: &str) -> Result<(FileWriter, Draft), HttpError> {
    let draft = Draft::for_target(&resolve(&destination.guest, &destination.user, path)?);
    Ok((FileWriter::create(draft.path.clone(), &destination.user)?, draft))
}

impl From<Malformed> for HttpError {
    fn from(Malformed(what): Malformed) -> Self {
        Self::bad_request(what)
    }
}

/// The files of a form: each part named `file` is written completely, to the path of the query or
/// to its own file name.
struct Files {
    destination: Destination,
    path: Option<String>,
    seen: HashSet<PathBuf>,
    current: Option<IncomingFile>,
    written: Vec<WrittenFile>,
}

impl Files {
    fn new(destination: Destination, path: Option<String>) -> Self {
        Self { destination, path, seen: HashSet::new(), current: None, written: Vec::new() }
    }

    fn handle(&mut self, event: FormEvent<'_>) -> Result<(), HttpError> {
        match event {
            FormEvent::Part(part) if part.name.as_deref() == Some("file") => {
                let path = self.path.clone().or(part.filename).filter(|path| !path.is_empty());
                let path = path.ok_or_else(|| HttpError::bad_request("a part names no file and the query no path"))?;
                let path = resolve(&self.destination.guest, &self.destination.user, &path)?;
                if !self.seen.insert(path.clone()) {
                    let message = format!("two parts write to one path: {}", path.display());
                    return Err(HttpError::bad_request(message));
                }
                self.current = Some(IncomingFile::new(path, self.destination.user.clone()));
            }
            FormEvent::Part(_) => {}
            FormEvent::Content(bytes) => {
                if let Some(file) = &mut self.current {
                    file.write(bytes)?;
                }
            }
            FormEvent::EndOfPart => {
                if let Some(file) = self.current.take() {
                    self.written.push(file.finish(&self.destination.metadata)?);
                }
            }
        }
        Ok(())
    }
}
