//! The name server of a sandbox: forwards queries to the host's name servers and filters their
//! answers.
//!
//! A query is forwarded as it came, but with an identifier and from a port of our own; an answer
//! from which nothing is removed is returned as it came. Over UDP a truncated answer is returned,
//! and the client retries over TCP. A query for a name that the sandbox's rules do not allow is
//! refused and forwarded to no server. Queries about the host's own network are not forwarded
//! either, unless the configuration allows them: see `questions.rs`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::answers::{self, Mention};
use crate::decision::{Decision, Protocol};
use crate::host::{Guard, is_routed};
use crate::nameservers::{self, Nameservers};
use crate::policy;
use crate::questions::{self, Subject};

/// Limit of concurrent queries per sandbox; more are dropped, and clients retry.
const MOST_QUESTIONS: usize = 256;
/// How long one server may take before the next is queried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the whole list is queried.
const ROUNDS: usize = 2;
/// Deadline of a query over all attempts.
const QUERY_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a client may leave its connection idle.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

pub(crate) struct Resolver {
    guard: Arc<Guard>,
    nameservers: Nameservers,
    places: Arc<Semaphore>,
}

impl Resolver {
    pub(crate) fn new(guard: Arc<Guard>) -> Self {
        let nameservers = Nameservers::new(guard.config.nameservers.clone());
        Self { guard, nameservers, places: Arc::new(Semaphore::new(MOST_QUESTIONS)) }
    }

    /// A permit for one more query; `None` when too many are in progress.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Answers the queries of one connection, in their order.
    pub(crate) async fn serve(&self, mut stream: TcpStream) {
        loop {
            let Ok(Ok(question)) = timeout(STREAM_IDLE_TIMEOUT, read_message(&mut stream)).await else { return };
            let Some(place) = self.place() else { return };
            let Some(answer) = self.answer(&question, Transport::Tcp).await else { return };
            drop(place);
            let Ok(Ok(())) = timeout(STREAM_IDLE_TIMEOUT, write_message(&mut stream, &answer)).await else { return };
        }
    }

    /// The answer to one query; `None` if the message is not a query.
    pub(crate) async fn answer(&self, question: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let asked = match parse(question) {
            Some(message) if message.metadata.message_type != MessageType::Query => return None,
            Some(message) if message.metadata.op_code != OpCode::Query => {
                return failure(question, ResponseCode::NotImp);
            }
            Some(message) if message.queries.len() == 1 => message,
            _ => return failure(question, ResponseCode::FormErr),
        };
        let name = asked.queries[0].name().to_lowercase().to_ascii();
        let name = name.strip_suffix('.').unwrap_or(&name);
        if !self.may_ask(name) {
            return failure(question, ResponseCode::Refused);
        }
        if let Some((code, reason)) = self.withhold(name, &asked.queries[0]) {
            self.tell(false, name, None, reason);
            return failure(question, code);
        }
        match self.exchange(&self.servers(), question, &asked, transport).await {
            Some((bytes, message)) => self.present(name, bytes, message, asked.metadata.id),
            None => failure(question, ResponseCode::ServFail),
        }
    }

    /// Queries now whether `name`, which the rules must allow to be queried, leads to `address`,
    /// and remembers it.
    pub(crate) async fn learn(&self, name: &str, address: IpAddr) -> bool {
        let kind = if address.is_ipv4() { RecordType::A } else { RecordType::AAAA };
        let Some(question) = question(name, kind).and_then(|question| question.to_vec().ok()) else { return false };
        self.answer(&question, Transport::Udp).await.is_some() && self.guard.led(name, address)
    }

    /// The addresses of a name that the sandbox's owner configured, from the host's name servers.
    /// The sandbox's rules do not apply to it.
    pub(crate) async fn lookup(&self, name: &str) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for kind in [RecordType::A, RecordType::AAAA] {
            let Some(asked) = question(name, kind) else { continue };
            let Ok(bytes) = asked.to_vec() else { continue };
            if let Some((_, message)) = self.exchange(&self.nameservers.current(), &bytes, &asked, Transport::Udp).await
            {
                addresses.extend(message.answers.iter().filter_map(|record| match &record.data {
                    RData::A(address) => Some(IpAddr::V4(address.0)),
                    RData::AAAA(address) => Some(IpAddr::V6(address.0)),
                    _ => None,
                }));
            }
        }
        addresses
    }

    /// The first answer of any of `servers`.
    async fn exchange(
        &self,
        servers: &[SocketAddr],
        question: &[u8],
        asked: &Message,
        transport: Transport,
    ) -> Option<(Vec<u8>, Message)> {
        let deadline = Instant::now() + QUERY_TIMEOUT;
        for server in servers.iter().cycle().take(servers.len() * ROUNDS) {
            let end = deadline.min(Instant::now() + ATTEMPT_TIMEOUT);
            let reply = timeout_at(end, ask(*server, question, asked, transport)).await;
            match reply {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server gave no answer"),
                Err(_) => tracing::debug!(%server, "a name server gave no answer in time"),
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        None
    }

    /// Whether the rules allow `name` to be queried. Reports the decision if they restrict names.
    fn may_ask(&self, name: &str) -> bool {
        let rules = self.guard.rules();
        let allowed = rules.may_ask(name);
        if rules.restricts_names() {
            let reason = if allowed { "an allowed name" } else { "not a name that the sandbox's rules allow" };
            self.tell(allowed, name, None, reason.to_owned());
        }
        allowed
    }

    /// The response to a query that is not forwarded, and the reason. A name of the host's own
    /// network does not exist in a sandbox, as in any other network.
    fn withhold(&self, name: &str, query: &Query) -> Option<(ResponseCode, String)> {
        let config = &self.guard.config;
        let subject = questions::subject(name, query);
        if subject == Subject::Server {
            return Some((ResponseCode::Refused, "transfers, ANY and questions about the name server".to_owned()));
        }
        // Name servers of the sandbox's rules know nothing of the host's network.
        if !self.guard.rules().nameservers().is_empty() || policy::name_is_allowed(name, config) {
            return None;
        }
        let reason = match subject {
            Subject::Public | Subject::Server => return None,
            Subject::Reverse(address) => match self.guard.check_service(address) {
                Ok(()) => return None,
                Err(denied) => format!("the name of {denied}"),
            },
            Subject::Local => {
                // Where private ranges are allowed, names lead to them; the answer is checked
                // against the ranges.
                let address = matches!(query.query_type(), RecordType::A | RecordType::AAAA);
                if address && !config.allow_ranges.is_empty() {
                    return None;
                }
                "a name of the host's own network; egress.allow_names of the server's configuration allows it"
                    .to_owned()
            }
        };
        Some((ResponseCode::NXDomain, reason))
    }

    fn tell(&self, allowed: bool, name: &str, address: Option<IpAddr>, reason: String) {
        let (protocol, name) = (Protocol::Dns, Some(name.to_owned()));
        self.guard.tell(Decision { allowed, protocol, address, port: None, name, reason });
    }

    /// The name servers of the sandbox's rules that may be queried; without any rule, the host's.
    fn servers(&self) -> Vec<SocketAddr> {
        let rules = self.guard.rules();
        if rules.nameservers().is_empty() {
            return self.nameservers.current();
        }
        let may_be_asked = |server: &SocketAddr| match self.guard.check_service(server.ip()) {
            Ok(()) => true,
            Err(reason) => {
                tracing::debug!(%server, %reason, "a name server of the sandbox's rules is not asked");
                false
            }
        };
        let named = rules.nameservers().iter().map(|server| SocketAddr::from((*server, nameservers::PORT)));
        named.filter(may_be_asked).collect()
    }

    /// The part of a name server's answer that the sandbox receives.
    fn present(&self, name: &str, mut bytes: Vec<u8>, mut message: Message, id: u16) -> Option<Vec<u8>> {
        let removed = answers::filter(&mut message, |Mention { address, asked, time_to_live }| {
            match self.guard.admit(*address, asked.then_some(name), *time_to_live) {
                // Without a route, a client would only lose time on it.
                Ok(()) => address.is_ipv4() || is_routed(*address),
                Err(reason) => {
                    self.tell(false, name, Some(*address), reason.to_string());
                    false
                }
            }
        });
        if removed {
            message.metadata.id = id;
            return message.to_vec().ok();
        }
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        Some(bytes)
    }
}

/// Queries one server; the answer is checked to be one to this query.
async fn ask(
    server: SocketAddr,
    question: &[u8],
    asked: &Message,
    transport: Transport,
) -> io::Result<(Vec<u8>, Message)> {
    // Neither the identifier nor the port may be predictable, else any host could forge an answer.
    let id = Message::query().metadata.id;
    let mut question = question.to_vec();
    question[..2].copy_from_slice(&id.to_be_bytes());
    let fits = |answer: &[u8]| {
        let message = parse(answer)?;
        let fits = message.metadata.id == id
            && message.metadata.message_type == MessageType::Response
            && (message.queries == asked.queries
                || message.queries.is_empty() && message.metadata.response_code != ResponseCode::NoError);
        fits.then_some(message)
    };
    match transport {
        Transport::Udp => {
            let any: IpAddr =
                if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(server).await?;
            socket.send(&question).await?;
            let mut buffer = vec![0; usize::from(asked.max_payload()).max(512)];
            loop {
                let length = socket.recv(&mut buffer).await?;
                // A message that does not fit may be forged; the true answer may still arrive.
                if let Some(message) = fits(&buffer[..length]) {
                    buffer.truncate(length);
                    return Ok((buffer, message));
                }
            }
        }
        Transport::Tcp => {
            let mut stream = TcpStream::connect(server).await?;
            write_message(&mut stream, &question).await?;
            let answer = read_message(&mut stream).await?;
            let message = fits(&answer).ok_or(io::ErrorKind::InvalidData)?;
            Ok((answer, message))
        }
    }
}

/// Parses a message. The library reserves memory for as many records as the header names, so one
/// that names more than the message can hold is no message.
pub(crate) fn parse(message: &[u8]) -> Option<Message> {
    /// The shortest question, and the shortest record: a root name and its fields.
    const SHORTEST: [usize; 4] = [5, 11, 11, 11];
    let counts =
        message.get(4..HEADER)?.chunks_exact(2).map(|count| usize::from(u16::from_be_bytes([count[0], count[1]])));
    let least: usize = counts.zip(SHORTEST).map(|(count, shortest)| count * shortest).sum();
    if HEADER + least > message.len() { None } else { Message::from_vec(message).ok() }
}

fn question(name: &str, kind: RecordType) -> Option<Message> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    message.add_query(Query::query(name, kind));
    Some(message)
}

/// The query returned with an error; `None` if it is too short to be one.
pub(crate) fn failure(question: &[u8], code: ResponseCode) -> Option<Vec<u8>> {
    let header = question.first_chunk::<HEADER>()?;
    let id = u16::from_be_bytes([header[0], header[1]]);
    if header[2] & 0x80 != 0 {
        return None;
    }
    let asked = parse(question);
    let op_code = asked.as_ref().map_or(OpCode::Query, |asked| asked.metadata.op_code);
    let mut message = Message::error_msg(id, op_code, code);
    message.metadata.recursion_available = true;
    if let Some(asked) = asked {
        message.metadata.recursion_desired = asked.metadata.recursion_desired;
        message.add_queries(asked.queries);
    }
    message.to_vec().ok()
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    if message.len() < HEADER { Err(io::ErrorKind::InvalidData.into()) } else { Ok(message) }
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let framed = [&length.to_be_bytes(), message].concat();
    stream.write_all(&framed).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_message_that_names_more_than_it_holds_is_none() {
        let asked = question("a.example", RecordType::A).expect("a name").to_vec().expect("a question");
        assert!(parse(&asked).is_some());
        for section in 0..4 {
            let mut many = asked.clone();
            many[4 + 2 * section] = 0xff;
            assert!(parse(&many).is_none(), "section {section}");
        }
    }

    proptest! {
        #[test]
        fn any_question_is_refused_in_form(
            damage in vec((any::<usize>(), any::<u8>()), 0..6),
            other in vec(any::<u8>(), 0..64),
        ) {
            let mut asked = question("a.example", RecordType::A).expect("a name").to_vec().expect("a question");
            for (at, byte) in damage {
                let at = at % asked.len();
                asked[at] = byte;
            }
            for question in [asked, other] {
                if let Some(refusal) = failure(&question, ResponseCode::Refused) {
                    let refusal = Message::from_vec(&refusal).expect("a message");
                    prop_assert_eq!(refusal.metadata.message_type, MessageType::Response);
                    prop_assert_eq!(&refusal.metadata.id.to_be_bytes()[..], &question[..2]);
                }
            }
        }
    }
}
