//! HTTP CONNECT, with basic authorization.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Credentials, Destination, ProxyError};

/// Limit of the response head.
const MAX_HEAD_BYTES: usize = 16 << 10;

pub(super) async fn request_tunnel<S>(
    stream: &mut S,
    credentials: Option<&Credentials>,
    to: &Destination,
    port: u16,
) -> Result<(), ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut head = format!("CONNECT {to}:{port} HTTP/1.1\r\nHost: {to}:{port}\r\n");
    if let Some(Credentials { username, password }) = credentials {
        let encoded = STANDARD.encode(format!("{username}:{password}"));
        head.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    match status(&read_response_head(stream).await?) {
        Some(200..=299) => Ok(()),
        Some(407) => Err(ProxyError::Credentials),
        Some(status) => Err(ProxyError::Refused(format!("status {status}"))),
        None => Err(ProxyError::NotAProxy("HTTP")),
    }
}

/// Reads byte by byte, because the bytes after the head belong to the target.
async fn read_response_head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, ProxyError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD_BYTES {
            return Err(ProxyError::NotAProxy("HTTP"));
        }
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}

fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\r').next()?).ok()?;
    let mut words = line.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}
