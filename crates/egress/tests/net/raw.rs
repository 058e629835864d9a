//! Packets that no kernel would send, written to the sandbox's device as root inside could if it
//! had the capability.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sandbar_egress::EgressConfig;

use crate::lab::{HOST, PRIVATE, SERVER, World, connect, greeting};

/// Sends packets of a fixed sequence: valid ones for the targets of the arguments with some bytes
/// changed, cut or extended, with fragments and with options of IP and TCP of every length, and
/// noise.
const SEND: &str = r#"
import errno, random, socket, struct, sys, time
numbers = random.Random(20261118)
def v4(protocol, target, payload, first=0x45, fragment=0, options=b''):
    header = struct.pack('>BBHHHBBH4s4s', first, 0, 20 + len(options) + len(payload), 7, fragment, 64, protocol, 0,
                         socket.inet_aton('192.0.0.2'), socket.inet_aton(target)) + options
    total = sum(struct.unpack('>%dH' % (len(header) // 2), header))
    total = (total & 0xffff) + (total >> 16)
    total = (total & 0xffff) + (total >> 16)
    return header[:10] + struct.pack('>H', ~total & 0xffff) + header[12:] + payload
def tcp(port, flags=2, offset=5, options=b''):
    return struct.pack('>HHIIBBHHH', numbers.randrange(1024, 65536), port, 1, 0, offset << 4, flags, 64240, 0, 0) + options
def udp(port, payload, length=None):
    return struct.pack('>HHHH', numbers.randrange(1024, 65536), port, 8 + len(payload) if length is None else length, 0) + payload
def opened(kind):
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    device.bind(('tun0', kind))
    return device
devices = {6: opened(0x86dd)}
others = opened(0x0800)
sent = 0
def send(packet):
    global sent
    for _ in range(10000 if packet else 0):
        try:
            devices.get(packet[0] >> 4, others).send(packet)
            sent += 1
            return
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # Too short for the device.
            if error.errno != errno.ENOBUFS:
                raise
            time.sleep(0.002)  # The queue is full: the reader has to catch up.
targets = [argument.rsplit(':', 1) for argument in sys.argv[1:]]
for number in range(12000):
    target, port = numbers.choice(targets)
    port = int(port)
    kind = number % 6
    if kind == 0:
        packet = v4(6, target, tcp(port, numbers.randrange(256)))
    elif kind == 1:
        options = numbers.randbytes(numbers.randrange(44))
        packet = v4(6, target, tcp(port, 2, numbers.randrange(16), options))
    elif kind == 2:
        packet = v4(6, target, tcp(port), fragment=numbers.choice([0x2000, 1, 0x1fff, 0x3fff, 0x8000]))
    elif kind == 3:
        words = numbers.randrange(11)
        packet = v4(numbers.choice([6, 17]), target, tcp(port), 0x40 | 5 + words, 0, numbers.randbytes(4 * words))
    elif kind == 4:
        packet = v4(17, target, udp(port, numbers.randbytes(numbers.randrange(64)), numbers.choice([None, 0, 7, 8, 9, 65535])))
    else:
        packet = numbers.randbytes(numbers.randrange(1, 120))
    packet = bytearray(packet)
    for _ in range(numbers.choice([0, 0, 1, 3])):
        packet[numbers.randrange(len(packet))] = numbers.randrange(256)
    if numbers.random() < 0.2:
        packet = packet[:numbers.randrange(len(packet) + 1)]
    send(bytes(packet))
print(sent)
"#;

#[test]
fn packets_that_no_kernel_sends_do_no_harm() {
    let world = World::new();
    let sandbox = world.sandbox(EgressConfig::default());
    let (accepted, accepts) = mpsc::channel();
    let noting = move |stream: std::net::TcpStream| {
        let _ = accepted.send(stream.local_addr());
    };
    let host = world.host.serve_tcp(HOST, noting.clone());
    let private = world.internet.serve_tcp(PRIVATE, noting);
    let public = world.internet.greet(SERVER);
    let echo = world.internet.serve_tcp(SERVER, |mut stream| {
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
    // A connection from before stays usable.
    let mut living = sandbox.run(|| connect(echo)).unwrap();
    let targets = [host, private, public, SocketAddr::new(SERVER.into(), 53)].map(|target| target.to_string());
    let started = Instant::now();
    let sent = sandbox.run(|| Command::new("/usr/bin/python3").args(["-c", SEND]).args(&targets).output()).unwrap();
    let text = String::from_utf8_lossy(&sent.stdout);
    assert!(
        text.trim().parse::<u32>().is_ok_and(|sent| sent > 10_000),
        "{text}{}",
        String::from_utf8_lossy(&sent.stderr)
    );
    living.write_all(b"x").unwrap();
    living.read_exact(&mut [0]).unwrap();
    assert_eq!(sandbox.run(|| greeting(public)).unwrap(), "welcome", "the way out serves on");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert!(accepts.try_recv().is_err(), "a packet got to where none may");
    world.host.run(|| connect(host)).expect("the control reaches it");
    accepts.recv_timeout(crate::lab::TIMEOUT).unwrap().unwrap();
}
