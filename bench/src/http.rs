//! A blocking HTTP/1.1 client over one kept connection: small enough that a measurement is of the
//! server's time.
//!
//! Invariant: a response is read to its end before the next request is sent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// No answer of the server takes this long; a socket that is silent for longer ends the run.
const SOCKET_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

/// How much of a response's body is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remaining {
    Length(u64),
    /// Bytes left of the current chunk; 0 before the next chunk's size line.
    Chunked(u64),
    Done,
}

pub(crate) struct Response<'a> {
    pub(crate) status: u16,
    connection: &'a mut Connection,
    remaining: Remaining,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOCKET_DEADLINE))?;
        stream.set_write_timeout(Some(SOCKET_DEADLINE))?;
        Ok(Self { reader: BufReader::with_capacity(256 * 1024, stream) })
    }

    /// Sends a request with a body in memory and reads the head of the answer.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Response<'_>> {
        self.begin(method, path, headers, body.len() as u64, body)?;
        self.answer()
    }

    /// Sends the head of a request and the first part of its body in one write; [`Self::more`]
    /// sends the rest.
    pub(crate) fn begin(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        length: u64,
        first: &[u8],
    ) -> anyhow::Result<()> {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n").into_bytes();
        for (name, value) in headers {
            head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        head.extend_from_slice(first);
        self.reader.get_mut().write_all(&head).context("the server closed the connection")
    }

    pub(crate) fn more(&mut self, part: &[u8]) -> anyhow::Result<()> {
        self.reader.get_mut().write_all(part).context("the server closed the connection")
    }

    pub(crate) fn answer(&mut self) -> anyhow::Result<Response<'_>> {
        let line = self.line()?;
        let status: u16 = line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("not an HTTP answer: {line:?}"))?;
        let mut remaining = if matches!(status, 204 | 304) { Remaining::Done } else { Remaining::Length(u64::MAX) };
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').with_context(|| format!("not a header: {line:?}"))?;
            match name.to_ascii_lowercase().as_str() {
                "content-length" => remaining = Remaining::Length(value.trim().parse()?),
                "transfer-encoding" if value.trim().eq_ignore_ascii_case("chunked") => {
                    remaining = Remaining::Chunked(0);
                }
                _ => {}
            }
        }
        ensure!(remaining != Remaining::Length(u64::MAX), "the answer has neither a length nor chunks");
        Ok(Response { status, connection: self, remaining })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let count = self.reader.read_line(&mut line).context("no answer from the server")?;
        ensure!(count > 0, "the server closed the connection");
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl Response<'_> {
    /// Reads the rest of the body.
    pub(crate) fn text(mut self) -> anyhow::Result<String> {
        let mut body = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match self.read(&mut buffer)? {
                0 => break,
                count => body.extend_from_slice(&buffer[..count]),
            }
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Reads the rest of the body and fails unless the status is the expected one.
    pub(crate) fn expect(self, status: u16) -> anyhow::Result<String> {
        let got = self.status;
        let text = self.text()?;
        ensure!(got == status, "expected status {status}, got {got}: {}", text.chars().take(300).collect::<String>());
        Ok(text)
    }
}

impl Read for Response<'_> {
    /// Reads what has arrived of the body; 0 is its end.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.remaining {
                Remaining::Done | Remaining::Length(0) => return Ok(0),
                Remaining::Length(left) => {
                    let count = self.take(buffer, left)?;
                    self.remaining = Remaining::Length(left - count as u64);
                    return Ok(count);
                }
                Remaining::Chunked(0) => self.next_chunk()?,
                Remaining::Chunked(left) => {
                    let count = self.take(buffer, left)?;
                    self.remaining = Remaining::Chunked(left - count as u64);
                    if left == count as u64 {
                        self.blank()?;
                    }
                    return Ok(count);
                }
            }
        }
    }
}

impl Response<'_> {
    fn take(&mut self, buffer: &mut [u8], left: u64) -> io::Result<usize> {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        match self.connection.reader.read(&mut buffer[..most])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let line = self.connection.line().map_err(io::Error::other)?;
        let size = u64::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        if size == 0 {
            self.blank()?;
            self.remaining = Remaining::Done;
        } else {
            self.remaining = Remaining::Chunked(size);
        }
        Ok(())
    }

    /// Reads the empty line after a chunk.
    fn blank(&mut self) -> io::Result<()> {
        match self.connection.line().map_err(io::Error::other)?.as_str() {
            "" => Ok(()),
            other => Err(io::Error::other(format!("expected the end of a chunk, got {other:?}"))),
        }
    }
}

/// The address in `http://HOST:PORT`.
pub(crate) fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let Some(host) = url.strip_prefix("http://") else { bail!("not a plain HTTP URL: {url}") };
    host.trim_end_matches('/').parse().with_context(|| format!("not an address: {host}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Starts a server that sends `answer` to one connection and does not parse the request.
    fn canned(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            let _ = stream.read(&mut [0; 1024]);
        });
        address
    }

    #[test]
    fn chunks_are_joined_and_the_connection_stays_in_step() {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n\
                       HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone";
        let mut connection = Connection::open(canned(answer)).unwrap();
        assert_eq!(connection.send("GET", "/", &[], b"").unwrap().expect(200).unwrap(), "hello!");
        assert_eq!(connection.answer().unwrap().expect(404).unwrap(), "gone");
    }

    #[test]
    fn another_status_is_an_error_that_shows_the_body() {
        let mut connection = Connection::open(canned(b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nwhy")).unwrap();
        let error = connection.send("GET", "/", &[], b"").unwrap().expect(200).unwrap_err();
        assert_eq!(error.to_string(), "expected status 200, got 500: why");
    }
}
