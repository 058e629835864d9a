//! A proxy in front of the server that injects faults.
//!
//! It runs on its own thread and runtime, so that a test's runtime counts only the client's tasks.
//! Every request has its own connection to the server; the first matching rule decides what the
//! client sees of the response.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// The fault of a request.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Accepted and never answered.
    HalfOpen,
    /// The proxy responds with these bytes, and closes.
    Answer(String),
    /// Forwarded after this delay.
    Delay(Duration),
    /// Forwarded; this many envelopes of the response arrive complete, and this many bytes of the
    /// next.
    Cut { envelopes: usize, bytes: usize, how: Break },
    /// Forwarded; this many bytes of the response arrive, including its head.
    CutRaw { bytes: usize, how: Break },
    /// Reads this many bytes of the request, then resets the connection.
    Refuse { bytes: usize },
    /// Like [`Fault::Cut`] with [`Break::Stall`], and removes the command's timeout from the
    /// request.
    ForgetTimeout { envelopes: usize },
}

/// How a connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Break {
    /// A premature FIN.
    Close,
    Reset,
    /// No more data, and the connection stays open.
    Stall,
}

#[derive(Debug)]
struct Rule {
    path: String,
    fault: Fault,
    times: usize,
}

#[derive(Debug, Default)]
struct State {
    rules: Mutex<Vec<Rule>>,
    /// Open connections from the client.
    open: AtomicUsize,
    /// Paths of all requests.
    seen: Mutex<Vec<String>>,
}

pub(crate) struct Proxy {
    pub(crate) address: String,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn to(server: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("it can wait");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(State::default());
        let (stop, stopped) = oneshot::channel();
        let (server, shared) = (server.to_owned(), Arc::clone(&state));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener");
                let accepting = async {
                    loop {
                        let (client, _) = listener.accept().await.expect("a connection");
                        let (server, state) = (server.clone(), Arc::clone(&shared));
                        state.open.fetch_add(1, Ordering::SeqCst);
                        tokio::spawn(async move {
                            // StreamError connections are the purpose of this proxy.
                            let _ = serve(client, &server, &state).await;
                            state.open.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                };
                tokio::select! {
                    () = accepting => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    /// Injects the fault into the next `times` requests whose path contains `path`.
    pub(crate) fn on(&self, path: &str, fault: Fault, times: usize) {
        self.state.rules.lock().push(Rule { path: path.to_owned(), fault, times });
    }

    /// Open connections from the client.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    /// The number of requests whose path contains `path`.
    pub(crate) fn seen(&self, path: &str) -> usize {
        self.state.seen.lock().iter().filter(|seen| seen.contains(path)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(mut client: TcpStream, server: &str, state: &State) -> io::Result<()> {
    // A reset discards data held back by Nagle's algorithm; without it every written byte is sent
    // at once.
    client.set_nodelay(true)?;
    let (mut head, rest) = read_head(&mut client).await?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    state.seen.lock().push(path.clone());
    let fault = state.rules.lock().iter_mut().find(|rule| rule.times > 0 && path.contains(&rule.path)).map(|rule| {
        rule.times -= 1;
        rule.fault.clone()
    });
    match &fault {
        Some(Fault::HalfOpen) => return stall(&mut client).await,
        Some(Fault::Answer(answer)) => {
            client.write_all(answer.as_bytes()).await?;
            client.shutdown().await?;
            return stall(&mut client).await;
        }
        Some(Fault::Refuse { bytes }) => {
            let mut taken = rest.len();
            let mut buffer = vec![0; 64 * 1024];
            while taken < *bytes {
                match client.read(&mut buffer).await? {
                    0 => break,
                    more => taken += more,
                }
            }
            return reset(client);
        }
        Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
        Some(Fault::ForgetTimeout { .. }) => head = strip_header(&head, "connect-timeout-ms"),
        Some(Fault::Cut { .. } | Fault::CutRaw { .. }) | None => {}
    }
    let mut server = TcpStream::connect(server).await?;
    // One request per connection: the end of the response is the end of the connection.
    let head = strip_header(&head, "connection").replacen("\r\n", "\r\nconnection: close\r\n", 1);
    server.write_all(head.as_bytes()).await?;
    server.write_all(&rest).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let broken = {
        let upload = async {
            let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
            // The client has closed its write side; keep the read side open.
            std::future::pending::<()>().await;
        };
        let download = async {
            match fault {
                Some(Fault::Cut { envelopes, bytes, how }) => {
                    cut(&mut from_server, &mut to_client, envelopes, bytes).await?;
                    Ok(how)
                }
                Some(Fault::ForgetTimeout { envelopes }) => {
                    cut(&mut from_server, &mut to_client, envelopes, 0).await?;
                    Ok(Break::Stall)
                }
                Some(Fault::CutRaw { bytes, how }) => {
                    let mut limited = (&mut from_server).take(bytes as u64);
                    tokio::io::copy(&mut limited, &mut to_client).await?;
                    Ok(how)
                }
                _ => tokio::io::copy(&mut from_server, &mut to_client).await.map(|_| Break::Close),
            }
        };
        tokio::select! {
            () = upload => unreachable!("it never ends"),
            broken = download => broken,
        }
    };
    drop(server);
    match broken? {
        Break::Close => client.shutdown().await,
        Break::Reset => reset(client),
        Break::Stall => stall(&mut client).await,
    }
}

/// Stays silent until the client disconnects.
async fn stall(client: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4096];
    while client.read(&mut buffer).await? > 0 {}
    Ok(())
}

fn reset(client: TcpStream) -> io::Result<()> {
    client.set_zero_linger()?;
    drop(client);
    Ok(())
}

async fn read_head(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), rest));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn strip_header(head: &str, name: &str) -> String {
    let named = |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
    head.split("\r\n").filter(|line| !named(line)).collect::<Vec<_>>().join("\r\n")
}

/// Forwards the head of a chunked response and then its envelopes, one per chunk, up to the cut.
async fn cut(
    server: &mut (impl AsyncReadExt + Unpin),
    client: &mut (impl AsyncWriteExt + Unpin),
    envelopes: usize,
    bytes: usize,
) -> io::Result<()> {
    let mut source = Source { stream: server, bytes: Vec::new() };
    loop {
        let line = source.line().await?;
        client.write_all(line.as_bytes()).await?;
        if line == "\r\n" {
            break;
        }
    }
    let mut body = Vec::new();
    for _ in 0..envelopes {
        let length =
            source.need(&mut body, 5).await.map(|()| u32::from_be_bytes([body[1], body[2], body[3], body[4]]))?;
        source.need(&mut body, 5 + length as usize).await?;
        let envelope: Vec<u8> = body.drain(..5 + length as usize).collect();
        chunk(client, &envelope).await?;
    }
    if bytes > 0 {
        source.need(&mut body, bytes).await?;
        chunk(client, &body[..bytes]).await?;
    }
    Ok(())
}

async fn chunk(client: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> io::Result<()> {
    client.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
    client.write_all(bytes).await?;
    client.write_all(b"\r\n").await
}

/// Reads a chunked response, chunk by chunk.
struct Source<'a, S> {
    stream: &'a mut S,
    bytes: Vec<u8>,
}

impl<S: AsyncReadExt + Unpin> Source<'_, S> {
    async fn fill(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.bytes.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            self.fill().await?;
        }
    }

    /// Reads chunks until the body has this length.
    async fn need(&mut self, body: &mut Vec<u8>, length: usize) -> io::Result<()> {
        while body.len() < length {
            let line = self.line().await?;
            let size = usize::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::InvalidData)?;
            if size == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            while self.bytes.len() < size + 2 {
                self.fill().await?;
            }
            body.extend(self.bytes.drain(..size));
            self.bytes.drain(..2);
        }
        Ok(())
    }
}
