//! The name servers of the host, from `/etc/resolv.conf`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const RESOLV_CONF: &str = "/etc/resolv.conf";
pub(crate) const PORT: u16 = 53;
/// How long the file's content is used before it is read again.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// The C library queries at most three.
const MOST: usize = 3;

/// A list of name servers that follows the host's, or a fixed one.
pub(crate) struct Nameservers {
    fixed: Option<Vec<SocketAddr>>,
    read: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Nameservers {
    pub(crate) fn new(fixed: Option<Vec<SocketAddr>>) -> Self {
        Self { fixed, read: Mutex::new(None) }
    }

    pub(crate) fn current(&self) -> Vec<SocketAddr> {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let mut read = self.read.lock();
        match &*read {
            Some((when, servers)) if when.elapsed() < READ_INTERVAL => servers.clone(),
            _ => {
                let servers = parse(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default());
                *read = Some((Instant::now(), servers.clone()));
                servers
            }
        }
    }
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let mut servers: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            if words.next()? != "nameserver" {
                return None;
            }
            address(words.next()?)
        })
        .take(MOST)
        .collect();
    if servers.is_empty() {
        // The default of resolv.conf(5) for a file without servers.
        servers.push((Ipv4Addr::LOCALHOST, PORT).into());
    }
    servers
}

fn address(text: &str) -> Option<SocketAddr> {
    match text.split_once('%') {
        None => Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, PORT)),
        // A link-local server names its device.
        Some((address, device)) => {
            let scope = device.parse().ok().or_else(|| device_index(device))?;
            Some(SocketAddrV6::new(address.parse::<Ipv6Addr>().ok()?, PORT, 0, scope).into())
        }
    }
}

fn device_index(device: &str) -> Option<u32> {
    if device.contains(['/', '.']) {
        return None;
    }
    std::fs::read_to_string(format!("/sys/class/net/{device}/ifindex")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let found: Vec<String> = parse(text).iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn servers_are_read_from_resolv_conf() {
        check(
            "# comment\nsearch corp\nnameserver 10.0.0.1\nnameserver\t127.0.0.53 # stub\n",
            &["10.0.0.1:53", "127.0.0.53:53"],
        );
        check("nameserver fe80::1%7\nnameserver ::1\nnameserver nonsense\n", &["[fe80::1%7]:53", "[::1]:53"]);
        check(
            "nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4",
            &["1.1.1.1:53", "1.1.1.2:53", "1.1.1.3:53"],
        );
        check("nameservers 1.1.1.1\noptions edns0", &["127.0.0.1:53"]);
        check("", &["127.0.0.1:53"]);
    }
}
