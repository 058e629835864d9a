//! Detects providers that are this machine's own server under another name. The variables that
//! `sandbar up` prints configure it a second time, as the provider `e2b`.

use std::net::{IpAddr, TcpListener};

use url::{Host, Url};

use super::{ProviderConfig, ProviderKind, WorkspaceConfig};

/// The address of this machine's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnServer {
    pub url: String,
    /// The domain under which it serves sandboxes.
    pub domain: Option<String>,
    /// Whether it listens on all addresses of this machine.
    pub everywhere: bool,
}

impl WorkspaceConfig {
    /// Merges all providers that are this machine's server into one. The other names become
    /// aliases, for records written under them.
    pub fn unify(&mut self, own: &OwnServer) {
        let is_own = |provider: &ProviderConfig| provider.kind == ProviderKind::E2b && own.serves(provider);
        let local = self.providers.iter().find(|provider| provider.kind == ProviderKind::Local);
        let Some(local) = local.map(|local| local.name.clone()) else {
            // Without a local provider, the first match becomes it.
            let Some(first) = self.providers.iter_mut().find(|provider| is_own(provider)) else { return };
            *first = ProviderConfig {
                template: first.template.take(),
                resources: first.resources,
                plan: first.plan,
                price: first.price,
                ..ProviderConfig::new(first.name.clone(), ProviderKind::Local)
            };
            return self.unify(own);
        };
        self.providers.retain(|provider| {
            let same = is_own(provider);
            if same {
                self.aliases.insert(provider.name.clone(), local.clone());
            }
            !same
        });
    }
}

impl OwnServer {
    /// Whether a provider's address leads to this server.
    fn serves(&self, provider: &ProviderConfig) -> bool {
        match (&provider.api_url, &provider.domain) {
            (Some(url), _) => self.is_at(url),
            (None, Some(domain)) => {
                self.domain.as_ref() == Some(domain) || self.is_at(&format!("https://api.{domain}"))
            }
            (None, None) => false,
        }
    }

    /// Whether a URL leads to this server.
    pub fn is_at(&self, url: &str) -> bool {
        let (Ok(own), Ok(url)) = (Url::parse(&self.url), Url::parse(url)) else { return false };
        let (Some(own_host), Some(host)) = (own.host(), url.host()) else { return false };
        // One port serves both http and https.
        own.port_or_known_default() == url.port_or_known_default()
            && (own_host == host
                || (is_loopback(&own_host) && is_loopback(&host))
                || (self.everywhere && is_address_of_this_machine(&host)))
    }
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost" || name.ends_with(".localhost"),
        Host::Ipv4(address) => address.is_loopback() || address.is_unspecified(),
        Host::Ipv6(address) => address.is_loopback() || address.is_unspecified(),
    }
}

/// Tests by binding: only an address of this machine can be bound.
fn is_address_of_this_machine(host: &Host<&str>) -> bool {
    let address: IpAddr = match host {
        Host::Domain(_) => return false,
        Host::Ipv4(address) => (*address).into(),
        Host::Ipv6(address) => (*address).into(),
    };
    TcpListener::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(variables: &[(&str, &str)], own: &OwnServer) -> WorkspaceConfig {
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let config = WorkspaceConfig::default().resolve("/data".as_ref(), &value);
        let mut config = config.expect("a good configuration");
        config.unify(own);
        config
    }

    fn names(config: &WorkspaceConfig) -> Vec<&str> {
        config.providers.iter().map(|provider| provider.name.as_str()).collect()
    }

    #[test]
    fn every_url_of_the_own_server_is_the_local_provider() {
        let own = OwnServer {
            url: "http://127.0.0.1:4980".to_owned(),
            domain: Some("sandbox.example".to_owned()),
            everywhere: false,
        };
        for url in ["http://localhost:4980", "http://127.0.0.1:4980/", "https://[::1]:4980", "http://0.0.0.0:4980"] {
            let config = resolved(&[("E2B_API_URL", url)], &own);
            assert_eq!(names(&config), ["local"], "{url}");
            assert_eq!(config.aliases.len(), 1, "{url}");
        }
        for domain in ["sandbox.example", "localhost:4980"] {
            assert_eq!(names(&resolved(&[("E2B_DOMAIN", domain)], &own)), ["local"], "{domain}");
        }
        for other in ["http://127.0.0.1:4981", "https://api.e2b.dev", "http://192.0.2.7:4980"] {
            assert_eq!(names(&resolved(&[("E2B_API_URL", other)], &own)), ["e2b", "local"], "{other}");
        }
        assert_eq!(names(&resolved(&[], &own)), ["e2b", "local"]);
    }

    #[test]
    fn first_match_becomes_the_missing_local_provider() {
        let own = OwnServer { url: "http://127.0.0.1:4980".to_owned(), domain: None, everywhere: false };
        let box_of = |name: &str| ProviderConfig {
            api_url: Some("http://localhost:4980".to_owned()),
            ..ProviderConfig::new(name.parse().expect("a name"), ProviderKind::E2b)
        };
        let mut config =
            WorkspaceConfig { providers: vec![box_of("one"), box_of("two")], ..WorkspaceConfig::default() };
        config.unify(&own);
        assert_eq!(names(&config), ["one"]);
        assert_eq!(config.providers[0].kind, ProviderKind::Local);
        assert_eq!(config.aliases.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["two"]);
    }
}
