//! DNS resolution. Names below `localhost` are this machine (RFC 6761), but not every resolver
//! supports them; a local server with the domain `localhost:PORT` has its sandboxes there.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

#[derive(Debug, Clone, Copy)]
pub(super) struct Names;

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            if is_this_machine(name.as_str()) {
                let here = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))];
                return Ok(Box::new(here.into_iter()) as Addrs);
            }
            Ok(Box::new(tokio::net::lookup_host((name.as_str(), 0)).await?.collect::<Vec<_>>().into_iter()) as Addrs)
        })
    }
}

fn is_this_machine(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.rsplit_once('.').is_some_and(|(_, last)| last.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::is_this_machine;

    #[test]
    fn names_below_localhost_are_local() {
        for name in ["49983-iabc.localhost", "a.b.LOCALHOST", "a.localhost."] {
            assert!(is_this_machine(name), "{name}");
        }
        for name in ["localhost", "localhost.example.com", "notlocalhost", "a.notlocalhost"] {
            assert!(!is_this_machine(name), "{name}");
        }
    }
}
