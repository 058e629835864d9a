//! The egress rules of a sandbox: which addresses it may reach, and how. They are kept as the call
//! stated them and are returned unchanged, except for secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use egress::{Domain, Headers, InvalidDomain, InvalidHeader, InvalidProxy, InvalidRule, Proxy, ProxyTls, Rules};
use serde::{Deserialize, Serialize};

use crate::id::Token;

/// The range that contains all addresses.
pub const EVERYTHING: &str = "0.0.0.0/0";

/// Validated egress lists. The default allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Lists", into = "Lists")]
pub struct Egress {
    lists: Lists,
    rules: Rules,
}

/// Egress lists as they were sent.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lists {
    /// Addresses, ranges and domain names. They take precedence over `deny_out`.
    pub allow_out: Vec<String>,
    /// Addresses and ranges.
    pub deny_out: Vec<String>,
    /// Name servers; the host's if empty.
    pub dns_servers: Vec<Ipv4Addr>,
    /// Headers that the server adds to requests per domain. Secrets are referred to by name.
    pub headers: BTreeMap<String, BTreeMap<String, String>>,
    /// Domains whose headers may contain secrets in plain HTTP, too.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allow_plaintext: BTreeSet<String>,
    /// Domains whose TLS connections the server decrypts, so that each request is checked by its
    /// host.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub inspect: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyLists>,
}

/// Without header values, which may be secrets although they should not be.
impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lists")
            .field("allow_out", &self.allow_out)
            .field("deny_out", &self.deny_out)
            .field("dns_servers", &self.dns_servers)
            .field("headers", &self.headers.keys())
            .field("allow_plaintext", &self.allow_plaintext)
            .field("inspect", &self.inspect)
            .field("proxy", &self.proxy)
            .finish()
    }
}

/// A proxy for outgoing TCP connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyLists {
    pub address: String,
    pub username: Option<String>,
    #[serde(with = "hidden")]
    pub password: Option<Token>,
    pub tls: Option<ProxyTlsLists>,
}

/// How the server verifies the TLS connection to the proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyTlsLists {
    pub server_name: Option<String>,
    pub certificates: Option<String>,
}

/// Which part of the lists is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEgress {
    #[error(transparent)]
    List(InvalidRule),
    #[error("{0}")]
    Domain(InvalidDomain),
    #[error("'{domain}': {wrong}")]
    Header { domain: String, wrong: InvalidHeader },
    #[error(transparent)]
    Proxy(InvalidProxy),
}

impl TryFrom<Lists> for Egress {
    type Error = InvalidEgress;

    fn try_from(lists: Lists) -> Result<Self, InvalidEgress> {
        let rules = Rules::new(&lists.allow_out, &lists.deny_out, &lists.dns_servers).map_err(InvalidEgress::List)?;
        let mut headers = Vec::new();
        for (domain, pairs) in &lists.headers {
            let name: Domain = domain.parse().map_err(InvalidEgress::Domain)?;
            let set = Headers::new(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
                .map_err(|wrong| InvalidEgress::Header { domain: domain.clone(), wrong })?;
            if !set.is_empty() {
                headers.push((name, set.allow_plaintext(lists.allow_plaintext.contains(domain))));
            }
        }
        let sets_some = |domain: &String| lists.headers.get(domain).is_some_and(|pairs| !pairs.is_empty());
        for domain in lists.inspect.iter().filter(|domain| !sets_some(domain)) {
            headers.push((domain.parse().map_err(InvalidEgress::Domain)?, Headers::default()));
        }
        let proxy = lists.proxy.as_ref().map(proxy).transpose().map_err(InvalidEgress::Proxy)?;
        let rules = rules.with_headers(headers).with_proxy(proxy);
        Ok(Self { lists, rules })
    }
}

fn proxy(lists: &ProxyLists) -> Result<Proxy, InvalidProxy> {
    let ProxyLists { address, username, password, tls } = lists;
    let tls = tls.as_ref().map(|ProxyTlsLists { server_name, certificates }| ProxyTls {
        server_name: server_name.clone(),
        certificates: certificates.clone(),
    });
    Proxy::new(address, username.as_deref(), password.as_ref().map(Token::reveal), tls)
}

impl From<Egress> for Lists {
    fn from(egress: Egress) -> Self {
        egress.lists
    }
}

impl Egress {
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// The rules of a sandbox whose internet access is on or off; off denies everything that is not
    /// allowed.
    pub(crate) fn rules(&self, internet: bool) -> Rules {
        let rules = self.rules.clone();
        if internet { rules } else { rules.deny_everything() }
    }
}

/// Serializes a token as text, for the records.
mod hidden {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::id::Token;

    pub(super) fn serialize<S: Serializer>(token: &Option<Token>, serializer: S) -> Result<S::Ok, S::Error> {
        token.as_ref().map(Token::reveal).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Token>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Token::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_that_is_inspected_is_read_without_headers() {
        let domain: Domain = "a.example".parse().expect("a domain");
        let lists = Lists { inspect: BTreeSet::from(["a.example".to_owned()]), ..Lists::default() };
        let egress = Egress::try_from(lists.clone()).expect("lists");
        assert_eq!(egress.rules(true), Rules::default().with_headers([(domain.clone(), Headers::default())]));
        assert!(egress.rules(true).sets_headers(), "its certificate is made known inside");
        let pairs = BTreeMap::from([("x-a".to_owned(), "${e2b.secrets.b}".to_owned())]);
        let set = Headers::new([("x-a", "${e2b.secrets.b}")]).expect("headers");
        let mut lists = Lists { headers: BTreeMap::from([("a.example".to_owned(), pairs)]), ..lists };
        let with = |set: Headers| Rules::default().with_headers([(domain.clone(), set)]);
        assert_eq!(Egress::try_from(lists.clone()).expect("lists").rules(true), with(set.clone()));
        lists.allow_plaintext.insert("a.example".to_owned());
        assert_eq!(Egress::try_from(lists).expect("lists").rules(true), with(set.allow_plaintext(true)));
    }

    #[test]
    fn what_is_secret_is_stored_and_not_shown() {
        let lists = Lists {
            headers: BTreeMap::from([("a.example".into(), BTreeMap::from([("x-a".into(), "hunter2".into())]))]),
            proxy: Some(ProxyLists {
                address: "proxy:1080".into(),
                username: Some("me".into()),
                password: Some("hunter2".to_owned().into()),
                tls: Some(ProxyTlsLists::default()),
            }),
            ..Lists::default()
        };
        let egress = Egress::try_from(lists).expect("lists");
        assert!(!format!("{egress:?}").contains("hunter2"));
        let text = serde_json::to_string(&egress).expect("it is stored");
        assert_eq!(serde_json::from_str::<Egress>(&text).expect("it is read"), egress);
        assert_eq!(serde_json::from_str::<Egress>("{}").expect("an older one"), Egress::default());
    }
}
