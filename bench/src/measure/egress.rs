//! Egress of a sandbox with rules, against the kernel's own path between the same two ends: the
//! host and a machine in a network namespace, joined by a veth pair.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Plan, Row, Target};
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::stats::Samples;

const MIB: usize = 1 << 20;
const HOST: Ipv4Addr = Ipv4Addr::new(10, 198, 77, 1);
/// From a range for measurements of networks.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 2);
/// The far machine's address on the link: a sandbox reaches no neighbour of the host, so a route
/// leads to `FAR`.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 198, 77, 2);
/// A rule of the sandbox, so that the policy is checked.
const DENIED: &str = "203.0.113.0/24";
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn egress(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let far = Far::start()?;
    let mut sandbox = Sandbox::create(server, server.connect()?)?;
    sandbox.set_network(&format!(r#"{{"denyOut":["{DENIED}"]}}"#))?;
    let size = 4 * plan.transfer_mib;
    let mut samples: [Samples; 4] = Default::default();
    for round in 0..=plan.transfer_rounds {
        let (up, down) = (far.command('u', size), far.command('d', size));
        let taken = [outside(&up)?, sandbox.run_command(&up)?.end, outside(&down)?, sandbox.run_command(&down)?.end];
        // The first round warms both.
        for (samples, time) in samples.iter_mut().zip(taken).filter(|_| round > 0) {
            samples.push(time);
        }
    }
    sandbox.kill()?;
    let [kernel_up, up, kernel_down, down] = &samples;
    let row = |name, ours: &Samples, kernel: &Samples| {
        let gigabits = |samples: &Samples| (size * MIB * 8) as f64 / samples.p50().as_secs_f64() / 1e9;
        let share = 100.0 * gigabits(ours) / gigabits(kernel);
        Row {
            name,
            figure: format!("{:.2} Gbit/s", gigabits(ours)),
            baseline: format!("{:.2} Gbit/s ({share:.0} %)", gigabits(kernel)),
            value: gigabits(ours),
            unit: "Gbit/s",
            target: Some(Target::AtLeast { limit: 1.0, sane: 0.1 }),
            method: format!(
                "`dd` of {size} MiB over one TCP connection to a machine in a network namespace, from a sandbox with rules and, \
                 alternately, by the same shell command on the host, where the kernel's veth pair is all there is between; {} \
                 rounds, medians, the start of the shell included in both.",
                ours.len()
            ),
        }
    };
    Ok(vec![row("egress, up", up, kernel_up), row("egress, down", down, kernel_down)])
}

/// Runs the same command on the host.
fn outside(command: &str) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let done = Command::new("/bin/bash").args(["-l", "-c", command]).output().context("cannot start bash")?;
    ensure!(done.status.success(), "the baseline failed: {}", String::from_utf8_lossy(&done.stderr));
    Ok(started.elapsed())
}

/// A machine in a network namespace that receives or sends as requested. It ends with this process,
/// also when that is killed.
struct Far {
    holder: Child,
    link: String,
    address: SocketAddr,
}

impl Far {
    fn start() -> anyhow::Result<Self> {
        let mut holder = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start unshare")?;
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().context("its output is piped")?).read_line(&mut line)?;
        let link = format!("sbb{}", std::process::id());
        let mut far = Self { holder, link, address: (FAR, 0).into() };
        let (pid, link) = (far.holder.id(), &far.link);
        for arguments in [
            format!("ip link add {link} type veth peer name eth0 netns {pid}"),
            format!("ip address add {HOST}/30 dev {link}"),
            format!("ip link set {link} up"),
            format!("nsenter --net=/proc/{pid}/ns/net ip address add {ROUTER}/30 dev eth0"),
            format!("nsenter --net=/proc/{pid}/ns/net ip address add {FAR}/32 dev eth0"),
            format!("nsenter --net=/proc/{pid}/ns/net ip link set eth0 up"),
            format!("ip route add {FAR}/32 via {ROUTER}"),
        ] {
            let mut words = arguments.split(' ');
            let done = Command::new(words.next().unwrap_or_default()).args(words).status()?;
            ensure!(done.success(), "`{arguments}` failed");
        }
        let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
        let (send, bound) = std::sync::mpsc::channel();
        // Ends with the process: it only waits for connections.
        std::thread::spawn(move || {
            let listening = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(std::io::Error::from)
                .and_then(|()| TcpListener::bind((FAR, 0)));
            let address = listening.as_ref().map_err(|error| error.to_string()).map(TcpListener::local_addr);
            let _ = send.send(address.map(|address| address.map_err(|error| error.to_string())));
            for stream in listening.iter().flat_map(TcpListener::incoming).flatten() {
                std::thread::spawn(|| serve(stream));
            }
        });
        let address = bound.recv_timeout(TIMEOUT).context("the far machine did not listen")?;
        far.address = address.and_then(|address| address).map_err(anyhow::Error::msg)?;
        Ok(far)
    }

    /// The shell command that transfers `mib`.
    fn command(&self, direction: char, mib: usize) -> String {
        let (address, port) = (self.address.ip(), self.address.port());
        let moved = match direction {
            'u' => format!("dd if=/dev/zero bs=1M count={mib} status=none >&3"),
            _ => "dd of=/dev/null bs=1M status=none <&3".to_owned(),
        };
        let ended = if direction == 'u' { "head -c 2 <&3" } else { "echo ok" };
        format!("exec 3<>/dev/tcp/{address}/{port}; printf '{direction}%010d' {mib} >&3; {moved}; {ended}")
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        // The link usually went with the other end.
        let _ = Command::new("ip").args(["link", "del", &self.link]).stderr(Stdio::null()).status();
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut head = [0; 11];
    stream.read_exact(&mut head)?;
    let size = std::str::from_utf8(&head[1..]).ok().and_then(|text| text.parse::<usize>().ok()).unwrap_or(0) * MIB;
    let mut block = vec![0; MIB];
    if head[0] == b'u' {
        let mut left = size;
        while left > 0 {
            left -= stream.read(&mut block[..left.min(MIB)])?.max(1);
        }
        return stream.write_all(b"ok");
    }
    for _ in 0..size / MIB {
        stream.write_all(&block)?;
    }
    Ok(())
}
