//! A blocking HTTP/1.1 client: one connection per request, every read with a timeout.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a read or a write may block.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// False if the connection ended before the body did.
    pub(crate) complete: bool,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }
}

/// A response whose head was read and whose body is still being received.
pub(crate) struct Streaming {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    framing: Framing,
}

enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

pub(crate) fn request(
    address: &str,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Reply> {
    start(address, method, target, headers, body)?.finish()
}

/// Sends a request and reads the head of the response.
pub(crate) fn start(
    address: &str,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Streaming> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut head = format!("{method} {target} HTTP/1.1\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    // The server may respond and close before it has read the whole body. Then the write fails with
    // EPIPE, and the response is still read.
    let sent = stream.write_all(body);
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let read = read_head(&mut reader);
    let (status, headers) = match (read, sent) {
        (Ok(head), _) => head,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
    };
    let find = |name: &str| headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, v)| v.clone());
    let framing = if status == 204 || status == 304 || method == "HEAD" {
        Framing::Length(0)
    } else if find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        Framing::Chunked
    } else if let Some(length) = find("content-length") {
        Framing::Length(length.parse().map_err(std::io::Error::other)?)
    } else {
        Framing::UntilClose
    };
    Ok(Streaming { status, headers, reader, framing })
}

type Head = (u16, Vec<(String, String)>);

fn read_head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Head> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| std::io::Error::other(format!("not a status line: {line:?}")))?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => return Ok((status, headers)),
        }
    }
}

impl Streaming {
    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// `UnexpectedEof` if the connection ends before the body; otherwise the error of the read.
    pub(crate) fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        match &mut self.framing {
            Framing::Length(0) => Ok(None),
            Framing::Length(left) => {
                let mut piece = vec![0; (*left).min(1 << 16)];
                let count = self.reader.read(&mut piece)?;
                if count == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                *left -= count;
                piece.truncate(count);
                Ok(Some(piece))
            }
            Framing::UntilClose => {
                let mut piece = vec![0; 1 << 16];
                let count = self.reader.read(&mut piece)?;
                piece.truncate(count);
                Ok((count > 0).then_some(piece))
            }
            Framing::Chunked => {
                let mut line = String::new();
                self.reader.read_line(&mut line)?;
                let size = usize::from_str_radix(line.trim(), 16)
                    .map_err(|_| std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "cut between chunks"))?;
                let mut piece = vec![0; size];
                self.reader.read_exact(&mut piece)?;
                self.reader.read_line(&mut String::new())?;
                if size == 0 {
                    self.framing = Framing::Length(0);
                    return Ok(None);
                }
                Ok(Some(piece))
            }
        }
    }

    pub(crate) fn finish(mut self) -> std::io::Result<Reply> {
        let mut body = Vec::new();
        let complete = loop {
            match self.next() {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break true,
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    return Err(error);
                }
                Err(_) => break false,
            }
        };
        Ok(Reply { status: self.status, headers: self.headers, body, complete })
    }
}
