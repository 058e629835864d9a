//! The egress of one sandbox: a task that serves the sandbox's device and listeners.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};
use tracing::Instrument;

use crate::budget::{Account, Amount, Bucket, Permit, Refused, TCP_FLOW, UDP_FLOW};
use crate::decision::{Decision, Policy, Protocol};
use crate::device::{Device, Tun};
use crate::dns::{Resolver, Transport};
use crate::forwarder::{Forwarder, Reached};
use crate::host::Guard;
use crate::packet::{self, Datagram, MAX_FRAME, PacketContent, Segment, Unreachable, VNET};
use crate::policy::Denied;
use crate::relay::abort;
use crate::rules::Rules;
use crate::tcp::{self, DialFailure, FlowId, Outbound, State, Target, gateway};
use crate::{EgressConfig, GATEWAY_V4, GATEWAY_V6, NAMESERVER, SANDBOX_V4, SANDBOX_V6, udp};

const DNS_PORT: u16 = 53;
/// Packets handled in a row before connections and timers are served.
const BATCH: usize = 64;
/// Limit of refused packets that get a reply, per second and as a burst: more are dropped, as the
/// kernel does with ICMP.
const REFUSALS: (f64, f64) = (1000.0, 2000.0);
/// Limit of packets that lead nowhere, per second and as a burst: refused, malformed, of no flow.
/// Beyond it the task reads the device only as fast as this, and the kernel drops what does not
/// fit into the device's queue. Every packet costs the server processor time that no limit of the
/// sandbox counts.
const FUTILE: (f64, f64) = (5000.0, 10_000.0);
/// How long a device is not read whose sandbox is beyond [`FUTILE`].
const FLOOD_PAUSE: Duration = Duration::from_millis(20);
/// How often the log reports that a sandbox has its share of the budget.
const SHARE_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a connection could not be accepted, most likely for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    /// Shared by all sandboxes that a thread serves, since no packet stays in it after it is
    /// handled.
    static FRAME: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_FRAME].into_boxed_slice());
}

/// A sandbox's connection to the network outside. Dropping it closes every flow and leaves the
/// device in place, so that another `Egress` can attach to it.
pub struct Egress {
    task: JoinHandle<()>,
    guard: Arc<Guard>,
}

impl Egress {
    /// Connects the sandbox with network namespace `netns`, new or detached earlier, to what
    /// `policy` allows: [`Device::set_up`] and [`Egress::serve`] in one.
    pub fn attach(
        netns: BorrowedFd<'_>,
        config: Arc<EgressConfig>,
        policy: Policy,
        names: Option<&Path>,
    ) -> io::Result<Self> {
        Self::serve(Device::set_up(netns)?, config, policy, names)
    }

    /// Connects the sandbox with `device` to what `policy` allows. Names that the sandbox resolves
    /// are kept in the file `names`, for the next `Egress` of the sandbox.
    ///
    /// Must be called inside a Tokio runtime, which then serves the sandbox.
    ///
    /// # Errors
    /// The kernel's, when the device cannot be watched.
    pub fn serve(device: Device, config: Arc<EgressConfig>, policy: Policy, names: Option<&Path>) -> io::Result<Self> {
        let Device { tun, listener_v4, listener_v6 } = device;
        let account = config.budget.account();
        let guard = Arc::new(Guard::new(config, policy, names));
        let resolver = Arc::new(Resolver::new(Arc::clone(&guard)));
        let server = Server {
            tun: Arc::new(Tun::new(tun)?),
            listener_v4: Listener::new(listener_v4)?,
            listener_v6: listener_v6.map(Listener::new).transpose()?,
            forwarder: Arc::new(Forwarder { guard: Arc::clone(&guard), resolver: Arc::clone(&resolver) }),
            resolver,
            guard: Arc::clone(&guard),
            tcp: tcp::Flows::default(),
            udp: udp::Flows::default(),
            account,
            refusals: Bucket::new(REFUSALS.0, REFUSALS.1),
            futile: Bucket::new(FUTILE.0, FUTILE.1),
            delivered: 0,
            share_logged: None,
            tasks: JoinSet::new(),
            next_sweep: None,
        };
        let task = tokio::spawn(server.run().in_current_span());
        Ok(Self { task, guard })
    }

    /// Replaces the rules. Connections that the new rules do not allow are closed.
    pub fn set_rules(&self, rules: Rules) {
        self.guard.set_rules(rules);
    }

    /// Closes every flow and returns when no task serves the sandbox any more.
    pub async fn close(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await; // Ends as cancelled.
    }
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress").finish_non_exhaustive()
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    fn new(listener: std::net::TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        Ok(Self { listener: TcpListener::from_std(listener)?, address })
    }
}

/// What the task of a flow reports when it ends.
enum FlowOutcome {
    Dial { port: u16, id: FlowId, result: Result<Reached, DialFailure> },
    Relay { port: u16, id: FlowId },
    Udp(Arc<udp::Flow>),
    Question,
}

/// Why a batch of packets ended.
enum Drained {
    /// No more packets wait.
    Empty,
    /// The batch is full, and more packets may wait.
    Full,
    /// The sandbox floods.
    Flooded,
}

/// State that only the task uses. Dropping it ends all tasks it has started.
struct Server {
    tun: Arc<Tun>,
    listener_v4: Listener,
    listener_v6: Option<Listener>,
    guard: Arc<Guard>,
    resolver: Arc<Resolver>,
    forwarder: Arc<Forwarder>,
    tcp: tcp::Flows,
    udp: udp::Flows,
    account: Account,
    refusals: Bucket,
    futile: Bucket,
    /// Counts the packets that led somewhere.
    delivered: u64,
    /// When the log last reported that the sandbox has its share.
    share_logged: Option<Instant>,
    tasks: JoinSet<FlowOutcome>,
    next_sweep: Option<Instant>,
}

impl Server {
    async fn run(mut self) {
        let mut sweep = pin!(tokio::time::sleep(Duration::ZERO));
        let mut changes = self.guard.changes();
        let (mut pause, mut paused) = (pin!(tokio::time::sleep(Duration::ZERO)), false);
        loop {
            let tun = Arc::clone(&self.tun);
            tokio::select! {
                () = pause.as_mut(), if paused => {
                    paused = false;
                    continue;
                }
                ready = tun.readable(), if !paused => {
                    let done = match ready {
                        Ok(mut ready) => self.drain(&mut ready),
                        Err(error) => Err(error),
                    };
                    match done {
                        // A task that always has packets to handle would hold its worker for
                        // thousands of them.
                        Ok(Drained::Full) => tokio::task::yield_now().await,
                        Ok(Drained::Empty) => {}
                        Ok(Drained::Flooded) => {
                            arm(pause.as_mut(), Some(Instant::now() + FLOOD_PAUSE));
                            paused = true;
                        }
                        Err(error) => {
                        // Root in the sandbox can remove the device, which ends the sandbox's own
                        // network only.
                        tracing::warn!(%error, "the sandbox's network device is gone");
                        return;
                    }}
                }
                accepted = accept(&self.listener_v4, self.listener_v6.as_ref()) => match accepted {
                    Ok((stream, peer)) => self.pair(stream, peer),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of a sandbox");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(ended) = self.tasks.join_next_with_id() => self.settle(ended),
                () = self.account.wait_until_asked() => self.give_back(),
                // The sender is in the guard, which lives as long as this task.
                Ok(()) = changes.changed() => {
                    let guard = &self.guard;
                    self.udp.retain(|target, grant| guard.check(target.ip()) == Ok(grant));
                }
                () = sweep.as_mut(), if self.next_sweep.is_some() => {
                    self.next_sweep = self.tcp.sweep(Instant::now());
                    arm(sweep.as_mut(), self.next_sweep);
                    continue;
                }
            }
            if self.next_sweep.is_none() {
                self.next_sweep = self.tcp.sweep(Instant::now());
                arm(sweep.as_mut(), self.next_sweep);
            }
        }
    }

    fn drain(
        &mut self,
        ready: &mut tokio::io::unix::AsyncFdReadyGuard<'_, std::os::fd::OwnedFd>,
    ) -> io::Result<Drained> {
        FRAME.with_borrow_mut(|frame| {
            for _ in 0..BATCH {
                match self.tun.receive(frame) {
                    Ok(length) => {
                        let before = self.delivered;
                        self.handle(&mut frame[..length]);
                        if self.delivered == before && !self.futile.take(Instant::now()) {
                            ready.retain_ready();
                            return Ok(Drained::Flooded);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready.clear_ready();
                        return Ok(Drained::Empty);
                    }
                    Err(error) => return Err(error),
                }
            }
            ready.retain_ready();
            Ok(Drained::Full)
        })
    }

    fn handle(&mut self, frame: &mut [u8]) {
        let Some(parsed) = packet::parse(frame) else { return };
        if parsed.source != IpAddr::V4(SANDBOX_V4) && parsed.source != IpAddr::V6(SANDBOX_V6) {
            return;
        }
        match parsed.content {
            PacketContent::Tcp(segment) if parsed.destination == gateway(parsed.destination) => {
                self.inbound(&segment, frame);
            }
            PacketContent::Tcp(segment) => self.outbound(&segment, frame),
            PacketContent::Udp(datagram) => self.datagram(datagram, frame),
            PacketContent::Echo => self.refuse(frame, Unreachable::Prohibited),
            PacketContent::Other => {}
        }
    }

    /// Handles a segment of a program in the sandbox.
    fn outbound(&mut self, segment: &Segment, frame: &mut [u8]) {
        match self.tcp.outbound(segment, frame.len()) {
            Outbound::Forward(port) => self.forward_to_listener(frame, port, segment.source),
            Outbound::Open => self.open(segment, frame),
            Outbound::Reset => self.reset(segment),
            Outbound::Ignore => {}
        }
    }

    /// Handles a segment of one of our listeners' connections, which is sent to the program as if
    /// its target had sent it.
    fn inbound(&mut self, segment: &Segment, frame: &mut [u8]) {
        let ours = self.listener(segment.source).is_some_and(|listener| listener == segment.source);
        let flow = self.tcp.by_port(segment.destination.port());
        match flow.filter(|flow| ours && flow.client.is_ipv4() == segment.source.is_ipv4()) {
            Some(flow) => {
                packet::readdress(frame, flow.target, flow.client);
                self.delivered += 1;
                self.tun.send(frame);
            }
            None => self.reset(segment),
        }
    }

    fn open(&mut self, segment: &Segment, frame: &mut [u8]) {
        let target = segment.destination;
        if !self.account.may_begin(Instant::now()) {
            return; // The sandbox's kernel retransmits it.
        }
        if target == SocketAddr::from((NAMESERVER, DNS_PORT)) {
            let Some(permit) = self.tcp_permit(segment) else { return };
            let state = State::Ready { target: Target::Resolver, since: Instant::now() };
            match self.tcp.open(segment, permit, |_, _| state) {
                Some(port) => self.forward_to_listener(frame, port, segment.source),
                None => self.reset(segment),
            }
            return;
        }
        if self.guard.judge(target, Protocol::Tcp).is_err() {
            return self.reset(segment);
        }
        let Some(permit) = self.tcp_permit(segment) else { return };
        self.delivered += 1;
        let (tasks, syn, forwarder) = (&mut self.tasks, frame.to_vec(), Arc::clone(&self.forwarder));
        let opened = self.tcp.open(segment, permit, |port, id| {
            let task =
                tasks.spawn(async move { FlowOutcome::Dial { port, id, result: forwarder.reach(target).await } });
            State::Dialling { syn, task }
        });
        if opened.is_none() {
            self.reset(segment);
        }
    }

    /// Takes what a flow to `target` holds of the budget. An idle UDP flow of the sandbox is closed
    /// for a new one.
    fn permit(&mut self, target: SocketAddr, protocol: Protocol) -> Result<Permit, Refused> {
        let amount = if protocol == Protocol::Tcp { TCP_FLOW } else { UDP_FLOW };
        let permit = self.account.take(amount).or_else(|refused| {
            let closed = protocol == Protocol::Udp && self.udp.close_oldest();
            if closed { self.account.take(amount) } else { Err(refused) }
        });
        if let Err(Refused::Share) = permit {
            let reason = "this sandbox has its share of the server's descriptors and ports".to_owned();
            self.guard.tell(Decision { reason, ..Decision::about(target, protocol) });
            self.log_share("refused a flow: the sandbox has its share of the server's descriptors and ports");
        }
        permit
    }

    /// As [`Server::permit`]; resets the connection if it is refused. One that is refused for now
    /// gets no reply: the sandbox's kernel retransmits the segment.
    fn tcp_permit(&mut self, segment: &Segment) -> Option<Permit> {
        match self.permit(segment.destination, Protocol::Tcp) {
            Ok(permit) => Some(permit),
            Err(Refused::Share) => {
                self.reset(segment);
                None
            }
            Err(Refused::ForNow) => None,
        }
    }

    /// Closes what is above the sandbox's share, as far as another sandbox lacks it.
    fn give_back(&mut self) {
        loop {
            let Amount { descriptors, ports } = self.account.excess();
            let udp_first = ports > 0 || self.udp.holding() > self.tcp.holding();
            let closed = match (descriptors, ports) {
                (0, 0) => return,
                _ if udp_first => self.udp.close_oldest(),
                _ => self.tcp.close_oldest(),
            };
            if !closed {
                return;
            }
            self.log_share("closed idle flows: the sandbox had more than its share, and another needs it");
        }
    }

    fn log_share(&mut self, what: &str) {
        let now = Instant::now();
        if self.share_logged.is_none_or(|logged| now >= logged + SHARE_LOG_INTERVAL) {
            self.share_logged = Some(now);
            tracing::warn!("{what}");
        }
    }

    fn settle(&mut self, ended: Result<(Id, FlowOutcome), JoinError>) {
        match ended {
            Ok((_, FlowOutcome::Dial { port, id, result: Ok(reached) })) => {
                let state = State::Ready { target: Target::Outside(reached), since: Instant::now() };
                if let Some((State::Dialling { mut syn, .. }, flow)) = self.tcp.advance(port, id, state) {
                    let client = flow.client;
                    self.forward_to_listener(&mut syn, port, client);
                }
            }
            Ok((_, FlowOutcome::Dial { port, id, result: Err(failure) })) => {
                if self.tcp.by_port(port).is_some_and(|flow| flow.id == id)
                    && let Some(flow) = self.tcp.remove(port)
                    && let State::Dialling { syn, .. } = flow.state
                {
                    tracing::debug!(target = %flow.target, ?failure, "a connection failed");
                    match (failure, packet::parse(&syn).map(|parsed| parsed.content)) {
                        (DialFailure::Refused, Some(PacketContent::Tcp(segment))) => self.reset(&segment),
                        (DialFailure::Unreachable(why), _) => self.refuse(&syn, why),
                        _ => {}
                    }
                }
            }
            Ok((_, FlowOutcome::Relay { port, id })) => {
                self.tcp.advance(port, id, State::Closing);
            }
            Ok((_, FlowOutcome::Udp(flow))) => self.udp.remove(&flow),
            Ok((_, FlowOutcome::Question)) => {}
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "the task of a flow failed");
                }
                self.tcp.remove_by_task(error.id());
            }
        }
    }

    /// Joins an accepted connection with its target. Only connections that this task forwarded come
    /// from the gateway.
    fn pair(&mut self, stream: TcpStream, peer: SocketAddr) {
        let port = peer.port();
        let ours = |flow: &&tcp::Flow| gateway(flow.client.ip()) == peer.ip() && flow.is_ready();
        let Some(to) = self.tcp.by_port(port).filter(ours).map(|flow| flow.target) else {
            return abort(stream);
        };
        let _ = tcp::prepare(&stream); // Without the options it is only slower.
        let (tasks, resolver, forwarder) = (&mut self.tasks, Arc::clone(&self.resolver), Arc::clone(&self.forwarder));
        self.tcp.take(port, |id, target| {
            tasks.spawn(async move {
                match target {
                    Target::Outside(reached) => forwarder.carry(to, stream, reached).await,
                    Target::Resolver => resolver.serve(stream).await,
                }
                FlowOutcome::Relay { port, id }
            })
        });
    }

    fn datagram(&mut self, datagram: Datagram, frame: &[u8]) {
        let Datagram { source, destination, payload } = datagram;
        if destination == SocketAddr::from((NAMESERVER, DNS_PORT)) {
            return self.question(source, frame[payload].to_vec());
        }
        if let Some(flow) = self.udp.find((source, destination)) {
            return self.send(&Arc::clone(flow), destination, frame, payload);
        }
        if !self.account.may_begin(Instant::now()) {
            return;
        }
        let grant = match self.guard.judge(destination, Protocol::Udp) {
            Ok(grant) => grant,
            // A datagram to a group gets no reply, by the rules of ICMP.
            Err(Denied::NotAMachine) => return,
            Err(_) => return self.refuse(frame, Unreachable::Prohibited),
        };
        let permit = match self.permit(destination, Protocol::Udp) {
            Ok(permit) => permit,
            Err(Refused::Share) => return self.refuse(frame, Unreachable::Prohibited),
            Err(Refused::ForNow) => return,
        };
        match udp::Flow::open((source, destination), grant) {
            Ok(flow) => {
                self.send(&flow, destination, frame, payload);
                let receiving = Arc::clone(&flow).receive(Arc::clone(&self.tun));
                let task = self.tasks.spawn(async move { FlowOutcome::Udp(receiving.await) });
                self.udp.insert(flow, task, permit);
            }
            Err(error) => {
                tracing::debug!(target = %destination, %error, "a datagram cannot be sent");
                self.refuse(frame, Unreachable::Host);
            }
        }
    }

    fn send(&mut self, flow: &udp::Flow, target: SocketAddr, frame: &[u8], payload: std::ops::Range<usize>) {
        if flow.may_carry(&frame[payload.clone()]) {
            self.delivered += 1;
            return flow.send(&frame[payload], &self.tun);
        }
        let reason = "QUIC hides which name it is for, and only a name allows this address".to_owned();
        self.guard.tell(Decision { reason, ..Decision::about(target, Protocol::Udp) });
        self.refuse(frame, Unreachable::Prohibited);
    }

    fn question(&mut self, client: SocketAddr, question: Vec<u8>) {
        let Some(place) = self.resolver.place() else { return };
        // Clients retry when no answer arrives.
        let Ok(permit) = self.account.take(UDP_FLOW) else { return };
        self.delivered += 1;
        let (resolver, tun) = (Arc::clone(&self.resolver), Arc::clone(&self.tun));
        self.tasks.spawn(async move {
            if let Some(answer) = resolver.answer(&question, Transport::Udp).await {
                let mut buffer = vec![0; packet::MAX_UDP_HEADERS];
                buffer.extend(&answer);
                if let Some(frame) = packet::udp(&mut buffer, answer.len(), (NAMESERVER, DNS_PORT).into(), client) {
                    tun.send(&buffer[frame]);
                }
            }
            drop((place, permit));
            FlowOutcome::Question
        });
    }

    fn listener(&self, like: SocketAddr) -> Option<SocketAddr> {
        if like.is_ipv4() { Some(self.listener_v4.address) } else { self.listener_v6.as_ref().map(|v6| v6.address) }
    }

    fn forward_to_listener(&mut self, frame: &mut [u8], port: u16, client: SocketAddr) {
        let Some(listener) = self.listener(client) else { return };
        self.delivered += 1;
        packet::readdress(frame, SocketAddr::new(gateway(client.ip()), port), listener);
        self.tun.send(frame);
    }

    fn reset(&mut self, segment: &Segment) {
        if !self.refusals.take(Instant::now()) {
            return;
        }
        if let Some(frame) = packet::reset(segment) {
            self.tun.send(&frame);
        }
    }

    /// Replies to the sender of a frame that it is not delivered.
    fn refuse(&mut self, frame: &[u8], why: Unreachable) {
        if !self.refusals.take(Instant::now()) {
            return;
        }
        let Some(original) = frame.get(VNET..) else { return };
        let from =
            if original.first().is_some_and(|first| first >> 4 == 4) { GATEWAY_V4.into() } else { GATEWAY_V6.into() };
        if let Some(answer) = packet::unreachable(original, from, why) {
            self.tun.send(&answer);
        }
    }
}

async fn accept(v4: &Listener, v6: Option<&Listener>) -> io::Result<(TcpStream, SocketAddr)> {
    match v6 {
        None => v4.listener.accept().await,
        Some(v6) => tokio::select! {
            accepted = v4.listener.accept() => accepted,
            accepted = v6.listener.accept() => accepted,
        },
    }
}

fn arm(timer: Pin<&mut tokio::time::Sleep>, when: Option<Instant>) {
    if let Some(when) = when {
        timer.reset(when.into());
    }
}
