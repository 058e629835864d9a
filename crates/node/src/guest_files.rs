//! Uploads files into a sandbox through its guest, as clients do.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use http::{Request, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use protocol::headers::ACCESS_TOKEN;
use tokio::fs::File;
use tokio_util::io::ReaderStream;

use crate::guest_call::{GuestError, connect};
use crate::start_command::GuestAccess;

/// For a complete file: gigabytes take minutes on a slow disk.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const PIECE: usize = 256 << 10;

/// Writes `file` to `path`, which needs no percent-encoding, owned by root.
pub(crate) async fn put(guest: GuestAccess<'_>, path: &str, file: File) -> Result<(), GuestError> {
    tokio::time::timeout(UPLOAD_TIMEOUT, put_unbounded(guest, path, file)).await.map_err(|_| GuestError::Late)?
}

async fn put_unbounded(guest: GuestAccess<'_>, path: &str, file: File) -> Result<(), GuestError> {
    let pieces = ReaderStream::with_capacity(file, PIECE).map_ok(Frame::<Bytes>::data);
    // Boxed: the stream's own type would have to be `Sync`.
    let body: StreamBody<futures::stream::BoxStream<'static, io::Result<Frame<Bytes>>>> =
        StreamBody::new(Box::pin(pieces));
    let mut request = Request::post(format!("/files?path={path}&username=root"))
        .header(header::HOST, "guest")
        .header(header::CONTENT_TYPE, "application/octet-stream");
    if let Some(token) = guest.token {
        request = request.header(ACCESS_TOKEN, token.reveal());
    }
    let request = request.body(body).map_err(GuestError::broken)?;
    let mut connection = connect(guest.socket).await?;
    let response = connection.sender.send_request(request).await.map_err(GuestError::broken)?;
    if response.status().is_success() { Ok(()) } else { Err(GuestError::Status(response.status())) }
}
