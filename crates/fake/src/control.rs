//! Control-plane calls on sandboxes and snapshots; other resources have their own files.

use std::collections::BTreeMap;

use jiff::Timestamp;
use protocol::headers::{IDEMPOTENCY_KEY, TOTAL_RUNNING};
use protocol::rest::{
    Connect, ErrorBody, Fork, ForkResult, ListedSandbox, NetworkUpdate, NewSandbox, NewSnapshot, Pause, Refresh,
    Resume, SANDBOX_FILES_MISSING, SandboxLog, SandboxLogEntry, SandboxLogPage, SandboxLogs, SandboxMetric,
    SandboxState, SandboxesMetrics, Timeout,
};

use crate::Shared;
use crate::exchange::{FakeRequest, FakeResponse, decode, empty, json, page, refuse};
use crate::state::{FakeSandbox, FakeState, lifetime};
use crate::{secrets, templates, volumes};

type FakeResult = Result<FakeResponse, FakeResponse>;

pub(crate) fn handle(shared: &Shared, request: &FakeRequest) -> FakeResponse {
    let mut state = shared.state();
    state.expire();
    let segments = request.segments();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let served = match (request.method.as_str(), segments.as_slice()) {
        ("GET", ["health"]) => Ok(empty(204)),
        ("POST", ["sandboxes"]) => create(&mut state, request, None),
        ("POST", ["v2", "sandboxes"]) => create(&mut state, request, request.header(IDEMPOTENCY_KEY)),
        ("GET", ["v2", "sandboxes"]) => Ok(list(&state, request)),
        ("GET", ["sandboxes"]) => {
            let running = |row: &ListedSandbox| row.state == SandboxState::Running;
            Ok(json(200, &rows(&state, request).into_iter().filter(running).collect::<Vec<_>>()))
        }
        ("GET", ["sandboxes", "metrics"]) => Ok(latest_metrics(&state, request)),
        ("GET", ["snapshots"]) => Ok(templates::snapshots(&state, request)),
        (_, ["templates" | "upload", ..] | ["v2" | "v3", "templates", ..]) => {
            templates::handle(&mut state, shared.address, request, &segments)
        }
        (_, ["volumes" | "volumecontent", ..]) => volumes::handle(&mut state, request, &segments),
        (_, ["secrets", ..]) => secrets::handle(&mut state, request, &segments),
        ("DELETE", ["sandboxes", id]) => match state.sandboxes.remove(strip_client_id(id)) {
            Some(mut sandbox) => {
                sandbox.processes.cut();
                Ok(empty(204))
            }
            None => Err(sandbox_not_found(id)),
        },
        ("POST", ["sandboxes", id, "fork"]) => fork(&mut state, request, strip_client_id(id)),
        ("POST", ["sandboxes", id, "snapshots"]) => snapshot(&mut state, request, strip_client_id(id)),
        (method, ["v2", "sandboxes", id, rest @ ..] | ["sandboxes", id, rest @ ..]) => {
            let second = segments[0] == "v2";
            match state.sandboxes.get_mut(strip_client_id(id)) {
                Some(sandbox) => call_sandbox(sandbox, request, method, rest, second),
                None => Err(sandbox_not_found(id)),
            }
        }
        _ => Err(refuse(404, format!("path '{}' not found", request.path()))),
    };
    served.unwrap_or_else(|refusal| refusal)
}

/// Removes the client id of the older id form.
fn strip_client_id(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

fn sandbox_not_found(id: &str) -> FakeResponse {
    refuse(404, format!("sandbox '{id}' not found"))
}

fn create(state: &mut FakeState, request: &FakeRequest, key: Option<&str>) -> FakeResult {
    if let Some((body, made)) = key.and_then(|key| state.created.get(key)) {
        if *body == request.body {
            return Ok(json(201, made));
        }
        let body = ErrorBody {
            code: 422,
            message: "the idempotency key was used for another request".into(),
            error_code: Some("idempotency_request_mismatch".into()),
        };
        return Err(json(422, &body));
    }
    let new: NewSandbox = request.json()?;
    let Some(reference) = new.template_id.clone() else { return Err(refuse(400, "templateID is required")) };
    if new.timeout.is_some_and(|timeout| timeout <= 0) {
        return Err(refuse(400, "Timeout must be greater than 0"));
    }
    let missing = |mount: &&protocol::rest::VolumeMount| !state.volumes.values().any(|held| held.name == mount.name);
    if let Some(mount) = new.volume_mounts.iter().flatten().find(missing) {
        return Err(refuse(400, format!("volume '{}' not found", mount.name)));
    }
    let (template, files) = templates::resolve(state, &reference)?;
    let made = state.make(template, new, files);
    if let Some(key) = key {
        state.created.insert(key.to_owned(), (request.body.clone(), made.clone()));
    }
    Ok(json(201, &made))
}

fn rows(state: &FakeState, request: &FakeRequest) -> Vec<ListedSandbox> {
    let wanted: BTreeMap<String, String> = match request.query("metadata") {
        Some(form) => form
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (decode(&decode(key)), decode(&decode(value))))
            .collect(),
        None => BTreeMap::new(),
    };
    let states = request.query("state");
    let after = request.query("startedAfter").and_then(|text| text.parse::<Timestamp>().ok());
    let template = request.query("template");
    let matches = |sandbox: &&FakeSandbox| {
        let state = match sandbox.state {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
        };
        let metadata = sandbox.request.metadata.as_ref();
        states.as_ref().is_none_or(|states| states.split(',').any(|wanted| wanted == state))
            && after.is_none_or(|after| sandbox.started_at >= after)
            && template.as_ref().is_none_or(|name| sandbox.template_id == *name || sandbox.alias.as_ref() == Some(name))
            && wanted.iter().all(|(key, value)| metadata.is_some_and(|known| known.get(key) == Some(value)))
    };
    let mut found: Vec<&FakeSandbox> = state.sandboxes.values().filter(matches).collect();
    found.sort_by_key(|sandbox| sandbox.started_at);
    if request.query("order").as_deref() != Some("asc") {
        found.reverse();
    }
    found.into_iter().map(FakeSandbox::listed).collect()
}

fn list(state: &FakeState, request: &FakeRequest) -> FakeResponse {
    let rows = rows(state, request);
    let running = rows.iter().filter(|row| row.state == SandboxState::Running).count();
    page(request, &rows).with(TOTAL_RUNNING, &running.to_string())
}

/// Calls on one sandbox.
fn call_sandbox(
    sandbox: &mut FakeSandbox,
    request: &FakeRequest,
    method: &str,
    rest: &[&str],
    second: bool,
) -> FakeResult {
    let running = sandbox.state == SandboxState::Running;
    if !running && sandbox.files_missing && matches!(rest, ["connect" | "resume"]) {
        let message = format!("the files of sandbox {} are missing", sandbox.id);
        let error_code = Some(SANDBOX_FILES_MISSING.to_owned());
        return Err(json(410, &ErrorBody { code: 410, message, error_code }));
    }
    match (method, rest, second) {
        ("GET", [], false) => Ok(json(200, &sandbox.detail())),
        ("POST", ["connect"], _) => {
            let body: Connect = request.json()?;
            let seconds = match body.timeout {
                Some(seconds) => seconds,
                None if second => 300,
                None => return Err(refuse(400, "timeout is required")),
            };
            if running {
                sandbox.end_at = sandbox.end_at.max(sandbox.clock.now() + lifetime(seconds));
                return Ok(json(200, &sandbox.wire()));
            }
            sandbox.resume(seconds);
            Ok(json(201, &sandbox.wire()))
        }
        ("POST", ["resume"], false) => {
            if running {
                return Err(refuse(409, format!("sandbox '{}' is running", sandbox.id)));
            }
            let body: Resume = request.json()?;
            sandbox.resume(body.timeout.unwrap_or(15));
            Ok(json(201, &sandbox.wire()))
        }
        ("POST", ["pause"], false) => {
            let body: Pause = request.json()?;
            if !running {
                return Err(refuse(409, format!("sandbox '{}' is paused already", sandbox.id)));
            }
            sandbox.pause(body.memory != Some(false));
            Ok(empty(204))
        }
        ("POST", ["timeout"], false) if running => {
            let body: Timeout = request.json()?;
            sandbox.end_at = sandbox.clock.now() + lifetime(body.timeout);
            Ok(empty(204))
        }
        ("POST", ["refreshes"], false) if running => {
            let body: Refresh = request.json()?;
            let seconds = body.duration.unwrap_or(15);
            if !(0..=3600).contains(&seconds) {
                return Err(refuse(400, "duration must be between 0 and 3600"));
            }
            sandbox.end_at = sandbox.end_at.max(sandbox.clock.now() + lifetime(seconds.max(15)));
            Ok(empty(204))
        }
        ("PUT", ["network"], false) if running => {
            let NetworkUpdate { allow_out, deny_out, dns_servers, egress_proxy, rules, allow_internet_access } =
                request.json()?;
            let network = &mut sandbox.network;
            (network.allow_out, network.deny_out, network.dns_servers) = (allow_out, deny_out, dns_servers);
            (network.egress_proxy, network.rules) = (egress_proxy, rules);
            sandbox.request.allow_internet_access = allow_internet_access;
            Ok(empty(204))
        }
        ("GET", ["metrics"], false) => {
            let from = request.query("start").and_then(|text| text.parse::<i64>().ok()).unwrap_or(i64::MIN);
            let until = request.query("end").and_then(|text| text.parse::<i64>().ok()).unwrap_or(i64::MAX);
            let metric = metric(sandbox);
            let readings = (from..=until).contains(&metric.timestamp_unix).then_some(metric);
            Ok(json(200, &Vec::from_iter(readings)))
        }
        ("GET", ["logs"], false) => {
            let start = request.query("start").and_then(|text| text.parse().ok()).unwrap_or(i64::MIN);
            let limit = request.query("limit").and_then(|text| text.parse().ok()).unwrap_or(1000);
            let entries = sandbox.log.iter().filter(|entry| millisecond(entry) >= start).take(limit);
            let entries: Vec<SandboxLogEntry> = entries.cloned().collect();
            let line = |SandboxLogEntry { timestamp, message, .. }: &SandboxLogEntry| SandboxLog {
                timestamp: timestamp.clone(),
                line: message.clone(),
            };
            Ok(json(200, &SandboxLogs { logs: entries.iter().map(line).collect(), log_entries: entries }))
        }
        ("GET", ["logs"], true) => Ok(json(200, &SandboxLogPage { logs: log(sandbox, request) })),
        (_, ["timeout" | "refreshes" | "network"], false) => Err(sandbox_not_found(&sandbox.id)),
        _ => Err(refuse(404, format!("path '{}' not found", request.path()))),
    }
}

fn millisecond(entry: &SandboxLogEntry) -> i64 {
    entry.timestamp.parse::<Timestamp>().map_or(0, Timestamp::as_millisecond)
}

/// All entries have the level `info`.
fn log(sandbox: &FakeSandbox, request: &FakeRequest) -> Vec<SandboxLogEntry> {
    let backward = request.query("direction").as_deref() != Some("forward");
    let cursor = request.query("cursor").and_then(|text| text.parse::<i64>().ok());
    let search = request.query("search").unwrap_or_default();
    let serious = matches!(request.query("level").as_deref(), Some("warn" | "error"));
    let limit = request.query("limit").and_then(|text| text.parse().ok()).unwrap_or(1000);
    let within = |entry: &&SandboxLogEntry| match cursor {
        None => true,
        Some(cursor) if backward => millisecond(entry) <= cursor,
        Some(cursor) => millisecond(entry) >= cursor,
    };
    let mut entries: Vec<SandboxLogEntry> = sandbox.log.iter().filter(within).cloned().collect();
    entries.retain(|entry| !serious && entry.message.contains(&search));
    if backward {
        entries.reverse();
    }
    entries.truncate(limit);
    entries
}

fn metric(sandbox: &FakeSandbox) -> SandboxMetric {
    let listed = sandbox.listed();
    let mib = |size: u32| u64::from(size) << 20;
    SandboxMetric {
        timestamp: sandbox.started_at.to_string(),
        timestamp_unix: sandbox.started_at.as_second(),
        cpu_count: listed.cpu_count,
        cpu_used_pct: 1.5,
        mem_used: mib(listed.memory_mb) / 4,
        mem_total: mib(listed.memory_mb),
        mem_cache: 0,
        disk_used: 4096,
        disk_total: mib(listed.disk_size_mb),
    }
}

fn latest_metrics(state: &FakeState, request: &FakeRequest) -> FakeResponse {
    let ids = request.query("sandbox_ids").unwrap_or_default();
    let known = ids.split(',').filter_map(|id| state.sandboxes.get(id));
    let sandboxes = known.map(|sandbox| (sandbox.id.clone(), metric(sandbox))).collect();
    json(200, &SandboxesMetrics { sandboxes })
}

fn fork(state: &mut FakeState, request: &FakeRequest, id: &str) -> FakeResult {
    let Fork { timeout, count } = request.json()?;
    let source = state.sandboxes.get(id).ok_or_else(|| sandbox_not_found(id))?;
    if source.state != SandboxState::Running {
        return Err(refuse(409, format!("sandbox '{id}' is not running")));
    }
    let count = count.unwrap_or(1);
    if !(1..=100).contains(&count) {
        return Err(refuse(400, "count must be between 1 and 100"));
    }
    let template = (source.template_id.clone(), source.alias.clone());
    let mut new = source.request.clone();
    new.timeout = timeout.or(Some(300));
    let files = source.files.clone();
    let mut child = || state.make(template.clone(), new.clone(), files.clone());
    let children: Vec<ForkResult> = (0..count).map(|_| ForkResult { sandbox: Some(child()), error: None }).collect();
    Ok(json(201, &children))
}

fn snapshot(state: &mut FakeState, request: &FakeRequest, id: &str) -> FakeResult {
    let NewSnapshot { name, .. } = request.json()?;
    let source = state.sandboxes.get(id).ok_or_else(|| sandbox_not_found(id))?;
    let files = source.files.clone();
    Ok(json(201, &templates::save_snapshot(state, id, name.as_deref(), files)))
}
