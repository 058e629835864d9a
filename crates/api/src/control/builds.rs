//! Template builds: request, upload, start, status and logs.

use std::time::Duration;

use http::{Request, StatusCode, header};
use http_body_util::BodyDataStream;
use node::template::{BuildFailure, Size};
use node::{ArchiveFormat, BuildLine, BuildRequest, Credentials, Origin, StageRequest, Step};
use protocol::rest::template::{
    ArchiveOrigin, BuildLogEntry, BuildLogPage, BuildProgress, BuildStage, BuildStart, FileUpload, NewBuild,
    RequestedBuild, StagedBuildStart,
};
use serde_json::Value;

use super::failure::Failure;
use super::{CallResult, create, logs, payload, templates, view};
use crate::body;
use crate::content::Content;
use crate::query;
use crate::routing;
use crate::server::App;

/// Images that mean the default template, at any tag.
const BASE_IMAGES: [&str; 4] = ["e2b/base", "e2bdev/base", "sandbar/base", "base"];
/// Most stages of one build.
const MOST_STAGES: usize = 100;
const MOST_LOG_LINES: usize = 100;
/// Lines of a failed build's log that its reason repeats.
const REASON_LINES: usize = 20;
/// Limits the total time of an upload, which may otherwise take as long as bytes arrive.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// `POST /v3/templates`.
pub(super) async fn request(app: &App, request: Request<Content>) -> CallResult {
    let NewBuild { name, tags, cpu_count, memory_mb, min_free_disk_mb } = payload::read_json(request).await?;
    if name.trim().is_empty() {
        return Err(Failure::bad_request("missing field `name`"));
    }
    let config = app.node.config();
    let usual = Size { cpu_count: config.cpu_count, memory_mb: config.memory_mb, disk_mb: config.disk_mb };
    // The free space that a build asks for is what its sandboxes may write: the disk has at least
    // that size.
    let disk_mb = min_free_disk_mb.map(|free| free.max(usual.disk_mb));
    let size = create::size(app, usual, [cpu_count, memory_mb, disk_mb].map(|value| value.map(i64::from)))?;
    let tags: Vec<String> = tags.iter().map(|tag| tag.trim().to_lowercase()).collect();
    let (template, build) = app.node.request_build(&name, &tags, size).await?;
    let answer = RequestedBuild {
        template_id: template.id.clone(),
        build_id: build.id.to_string(),
        public: template.public,
        names: template.names(),
        tags: build.wanted_tags,
        aliases: template.name.into_iter().collect(),
    };
    Ok(body::json(StatusCode::ACCEPTED, &answer))
}

/// `GET /templates/{id}/files/{hash}`: whether the archive was uploaded, and where to upload it.
pub(super) fn upload_link(app: &App, template: &str, hash: &str, request: Request<Content>) -> CallResult {
    let (present, token) = app.node.upload_link(template, hash)?;
    let id = app.node.template(template)?.id.clone();
    let (parts, _) = request.into_parts();
    // The host by which the client reached this server, since it must reach it again.
    let host = match routing::host(&parts) {
        "" => app.config.domain.as_str(),
        host => host,
    };
    let scheme = routing::scheme(&parts);
    let url = format!("{scheme}://{host}/templates/{id}/files/{hash}?token={}", token.reveal());
    Ok(body::json(StatusCode::CREATED, &FileUpload { present, url: Some(url), headers: None }))
}

/// `PUT` to such a link. It has no API key: the token is the permission.
pub(super) async fn upload(app: &App, template: &str, hash: &str, request: Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let token = query::first(&pairs, "token").unwrap_or("").to_owned();
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let length = length.ok_or_else(|| Failure::new(StatusCode::LENGTH_REQUIRED, "an upload needs its length"))?;
    let pieces = BodyDataStream::new(request.into_body());
    let storing = app.node.store_upload(template, hash, &token, length, pieces);
    let late = |_| Failure::new(StatusCode::REQUEST_TIMEOUT, "the archive did not arrive in time");
    tokio::time::timeout(UPLOAD_TIMEOUT, storing).await.map_err(late)??;
    Ok(body::empty(StatusCode::OK))
}

/// `POST /v2/templates/{id}/builds/{buildID}`.
pub(super) async fn start(app: &App, template: &str, build: &str, request: Request<Content>) -> CallResult {
    let BuildStart { from_image, from_template, from_image_registry, force, steps, start_cmd, ready_cmd } =
        payload::read_json(request).await?;
    let stage = BuildStage { from_image, from_template, from_image_registry, steps, ..BuildStage::default() };
    let start = StagedBuildStart { stages: vec![stage], force, start_cmd, ready_cmd };
    begin(app, template, build, start).await
}

/// `POST /sandbar/templates/{id}/builds/{buildID}`: builds that E2B's own call cannot express.
pub(super) async fn start_staged(app: &App, template: &str, build: &str, request: Request<Content>) -> CallResult {
    let start: StagedBuildStart = payload::read_json(request).await?;
    if !(1..=MOST_STAGES).contains(&start.stages.len()) {
        return Err(Failure::bad_request(format!("stages: between 1 and {MOST_STAGES} are needed")));
    }
    begin(app, template, build, start).await
}

async fn begin(app: &App, template: &str, build: &str, start: StagedBuildStart) -> CallResult {
    let StagedBuildStart { stages, force, start_cmd, ready_cmd } = start;
    let stages = stages.into_iter().map(|stage| self::stage(app, stage)).collect::<Result<_, _>>()?;
    let request =
        BuildRequest { stages, force, start_command: non_blank(start_cmd), ready_command: non_blank(ready_cmd) };
    app.node.start_build(template, build, request).await?;
    Ok(body::empty(StatusCode::ACCEPTED))
}

fn non_blank(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.trim().is_empty())
}

fn stage(app: &App, stage: BuildStage) -> Result<StageRequest, Failure> {
    let BuildStage { from_image, from_template, from_stage, from_archive, from_image_registry, steps } = stage;
    let step = |step: protocol::rest::template::Step| {
        let protocol::rest::template::Step { kind, args, files_hash, force, from_stage, unpack } = step;
        Step { kind, args, files_hash: non_blank(files_hash), force, from_stage, unpack }
    };
    let (image, template) = (non_blank(from_image), non_blank(from_template));
    let origin = match (image, template, from_stage, from_archive) {
        (None, None, None, None) => Origin::Template(node::template::base()),
        (Some(image), None, None, None) if is_base(&image) => Origin::Template(node::template::base()),
        (Some(name), None, None, None) => {
            Origin::Image { name, credentials: from_image_registry.as_ref().map(credentials).transpose()? }
        }
        (None, Some(template), None, None) => Origin::Template(app.node.resolve_template(&template)?),
        (None, None, Some(stage), None) => Origin::Stage(stage),
        (None, None, None, Some(ArchiveOrigin { files_hash: hash, format })) => {
            let format = match format {
                protocol::rest::template::ArchiveFormat::Image => ArchiveFormat::Image,
                protocol::rest::template::ArchiveFormat::Files => ArchiveFormat::Files,
            };
            Origin::Archive { hash, format }
        }
        _ => {
            return Err(Failure::bad_request(
                "of fromImage, fromTemplate, fromStage and fromArchive only one can be given",
            ));
        }
    };
    Ok(StageRequest { origin, steps: steps.into_iter().map(step).collect() })
}

/// Whether an image is the default template, at any tag.
fn is_base(image: &str) -> bool {
    let name = image.trim().to_lowercase();
    let name = name.strip_prefix("docker.io/").unwrap_or(&name);
    BASE_IMAGES.contains(&name.split(['@', ':']).next().unwrap_or_default())
}

/// Credentials of a registry. Google's takes a service account's key as a password; Amazon's issues
/// passwords by an API call that this server does not make.
fn credentials(registry: &Value) -> Result<Credentials, Failure> {
    let text = |name: &str| registry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    match text("type").as_str() {
        "registry" => Ok(Credentials { username: text("username"), password: text("password") }),
        "gcp" => Ok(Credentials { username: "_json_key".to_owned(), password: text("serviceAccountJson") }),
        "aws" => {
            let message = "fromImageRegistry: type 'aws' is not implemented by this server; use type 'registry' with the name AWS and the \
                           password that `aws ecr get-login-password` prints";
            Err(Failure::new(StatusCode::NOT_IMPLEMENTED, message))
        }
        other => Err(Failure::bad_request(format!("fromImageRegistry: there is no type '{other}'"))),
    }
}

/// `GET /templates/{id}/builds/{buildID}/status`.
pub(super) fn status(app: &App, template: &str, build: &str, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let number = |name: &str, default: usize| match query::first(&pairs, name).filter(|text| !text.is_empty()) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| Failure::bad_request(format!("{name} is '{text}', which is no number"))),
    };
    let (offset, limit) = (number("logsOffset", 0)?, number("limit", MOST_LOG_LINES)?.min(MOST_LOG_LINES));
    let level = logs::level(&pairs)?;
    // The status is read before the log: the log of a finished build is then complete.
    let (template, build, log) = app.node.build(template, build)?;
    let lines: Vec<BuildLine> = log.lines().into_iter().filter(|line| logs::is_at_least(line.level, level)).collect();
    let reason = build.failure.as_ref().map(|failure| reason(failure, &lines));
    let entries: Vec<BuildLogEntry> = lines.into_iter().skip(offset).take(limit).map(wire).collect();
    let progress = BuildProgress {
        template_id: template.id.clone(),
        build_id: build.id.to_string(),
        status: templates::status(build.status),
        logs: entries.iter().map(|entry| entry.message.clone()).collect(),
        log_entries: entries,
        reason,
    };
    Ok(body::json(StatusCode::OK, &progress))
}

fn reason(failure: &BuildFailure, lines: &[BuildLine]) -> protocol::rest::template::BuildFailure {
    let of_step: Vec<&BuildLine> = lines.iter().filter(|line| line.step == failure.step).collect();
    let last = of_step.iter().skip(of_step.len().saturating_sub(REASON_LINES));
    protocol::rest::template::BuildFailure {
        message: failure.message.clone(),
        step: failure.step.clone(),
        log_entries: last.map(|line| wire((*line).clone())).collect(),
    }
}

/// `GET /templates/{id}/builds/{buildID}/logs`.
pub(super) fn log(app: &App, template: &str, build: &str, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let window = logs::Window::parse(&pairs)?;
    let level = logs::level(&pairs)?;
    let (_, _, log) = app.node.build(template, build)?;
    let lines = log.lines().into_iter().filter(|line| logs::is_at_least(line.level, level)).collect();
    let lines = window.choose(lines, |line: &BuildLine| line.at);
    Ok(body::json(StatusCode::OK, &BuildLogPage { logs: lines.map(wire).collect() }))
}

fn wire(line: BuildLine) -> BuildLogEntry {
    let BuildLine { at, level, message, step } = line;
    BuildLogEntry { timestamp: view::time(at), level, message, step }
}
