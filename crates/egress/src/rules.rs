//! What one sandbox may connect to, within what the machine's configuration allows to any sandbox.
//!
//! Three checks in this order: is the address in an allowed range, is it outside every denied
//! range, has an allowed name led to it. Allowed wins over denied. A range of everything
//! (`0.0.0.0/0`) covers both families: a list that was written with IPv4 in mind must not be open
//! over IPv6.
//!
//! A sandbox to which everything is denied may query allowed names only: a query carries its name
//! to the server of that zone, and would be an exfiltration channel by itself.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use crate::domain::Domain;
use crate::policy::embedded_v4;
use crate::proxy::Proxy;
use crate::requests::Headers;

/// Lists of what a sandbox may connect to, and its name servers. The default allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    ranges: Vec<IpNet>,
    names: Vec<Domain>,
    denied: Vec<IpNet>,
    nameservers: Vec<Ipv4Addr>,
    /// Sorted by exactness, the most exact first.
    headers: Vec<(Domain, Arc<Headers>)>,
    proxy: Option<Arc<Proxy>>,
}

/// An entry is not of a kind that its list accepts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{entry}' is not {}", if *names_too { "an IP address, a CIDR range or a domain name" } else { "an IP address or CIDR range" })]
pub struct InvalidRule {
    pub entry: String,
    /// Whether the list accepts names, too.
    pub names_too: bool,
}

/// Why an address may be connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// The address itself is allowed.
    Address,
    /// An allowed name led to it. Many names may share the address: the name that the connection
    /// itself asks for must be allowed, too.
    Name,
}

impl Rules {
    /// Parses the lists.
    /// # Errors
    /// [`InvalidRule`] with the first entry that is neither a range nor, where names are accepted,
    /// a name.
    pub fn new<S: AsRef<str>>(allow: &[S], deny: &[S], nameservers: &[Ipv4Addr]) -> Result<Self, InvalidRule> {
        let wrong = |entry: &str, names_too| InvalidRule { entry: entry.to_owned(), names_too };
        let mut rules = Self { nameservers: nameservers.to_vec(), ..Self::default() };
        for entry in allow.iter().map(AsRef::as_ref) {
            match (range(entry), entry.parse()) {
                (Some(range), _) => rules.ranges.push(range),
                (None, Ok(name)) => rules.names.push(name),
                (None, Err(_)) => return Err(wrong(entry, true)),
            }
        }
        let denied = deny.iter().map(AsRef::as_ref);
        let denied: Result<Vec<IpNet>, _> =
            denied.map(|entry| range(entry).ok_or_else(|| wrong(entry, false))).collect();
        // Two halves of everything are everything.
        rules.denied = IpNet::aggregate(&denied?);
        Ok(rules)
    }

    /// Sets headers for requests to these names; of several patterns that match a name, the most
    /// exact applies.
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (Domain, Headers)>) -> Self {
        self.headers = headers.into_iter().map(|(domain, headers)| (domain, Arc::new(headers))).collect();
        self.headers.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.exactness()));
        self
    }

    /// Sends TCP through this proxy.
    pub fn with_proxy(mut self, proxy: Option<Proxy>) -> Self {
        self.proxy = proxy.map(Arc::new);
        self
    }

    /// Denies everything that the rules do not allow.
    pub fn deny_everything(mut self) -> Self {
        self.denied = vec![Ipv4Net::default().into()];
        self
    }

    /// Whether the rules restrict or change nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
            && self.names.is_empty()
            && self.denied.is_empty()
            && self.headers.is_empty()
            && self.proxy.is_none()
    }

    /// Whether requests to some names get headers.
    pub fn sets_headers(&self) -> bool {
        !self.headers.is_empty()
    }

    pub(crate) fn headers_for(&self, name: &str) -> Option<Arc<Headers>> {
        self.headers.iter().find(|(domain, _)| domain.matches(name)).map(|(_, headers)| Arc::clone(headers))
    }

    pub(crate) fn proxy(&self) -> Option<&Arc<Proxy>> {
        self.proxy.as_ref()
    }

    pub(crate) fn nameservers(&self) -> &[Ipv4Addr] {
        &self.nameservers
    }

    /// Whether an address to which `names` have led is allowed, and why.
    pub(crate) fn grant<'a>(&self, address: IpAddr, mut names: impl Iterator<Item = &'a str>) -> Option<Grant> {
        if covers(&self.ranges, address) || !covers(&self.denied, address) {
            return Some(Grant::Address);
        }
        names.any(|name| self.names_it(name)).then_some(Grant::Name)
    }

    /// Whether `name` may be queried.
    pub(crate) fn may_ask(&self, name: &str) -> bool {
        !self.restricts_names() || self.names_it(name)
    }

    pub(crate) fn restricts_names(&self) -> bool {
        let everything = |ranges: &[IpNet]| ranges.iter().any(|range| range.prefix_len() == 0);
        everything(&self.denied) && !everything(&self.ranges)
    }

    /// Whether `name` is in the list of allowed names.
    pub(crate) fn names_it(&self, name: &str) -> bool {
        self.names.iter().any(|domain| domain.matches(name))
    }
}

fn range(entry: &str) -> Option<IpNet> {
    entry.parse().ok().or_else(|| Some(IpNet::from(entry.parse::<IpAddr>().ok()?)))
}

/// An IPv4 address embedded in an IPv6 one is in the same ranges as by itself.
fn covers(ranges: &[IpNet], address: IpAddr) -> bool {
    let embedded = match address {
        IpAddr::V6(address) => embedded_v4(address).map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    ranges.iter().any(|range| {
        range.prefix_len() == 0
            || range.contains(&address)
            || embedded.is_some_and(|embedded| range.contains(&embedded))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str], deny: &[&str]) -> Rules {
        Rules::new(allow, deny, &[]).unwrap()
    }

    #[track_caller]
    fn check(rules: &Rules, address: &str, names: &[&str], expected: Option<Grant>) {
        let found = rules.grant(address.parse().unwrap(), names.iter().copied());
        assert_eq!(found, expected, "{address} {names:?}");
    }

    #[test]
    fn without_rules_everything_may_be_reached_and_asked() {
        let open = Rules::default();
        check(&open, "1.1.1.1", &[], Some(Grant::Address));
        check(&open, "2606:4700::1111", &[], Some(Grant::Address));
        assert!(open.is_empty() && open.may_ask("any.example"));
    }

    #[test]
    fn allowed_wins_over_denied() {
        let both = rules(&["1.1.1.0/24", "9.9.9.9"], &["1.1.0.0/16", "9.9.9.9", "2606:4700::/32"]);
        check(&both, "1.1.1.7", &[], Some(Grant::Address));
        check(&both, "9.9.9.9", &[], Some(Grant::Address));
        check(&both, "1.1.2.7", &[], None);
        check(&both, "8.8.8.8", &[], Some(Grant::Address));
        check(&both, "2606:4700::1111", &[], None);
        // Only part of all addresses is denied, so queries leak no more than connections would.
        assert!(both.may_ask("any.example"));
    }

    #[test]
    fn everything_denied_is_denied_in_both_families_and_for_names() {
        for deny in [&["0.0.0.0/0"][..], &["0.0.0.0/1", "128.0.0.0/1"], &["::/0"]] {
            let closed = rules(&["1.1.1.1"], deny);
            check(&closed, "1.1.1.1", &[], Some(Grant::Address));
            check(&closed, "64:ff9b::1.1.1.1", &[], Some(Grant::Address));
            check(&closed, "1.1.1.2", &["any.example"], None);
            check(&closed, "2606:4700::1111", &[], None);
            assert!(!closed.may_ask("any.example"), "{deny:?}");
        }
        check(&Rules::default().deny_everything(), "1.1.1.1", &[], None);
        assert!(Rules::default().deny_everything().restricts_names());
    }

    #[test]
    fn an_address_in_disguise_is_denied_like_itself() {
        let some = rules(&[], &["9.9.9.9"]);
        check(&some, "64:ff9b::9.9.9.9", &[], None);
        check(&some, "2002:909:909::1", &[], None);
    }

    #[test]
    fn the_most_exact_pattern_sets_the_headers() {
        let headers = |value: &str| Headers::new([("x-a", value)]).unwrap();
        let pairs = ["*", "*.example.com", "api.example.com", "*.api.example.com"];
        let rules = Rules::default().with_headers(pairs.map(|name| (name.parse().unwrap(), headers(name))));
        for (name, expected) in [
            ("api.example.com", "api.example.com"),
            ("b.example.com", "*.example.com"),
            ("b.api.example.com", "*.api.example.com"),
            ("example.com", "*"),
        ] {
            assert_eq!(rules.headers_for(name).as_deref(), Some(&headers(expected)), "{name}");
        }
        assert!(!rules.is_empty() && Rules::default().headers_for("a.example").is_none());
    }

    #[test]
    fn names_allow_what_they_led_to_and_nothing_else() {
        let named = rules(&["*.example.com", "1.2.3.4"], &["0.0.0.0/0"]);
        check(&named, "5.5.5.5", &["api.example.com"], Some(Grant::Name));
        check(&named, "5.5.5.5", &["evil.org", "api.example.com"], Some(Grant::Name));
        check(&named, "5.5.5.5", &["evil.org"], None);
        check(&named, "5.5.5.5", &[], None);
        check(&named, "1.2.3.4", &["evil.org"], Some(Grant::Address));
        assert!(named.may_ask("api.example.com.") && !named.may_ask("example.com") && !named.may_ask("evil.org"));
    }

    #[test]
    fn everything_allowed_overrides_everything_denied() {
        let open = rules(&["0.0.0.0/0"], &["0.0.0.0/0"]);
        check(&open, "2606:4700::1111", &[], Some(Grant::Address));
        assert!(open.may_ask("any.example"));
    }

    #[test]
    fn what_is_neither_range_nor_name_is_refused() {
        for entry in ["1.2.3.4/33", "1.2.3", "a b", ""] {
            let wrong = Rules::new(&[entry], &[], &[]).unwrap_err();
            assert_eq!(wrong, InvalidRule { entry: entry.to_owned(), names_too: true });
        }
        let wrong = Rules::new(&[], &["example.com"], &[]).unwrap_err();
        assert_eq!(wrong.to_string(), "'example.com' is not an IP address or CIDR range");
    }
}
