//! Decides which addresses a sandbox may connect to: a pure function of the address, the host's own
//! addresses and the configuration.
//!
//! Some addresses are denied whatever the configuration allows: the host's own, loopback,
//! link-local, the metadata services of clouds, groups, and IPv6 forms of such IPv4 addresses.
//! Private ranges can be allowed by range or by name, and so can the host's neighbours, whatever
//! addresses they have: machines that it reaches without a router.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{EgressConfig, domain};

/// Why an address is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    Host,
    Loopback,
    LinkLocal,
    Metadata,
    /// An address of the link between a sandbox and its gateway, which exists nowhere else.
    OwnLink,
    /// Multicast, broadcast, unspecified, or reserved: not the address of one machine.
    NotAMachine,
    Private,
    /// On a link of the host.
    Neighbour,
    /// By the sandbox's own rules.
    Rules,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Denied::Host => "an address of the host",
            Denied::Loopback => "a loopback address",
            Denied::LinkLocal => "a link-local address",
            Denied::Metadata => "a cloud's metadata service",
            Denied::OwnLink => "an address of the sandbox's own link",
            Denied::NotAMachine => "a group or reserved address",
            Denied::Private => "a private address that is not allowed",
            Denied::Neighbour => {
                "an address on a network that the host is on; egress.allow_ranges of the server's configuration allows it"
            }
            Denied::Rules => "not allowed by the sandbox's rules",
        })
    }
}

/// Whether an allowed name has led to the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    Allowed,
    No,
}

/// Decides about one address.
pub(crate) fn judge(
    address: IpAddr,
    host: &HashSet<IpAddr>,
    config: &EgressConfig,
    named: Named,
) -> Result<(), Denied> {
    let reach = match address {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    };
    // An IPv4 address embedded in an IPv6 one may be the host's or lie in an allowed range, too.
    let embedded = match address {
        IpAddr::V6(address) => embedded_v4(address).map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    if host.contains(&address) || embedded.is_some_and(|address| host.contains(&address)) {
        return Err(Denied::Host);
    }
    match reach {
        Reach::Never(reason) => Err(reason),
        Reach::Public => Ok(()),
        Reach::Private if is_opened(address, config, named) => Ok(()),
        Reach::Private => Err(Denied::Private),
    }
}

/// Whether the configuration allows an address that is private or a neighbour's.
pub(crate) fn is_opened(address: IpAddr, config: &EgressConfig, named: Named) -> bool {
    named == Named::Allowed || config.allow_ranges.iter().any(|range| range.contains(&address))
}

/// Whether the configuration allows a name.
pub(crate) fn name_is_allowed(name: &str, config: &EgressConfig) -> bool {
    config.allow_names.iter().any(|pattern| domain::matches(pattern, name))
}

enum Reach {
    Never(Denied),
    Private,
    Public,
}

fn classify_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        [192, 0, 0, 0..=7] => Reach::Never(Denied::OwnLink),
        [127, ..] => Reach::Never(Denied::Loopback),
        [169, 254, ..] => Reach::Never(Denied::LinkLocal),
        // Platform services of Azure and Alibaba, at addresses that look public.
        [168, 63, 129, 16] | [100, 100, 100, 200] => Reach::Never(Denied::Metadata),
        [0 | 224..=255, ..] => Reach::Never(Denied::NotAMachine),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] | [192, 0, 0, _] => Reach::Private,
        _ => Reach::Public,
    }
}

/// The metadata services of AWS and Google over IPv6.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254)];

fn classify_v6(address: Ipv6Addr) -> Reach {
    if METADATA_V6.contains(&address) {
        return Reach::Never(Denied::Metadata);
    }
    match address.segments() {
        [0xfd73, 0x616e, 0x6462, 0x6172, ..] => Reach::Never(Denied::OwnLink),
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Never(Denied::Loopback),
        // Mapped and compatible addresses are IPv4 inside a machine; on the wire they only disguise
        // a target.
        [0, 0, 0, 0, 0, _, _, _] => Reach::Never(Denied::NotAMachine),
        [0xff00..=0xffff, ..] => Reach::Never(Denied::NotAMachine),
        [0xfe80..=0xfebf, ..] => Reach::Never(Denied::LinkLocal),
        // Unique local, the older site local, and the local-use range of translators.
        [0xfec0..=0xfeff, ..] | [0xfc00..=0xfdff, ..] | [0x64, 0xff9b, 1, ..] => Reach::Private,
        _ => embedded_v4(address).map_or(Reach::Public, classify_v4),
    }
}

/// The IPv4 address to which translators and tunnels would send a packet.
pub(crate) fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] // mapped
        | [0, 0, 0, 0, 0xffff, 0, high, low] // translated (SIIT)
        | [0x64, 0xff9b, _, _, _, _, high, low] // NAT64
        | [0x2002, high, low, ..] // 6to4
        => Some(join(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IpNet, PREFIX_V4, PREFIX_V6, SANDBOX_V4, SANDBOX_V6};

    fn verdict(address: &str, config: &EgressConfig, named: Named) -> Result<(), Denied> {
        let host = ["192.0.2.2", "10.1.1.1", "203.0.113.9", "2001:db8::9", "fd00::2"];
        let host = host.iter().map(|address| address.parse().unwrap()).collect();
        judge(address.parse().unwrap(), &host, config, named)
    }

    fn everything_allowed() -> EgressConfig {
        EgressConfig {
            allow_ranges: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
            ..EgressConfig::default()
        }
    }

    /// Denied for this reason by default, by a configuration that allows every range, and by an
    /// allowed name.
    #[track_caller]
    fn never(reason: Denied, addresses: &[&str]) {
        for address in addresses {
            assert_eq!(verdict(address, &EgressConfig::default(), Named::No), Err(reason), "{address}");
            assert_eq!(verdict(address, &everything_allowed(), Named::No), Err(reason), "{address}, range allowed");
            assert_eq!(verdict(address, &everything_allowed(), Named::Allowed), Err(reason), "{address}, name allowed");
        }
    }

    #[test]
    fn addresses_of_the_host_and_its_links_are_never_reachable() {
        never(Denied::Host, &["192.0.2.2", "10.1.1.1", "203.0.113.9", "2001:db8::9", "fd00::2"]);
        never(Denied::Host, &["::ffff:192.0.2.2", "64:ff9b::203.0.113.9", "2002:cb00:7109::1", "::ffff:0:192.0.2.2"]);
        never(Denied::Loopback, &["127.0.0.1", "127.0.0.53", "127.255.255.255", "::1", "64:ff9b::127.0.0.1"]);
        never(Denied::Loopback, &["2002:7f00:1::", "::ffff:0:127.0.0.1"]);
        never(Denied::LinkLocal, &["169.254.0.1", "169.254.169.254", "169.254.170.2", "fe80::1", "febf::1"]);
        never(Denied::LinkLocal, &["64:ff9b::169.254.169.254"]);
        never(Denied::Metadata, &["168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"]);
        never(
            Denied::OwnLink,
            &["192.0.0.0", "192.0.0.3", "192.0.0.7", "64:ff9b::192.0.0.1", "fd73:616e:6462:6172::1"],
        );
        never(Denied::NotAMachine, &["0.0.0.0", "0.1.2.3", "224.0.0.251", "239.255.255.250", "240.0.0.1"]);
        never(Denied::NotAMachine, &["255.255.255.255", "::", "ff02::1", "::ffff:127.0.0.1", "::ffff:1.1.1.1"]);
        never(Denied::NotAMachine, &["::127.0.0.1", "::8.8.8.8"]);
    }

    #[test]
    fn the_whole_link_is_denied() {
        let links = [IpNet::new(SANDBOX_V4.into(), PREFIX_V4), IpNet::new(SANDBOX_V6.into(), PREFIX_V6)];
        for link in links {
            let link = link.unwrap();
            never(Denied::OwnLink, &[&link.network().to_string(), &link.broadcast().to_string()]);
        }
    }

    #[test]
    fn public_addresses_are_reachable() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "192.0.2.1",
            "198.51.100.7",
            "203.0.113.8",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "198.18.0.1",
            "192.0.1.1",
            "223.255.255.254",
            "2606:4700::1111",
            "2001:db8::1",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert_eq!(verdict(address, &EgressConfig::default(), Named::No), Ok(()), "{address}");
        }
    }

    #[test]
    fn private_addresses_need_an_allowed_range_or_name() {
        let one_range = EgressConfig { allow_ranges: vec!["10.2.0.0/16".parse().unwrap()], ..EgressConfig::default() };
        for address in [
            "10.0.0.1",
            "10.255.255.53",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.0.1",
            "192.0.0.8",
            "192.0.0.192",
            "fc00::1",
            "fdff::1",
            "fec0::1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1.1.1.1",
            "2002:a00:1::1",
        ] {
            assert_eq!(verdict(address, &EgressConfig::default(), Named::No), Err(Denied::Private), "{address}");
            assert_eq!(verdict(address, &one_range, Named::No), Err(Denied::Private), "{address}, another range");
            assert_eq!(verdict(address, &everything_allowed(), Named::No), Ok(()), "{address}, range allowed");
            assert_eq!(verdict(address, &EgressConfig::default(), Named::Allowed), Ok(()), "{address}, name allowed");
        }
        assert_eq!(verdict("10.2.3.4", &one_range, Named::No), Ok(()));
    }
}
