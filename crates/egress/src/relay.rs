//! Relays bytes between the two connections of a flow until both directions have ended.
//!
//! Each direction ends by itself (half-close), and a reset on one side resets the other.
//! Backpressure: bytes leave the sender's kernel buffer only when the receiver's has taken them. A
//! slow reader slows the writer, and a flow holds no memory of this process, however many a sandbox
//! opens.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, sockopt};
use tokio::io::{AsyncRead, Interest, ReadBuf, copy_bidirectional};
use tokio::net::TcpStream;

use crate::sniff::{self, Sniffed};
use crate::stream::{Outside, Prefixed};

/// Limit of the bytes that one read moves.
const CHUNK: usize = 256 * 1024;
/// Chunks that a direction may move before other tasks run.
const BATCH: u32 = 8;

thread_local! {
    /// Shared by all flows that a thread serves, since no flow holds bytes in it beyond one poll.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK].into_boxed_slice());
}

/// How long the rest of the first bytes may take once the first one has arrived.
const SNIFF_TIMEOUT: Duration = Duration::from_secs(10);

/// The first bytes of the inside, held back.
pub(crate) struct HeldStart {
    pub(crate) held: Vec<u8>,
    pub(crate) sniffed: Sniffed,
    down: Direction,
    /// What a proxy over TLS has sent and the inside has not taken yet.
    heard: Vec<u8>,
}

/// Relays until both directions have ended or one side fails.
pub(crate) async fn relay(inside: TcpStream, outside: Outside) {
    let nothing =
        HeldStart { held: Vec::new(), sniffed: Sniffed::Nameless, down: Direction::default(), heard: Vec::new() };
    relay_opened(inside, outside, nothing).await;
}

/// As [`relay`], after the bytes that were held back.
pub(crate) async fn relay_opened(inside: TcpStream, outside: Outside, opened: HeldStart) {
    let HeldStart { held, sniffed: _, down, heard } = opened;
    match outside {
        Outside::Tcp(outside) => {
            let relayed = async {
                send(&outside, &held).await?;
                drop(held);
                carry(&inside, &outside, down).await
            };
            if relayed.await.is_err() {
                abort(inside);
                abort(outside);
            }
        }
        Outside::Tls(outside) => {
            let (mut inside, mut outside) = (Prefixed::new(held, inside), Prefixed::new(heard, outside));
            // A half-closed side still receives the rest; a failure of one ends both.
            let _ = copy_bidirectional(&mut inside, &mut outside).await;
        }
    }
}

/// Resets both sides.
pub(crate) fn abort_both(inside: TcpStream, outside: Outside) {
    abort(inside);
    match outside {
        Outside::Tcp(outside) => abort(outside),
        Outside::Tls(outside) => drop(outside),
    }
}

/// Holds back the first bytes of the inside until they can be classified. The outside is relayed
/// meanwhile, since in some protocols the server sends first.
pub(crate) async fn open(inside: &TcpStream, outside: &mut Outside) -> io::Result<HeldStart> {
    let (mut down, mut heard) = (Direction::default(), Heard::default());
    let (held, sniffed) = match outside {
        Outside::Tcp(outside) => sniff_inside(inside, |context| down.poll(context, outside, inside).map(drop)).await?,
        Outside::Tls(outside) => {
            let mut reader = Pin::new(outside);
            sniff_inside(inside, |context| heard.poll(context, &mut reader, inside)).await?
        }
    };
    Ok(HeldStart { held, sniffed, down, heard: heard.bytes })
}

/// Reads and classifies the first bytes of the inside; `hear` relays the other direction.
async fn sniff_inside(
    inside: &TcpStream,
    mut hear: impl FnMut(&mut Context<'_>) -> io::Result<()>,
) -> io::Result<(Vec<u8>, Sniffed)> {
    let mut held = Vec::with_capacity(sniff::LONGEST);
    let mut timeout = pin!(tokio::time::sleep(SNIFF_TIMEOUT));
    poll_fn(|context| {
        hear(context)?;
        loop {
            if held.is_empty() {
                timeout.as_mut().reset(tokio::time::Instant::now() + SNIFF_TIMEOUT);
            } else if timeout.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok((std::mem::take(&mut held), Sniffed::Unfinished)));
            }
            ready!(inside.poll_read_ready(context))?;
            let ended = or_nothing(inside.try_read_buf(&mut held))? == Some(0);
            let sniffed = match sniff::read(&held) {
                Sniffed::Unfinished if ended && held.is_empty() => Sniffed::Nameless,
                Sniffed::Unfinished if !ended => continue,
                sniffed => sniffed,
            };
            return Poll::Ready(Ok((std::mem::take(&mut held), sniffed)));
        }
    })
    .await
}

/// Bytes of a proxy over TLS that the inside has not taken yet.
#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    ended: bool,
}

impl Heard {
    /// More bytes stay in the proxy's connection until these were taken.
    fn poll<S: AsyncRead>(
        &mut self,
        context: &mut Context<'_>,
        from: &mut Pin<&mut S>,
        to: &TcpStream,
    ) -> io::Result<()> {
        const PIECE: usize = 16 * 1024;
        loop {
            while !self.bytes.is_empty() {
                if to.poll_write_ready(context)?.is_pending() {
                    return Ok(());
                }
                let sent = or_nothing(to.try_write(&self.bytes))?.unwrap_or(0);
                self.bytes.drain(..sent);
            }
            if self.ended {
                return Ok(());
            }
            let mut piece = [0; PIECE];
            let mut buffer = ReadBuf::new(&mut piece);
            match from.as_mut().poll_read(context, &mut buffer)? {
                Poll::Pending => return Ok(()),
                Poll::Ready(()) => {
                    self.ended = buffer.filled().is_empty();
                    self.bytes.extend_from_slice(buffer.filled());
                }
            }
        }
    }
}

async fn send(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        let sent = or_nothing(to.try_write(bytes))?.unwrap_or(0);
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Closes a connection with a reset.
pub(crate) fn abort(stream: TcpStream) {
    // Fails only for a connection that has ended already.
    let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    drop(stream);
}

async fn carry(inside: &TcpStream, outside: &TcpStream, mut down: Direction) -> io::Result<()> {
    let mut up = Direction::default();
    // Detects a reset also while neither a read nor a write would report it: when a direction waits
    // for its receiver.
    let mut broken_inside = pin!(inside.ready(Interest::ERROR));
    let mut broken_outside = pin!(outside.ready(Interest::ERROR));
    poll_fn(|context| {
        let up = up.poll(context, inside, outside)?;
        let down = down.poll(context, outside, inside)?;
        match (up, down) {
            (Polled::Ended, Polled::Ended) => return Poll::Ready(Ok(())),
            // Bytes that were received before a reset are delivered first.
            (Polled::Yielded, _) | (_, Polled::Yielded) => return Poll::Pending,
            _ => {}
        }
        let broken =
            broken_inside.as_mut().poll(context).is_ready() || broken_outside.as_mut().poll(context).is_ready();
        if broken { Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())) } else { Poll::Pending }
    })
    .await
}

#[derive(Default)]
struct Direction {
    /// The receiver's buffer was full.
    blocked: bool,
    ended: bool,
}

enum Polled {
    /// A waker is registered.
    Waiting,
    /// More can be moved; the task has been woken again.
    Yielded,
    Ended,
}

impl Direction {
    fn poll(&mut self, context: &mut Context<'_>, from: &TcpStream, to: &TcpStream) -> io::Result<Polled> {
        for _ in 0..BATCH {
            if self.ended {
                return Ok(Polled::Ended);
            }
            match self.step(context, from, to) {
                Poll::Ready(done) => done?,
                Poll::Pending => return Ok(Polled::Waiting),
            }
        }
        context.waker().wake_by_ref();
        Ok(Polled::Yielded)
    }

    /// Moves one chunk.
    fn step(&mut self, context: &mut Context<'_>, from: &TcpStream, to: &TcpStream) -> Poll<io::Result<()>> {
        if self.blocked {
            ready!(to.poll_write_ready(context))?;
            self.blocked = false;
        }
        ready!(from.poll_read_ready(context))?;
        SCRATCH.with_borrow_mut(|scratch| {
            let Some(length) = or_nothing(from.try_io(Interest::READABLE, || receive(from, scratch, RecvFlags::PEEK)))?
            else {
                return Poll::Ready(Ok(()));
            };
            if length == 0 {
                self.ended = true;
                // The receiver may have closed; then the other direction fails.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return Poll::Ready(Ok(()));
            }
            let mut taken = 0;
            while taken < length && !self.blocked {
                match or_nothing(to.try_write(&scratch[taken..length]))? {
                    Some(count) => taken += count,
                    None => self.blocked = true,
                }
            }
            let mut dropped = 0;
            while dropped < taken {
                // With this flag TCP discards the bytes without copying them again.
                dropped += receive(from, &mut scratch[dropped..taken], RecvFlags::TRUNC)?;
            }
            Poll::Ready(Ok(()))
        })
    }
}

fn receive(from: &TcpStream, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (length, _) = rustix::net::recv(from, buffer, flags)?;
    Ok(length)
}

/// `None` when the socket was not ready after all.
fn or_nothing(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
