//! Recognizes queries about the host's own network, which are not forwarded to its name servers.
//!
//! A resolver inside a company answers for names that the internet does not have, and for addresses
//! of machines that a sandbox may not connect to. Its answers would be a map of that network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::Query;
use hickory_proto::rr::{DNSClass, RecordType};

/// What a query is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The internet, as far as the name shows.
    Public,
    /// A name that only the network around the host has.
    Local,
    /// The name of an address, or of the addresses with the same prefix: the rest of it is zero.
    Reverse(IpAddr),
    /// No record: a whole zone, all records of a name, or the name server itself.
    Server,
}

/// Endings of names that no public zone has: reserved for private use (RFC 6761, 6762, 8375, and
/// `.internal` by ICANN) or in wide use inside networks (RFC 6762, appendix G).
const LOCAL: [&str; 11] = [
    "local",
    "localhost",
    "localdomain",
    "internal",
    "intranet",
    "private",
    "corp",
    "home",
    "lan",
    "home.arpa",
    "resolver.arpa",
];

/// Classifies a query for `name`, which is in lower case and has no final dot.
pub(crate) fn subject(name: &str, query: &Query) -> Subject {
    let kind = query.query_type();
    if query.query_class() != DNSClass::IN || is_about_servers(kind) {
        return Subject::Server;
    }
    if let Some(address) = parse_reversed(name) {
        return Subject::Reverse(address);
    }
    let below = |ending: &&str| name.strip_suffix(*ending).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let single = !name.is_empty() && !name.contains('.') && !is_about_zones(kind);
    if single || LOCAL.iter().any(below) { Subject::Local } else { Subject::Public }
}

/// Transfers (AXFR, IXFR), ANY, and the other types that are not those of records (RFC 6895).
fn is_about_servers(kind: RecordType) -> bool {
    kind == RecordType::OPT || (128..=255).contains(&u16::from(kind))
}

/// Types that validators query for top-level domains, whose names have one label as well.
fn is_about_zones(kind: RecordType) -> bool {
    matches!(kind, RecordType::NS | RecordType::SOA | RecordType::DS | RecordType::DNSKEY)
}

/// The address whose name is queried. Labels before it, such as those of services, are ignored.
fn parse_reversed(name: &str) -> Option<IpAddr> {
    let read = |labels: &str, radix: u32, longest: usize, count: usize| {
        let number = |label: &str| {
            let fits = (1..=longest).contains(&label.len());
            u8::from_str_radix(label, radix).ok().filter(|_| fits)
        };
        labels.rsplit('.').map_while(number).take(count).collect::<Vec<u8>>()
    };
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let found = read(labels, 10, 3, 4);
        let mut octets = [0; 4];
        octets[..found.len()].copy_from_slice(&found);
        return (!found.is_empty()).then(|| Ipv4Addr::from(octets).into());
    }
    let found = read(name.strip_suffix(".ip6.arpa")?, 16, 1, 32);
    let mut octets = [0; 16];
    for (place, nibble) in found.iter().enumerate() {
        octets[place / 2] |= nibble << if place % 2 == 0 { 4 } else { 0 };
    }
    (!found.is_empty()).then(|| Ipv6Addr::from(octets).into())
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;
    use proptest::prelude::*;

    use super::*;

    fn about(name: &str, kind: RecordType) -> Subject {
        subject(name, &Query::query(Name::root(), kind))
    }

    fn reverse(address: &str) -> Subject {
        Subject::Reverse(address.parse().unwrap())
    }

    #[test]
    fn local_names_are_distinguished_from_public_ones() {
        for name in
            ["printer", "nas.local", "local", "db.corp.internal", "a.home.arpa", "x.localhost", "_dns.resolver.arpa"]
        {
            assert_eq!(about(name, RecordType::A), Subject::Local, "{name}");
            assert_eq!(about(name, RecordType::SRV), Subject::Local, "{name}");
        }
        for name in ["", "example.com", "local.example", "notlocal.test", "mylan.net", "arpa.example", "ipv4only.arpa"]
        {
            assert_eq!(about(name, RecordType::A), Subject::Public, "{name}");
        }
        assert_eq!(about("com", RecordType::DS), Subject::Public);
        assert_eq!(about("corp", RecordType::NS), Subject::Local);
    }

    #[test]
    fn queries_for_other_than_records_are_recognized() {
        for kind in [RecordType::AXFR, RecordType::IXFR, RecordType::ANY, RecordType::OPT, RecordType::Unknown(253)] {
            assert_eq!(about("example.com", kind), Subject::Server, "{kind}");
        }
        let mut query = Query::query(Name::root(), RecordType::TXT);
        query.set_query_class(DNSClass::CH);
        assert_eq!(subject("version.bind", &query), Subject::Server);
    }

    #[test]
    fn reversed_addresses_are_read() {
        for (name, expected) in [
            ("5.0.0.10.in-addr.arpa", reverse("10.0.0.5")),
            ("168.192.in-addr.arpa", reverse("192.168.0.0")),
            ("_dns-sd._udp.0.1.168.192.in-addr.arpa", reverse("192.168.1.0")),
            ("0/25.2.0.192.in-addr.arpa", reverse("192.0.2.0")),
            ("9.8.7.6.5.4.in-addr.arpa", reverse("4.5.6.7")),
            ("d.f.ip6.arpa", reverse("fd00::")),
            ("8.b.d.0.1.0.0.2.ip6.arpa", reverse("2001:db8::")),
            ("in-addr.arpa", Subject::Public),
            ("x.in-addr.arpa", Subject::Public),
            ("1.2.3.4.ip4.arpa", Subject::Public),
        ] {
            assert_eq!(about(name, RecordType::PTR), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_read_without_harm(name in "[0-9a-f.\\\\+-]{0,80}([.](in-addr|ip6)[.]arpa)?", kind in any::<u16>()) {
            about(&name, kind.into());
        }
    }
}
