//! Create, in both API versions. The whole body is validated before anything is created.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use node::lifecycle::PauseMode;
use node::template::{Size, TemplateError};
use node::{IdempotencyKey, NewSandbox, OnTimeout, Resources, SandboxSpec};
use protocol::headers::IDEMPOTENCY_KEY;
use protocol::rest;
use sha2::{Digest, Sha256};

use super::failure::Failure;
use super::{ApiVersion, CallResult, network, payload, timeout, view, volumes};
use crate::body;
use crate::content::Content;
use crate::server::App;

pub(super) async fn create(app: &App, request: Request<Content>, version: ApiVersion) -> CallResult {
    let key = match version {
        ApiVersion::V1 => None,
        ApiVersion::V2 => idempotency_key(request.headers())?,
    };
    let body = payload::read(request).await?;
    let asked: rest::NewSandbox = payload::parse(&body)?;
    let new = validate(app, asked, version)?;
    let idempotency = key.map(|key| IdempotencyKey { key, fingerprint: fingerprint(&body) });
    let created = app.node.create(new, idempotency).await?;
    Ok(body::json(StatusCode::CREATED, &view::sandbox(created, &app.config.domain)))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().unwrap_or("");
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=255).contains(&key.len()) && key.bytes().all(good) {
        Ok(Some(key.to_owned()))
    } else {
        Err(Failure::bad_request("Idempotency-Key must be 1 to 255 characters of a-z, 0-9 and -"))
    }
}

/// Returns the same digest for bodies that differ only in whitespace and order.
fn fingerprint(body: &[u8]) -> String {
    let canonical = serde_json::from_slice::<serde_json::Value>(body).map(|value| value.to_string());
    let digest = match canonical {
        Ok(text) => Sha256::digest(text),
        Err(_) => Sha256::digest(body),
    };
    hex::encode(digest)
}

fn validate(app: &App, asked: rest::NewSandbox, version: ApiVersion) -> Result<NewSandbox, Failure> {
    let rest::NewSandbox {
        template_id,
        timeout,
        auto_pause,
        auto_pause_memory,
        auto_resume,
        secure,
        allow_internet_access,
        network,
        metadata,
        env_vars,
        mcp,
        iam,
        volume_mounts,
        cpu_count,
        memory_mb,
        disk_size_mb,
    } = asked;
    let reference = template_id.ok_or_else(|| Failure::bad_request("missing field `templateID`"))?;
    let from = match app.node.resolve_template(&reference) {
        Err(error @ TemplateError::Malformed(_)) => return Err(error.into()),
        found => found,
    };
    let lease = lease(app, timeout, version)?;
    let auto_resume = auto_resume.is_some_and(|resume| resume.enabled);
    let on_timeout = on_timeout(auto_pause, auto_pause_memory, auto_resume)?;
    // API version 2 always secures; in version 1 a client can ask for no token.
    let secure = version == ApiVersion::V2 || secure != Some(false);
    let network = network.unwrap_or_default();
    network::check(&network)?;
    let egress = network::egress(&network, allow_internet_access)?;
    let ingress = network::ingress(&network)?;
    let public_traffic = network.allow_public_traffic.unwrap_or(true);
    if !public_traffic && !secure {
        return Err(Failure::bad_request("network.allowPublicTraffic: private traffic needs a secured sandbox"));
    }
    if let Some(iam) = &iam {
        network::check_iam(iam)?;
    }
    let volumes = volumes::mounts(app, &volume_mounts.unwrap_or_default())?;
    let env_vars = env_vars.unwrap_or_default();
    if let Some((name, _)) =
        env_vars.iter().find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'))
    {
        return Err(Failure::bad_request(format!("envVars: '{name}' cannot be an environment variable")));
    }
    let size = from.as_ref().ok().and_then(|from| from.size);
    let resources = resources(app, size, [cpu_count, memory_mb, disk_size_mb])?;
    let from = from?;
    network::refuse_unimplemented(iam.as_ref())?;
    Ok(NewSandbox {
        from,
        timeout: lease,
        secure,
        public_traffic,
        spec: SandboxSpec {
            resources,
            allow_internet: allow_internet_access,
            egress,
            ingress,
            volumes,
            on_timeout,
            auto_resume,
            metadata: metadata.unwrap_or_default(),
            env_vars,
            mcp: mcp.filter(|mcp| !mcp.is_null()),
        },
    })
}

fn lease(app: &App, timeout: Option<i64>, version: ApiVersion) -> Result<Duration, Failure> {
    let default = match version {
        ApiVersion::V1 => 15,
        ApiVersion::V2 => 300,
    };
    match timeout.unwrap_or(default) {
        ..=0 => Err(Failure::bad_request("Timeout must be greater than 0")),
        seconds => timeout::check(app, seconds),
    }
}

fn on_timeout(pause: Option<bool>, memory: Option<bool>, auto_resume: bool) -> Result<OnTimeout, Failure> {
    match (pause.unwrap_or(false), memory.unwrap_or(true)) {
        (false, false) => Err(Failure::bad_request("autoPauseMemory false needs autoPause")),
        (true, false) if auto_resume => {
            Err(Failure::bad_request("autoPauseMemory false cannot go with autoResume: only memory resumes by itself"))
        }
        (false, true) => Ok(OnTimeout::Kill),
        (true, true) => Ok(OnTimeout::Pause(PauseMode::Full)),
        (true, false) => Ok(OnTimeout::Pause(PauseMode::Filesystem)),
    }
}

/// The requested size, else the template's, else the default. Requesting one is an extension:
/// without extensions it is ignored like any unknown field.
fn resources(app: &App, template: Option<Size>, asked: [Option<i64>; 3]) -> Result<Resources, Failure> {
    let config = app.node.config();
    let usual =
        template.unwrap_or(Size { cpu_count: config.cpu_count, memory_mb: config.memory_mb, disk_mb: config.disk_mb });
    let asked = asked.map(|value| value.filter(|_| app.config.extensions));
    let Size { cpu_count, memory_mb, disk_mb } = size(app, usual, asked)?;
    Ok(Resources { cpu_count, memory_mb, disk_mb, pids: config.pids })
}

/// Processors, memory and disk as requested, checked against the limits; the default where none was
/// requested.
pub(super) fn size(app: &App, usual: Size, asked: [Option<i64>; 3]) -> Result<Size, Failure> {
    let config = app.node.config();
    let pick = |name: &str, asked: Option<i64>, range: RangeInclusive<u32>, usual: u32| {
        let Some(value) = asked else { return Ok(usual) };
        let fitting = u32::try_from(value).ok().filter(|value| range.contains(value));
        fitting.ok_or_else(|| {
            let (least, most) = range.into_inner();
            Failure::bad_request(format!("{name} is {value}; it must be between {least} and {most}"))
        })
    };
    let [cpu_count, memory_mb, disk_mb] = asked;
    Ok(Size {
        cpu_count: pick("cpuCount", cpu_count, config.cpu_counts(), usual.cpu_count)?,
        memory_mb: pick("memoryMB", memory_mb, config.memory_sizes(), usual.memory_mb)?,
        disk_mb: pick("diskSizeMB", disk_mb, config.disk_sizes(), usual.disk_mb)?,
    })
}
