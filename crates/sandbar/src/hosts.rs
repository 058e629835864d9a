//! The server's host names: the domain that SDKs append to `<port>-<id>.` to name a port of a
//! sandbox, and the authority that signs for them.

use anyhow::{Context, bail};
use ca::Authority;
use data_directory::AUTHORITY;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// Domains whose traffic SDKs always send to E2B.
const E2B_DOMAINS: [&str; 2] = ["e2b.app", "e2b.dev"];
/// Browsers resolve every name under it to this machine.
const LOCALHOST: &str = "localhost";
/// A DNS name has at most 253 characters, and `<port>-<id>.` is prepended.
const MAX_DOMAIN_LENGTH: usize = 200;

/// Refuses a value that is not a domain, with or without a port.
pub(crate) fn check_domain(domain: &str) -> anyhow::Result<()> {
    let (name, port) = split(domain);
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port != 0)) {
        bail!("domain: `{domain}` has no port behind its colon; leave the colon away for the listener's own");
    }
    if name.parse::<IpAddr>().is_ok() {
        bail!("domain: `{domain}` is an address, and addresses have no names below them; use a DNS name");
    }
    if !is_name(name) {
        bail!("domain: `{domain}` is not a DNS name such as `sandbox.example`, with or without a port behind it");
    }
    let name = name.to_ascii_lowercase();
    if E2B_DOMAINS.iter().any(|own| name == *own || name.ends_with(&format!(".{own}"))) {
        bail!("domain: `{domain}` belongs to E2B, and SDKs would send its traffic there; use a name of your own");
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= MAX_DOMAIN_LENGTH && name.split('.').all(is_label)
}

/// Refuses a dashboard's host that shares a domain with the previews below `domain`: their pages
/// could set its cookies.
pub(crate) fn check_dashboard(host: &str, domain: Option<&str>) -> anyhow::Result<()> {
    if !is_name(host) {
        bail!("dashboard_host: `{host}` is not a DNS name such as `dashboard.example`, without a port");
    }
    let host = host.to_ascii_lowercase();
    let domain = split(domain.unwrap_or(LOCALHOST)).0.to_ascii_lowercase();
    let is_within = |name: &str, parent: &str| name == parent || name.ends_with(&format!(".{parent}"));
    if is_within(&host, &domain) || is_within(&domain, &host) {
        bail!(
            "dashboard_host: `{host}` and the previews' domain `{domain}` are within one another, so that pages of \
             previews could set the dashboard's cookies; use a name of another domain"
        );
    }
    Ok(())
}

/// The domain of a server that listens at `address`.
pub(crate) fn domain(configured: Option<&str>, address: SocketAddr) -> String {
    /// The port when none is named: SDKs always use `https`.
    const HTTPS: u16 = 443;
    match configured.map(str::to_ascii_lowercase) {
        Some(domain) if split(&domain).1.is_some() || address.port() == HTTPS => domain,
        Some(domain) => format!("{domain}:{}", address.port()),
        None if address.ip().is_loopback() || address.ip().is_unspecified() => {
            format!("{LOCALHOST}:{}", address.port())
        }
        None => address.to_string(),
    }
}

/// Opens the authority of a data directory's hosts; the first call creates it. Its certificate is
/// limited to `localhost` and the configured domain, so that each domain, and each dashboard host,
/// has an authority. The egress authority is another one: a client that trusts one need not trust
/// the other.
pub(crate) fn authority(data: &Path, configured: Option<&str>, dashboard: Option<&str>) -> anyhow::Result<Authority> {
    let machine = rustix::system::uname();
    let name = match machine.nodename().to_string_lossy() {
        machine if machine.is_empty() => "Sandbar hosts".to_owned(),
        machine => format!("Sandbar hosts on {machine}"),
    };
    let domain = configured.map(|domain| split(domain).0.to_ascii_lowercase()).filter(|domain| domain != LOCALHOST);
    let (directory, mut only) = match &domain {
        Some(domain) => (format!("hosts-{domain}"), vec![LOCALHOST, domain]),
        None => ("hosts".to_owned(), vec![LOCALHOST]),
    };
    let mut directory = data.join(AUTHORITY).join(directory);
    let dashboard = dashboard.map(str::to_ascii_lowercase);
    if let Some(dashboard) = &dashboard {
        directory.push(format!("dashboard-{dashboard}"));
        only.push(dashboard);
    }
    Authority::open(&directory, &name, &only).context("no certificates can be signed")
}

/// Files in which distributions keep the trusted roots.
const HOST_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
const BUNDLE: &str = "roots.pem";
/// Limit of the delay by a name service that does not answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Writes a bundle of the host's roots and the authority's certificate, for programs whose
/// `SSL_CERT_FILE` replaces all other roots. [`None`] where the host has no bundle.
///
/// # Errors
/// [`io::Error`] of the write or of the rename.
pub(crate) fn write_bundle(authority: &Authority) -> io::Result<Option<PathBuf>> {
    let Some(roots) = HOST_ROOTS.iter().find_map(|file| fs::read_to_string(file).ok()) else { return Ok(None) };
    let bundle = format!("{}\n{}", roots.trim_end(), authority.certificate_pem());
    let file = authority.certificate_path().with_file_name(BUNDLE);
    if fs::read_to_string(&file).is_ok_and(|written| written == bundle) {
        return Ok(Some(file));
    }
    let draft = file.with_extension("new");
    fs::write(&draft, bundle)?;
    fs::rename(&draft, &file)?;
    Ok(Some(file))
}

/// Whether programs of this machine resolve the host names of sandboxes' ports. Browsers resolve
/// names below `localhost` by themselves, other programs need `libnss-myhostname`.
pub(crate) async fn names_resolve(domain: &str) -> bool {
    let host = format!("49999-sandbar.{}", split(domain).0);
    let lookup = tokio::net::lookup_host((host, 443));
    tokio::time::timeout(RESOLVE_TIMEOUT, lookup).await.is_ok_and(|found| found.is_ok())
}

fn split(domain: &str) -> (&str, Option<&str>) {
    domain.split_once(':').map_or((domain, None), |(name, port)| (name, Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_refused(domain: &str, expected: &str) {
        let error = check_domain(domain).expect_err(domain).to_string();
        assert!(error.contains(expected) && error.contains(domain), "{error}");
    }

    #[test]
    fn only_names_are_domains() {
        for domain in ["sandbox.example", "localhost", "Sandbox.Example:8443", "a-b.c"] {
            check_domain(domain).expect(domain);
        }
        assert_refused("", "not a DNS name");
        assert_refused("a_b.example", "not a DNS name");
        assert_refused(".example", "not a DNS name");
        assert_refused("https://sandbox.example", "no port");
        assert_refused("sandbox.example:", "no port");
        assert_refused("sandbox.example:0", "no port");
        assert_refused("10.0.0.1", "an address");
        assert_refused("e2b.app", "belongs to E2B");
        assert_refused("my.E2B.dev", "belongs to E2B");
    }

    #[test]
    fn a_dashboard_is_outside_of_the_previews_domain() {
        for (host, domain) in [
            ("dashboard.example", Some("sandbox.test")),
            ("Dash.corp.test", Some("sandbox.corp.test:443")),
            ("dash.test", None),
        ] {
            check_dashboard(host, domain).expect(host);
        }
        for (host, domain) in [
            ("sandbox.test", Some("sandbox.test")),
            ("dash.Sandbox.test", Some("sandbox.test:8443")),
            ("test", Some("sandbox.test")),
            ("dash.localhost", None),
            ("dash.test:443", None),
            ("", None),
        ] {
            let error = check_dashboard(host, domain).expect_err(host).to_string();
            assert!(error.starts_with("dashboard_host: "), "{error}");
        }
    }

    #[test]
    fn the_port_is_the_listener_s_unless_it_is_named() {
        let at = |address: &str| address.parse().expect("an address");
        assert_eq!(domain(None, at("127.0.0.1:4980")), "localhost:4980");
        assert_eq!(domain(None, at("0.0.0.0:4980")), "localhost:4980");
        assert_eq!(domain(None, at("10.0.0.1:4980")), "10.0.0.1:4980");
        assert_eq!(domain(Some("Sandbox.example"), at("0.0.0.0:4980")), "sandbox.example:4980");
        assert_eq!(domain(Some("sandbox.example"), at("0.0.0.0:443")), "sandbox.example");
        assert_eq!(domain(Some("sandbox.example:443"), at("0.0.0.0:4980")), "sandbox.example:443");
    }
}
