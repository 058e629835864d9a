//! The TCP flows of one sandbox, and what happens to each of their packets.
//!
//! ```text
//!   SYN ─▶ Dialling ─ connected ─▶ Ready ─ accepted ─▶ Relaying ─ ended ─▶ Closing ─ later ─▶ gone
//!             └─ failed ─▶ reset or ICMP, gone
//!                                   └─ never accepted ─▶ gone
//! ```
//! At `Ready` the SYN is forwarded to the listener. Each flow has its own port of the gateway, from
//! which the listener sees the connection come and by which an accepted connection finds its flow.
//! A port is reused as late as possible, because the listener's end may be in TIME_WAIT.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::AbortHandle;

use crate::budget::Permit;
use crate::forwarder::Reached;
use crate::packet::{Segment, Unreachable};
use crate::{GATEWAY_V4, GATEWAY_V6};

/// Limit of flows per sandbox that hold connections: two descriptors and up to four kernel buffers
/// each.
const MOST_FLOWS: usize = 1024;
/// Limit of flows per sandbox whose target has not answered yet.
const MOST_DIALS: usize = 256;
/// Limit of ended flows whose last packets are still forwarded.
const MOST_CLOSING: usize = 8192;
/// How long the last packets of an ended flow are forwarded.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connected target waits for the listener to accept the connection.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a target may take to answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may be idle before TCP probes the other end.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);
/// First port of the gateway that flows use.
const FIRST_PORT: u16 = 1024;
/// A first packet with more payload than this is dropped; the sender then retransmits one without.
const LONGEST_SYN: usize = 2048;

/// Distinguishes a flow from an earlier or later one with the same port.
pub(crate) type FlowId = u64;

pub(crate) struct Flow {
    pub(crate) id: FlowId,
    /// The sandbox's end.
    pub(crate) client: SocketAddr,
    pub(crate) target: SocketAddr,
    /// Sequence number of the SYN: another one with the same ends is another connection.
    first: u32,
    pub(crate) state: State,
    /// Released as soon as the flow holds no connections.
    permit: Option<Permit>,
    /// When a packet of it last passed, by [`Flows::clock`].
    used: u64,
}

impl Flow {
    /// Whether the flow waits for the listener to accept its connection.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }
}

pub(crate) enum State {
    Dialling { syn: Vec<u8>, task: AbortHandle },
    Ready { target: Target, since: Instant },
    Relaying { task: AbortHandle },
    Closing,
}

/// What an accepted connection is joined to.
pub(crate) enum Target {
    Outside(Reached),
    /// Our own name server.
    Resolver,
}

/// What to do with a segment of a program in the sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outbound {
    /// Forward it to the listener as coming from this port of the gateway.
    Forward(u16),
    /// Open a flow.
    Open,
    Ignore,
    Reset,
}

#[derive(Default)]
pub(crate) struct Flows {
    ports: HashMap<(SocketAddr, SocketAddr), u16>,
    flows: HashMap<u16, Flow>,
    closing: VecDeque<(Instant, u16, FlowId)>,
    next_port: u16,
    next_id: FlowId,
    dialling: usize,
    ended: usize,
    /// Counts the packets of flows.
    clock: u64,
}

impl Flows {
    /// Decides about a segment from the sandbox to anything but the gateway.
    pub(crate) fn outbound(&mut self, segment: &Segment, frame: usize) -> Outbound {
        let known = self.ports.get(&(segment.source, segment.destination)).copied();
        self.clock += 1;
        let flow = known.and_then(|port| {
            let flow = self.flows.get_mut(&port)?;
            flow.used = self.clock;
            Some((port, &*flow))
        });
        match flow {
            Some((port, flow)) if segment.flags.opens() => match flow.state {
                // The answer to the SYN is still outstanding, or was lost.
                State::Dialling { .. } if flow.first == segment.sequence => Outbound::Ignore,
                State::Ready { .. } | State::Relaying { .. } if flow.first == segment.sequence => {
                    Outbound::Forward(port)
                }
                // The program has closed the connection, and its port is used for another.
                _ => {
                    self.remove(port);
                    self.admission(frame)
                }
            },
            Some((port, flow)) => match flow.state {
                State::Dialling { .. } | State::Ready { .. } if segment.flags.resets() => {
                    self.remove(port);
                    Outbound::Ignore
                }
                State::Dialling { .. } => Outbound::Ignore,
                State::Ready { .. } | State::Relaying { .. } | State::Closing => Outbound::Forward(port),
            },
            None if segment.flags.opens() => self.admission(frame),
            // A connection from before a restart of the server: only a reset lets the program
            // notice.
            None => Outbound::Reset,
        }
    }

    fn admission(&self, frame: usize) -> Outbound {
        if self.holding() >= MOST_FLOWS {
            Outbound::Reset
        } else if self.dialling >= MOST_DIALS || frame > LONGEST_SYN {
            Outbound::Ignore
        } else {
            Outbound::Open
        }
    }

    /// Creates a flow that holds `permit`; `None` when no port is free.
    pub(crate) fn open(
        &mut self,
        segment: &Segment,
        permit: Permit,
        state: impl FnOnce(u16, FlowId) -> State,
    ) -> Option<u16> {
        self.forget_closed(Instant::now());
        let port = (FIRST_PORT..=u16::MAX).find_map(|_| {
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT).max(FIRST_PORT);
            (!self.flows.contains_key(&self.next_port)).then_some(self.next_port)
        })?;
        self.next_id += 1;
        let state = state(port, self.next_id);
        self.dialling += usize::from(matches!(state, State::Dialling { .. }));
        let (client, target) = (segment.source, segment.destination);
        let (id, first, permit) = (self.next_id, segment.sequence, Some(permit));
        self.flows.insert(port, Flow { id, client, target, first, state, permit, used: self.clock });
        self.ports.insert((client, target), port);
        Some(port)
    }

    /// The flow whose packets use this port of the gateway.
    pub(crate) fn by_port(&self, port: u16) -> Option<&Flow> {
        self.flows.get(&port)
    }

    /// Replaces the state of a flow if `id` still matches; returns the old state and the flow.
    pub(crate) fn advance(&mut self, port: u16, id: FlowId, state: State) -> Option<(State, &Flow)> {
        let flow = self.flows.get_mut(&port).filter(|flow| flow.id == id)?;
        let old = std::mem::replace(&mut flow.state, state);
        self.dialling -= usize::from(matches!(old, State::Dialling { .. }));
        if matches!(flow.state, State::Closing) {
            flow.permit = None;
            self.ended += 1;
            self.closing.push_back((Instant::now() + CLOSING_TIMEOUT, port, id));
        }
        Some((old, flow))
    }

    /// Calls `serve` for the flow that waits for a connection from this port of the gateway, if
    /// there is one.
    pub(crate) fn take(&mut self, port: u16, serve: impl FnOnce(FlowId, Target) -> AbortHandle) {
        let Some(flow) = self.flows.get_mut(&port) else { return };
        flow.state = match std::mem::replace(&mut flow.state, State::Closing) {
            State::Ready { target, .. } => State::Relaying { task: serve(flow.id, target) },
            other => other,
        };
    }

    /// Removes a flow and aborts its task.
    pub(crate) fn remove(&mut self, port: u16) -> Option<Flow> {
        let flow = self.flows.remove(&port)?;
        if self.ports.get(&(flow.client, flow.target)) == Some(&port) {
            self.ports.remove(&(flow.client, flow.target));
        }
        match &flow.state {
            State::Dialling { task, .. } => {
                self.dialling -= 1;
                task.abort();
            }
            State::Relaying { task } => task.abort(),
            State::Closing => self.ended -= 1,
            State::Ready { .. } => {}
        }
        Some(flow)
    }

    pub(crate) fn holding(&self) -> usize {
        self.flows.len() - self.ended
    }

    /// Closes the flow whose program has sent nothing for longest; returns whether there was one.
    /// Its program sees the end of the connection.
    pub(crate) fn close_oldest(&mut self) -> bool {
        let holding = self.flows.iter().filter(|(_, flow)| flow.permit.is_some());
        let oldest = holding.min_by_key(|(_, flow)| flow.used).map(|(port, flow)| (*port, flow.id));
        let Some((port, id)) = oldest else { return false };
        match self.advance(port, id, State::Closing) {
            Some((State::Dialling { task, .. } | State::Relaying { task }, _)) => task.abort(),
            Some((State::Ready { .. } | State::Closing, _)) | None => {}
        }
        true
    }

    /// Removes the flow of a task that was aborted or panicked.
    pub(crate) fn remove_by_task(&mut self, task: tokio::task::Id) {
        let port = self.flows.iter().find_map(|(port, flow)| match &flow.state {
            State::Dialling { task: serving, .. } | State::Relaying { task: serving } if serving.id() == task => {
                Some(*port)
            }
            _ => None,
        });
        if let Some(port) = port {
            self.remove(port);
        }
    }

    /// Removes flows whose time has passed. Returns when to call this again, if any flow is left.
    pub(crate) fn sweep(&mut self, now: Instant) -> Option<Instant> {
        self.forget_closed(now);
        let untaken = |flow: &Flow| matches!(flow.state, State::Ready { since, .. } if since + ACCEPT_TIMEOUT <= now);
        let stale: Vec<u16> = self.flows.iter().filter(|(_, flow)| untaken(flow)).map(|(port, _)| *port).collect();
        for port in stale {
            self.remove(port);
        }
        (!self.flows.is_empty()).then_some(now + ACCEPT_TIMEOUT)
    }

    fn forget_closed(&mut self, now: Instant) {
        while let Some((until, port, id)) = self.closing.front().copied() {
            if until > now && self.closing.len() <= MOST_CLOSING {
                break;
            }
            self.closing.pop_front();
            if self.flows.get(&port).is_some_and(|flow| flow.id == id) {
                self.remove(port);
            }
        }
    }
}

/// Connects to a target from the host.
pub(crate) async fn dial(target: SocketAddr) -> Result<TcpStream, DialFailure> {
    let connect = async {
        let socket = if target.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        prepare(&socket)?;
        socket.connect(target).await
    };
    match tokio::time::timeout(DIAL_TIMEOUT, connect).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(DialFailure::from(&error)),
        Err(_) => Err(DialFailure::Unreachable(Unreachable::Host)),
    }
}

/// Sets the options of both connections of a flow.
pub(crate) fn prepare(socket: impl AsFd) -> io::Result<()> {
    // A relay must not wait for more bytes.
    sockopt::set_tcp_nodelay(&socket, true)?;
    // Without keepalive a target that vanishes silently, or a program that ended while its target
    // never acknowledges the end, would hold an idle flow for ever.
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_IDLE / 8)?;
    sockopt::set_tcp_keepcnt(&socket, 4)?;
    Ok(())
}

/// How the egress reports to a program that its target cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialFailure {
    Refused,
    Unreachable(Unreachable),
}

impl From<&io::Error> for DialFailure {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NetworkUnreachable => Self::Unreachable(Unreachable::Network),
            io::ErrorKind::HostUnreachable | io::ErrorKind::TimedOut => Self::Unreachable(Unreachable::Host),
            io::ErrorKind::PermissionDenied => Self::Unreachable(Unreachable::Prohibited),
            _ => Self::Refused,
        }
    }
}

/// The gateway's address of the same family.
pub(crate) fn gateway(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { GATEWAY_V4.into() } else { GATEWAY_V6.into() }
}

#[cfg(test)]
mod tests;
