//! Network and identity settings of create and update calls: checked as E2B checks them, then
//! refused with 501 if they are not implemented, since ignoring a restriction would be worse than
//! refusing it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use http::{Request, StatusCode};
use node::{EVERYTHING, Egress, EgressLists, EgressProxy, EgressProxyTls, Ingress, InvalidEgress, SandboxId};
use protocol::guest::ENVD_PORT;
use protocol::rest::{Network, NetworkUpdate};
use serde::Deserialize;
use serde_json::Value;

use super::failure::Failure;
use super::{CallResult, payload};
use crate::body;
use crate::content::Content;
use crate::server::App;

const MOST_RULES: usize = 10;
const MOST_RULE_HEADERS: usize = 20;
const LONGEST_DOMAIN: usize = 128;
const LONGEST_HEADER_NAME: usize = 64;
const LONGEST_HEADER_VALUE: usize = 2048;
/// A name, `:` and a port, with space for `${PORT}`.
const LONGEST_HOST: usize = 300;
const MOST_IAM_TOKENS: usize = 5;
/// Every connection is checked against each of them.
const MOST_ENTRIES: usize = 4096;

/// Refuses invalid rules. [`egress`] and [`ingress`] check the rest.
pub(super) fn check(network: &Network) -> Result<(), Failure> {
    network.rules.as_ref().map_or(Ok(()), check_rules)
}

/// `PUT /sandboxes/{id}/network`: omitted fields are cleared.
pub(super) async fn update(app: &App, id: &SandboxId, request: Request<Content>) -> CallResult {
    let NetworkUpdate { allow_out, deny_out, dns_servers, egress_proxy, rules, allow_internet_access } =
        payload::read_json(request).await?;
    let network = Network { allow_out, deny_out, dns_servers, egress_proxy, rules, ..Network::default() };
    check(&network)?;
    let egress = egress(&network, allow_internet_access)?;
    app.node.set_egress(id, egress, allow_internet_access).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// Validates how the sandbox's services are reached.
pub(super) fn ingress(network: &Network) -> Result<Ingress, Failure> {
    let mask_request_host = network.mask_request_host.clone().filter(|mask| !mask.is_empty());
    if let Some(mask) = &mask_request_host {
        if !mask.is_ascii() {
            return Err(Failure::bad_request("network.maskRequestHost must be ASCII"));
        }
        if mask.len() > LONGEST_HOST || mask.bytes().any(|byte| !byte.is_ascii_graphic()) {
            let message = format!("network.maskRequestHost must be a host name of at most {LONGEST_HOST} characters");
            return Err(Failure::bad_request(message));
        }
    }
    let https_ports = network.https_ports.iter().flatten().map(|port| match u16::try_from(*port) {
        Ok(ENVD_PORT) => Err(Failure::bad_request(format!("network.httpsPorts must not hold {ENVD_PORT}"))),
        Ok(0) | Err(_) => Err(Failure::bad_request(format!("network.httpsPorts: {port} is not a port"))),
        Ok(port) => Ok(port),
    });
    let mut https_ports = https_ports.collect::<Result<Vec<_>, _>>()?;
    https_ports.sort_unstable();
    https_ports.dedup();
    Ok(Ingress { mask_request_host, https_ports })
}

/// Validates the egress lists of a sandbox.
pub(super) fn egress(network: &Network, allow_internet: Option<bool>) -> Result<Egress, Failure> {
    let mut allow_out = network.allow_out.clone().unwrap_or_default();
    let mut deny_out = network.deny_out.clone().unwrap_or_default();
    if let Some(ranges) = &network.egress_cidrs {
        if let Some(entry) = ranges.iter().find(|entry| !is_range(entry)) {
            let message = format!("network.egressCIDRs: '{entry}' is not an IP address or CIDR range");
            return Err(Failure::bad_request(message));
        }
        allow_out.extend(ranges.iter().cloned());
        deny_out.push(EVERYTHING.to_owned());
    }
    let everything_denied = allow_internet == Some(false) || deny_out.iter().any(|entry| entry == EVERYTHING);
    if allow_out.len() + deny_out.len() > MOST_ENTRIES {
        return Err(Failure::bad_request(format!("network: more than {MOST_ENTRIES} entries in its lists")));
    }
    let dns_servers = network.dns_servers.iter().flatten().map(|server| {
        let wrong = || Failure::bad_request(format!("network.dnsServers: '{server}' is not an IPv4 address"));
        server.parse().map_err(|_| wrong())
    });
    let dns_servers = dns_servers.collect::<Result<_, _>>()?;
    let domain = allow_out.iter().find(|entry| !is_range(entry)).cloned();
    let (headers, proxy) = (headers(network.rules.as_ref())?, proxy(network.egress_proxy.as_ref())?);
    let marked = |field| domains_with(network.rules.as_ref(), field);
    let (allow_plaintext, inspect) = (marked(ALLOW_PLAINTEXT)?, marked(INSPECT)?);
    let lists = EgressLists { allow_out, deny_out, dns_servers, headers, allow_plaintext, inspect, proxy };
    let egress = Egress::try_from(lists).map_err(|wrong| {
        let field = match &wrong {
            InvalidEgress::List(list) if list.names_too => "allowOut",
            InvalidEgress::List(_) => "denyOut",
            InvalidEgress::Domain(_) | InvalidEgress::Header { .. } => "rules",
            InvalidEgress::Proxy(_) => "egressProxy",
        };
        Failure::bad_request(format!("network.{field}: {wrong}"))
    })?;
    match domain.filter(|_| !everything_denied) {
        Some(domain) => Err(Failure::bad_request(format!(
            "network.allowOut: the domain '{domain}' needs '{EVERYTHING}' in network.denyOut"
        ))),
        None => Ok(egress),
    }
}

/// The headers that rules set, by domain. A rule without headers has an entry, too.
fn headers(
    rules: Option<&BTreeMap<String, Vec<Value>>>,
) -> Result<BTreeMap<String, BTreeMap<String, String>>, Failure> {
    let read = |(domain, rules): (&String, &Vec<Value>)| {
        let headers =
            rules.first().and_then(|rule| rule.pointer("/transform/headers")).filter(|given| !given.is_null());
        let headers = headers.map_or(Ok(BTreeMap::new()), BTreeMap::deserialize);
        let wrong = || Failure::bad_request(format!("network.rules: '{domain}' has a header whose value is no text"));
        Ok((domain.clone(), headers.map_err(|_| wrong())?))
    };
    rules.into_iter().flatten().map(read).collect()
}

/// Fields of a rule beside E2B's own `transform`. Each is a Boolean.
pub(super) const ALLOW_PLAINTEXT: &str = "allowPlaintext";
pub(super) const INSPECT: &str = "inspect";

/// The domains whose rule sets `field`.
fn domains_with(rules: Option<&BTreeMap<String, Vec<Value>>>, field: &str) -> Result<BTreeSet<String>, Failure> {
    let mut domains = BTreeSet::new();
    for (domain, rules) in rules.into_iter().flatten() {
        match rules.first().and_then(|rule| rule.get(field)) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => drop(domains.insert(domain.clone())),
            Some(_) => {
                let message = format!("network.rules: '{domain}': {field} must be true or false");
                return Err(Failure::bad_request(message));
            }
        }
    }
    Ok(domains)
}

/// `network.egressProxy` as it is sent.
#[derive(Deserialize)]
struct ProxyBody {
    address: String,
    username: Option<String>,
    password: Option<String>,
    tls: Option<ProxyTlsBody>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProxyTlsBody {
    enabled: Option<bool>,
    server_name: Option<String>,
    ca_cert: Option<String>,
}

fn proxy(body: Option<&Value>) -> Result<Option<EgressProxy>, Failure> {
    let Some(body) = body.filter(|body| !body.is_null()) else { return Ok(None) };
    // serde's message may contain a value, such as the password, and is not shown.
    let wrong = |_| {
        let fields = "address, and perhaps username, password and tls {enabled, serverName, caCert}";
        Failure::bad_request(format!("network.egressProxy: must be an object with {fields}"))
    };
    let ProxyBody { address, username, password, tls } = ProxyBody::deserialize(body).map_err(wrong)?;
    let tls = tls.filter(|tls| tls.enabled != Some(false));
    let tls = tls
        .map(|ProxyTlsBody { enabled: _, server_name, ca_cert }| EgressProxyTls { server_name, certificates: ca_cert });
    Ok(Some(EgressProxy { address, username, password: password.map(Into::into), tls }))
}

fn is_range(entry: &str) -> bool {
    let (address, length) = entry.split_once('/').unwrap_or((entry, ""));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    (!entry.contains('/')) || length.parse::<u8>().is_ok_and(|length| length <= most)
}

fn check_rules(rules: &BTreeMap<String, Vec<Value>>) -> Result<(), Failure> {
    let wrong = |what: String| Err(Failure::bad_request(format!("network.rules: {what}")));
    if rules.len() > MOST_RULES {
        return wrong(format!("{} domains; {MOST_RULES} are the most", rules.len()));
    }
    for (domain, transforms) in rules {
        if domain.len() > LONGEST_DOMAIN {
            return wrong(format!("a domain is longer than {LONGEST_DOMAIN} characters"));
        }
        if transforms.len() > 1 {
            return wrong(format!("'{domain}' has {} transforms; one is the most", transforms.len()));
        }
        let headers = transforms.first().and_then(|rule| rule.pointer("/transform/headers")).and_then(Value::as_object);
        let Some(headers) = headers else { continue };
        if headers.len() > MOST_RULE_HEADERS {
            return wrong(format!("'{domain}' has {} headers; {MOST_RULE_HEADERS} are the most", headers.len()));
        }
        if headers.keys().any(|name| name.len() > LONGEST_HEADER_NAME) {
            return wrong(format!("'{domain}' has a header name longer than {LONGEST_HEADER_NAME} characters"));
        }
        if headers.values().any(|value| value.as_str().is_none_or(|value| value.len() > LONGEST_HEADER_VALUE)) {
            return wrong(format!("'{domain}' has a header value longer than {LONGEST_HEADER_VALUE} characters"));
        }
    }
    Ok(())
}

pub(super) fn check_iam(iam: &Value) -> Result<(), Failure> {
    let Some(tokens) = iam.get("tokens").and_then(Value::as_object) else { return Ok(()) };
    if tokens.len() > MOST_IAM_TOKENS {
        let message = format!("iam.tokens: {} tokens; {MOST_IAM_TOKENS} are the most", tokens.len());
        return Err(Failure::bad_request(message));
    }
    let kinds = tokens.iter().filter_map(|(name, token)| Some((name, token.get("tokenType")?)));
    match kinds.into_iter().find(|(_, kind)| kind.as_str() != Some("JWT-SVID")) {
        Some((name, _)) => Err(Failure::bad_request(format!("iam.tokens: the type of '{name}' must be JWT-SVID"))),
        None => Ok(()),
    }
}

/// Refuses valid settings that are not implemented.
pub(super) fn refuse_unimplemented(iam: Option<&Value>) -> Result<(), Failure> {
    let has_tokens = iam.and_then(|iam| iam.get("tokens")?.as_object()).is_some_and(|tokens| !tokens.is_empty());
    if has_tokens {
        return Err(Failure::new(StatusCode::NOT_IMPLEMENTED, "iam is not implemented by this server yet"));
    }
    Ok(())
}
