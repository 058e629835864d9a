//! `GET /files`: a file, whole or a range, plain or compressed in transit.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LAST_MODIFIED,
    RANGE, VARY,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use parking_lot::Mutex;
use protocol::signature::Operation;

use super::accept::{self, Encoding};
use super::range::{self, Selection};
use super::{BATCH, kind, resolve, user_from_query};
use crate::http::{HttpError, QueryString, Reply, bytes, check_files, empty};
use crate::state::Guest;
use crate::thread_pool;

pub(crate) async fn download(guest: &Guest, request: &Request<Incoming>) -> Result<Reply, HttpError> {
    let query = QueryString::from_uri(request.uri());
    check_files(guest, request.headers(), &query, Operation::Read)?;
    let user = user_from_query(guest, &query)?;
    let path = resolve(guest, &user, query.get("path").unwrap_or_default())?;
    let headers = request.headers();
    let no_encoding = || HttpError::new(StatusCode::NOT_ACCEPTABLE, "no acceptable encoding: identity and gzip exist");
    let encoding = if headers.contains_key(RANGE) {
        accept::identity_allowed(headers).then_some(Encoding::Identity)
    } else {
        accept::choose(headers)
    };
    let encoding = encoding.ok_or_else(no_encoding)?;
    let wanted = headers.clone();
    let opened = thread_pool::spawn(move || Opened::new(path, &wanted, encoding)).await;
    guest.memory_trimmer.schedule();
    opened.map_err(|_| HttpError::internal("reading was interrupted"))??.reply()
}

/// An open file with its first piece already read: small files need no second read.
struct Opened {
    path: PathBuf,
    modified: SystemTime,
    size: u64,
    selection: Selection,
    first: Bytes,
    /// The reader of the remaining bytes, and the encoding of the whole body.
    rest: Option<Reader>,
    encoding: Encoding,
}

impl Opened {
    fn new(path: PathBuf, headers: &HeaderMap, encoding: Encoding) -> Result<Self, HttpError> {
        // Non-blocking, because opening a FIFO would wait for its writer.
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(&path).map_err(|error| read_error(&path, &error))?;
        let meta = file.metadata().map_err(|error| read_error(&path, &error))?;
        if meta.is_dir() {
            return Err(HttpError::bad_request(format!("path is a directory: {}", path.display())));
        }
        if !meta.is_file() {
            return Err(HttpError::bad_request(format!("path is not a regular file: {}", path.display())));
        }
        let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let size = meta.len();
        // Files of procfs report size 0 and are not empty; ranges and conditions do not apply to
        // them.
        let selection = if size == 0 { Selection::Whole } else { range::select(headers, modified, size) };
        let (start, length) = match selection {
            Selection::Whole if size == 0 => (0, u64::MAX),
            Selection::Whole => (0, size),
            Selection::Part(start, length) => (start, length),
            Selection::NotModified | Selection::PreconditionFailed | Selection::Unsatisfiable => (0, 0),
        };
        let mut reader = Reader::new(file, length, encoding);
        let read = reader.seek(start).and_then(|()| reader.next());
        let first = read.map_err(|error| read_error(&path, &error))?.unwrap_or_default();
        let rest = Some(reader).filter(|reader| !reader.done);
        Ok(Self { path, modified, size, selection, first, rest, encoding })
    }

    fn reply(self) -> Result<Reply, HttpError> {
        match self.selection {
            Selection::NotModified => {
                let mut reply = empty(StatusCode::NOT_MODIFIED);
                self.date(reply.headers_mut());
                return Ok(reply);
            }
            Selection::PreconditionFailed => {
                return Err(HttpError::new(StatusCode::PRECONDITION_FAILED, "the file was modified"));
            }
            Selection::Unsatisfiable => {
                let refusal = HttpError::new(StatusCode::RANGE_NOT_SATISFIABLE, "the range lies outside the file");
                let mut reply = refusal.reply();
                reply.headers_mut().insert(CONTENT_RANGE, value(format!("bytes */{}", self.size)));
                return Ok(reply);
            }
            Selection::Whole | Selection::Part(..) => {}
        }
        let content_type = match self.encoding {
            Encoding::Identity => kind::content_type(&self.path, &self.first),
            // The first piece is compressed, so only the file name indicates the type.
            Encoding::Gzip => kind::content_type(&self.path, b"\0"),
        };
        let length = match (self.selection, self.encoding) {
            (_, Encoding::Gzip) => None,
            (Selection::Part(_, length), _) => Some(length),
            (Selection::Whole, _) if self.size > 0 => Some(self.size),
            _ => None,
        };
        let mut head = HeaderMap::new();
        self.date(&mut head);
        head.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        head.insert(CONTENT_DISPOSITION, value(disposition(&self.path)));
        head.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        match self.encoding {
            Encoding::Gzip => head.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip")),
            Encoding::Identity => head.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        };
        let mut reply = match self.rest {
            None => bytes(self.first),
            Some(rest) => {
                if let Some(length) = length {
                    head.insert(CONTENT_LENGTH, HeaderValue::from(length));
                }
                Response::new(body(self.first, rest))
            }
        };
        if let Selection::Part(start, length) = self.selection {
            *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
            head.insert(CONTENT_RANGE, value(format!("bytes {start}-{}/{}", start + length - 1, self.size)));
        }
        reply.headers_mut().extend(head);
        Ok(reply)
    }

    fn date(&self, headers: &mut HeaderMap) {
        let whole_seconds = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(range::seconds(self.modified));
        headers.insert(LAST_MODIFIED, value(httpdate::fmt_http_date(whole_seconds)));
    }
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("made of digits, letters and escaped names")
}

fn disposition(path: &Path) -> String {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ') {
        return format!("inline; filename=\"{name}\"");
    }
    format!("inline; filename*=utf-8''{}", percent_encoding::utf8_percent_encode(&name, KEPT))
}

/// Streams the first piece, then the rest, reading the next piece while one is sent.
fn body(first: Bytes, rest: Reader) -> crate::http::Body {
    type Job = thread_pool::Job<(Reader, io::Result<Option<Bytes>>)>;
    fn read(mut reader: Reader) -> Job {
        thread_pool::spawn(move || {
            let piece = reader.next();
            (reader, piece)
        })
    }
    let pieces = stream::unfold((Some(first), Some(read(rest))), |(first, job)| async move {
        if let Some(first) = first {
            return Some((Ok(Frame::data(first)), (None, job)));
        }
        let (reader, piece) = match job?.await {
            Ok(done) => done,
            Err(_) => return Some((Err(io::Error::other("reading was interrupted")), (None, None))),
        };
        match piece {
            Ok(Some(piece)) => {
                let next = (!reader.done).then(|| read(reader));
                Some((Ok(Frame::data(piece)), (None, next)))
            }
            Ok(None) => None,
            Err(error) => Some((Err(error), (None, None))),
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Reads a file piece by piece, through the encoder if there is one.
struct Reader {
    file: File,
    left: u64,
    /// Whether a short read is an error, because the length was announced.
    exact: bool,
    encoder: Option<GzEncoder<Vec<u8>>>,
    buffers: Buffers,
    done: bool,
}

impl Reader {
    fn new(file: File, length: u64, encoding: Encoding) -> Self {
        let encoder = match encoding {
            Encoding::Identity => None,
            Encoding::Gzip => Some(GzEncoder::new(Vec::new(), Compression::fast())),
        };
        let exact = length != u64::MAX && encoder.is_none();
        Self { file, left: length, exact, encoder, buffers: Buffers::default(), done: false }
    }

    fn seek(&mut self, start: u64) -> io::Result<()> {
        if start > 0 {
            self.file.seek(SeekFrom::Start(start))?;
        }
        Ok(())
    }

    /// The next piece of the body; [`None`] at the end.
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        while !self.done {
            let mut buffer = self.buffers.take();
            let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(BATCH);
            let mut count = 0;
            while count < wanted {
                match self.file.read(&mut buffer[count..wanted]) {
                    Ok(0) => break,
                    Ok(read) => count += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            self.left -= count as u64;
            if count < wanted && self.exact {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
            }
            self.done = count < wanted || self.left == 0;
            let piece = self.buffers.lend(buffer, count);
            let Some(encoder) = &mut self.encoder else {
                return Ok((!piece.is_empty()).then_some(piece));
            };
            encoder.write_all(&piece)?;
            if self.done {
                encoder.try_finish()?;
            }
            let encoded = std::mem::take(encoder.get_mut());
            if !encoded.is_empty() {
                return Ok(Some(encoded.into()));
            }
        }
        Ok(None)
    }
}

/// Buffers of one download, reused as soon as the network has sent them.
#[derive(Clone, Default)]
struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    fn take(&self) -> Vec<u8> {
        let spare = self.0.lock().pop();
        spare.unwrap_or_else(|| vec![0; BATCH])
    }

    fn lend(&self, buffer: Vec<u8>, filled: usize) -> Bytes {
        Bytes::from_owner(Lent { buffer, filled, home: self.clone() })
    }
}

struct Lent {
    buffer: Vec<u8>,
    filled: usize,
    home: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.home.0.lock().push(buffer);
    }
}

fn read_error(path: &Path, error: &io::Error) -> HttpError {
    let path = path.display();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => HttpError::not_found(format!("path '{path}' does not exist")),
        Some(libc::ENAMETOOLONG | libc::ELOOP | libc::ENXIO) => HttpError::bad_request(format!("{path}: {error}")),
        _ => HttpError::internal(format!("error reading '{path}': {error}")),
    }
}
