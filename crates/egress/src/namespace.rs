//! Work inside another network namespace, on threads that serve nothing else while they are in it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// A port of the sandbox whose queue is full does not answer at all.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `work` on a new thread inside `netns`. The thread ends afterwards, so it need not return to
/// the host's namespace.
pub(crate) fn inside<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let visitor = thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
            enter(netns)?;
            work()
        })?;
        visitor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Connects to a port of the sandbox with network namespace `netns` as a program inside would:
/// `127.0.0.1`, then `::1`.
///
/// # Errors
/// `ConnectionRefused` when no process listens there, `TimedOut` when the listener does not answer.
pub async fn dial_in(netns: BorrowedFd<'_>, port: u16) -> io::Result<TcpStream> {
    let netns = netns.try_clone_to_owned()?;
    let refused = match connect(&netns, (Ipv4Addr::LOCALHOST, port).into()).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => error,
        done => return done,
    };
    // Without IPv6 the refusal is the error to return.
    connect(&netns, (Ipv6Addr::LOCALHOST, port).into()).await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => error,
        _ => refused,
    })
}

async fn connect(netns: &OwnedFd, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket_in(netns, target).await?));
    let stream = tokio::time::timeout(DIAL_TIMEOUT, socket.connect(target)).await.map_err(io::Error::from)??;
    // Where no process listens, the kernel may pick the dialled port for our end: TCP then connects
    // to itself.
    if stream.local_addr()? == target {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Creates a stream socket inside a namespace; it belongs to that namespace wherever it is used.
async fn socket_in(netns: &OwnedFd, target: SocketAddr) -> io::Result<OwnedFd> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // A visitor that could not return drops its remaining orders; the next one retries them.
    for _ in 0..3 {
        let (reply, answer) = oneshot::channel();
        order(VisitOrder { netns: netns.try_clone()?, family, reply })?;
        if let Ok(socket) = answer.await {
            return socket;
        }
    }
    Err(io::Error::other("no thread can visit network namespaces"))
}

struct VisitOrder {
    netns: OwnedFd,
    family: AddressFamily,
    reply: oneshot::Sender<io::Result<OwnedFd>>,
}

/// The thread that creates sockets in namespaces and returns. That takes microseconds, so all
/// sandboxes share it.
static VISITOR: Mutex<Option<mpsc::Sender<VisitOrder>>> = Mutex::new(None);
/// A server that is root of a user namespace only may enter the namespaces of sandboxes but not
/// return to the host's: each visit then takes a thread of its own.
static NO_RETURN: AtomicBool = AtomicBool::new(false);

fn order(order: VisitOrder) -> io::Result<()> {
    if NO_RETURN.load(Ordering::Relaxed) {
        thread::Builder::new().name("netns".into()).spawn(move || {
            let socket = enter(order.netns.as_fd()).and_then(|()| socket(order.family));
            let _ = order.reply.send(socket); // The caller may have given up.
        })?;
        return Ok(());
    }
    let mut visitor = VISITOR.lock();
    let order = match visitor.take() {
        Some(sender) => match sender.send(order) {
            Ok(()) => {
                *visitor = Some(sender);
                return Ok(());
            }
            Err(mpsc::SendError(order)) => order,
        },
        None => order,
    };
    let home = rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (sender, orders) = mpsc::channel();
    thread::Builder::new().name("netns-visitor".into()).spawn(move || visit(&home, &orders))?;
    // Fails only if the visitor has ended already; the caller's reply channel then reports that.
    let _ = sender.send(order);
    *visitor = Some(sender);
    Ok(())
}

fn visit(home: &OwnedFd, orders: &mpsc::Receiver<VisitOrder>) {
    while let Ok(VisitOrder { netns, family, reply }) = orders.recv() {
        let socket = enter(netns.as_fd()).and_then(|()| {
            let socket = socket(family);
            // A thread that cannot return must end: it would create other sandboxes' sockets in the
            // wrong namespace.
            enter(home.as_fd()).map(|()| socket).inspect_err(|error| {
                NO_RETURN.fetch_or(error.kind() == io::ErrorKind::PermissionDenied, Ordering::Relaxed);
            })
        });
        match socket {
            // The caller's retry uses a thread that need not return.
            Err(_) if NO_RETURN.load(Ordering::Relaxed) => return,
            Ok(socket) => {
                let _ = reply.send(socket); // The caller may have given up.
            }
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        }
    }
}

fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

fn enter(netns: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
}
