//! Contents of volumes: calls that are authorized by the volume's own token. Their error codes are
//! texts.

use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt};
use http::{Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use jiff::Timestamp;
use node::volume_content::{ContentError, Entry, InvalidPath, Kind, Owner, VolumeDirectory, VolumePath};
use node::{Fault, Node, SandboxError, VolumeError};
use protocol::rest::VOLUME_FILES_MISSING;
use protocol::rest::volume::{EntryKind, VolumeEntry, VolumeEntryUpdate, VolumeErrorBody};
use subtle::ConstantTimeEq;
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;
use tracing::error;

use super::{payload, view};
use crate::body::{self, Body};
use crate::content::Content;
use crate::query;
use crate::server::App;

/// Longest time without a byte from a client that uploads a file.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a file that are read at once.
const PIECE: usize = 64 << 10;
/// Greatest depth of a list.
const MAX_DEPTH: usize = 1000;

struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// Logs the cause for the operator; the client gets a general message.
    fn internal(cause: &(dyn std::error::Error + 'static)) -> Self {
        error!(error = cause, "the content of a volume could not be served");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the volume could not be read or written")
    }

    /// While the pool is read-only, replaces an internal error by that reason.
    fn or_fault(self, node: &Node) -> Self {
        let faults = node.health().faults;
        let fault = faults.iter().find(|fault| matches!(fault, Fault::PoolReadOnly(_)));
        match fault {
            Some(fault) if self.status == StatusCode::INTERNAL_SERVER_ERROR => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "read_only", fault.unwritable().to_string())
            }
            _ => self,
        }
    }

    fn answer(self) -> Response<Body> {
        let Self { status, code, message } = self;
        body::json(status, &VolumeErrorBody { code: code.to_owned(), message })
    }
}

impl From<InvalidPath> for Refusal {
    fn from(error: InvalidPath) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<ContentError> for Refusal {
    fn from(error: ContentError) -> Self {
        let message = error.to_string();
        match error {
            ContentError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, "not_found", message),
            ContentError::Exists(_) => Self::new(StatusCode::CONFLICT, "already_exists", message),
            ContentError::Unfit(..) | ContentError::Invalid(_) => Self::bad_request(message),
            ContentError::Full => Self::new(StatusCode::INSUFFICIENT_STORAGE, "no_space", message),
            ContentError::Io(cause) => Self::internal(&cause),
        }
    }
}

impl From<VolumeError> for Refusal {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, "not_found", error.to_string()),
            VolumeError::Node(SandboxError::FilesMissing { .. }) => {
                Self::new(StatusCode::GONE, VOLUME_FILES_MISSING, error.to_string())
            }
            VolumeError::Node(SandboxError::Stopping) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string())
            }
            other => Self::internal(&other),
        }
    }
}

type ContentResult = Result<Response<Body>, Refusal>;

/// Serves a call on the content of volume `id`.
pub(super) async fn serve(app: &App, id: &str, kind: &str, request: Request<Content>) -> Response<Body> {
    answer(app, id, kind, request).await.unwrap_or_else(|refusal| refusal.or_fault(&app.node).answer())
}

async fn answer(app: &App, id: &str, kind: &str, request: Request<Content>) -> ContentResult {
    let volume = app.node.volume(id)?;
    let given = request.headers().get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    let token = given.strip_prefix(b"Bearer ").unwrap_or_default();
    if !bool::from(token.ct_eq(volume.token.reveal().as_bytes())) {
        let message = "the token does not open this volume";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message));
    }
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let path = query::first(&pairs, "path").ok_or_else(|| Refusal::bad_request("path is required"))?;
    let path: VolumePath = path.parse()?;
    let number = |name: &str| match query::first(&pairs, name) {
        Some(text) => {
            text.parse::<u32>().map(Some).map_err(|_| Refusal::bad_request(format!("{name} is not a number")))
        }
        None => Ok(None),
    };
    let owner = Owner { uid: number("uid")?, gid: number("gid")?, mode: number("mode")? };
    let force = query::first(&pairs, "force").is_some_and(|force| matches!(force, "true" | "True" | "1"));
    let directory = app.node.volume_directory(id).await?;
    match (request.method(), kind) {
        (&Method::GET, "path") => entry(StatusCode::OK, blocking(move || directory.stat(&path)).await?),
        (&Method::PATCH, "path") => {
            let update = payload::read_json(request).await.map_err(|error| Refusal::bad_request(error.message()))?;
            let VolumeEntryUpdate { uid, gid, mode } = update;
            let changing = move || directory.change(&path, Owner { uid, gid, mode });
            entry(StatusCode::OK, blocking(changing).await?)
        }
        (&Method::DELETE, "path") => {
            blocking(move || directory.remove(&path)).await?;
            Ok(body::empty(StatusCode::NO_CONTENT))
        }
        (&Method::GET, "dir") => {
            let depth = number("depth")?.map_or(1, |depth| depth as usize);
            if !(1..=MAX_DEPTH).contains(&depth) {
                return Err(Refusal::bad_request(format!("depth must be between 1 and {MAX_DEPTH}")));
            }
            let entries = blocking(move || directory.list(&path, depth)).await?;
            let entries: Vec<VolumeEntry> = entries.into_iter().map(wire).collect();
            Ok(body::json(StatusCode::OK, &entries))
        }
        (&Method::POST, "dir") => {
            let made = blocking(move || directory.make_directory(&path, owner, force)).await?;
            entry(StatusCode::CREATED, made)
        }
        (&Method::GET, "file") => {
            let file = blocking(move || directory.read(&path)).await?;
            let file = tokio::fs::File::from_std(file);
            let mut pieces = Box::pin(ReaderStream::with_capacity(file, PIECE).peekable());
            // If the beginning of a file cannot be read, the client gets an error, not a broken
            // connection.
            if let Some(Err(error)) = pieces.as_mut().next_if(Result::is_err).await {
                return Err(ContentError::from(error).into());
            }
            let frames = pieces.map_ok(Frame::data).map_err(Into::into);
            let mut response = Response::new(Body::Other(StreamBody::new(frames).boxed_unsync()));
            let kind = header::HeaderValue::from_static("application/octet-stream");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            Ok(response)
        }
        (&Method::PUT, "file") => store(directory, path, owner, force, request.into_body()).await,
        (_, "path" | "dir" | "file") => {
            Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "no such call"))
        }
        _ => Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", "no such call")),
    }
}

/// Stores an uploaded file, atomically: complete or not at all.
async fn store(
    directory: VolumeDirectory,
    path: VolumePath,
    owner: Owner,
    replace: bool,
    mut content: Content,
) -> ContentResult {
    let staging = directory.clone();
    let staged = blocking(move || staging.stage()).await?;
    let mut file = tokio::fs::File::from_std(staged.file().try_clone().map_err(ContentError::from)?);
    let incomplete = || Refusal::bad_request("the file did not arrive whole");
    while let Some(frame) = tokio::time::timeout(IDLE_TIMEOUT, content.frame()).await.map_err(|_| incomplete())? {
        if let Ok(piece) = frame.map_err(|_| incomplete())?.into_data() {
            file.write_all(&piece).await.map_err(ContentError::from)?;
        }
    }
    file.flush().await.map_err(ContentError::from)?;
    let placed = blocking(move || directory.place(&staged, &path, owner, replace)).await?;
    entry(StatusCode::CREATED, placed)
}

fn entry(status: StatusCode, entry: Entry) -> ContentResult {
    Ok(body::json(status, &wire(entry)))
}

fn wire(entry: Entry) -> VolumeEntry {
    let Entry { name, path, kind, size, mode, uid, gid, accessed, modified, changed, target } = entry;
    let time = |moment: SystemTime| view::time(Timestamp::try_from(moment).unwrap_or(Timestamp::UNIX_EPOCH));
    VolumeEntry {
        name,
        kind: match kind {
            Kind::File => EntryKind::File,
            Kind::Directory => EntryKind::Directory,
            Kind::Symlink => EntryKind::Symlink,
            Kind::Other => EntryKind::Unknown,
        },
        path,
        size,
        mode,
        uid,
        gid,
        atime: time(accessed),
        mtime: time(modified),
        ctime: time(changed),
        target,
    }
}

/// Runs file operations on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ContentError> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(Refusal::internal(&error)),
    }
}
