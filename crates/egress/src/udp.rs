//! The UDP flows of one sandbox: one connected socket on the host per pair of ends, closed when
//! idle.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use crate::budget::Permit;
use crate::device::Tun;
use crate::packet::{self, MAX_FRAME, MAX_UDP_HEADERS, Unreachable};
use crate::rules::Grant;
use crate::sniff::is_quic;
use crate::tcp::gateway;

/// Limit of flows per sandbox; beyond it, the least recently used one is closed.
const MOST_FLOWS: usize = 1024;
/// A flow without a datagram in either direction for this time is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Datagrams received in a row before other tasks run.
const BATCH: u32 = 32;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_UDP_HEADERS + MAX_FRAME].into_boxed_slice());
}

/// Client and target.
pub(crate) type Ends = (SocketAddr, SocketAddr);

pub(crate) struct Flow {
    ends: Ends,
    grant: Grant,
    socket: UdpSocket,
    opened: Instant,
    /// Milliseconds after `opened`.
    last_used: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Flows {
    flows: HashMap<Ends, Open>,
}

/// A flow, the task that serves it, and what it holds of the budget.
struct Open {
    flow: Arc<Flow>,
    task: AbortHandle,
    _permit: Permit,
}

impl Flows {
    pub(crate) fn find(&self, ends: Ends) -> Option<&Arc<Flow>> {
        self.flows.get(&ends).map(|open| &open.flow)
    }

    pub(crate) fn insert(&mut self, flow: Arc<Flow>, task: AbortHandle, permit: Permit) {
        if self.flows.len() >= MOST_FLOWS {
            self.close_oldest();
        }
        self.flows.insert(flow.ends, Open { flow, task, _permit: permit });
    }

    pub(crate) fn holding(&self) -> usize {
        self.flows.len()
    }

    /// Closes the least recently used flow; returns whether there was one.
    pub(crate) fn close_oldest(&mut self) -> bool {
        let oldest = self.flows.values().min_by_key(|open| open.flow.last_activity()).map(|open| open.flow.ends);
        let closed = oldest.and_then(|ends| self.flows.remove(&ends));
        closed.inspect(|open| open.task.abort()).is_some()
    }

    /// Closes the flows whose target is no longer allowed for the same reason.
    pub(crate) fn retain(&mut self, may: impl Fn(SocketAddr, Grant) -> bool) {
        self.flows.retain(|(_, target), open| {
            let stays = may(*target, open.flow.grant);
            if !stays {
                open.task.abort();
            }
            stays
        });
    }

    /// Removes a flow whose task has ended.
    pub(crate) fn remove(&mut self, ended: &Arc<Flow>) {
        if self.find(ended.ends).is_some_and(|flow| Arc::ptr_eq(flow, ended)) {
            self.flows.remove(&ended.ends);
        }
    }
}

impl Flow {
    pub(crate) fn open(ends: Ends, grant: Grant) -> io::Result<Arc<Self>> {
        let any: SocketAddr =
            if ends.1.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = std::net::UdpSocket::bind(any)?;
        socket.connect(ends.1)?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        Ok(Arc::new(Self { ends, grant, socket, opened: Instant::now(), last_used: AtomicU64::new(0) }))
    }

    /// Whether a datagram may be sent: where only a name allows the target, one that hides its name
    /// may not.
    pub(crate) fn may_carry(&self, payload: &[u8]) -> bool {
        self.grant == Grant::Address || !is_quic(payload)
    }

    /// Sends a datagram to the target. One that does not fit into the socket's queue is lost, as on
    /// any network.
    pub(crate) fn send(&self, payload: &[u8], tun: &Tun) {
        self.touch();
        // Not `try_send`: the runtime does not know yet that a new socket is writable, and the
        // datagram would be lost.
        let send = || rustix::net::send(&self.socket, payload, SendFlags::DONTWAIT);
        if let Err(error) = send() {
            // The error may belong to an earlier datagram; it is reported, and this one is sent
            // again.
            if self.tell(&error.into(), tun) {
                let _ = send();
            }
        }
    }

    /// Forwards what the target sends, until the flow is idle.
    pub(crate) async fn receive(self: Arc<Self>, tun: Arc<Tun>) -> Arc<Self> {
        while let Some(left) = IDLE_TIMEOUT.checked_sub(self.last_activity().elapsed()) {
            let ready = self.socket.ready(Interest::READABLE | Interest::ERROR);
            let Ok(Ok(ready)) = tokio::time::timeout(left, ready).await else { continue };
            if ready.is_error() {
                let _ = self.socket.try_io(Interest::ERROR, || self.report(&tun));
            }
            for _ in 0..BATCH {
                match self.receive_one(&tun) {
                    Ok(()) => self.touch(),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        self.tell(&error, &tun);
                    }
                }
            }
        }
        self
    }

    /// Reports an error that is pending at the socket. `WouldBlock` lets the runtime wait for the
    /// next one.
    fn report(&self, tun: &Tun) -> io::Result<()> {
        if let Some(error) = self.socket.take_error()? {
            self.tell(&error, tun);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn receive_one(&self, tun: &Tun) -> io::Result<()> {
        SCRATCH.with_borrow_mut(|buffer| {
            let length = self.socket.try_recv(&mut buffer[MAX_UDP_HEADERS..])?;
            if let Some(frame) = packet::udp(buffer, length, self.ends.1, self.ends.0) {
                tun.send(&buffer[frame]);
            }
            Ok(())
        })
    }

    /// Sends the network's error about an earlier datagram to the sandbox; returns whether the
    /// sandbox can receive it.
    fn tell(&self, error: &io::Error, tun: &Tun) -> bool {
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => Unreachable::Port,
            io::ErrorKind::HostUnreachable => Unreachable::Host,
            io::ErrorKind::NetworkUnreachable => Unreachable::Network,
            _ => return false,
        };
        let headers = packet::udp_headers(self.ends.0, self.ends.1);
        if let Some(frame) = packet::unreachable(&headers, gateway(self.ends.0.ip()), why) {
            tun.send(&frame);
        }
        true
    }

    fn touch(&self) {
        self.last_used.store(self.opened.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn last_activity(&self) -> Instant {
        self.opened + Duration::from_millis(self.last_used.load(Ordering::Relaxed))
    }
}
