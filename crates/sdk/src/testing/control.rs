//! The control plane's calls on sandboxes and snapshots; the other subjects have files of their own.

use std::collections::BTreeMap;

use jiff::Timestamp;
use protocol::headers::{IDEMPOTENCY_KEY, TOTAL_RUNNING};
use protocol::rest::{
    Connect, ErrorBody, Fork, ForkResult, ListedSandbox, NetworkUpdate, NewSandbox, NewSnapshot, Pause, Refresh,
    Resume, SANDBOX_FILES_MISSING, SandboxLog, SandboxLogEntry, SandboxLogPage, SandboxLogs, SandboxMetric,
    SandboxState, SandboxesMetrics, Timeout,
};

use super::Shared;
use super::exchange::{Answer, Asked, decode, empty, json, page, refuse};
use super::world::{HeldSandbox, World, lifetime};
use super::{secrets, templates, volumes};

type Served = Result<Answer, Answer>;

pub(super) fn answer(shared: &Shared, asked: &Asked) -> Answer {
    let mut world = shared.world();
    world.expire();
    let segments = asked.segments();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let served = match (asked.method.as_str(), segments.as_slice()) {
        ("GET", ["health"]) => Ok(empty(204)),
        ("POST", ["sandboxes"]) => create(&mut world, asked, None),
        ("POST", ["v2", "sandboxes"]) => create(&mut world, asked, asked.header(IDEMPOTENCY_KEY)),
        ("GET", ["v2", "sandboxes"]) => Ok(list(&world, asked)),
        ("GET", ["sandboxes"]) => {
            let running = |row: &ListedSandbox| row.state == SandboxState::Running;
            Ok(json(200, &rows(&world, asked).into_iter().filter(running).collect::<Vec<_>>()))
        }
        ("GET", ["sandboxes", "metrics"]) => Ok(latest(&world, asked)),
        ("GET", ["snapshots"]) => Ok(templates::snapshots(&world, asked)),
        (_, ["templates" | "upload", ..] | ["v2" | "v3", "templates", ..]) => {
            templates::answer(&mut world, shared.address, asked, &segments)
        }
        (_, ["volumes" | "volumecontent", ..]) => volumes::answer(&mut world, asked, &segments),
        (_, ["secrets", ..]) => secrets::answer(&mut world, asked, &segments),
        ("DELETE", ["sandboxes", id]) => match world.sandboxes.remove(bare(id)) {
            Some(mut sandbox) => {
                sandbox.processes.cut();
                Ok(empty(204))
            }
            None => Err(unknown(id)),
        },
        ("POST", ["sandboxes", id, "fork"]) => fork(&mut world, asked, bare(id)),
        ("POST", ["sandboxes", id, "snapshots"]) => snapshot(&mut world, asked, bare(id)),
        (method, ["v2", "sandboxes", id, rest @ ..] | ["sandboxes", id, rest @ ..]) => {
            let second = segments[0] == "v2";
            match world.sandboxes.get_mut(bare(id)) {
                Some(sandbox) => one(sandbox, asked, method, rest, second),
                None => Err(unknown(id)),
            }
        }
        _ => Err(refuse(404, format!("path '{}' not found", asked.path()))),
    };
    served.unwrap_or_else(|refusal| refusal)
}

/// Without the older form's client id.
fn bare(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

fn unknown(id: &str) -> Answer {
    refuse(404, format!("sandbox '{id}' not found"))
}

fn create(world: &mut World, asked: &Asked, key: Option<&str>) -> Served {
    if let Some((body, made)) = key.and_then(|key| world.created.get(key)) {
        if *body == asked.body {
            return Ok(json(201, made));
        }
        let body = ErrorBody {
            code: 422,
            message: "the idempotency key was used for another request".into(),
            error_code: Some("idempotency_request_mismatch".into()),
        };
        return Err(json(422, &body));
    }
    let new: NewSandbox = asked.json()?;
    let Some(reference) = new.template_id.clone() else { return Err(refuse(400, "templateID is required")) };
    if new.timeout.is_some_and(|timeout| timeout <= 0) {
        return Err(refuse(400, "Timeout must be greater than 0"));
    }
    let missing = |mount: &&protocol::rest::VolumeMount| !world.volumes.values().any(|held| held.name == mount.name);
    if let Some(mount) = new.volume_mounts.iter().flatten().find(missing) {
        return Err(refuse(400, format!("volume '{}' not found", mount.name)));
    }
    let (template, files) = templates::resolve(world, &reference)?;
    let made = world.make(template, new, files);
    if let Some(key) = key {
        world.created.insert(key.to_owned(), (asked.body.clone(), made.clone()));
    }
    Ok(json(201, &made))
}

fn rows(world: &World, asked: &Asked) -> Vec<ListedSandbox> {
    let wanted: BTreeMap<String, String> = match asked.query("metadata") {
        Some(form) => form
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (decode(&decode(key)), decode(&decode(value))))
            .collect(),
        None => BTreeMap::new(),
    };
    let states = asked.query("state");
    let after = asked.query("startedAfter").and_then(|text| text.parse::<Timestamp>().ok());
    let template = asked.query("template");
    let matches = |sandbox: &&HeldSandbox| {
        let state = match sandbox.state {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
        };
        let metadata = sandbox.asked.metadata.as_ref();
        states.as_ref().is_none_or(|states| states.split(',').any(|wanted| wanted == state))
            && after.is_none_or(|after| sandbox.started_at >= after)
            && template.as_ref().is_none_or(|name| sandbox.template_id == *name || sandbox.alias.as_ref() == Some(name))
            && wanted.iter().all(|(key, value)| metadata.is_some_and(|known| known.get(key) == Some(value)))
    };
    let mut found: Vec<&HeldSandbox> = world.sandboxes.values().filter(matches).collect();
    found.sort_by_key(|sandbox| sandbox.started_at);
    if asked.query("order").as_deref() != Some("asc") {
        found.reverse();
    }
    found.into_iter().map(HeldSandbox::listed).collect()
}

fn list(world: &World, asked: &Asked) -> Answer {
    let rows = rows(world, asked);
    let running = rows.iter().filter(|row| row.state == SandboxState::Running).count();
    page(asked, &rows).with(TOTAL_RUNNING, &running.to_string())
}

/// Calls on one sandbox.
fn one(sandbox: &mut HeldSandbox, asked: &Asked, method: &str, rest: &[&str], second: bool) -> Served {
    let running = sandbox.state == SandboxState::Running;
    if !running && sandbox.files_missing && matches!(rest, ["connect" | "resume"]) {
        let message = format!("the files of sandbox {} are missing", sandbox.id);
        let error_code = Some(SANDBOX_FILES_MISSING.to_owned());
        return Err(json(410, &ErrorBody { code: 410, message, error_code }));
    }
    match (method, rest, second) {
        ("GET", [], false) => Ok(json(200, &sandbox.detail())),
        ("POST", ["connect"], _) => {
            let body: Connect = asked.json()?;
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
            let body: Resume = asked.json()?;
            sandbox.resume(body.timeout.unwrap_or(15));
            Ok(json(201, &sandbox.wire()))
        }
        ("POST", ["pause"], false) => {
            let body: Pause = asked.json()?;
            if !running {
                return Err(refuse(409, format!("sandbox '{}' is paused already", sandbox.id)));
            }
            sandbox.pause(body.memory != Some(false));
            Ok(empty(204))
        }
        ("POST", ["timeout"], false) if running => {
            let body: Timeout = asked.json()?;
            sandbox.end_at = sandbox.clock.now() + lifetime(body.timeout);
            Ok(empty(204))
        }
        ("POST", ["refreshes"], false) if running => {
            let body: Refresh = asked.json()?;
            let seconds = body.duration.unwrap_or(15);
            if !(0..=3600).contains(&seconds) {
                return Err(refuse(400, "duration must be between 0 and 3600"));
            }
            sandbox.end_at = sandbox.end_at.max(sandbox.clock.now() + lifetime(seconds.max(15)));
            Ok(empty(204))
        }
        ("PUT", ["network"], false) if running => {
            let NetworkUpdate { allow_out, deny_out, dns_servers, egress_proxy, rules, allow_internet_access } =
                asked.json()?;
            let network = &mut sandbox.network;
            (network.allow_out, network.deny_out, network.dns_servers) = (allow_out, deny_out, dns_servers);
            (network.egress_proxy, network.rules) = (egress_proxy, rules);
            sandbox.asked.allow_internet_access = allow_internet_access;
            Ok(empty(204))
        }
        ("GET", ["metrics"], false) => {
            let from = asked.query("start").and_then(|text| text.parse::<i64>().ok()).unwrap_or(i64::MIN);
            let until = asked.query("end").and_then(|text| text.parse::<i64>().ok()).unwrap_or(i64::MAX);
            let metric = metric(sandbox);
            let readings = (from..=until).contains(&metric.timestamp_unix).then_some(metric);
            Ok(json(200, &Vec::from_iter(readings)))
        }
        ("GET", ["logs"], false) => {
            let start = asked.query("start").and_then(|text| text.parse().ok()).unwrap_or(i64::MIN);
            let limit = asked.query("limit").and_then(|text| text.parse().ok()).unwrap_or(1000);
            let entries = sandbox.log.iter().filter(|entry| millisecond(entry) >= start).take(limit);
            let entries: Vec<SandboxLogEntry> = entries.cloned().collect();
            let line = |SandboxLogEntry { timestamp, message, .. }: &SandboxLogEntry| SandboxLog {
                timestamp: timestamp.clone(),
                line: message.clone(),
            };
            Ok(json(200, &SandboxLogs { logs: entries.iter().map(line).collect(), log_entries: entries }))
        }
        ("GET", ["logs"], true) => Ok(json(200, &SandboxLogPage { logs: log(sandbox, asked) })),
        (_, ["timeout" | "refreshes" | "network"], false) => Err(unknown(&sandbox.id)),
        _ => Err(refuse(404, format!("path '{}' not found", asked.path()))),
    }
}

fn millisecond(entry: &SandboxLogEntry) -> i64 {
    entry.timestamp.parse::<Timestamp>().map_or(0, Timestamp::as_millisecond)
}

/// Everything here is of level `info`.
fn log(sandbox: &HeldSandbox, asked: &Asked) -> Vec<SandboxLogEntry> {
    let backward = asked.query("direction").as_deref() != Some("forward");
    let cursor = asked.query("cursor").and_then(|text| text.parse::<i64>().ok());
    let search = asked.query("search").unwrap_or_default();
    let serious = matches!(asked.query("level").as_deref(), Some("warn" | "error"));
    let limit = asked.query("limit").and_then(|text| text.parse().ok()).unwrap_or(1000);
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

fn metric(sandbox: &HeldSandbox) -> SandboxMetric {
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

fn latest(world: &World, asked: &Asked) -> Answer {
    let ids = asked.query("sandbox_ids").unwrap_or_default();
    let known = ids.split(',').filter_map(|id| world.sandboxes.get(id));
    let sandboxes = known.map(|sandbox| (sandbox.id.clone(), metric(sandbox))).collect();
    json(200, &SandboxesMetrics { sandboxes })
}

fn fork(world: &mut World, asked: &Asked, id: &str) -> Served {
    let Fork { timeout, count } = asked.json()?;
    let source = world.sandboxes.get(id).ok_or_else(|| unknown(id))?;
    if source.state != SandboxState::Running {
        return Err(refuse(409, format!("sandbox '{id}' is not running")));
    }
    let count = count.unwrap_or(1);
    if !(1..=100).contains(&count) {
        return Err(refuse(400, "count must be between 1 and 100"));
    }
    let template = (source.template_id.clone(), source.alias.clone());
    let mut new = source.asked.clone();
    new.timeout = timeout.or(Some(300));
    let files = source.files.clone();
    let mut child = || world.make(template.clone(), new.clone(), files.clone());
    let children: Vec<ForkResult> = (0..count).map(|_| ForkResult { sandbox: Some(child()), error: None }).collect();
    Ok(json(201, &children))
}

fn snapshot(world: &mut World, asked: &Asked, id: &str) -> Served {
    let NewSnapshot { name, .. } = asked.json()?;
    let source = world.sandboxes.get(id).ok_or_else(|| unknown(id))?;
    let files = source.files.clone();
    Ok(json(201, &templates::keep(world, id, name.as_deref(), files)))
}
