//! A blocking HTTP/1.1 client for tests that see the bytes of the wire: one connection per request,
//! every read with a timeout.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long a read or a write may block.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// False if the connection ended before the body did.
    pub complete: bool,
}

impl Reply {
    /// Reads a whole response to a request that is not HEAD.
    #[track_caller]
    pub fn read(from: impl BufRead) -> Self {
        Streaming::read("GET", from).and_then(Streaming::finish).unwrap_or_else(|error| panic!("no response: {error}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }
}

/// A response whose head was read and whose body is still being received.
#[derive(Debug)]
pub struct Streaming<R = BufReader<TcpStream>> {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    reader: R,
    framing: Framing,
}

#[derive(Debug)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Sends a request and reads the whole response.
///
/// # Errors
/// `WouldBlock` or `TimedOut` if a read or a write takes too long; that of the connection if there
/// is no response. A body that breaks off is no error: see [`Reply::complete`].
pub fn request(address: &str, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Reply> {
    start(address, method, target, headers, body)?.finish()
}

/// Sends a request and reads the head of the response.
///
/// # Errors
/// Those of [`request`], until the head has been read.
pub fn start(address: &str, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Streaming> {
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
    let reader = BufReader::with_capacity(1 << 16, stream);
    match (Streaming::read(method, reader), sent) {
        (Ok(response), _) => Ok(response),
        (Err(_), Err(error)) | (Err(error), Ok(())) => Err(error),
    }
}

type Head = (u16, Vec<(String, String)>);

fn read_head(reader: &mut impl BufRead) -> Result<Head> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| Error::other(format!("not a status line: {line:?}")))?;
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

impl<R: BufRead> Streaming<R> {
    /// Reads the head of the response to a request with this method.
    ///
    /// # Errors
    /// The error of the read; `Other` for a head that is not HTTP.
    pub fn read(method: &str, mut reader: R) -> Result<Self> {
        let (status, headers) = read_head(&mut reader)?;
        let find =
            |name: &str| headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let framing = if status == 204 || status == 304 || method == "HEAD" {
            Framing::Length(0)
        } else if find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            Framing::Chunked
        } else if let Some(length) = find("content-length") {
            Framing::Length(length.parse().map_err(Error::other)?)
        } else {
            Framing::UntilClose
        };
        Ok(Self { status, headers, reader, framing })
    }

    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// `UnexpectedEof` if the connection ends before the body; otherwise the error of the read.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>> {
        match &mut self.framing {
            Framing::Length(0) => Ok(None),
            Framing::Length(left) => {
                let mut piece = vec![0; (*left).min(1 << 16)];
                let count = self.reader.read(&mut piece)?;
                if count == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
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
                    .map_err(|_| Error::new(ErrorKind::UnexpectedEof, "cut between chunks"))?;
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

    /// Reads the rest of the body.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` if a read takes too long.
    pub fn finish(mut self) -> Result<Reply> {
        let mut body = Vec::new();
        let complete = loop {
            match self.next_piece() {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break true,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(error);
                }
                Err(_) => break false,
            }
        };
        Ok(Reply { status: self.status, headers: self.headers, body, complete })
    }
}
