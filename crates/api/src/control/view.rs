//! Conversion of the node's sandboxes to wire types. Every field is named, so that a new one
//! compiles only after its meaning on the wire is decided.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use node::{Created, EgressLists, EgressProxy, EgressProxyTls, OnTimeout, PersistedState, Record, Seen, VolumeMount};
use protocol::guest::ENVD_VERSION;
use protocol::rest::{self, Lifecycle, ListedSandbox, Network, Sandbox, SandboxDetail, SandboxState};
use serde_json::{Map, Value, json};

use super::network::{ALLOW_PLAINTEXT, INSPECT};

/// Required by clients and used by none.
const CLIENT_ID: &str = "sandbar";

/// Always with microseconds: the text of a moment must not change between two responses.
pub(super) fn time(moment: Timestamp) -> String {
    format!("{moment:.6}")
}

pub(super) fn sandbox(created: Created, domain: &str) -> Sandbox {
    let Created { id, template, access_token, traffic_token } = created;
    Sandbox {
        template_id: template.id,
        sandbox_id: id.to_string(),
        client_id: CLIENT_ID.to_owned(),
        envd_version: ENVD_VERSION.to_owned(),
        alias: template.alias,
        envd_access_token: access_token.map(|token| token.reveal().to_owned()),
        traffic_access_token: traffic_token.map(|token| token.reveal().to_owned()),
        domain: Some(domain.to_owned()),
    }
}

pub(super) fn list_entry(seen: &Seen) -> ListedSandbox {
    let Seen { record, standing } = seen;
    let (state, pause_mode) = match *standing {
        PersistedState::Running => (SandboxState::Running, None),
        PersistedState::Paused(mode) => (SandboxState::Paused, Some(mode)),
    };
    ListedSandbox {
        template_id: record.template.id.clone(),
        alias: record.template.alias.clone(),
        sandbox_id: record.id.to_string(),
        client_id: CLIENT_ID.to_owned(),
        started_at: time(record.started_at),
        end_at: time(record.end_at),
        envd_version: ENVD_VERSION.to_owned(),
        cpu_count: record.spec.resources.cpu_count,
        memory_mb: record.spec.resources.memory_mb,
        disk_size_mb: record.spec.resources.disk_mb,
        state,
        metadata: record.spec.metadata.clone(),
        volume_mounts: record.spec.volumes.iter().map(mount).collect(),
        pause_mode,
    }
}

fn mount(mount: &VolumeMount) -> rest::VolumeMount {
    rest::VolumeMount { name: mount.name.clone(), path: mount.path.clone() }
}

/// The rules as they were sent. Secrets are referred to by name.
fn rules(lists: &EgressLists) -> BTreeMap<String, Vec<Value>> {
    let domains: BTreeSet<&String> = lists.headers.keys().chain(&lists.inspect).collect();
    let rule = |domain: &String| {
        let mut rule = Map::new();
        if let Some(headers) = lists.headers.get(domain).filter(|headers| !headers.is_empty()) {
            rule.insert("transform".to_owned(), json!({ "headers": headers }));
        }
        for (field, domains) in [(ALLOW_PLAINTEXT, &lists.allow_plaintext), (INSPECT, &lists.inspect)] {
            if domains.contains(domain) {
                rule.insert(field.to_owned(), true.into());
            }
        }
        (domain.clone(), Some(rule).filter(|rule| !rule.is_empty()).map(Value::Object).into_iter().collect())
    };
    domains.into_iter().map(rule).collect()
}

/// Without the password and the certificates, like E2B.
fn egress_proxy(proxy: &EgressProxy) -> Value {
    let EgressProxy { address, username, password: _, tls } = proxy;
    let mut shown = json!({ "address": address });
    if let Some(username) = username {
        shown["username"] = json!(username);
    }
    if let Some(EgressProxyTls { server_name, certificates: _ }) = tls {
        shown["tls"] = json!({ "enabled": true });
        if let Some(name) = server_name {
            shown["tls"]["serverName"] = json!(name);
        }
    }
    shown
}

pub(super) fn detail(seen: &Seen, domain: &str) -> SandboxDetail {
    let record: &Record = &seen.record;
    let rules = rules(record.spec.egress.lists());
    let EgressLists { allow_out, deny_out, dns_servers, headers: _, allow_plaintext: _, inspect: _, proxy } =
        record.spec.egress.lists().clone();
    let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
    let network = Network {
        allow_public_traffic: Some(record.traffic_token.is_none()),
        allow_out: some(allow_out),
        deny_out: some(deny_out),
        rules: Some(rules).filter(|rules| !rules.is_empty()),
        egress_proxy: proxy.as_ref().map(egress_proxy),
        dns_servers: some(dns_servers.iter().map(ToString::to_string).collect()),
        mask_request_host: record.spec.ingress.mask_request_host.clone(),
        https_ports: Some(record.spec.ingress.https_ports.iter().map(|port| u32::from(*port)).collect())
            .filter(|ports: &Vec<u32>| !ports.is_empty()),
        ..Network::default()
    };
    SandboxDetail {
        listed: list_entry(seen),
        envd_access_token: record.access_token.as_ref().map(|token| token.reveal().to_owned()),
        allow_internet_access: record.spec.allow_internet,
        domain: Some(domain.to_owned()),
        network: Some(network),
        lifecycle: Some(Lifecycle {
            auto_resume: record.spec.auto_resume,
            on_timeout: match record.spec.on_timeout {
                OnTimeout::Kill => rest::OnTimeout::Kill,
                OnTimeout::Pause(_) => rest::OnTimeout::Pause,
            },
        }),
    }
}
