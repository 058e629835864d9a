//! Templates: lists, names, tags and deletion.

use http::{Request, StatusCode};
use node::template::{
    BASE_BUILD, BASE_ID, BASE_NAMES, Build, BuildStatus, DEFAULT_TAG, NAMESPACE, Reference, TemplateError,
    TemplateRecord,
};
use protocol::guest::ENVD_VERSION;
use protocol::rest::template::{self as rest, AssignTags, AssignedTags, RemoveTags, TemplateAlias, TemplateTag};

use super::failure::Failure;
use super::{CallResult, list, payload, view};
use crate::body;
use crate::content::Content;
use crate::query;
use crate::server::App;

/// `GET /templates`: all on one page, the default one last.
pub(super) fn list_all(app: &App) -> CallResult {
    let (templates, _) = app.node.templates(usize::MAX, None);
    let mut rows: Vec<rest::Template> = templates.iter().map(|template| wire(template)).collect();
    rows.push(base(app));
    Ok(body::json(StatusCode::OK, &rows))
}

/// `GET /v2/templates`: in pages.
pub(super) fn list_page(app: &App, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let (limit, after) = list::paging(&pairs)?;
    let (templates, next) = app.node.templates(limit, after.as_ref());
    let mut rows: Vec<rest::Template> = templates.iter().map(|template| wire(template)).collect();
    if next.is_none() {
        rows.push(base(app));
    }
    Ok(list::with_next(body::json(StatusCode::OK, &rows), next))
}

/// `GET /templates/{id}`.
pub(super) fn get(app: &App, reference: &str) -> CallResult {
    if is_base(reference)? {
        let base = rest::TemplateWithBuilds { template: base(app), builds: Vec::new() };
        return Ok(body::json(StatusCode::OK, &base));
    }
    let template = app.node.template(reference)?;
    let builds = template.builds.iter().rev().map(wire_build).collect();
    Ok(body::json(StatusCode::OK, &rest::TemplateWithBuilds { template: wire(&template), builds }))
}

/// `GET /templates/aliases/{alias}`.
pub(super) fn by_alias(app: &App, alias: &str) -> CallResult {
    if is_base(alias)? {
        let found = TemplateAlias { template_id: BASE_ID.to_owned(), public: true };
        return Ok(body::json(StatusCode::OK, &found));
    }
    let template = app.node.template(alias)?;
    if !template.is_usable() {
        return Err(TemplateError::NotFound(alias.to_owned()).into());
    }
    Ok(body::json(StatusCode::OK, &TemplateAlias { template_id: template.id.clone(), public: template.public }))
}

/// `DELETE /templates/{id}`, also of snapshots.
pub(super) async fn delete(app: &App, reference: &str) -> CallResult {
    app.node.delete_template(reference).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// `PATCH /templates/{id}` and `PATCH /v2/templates/{id}`.
pub(super) async fn update(app: &App, reference: &str, request: Request<Content>) -> CallResult {
    let rest::TemplateUpdate { public } = payload::read_json(request).await?;
    let template = match public {
        Some(public) => app.node.publish_template(reference, public).await?,
        None => app.node.template(reference)?,
    };
    Ok(body::json(StatusCode::OK, &rest::TemplateUpdated { names: template.names() }))
}

/// `POST /templates/tags`.
pub(super) async fn assign_tags(app: &App, request: Request<Content>) -> CallResult {
    let AssignTags { target, tags } = payload::read_json(request).await?;
    if tags.is_empty() {
        return Err(Failure::bad_request("tags: at least one is needed"));
    }
    let tags: Vec<String> = tags.iter().map(|tag| tag.trim().to_lowercase()).collect();
    let build = app.node.assign_tags(&target, &tags).await?;
    Ok(body::json(StatusCode::CREATED, &AssignedTags { build_id: build.to_string(), tags }))
}

/// `DELETE /templates/tags`.
pub(super) async fn remove_tags(app: &App, request: Request<Content>) -> CallResult {
    let RemoveTags { name, tags } = payload::read_json(request).await?;
    if Reference::parse(&name)?.tag.is_some() {
        return Err(Failure::bad_request("name: a tag cannot be part of it"));
    }
    let tags: Vec<String> = tags.iter().map(|tag| tag.trim().to_lowercase()).collect();
    app.node.remove_tags(&name, &tags).await?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// `GET /templates/{id}/tags`.
pub(super) fn tags(app: &App, reference: &str) -> CallResult {
    let wire = |tag: &str, build: String, at| TemplateTag { tag: tag.to_owned(), build_id: build, created_at: at };
    if is_base(reference)? {
        let started = view::time(jiff::Timestamp::UNIX_EPOCH);
        return Ok(body::json(StatusCode::OK, &[wire(DEFAULT_TAG, BASE_BUILD.to_string(), started)]));
    }
    let template = app.node.template(reference)?;
    let tags = template.tags.iter().map(|(name, tag)| wire(name, tag.build.to_string(), view::time(tag.created_at)));
    Ok(body::json(StatusCode::OK, &tags.collect::<Vec<_>>()))
}

fn is_base(reference: &str) -> Result<bool, Failure> {
    let reference = Reference::parse(reference)?;
    let is_name = BASE_NAMES.contains(&reference.alias.as_str()) || reference.alias == BASE_ID;
    Ok(is_name && reference.is_local())
}

fn base(app: &App) -> rest::Template {
    let (config, never) = (app.node.config(), view::time(jiff::Timestamp::UNIX_EPOCH));
    rest::Template {
        template_id: BASE_ID.to_owned(),
        build_id: BASE_BUILD.to_string(),
        cpu_count: config.cpu_count,
        memory_mb: config.memory_mb,
        disk_size_mb: config.disk_mb,
        public: true,
        aliases: BASE_NAMES.map(str::to_owned).into(),
        names: BASE_NAMES.map(|name| format!("{NAMESPACE}/{name}")).into(),
        created_at: never.clone(),
        updated_at: never,
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: 1,
        envd_version: ENVD_VERSION.to_owned(),
        build_status: rest::BuildStatus::Ready,
        is_default: Some(true),
        description: None,
    }
}

fn wire(template: &TemplateRecord) -> rest::Template {
    let TemplateRecord { id, name, public, created_at, updated_at, builds, tags: _ } = template;
    let newest = builds.last();
    rest::Template {
        template_id: id.clone(),
        build_id: newest.map(|build| build.id.to_string()).unwrap_or_default(),
        cpu_count: newest.map_or(0, |build| build.size.cpu_count),
        memory_mb: newest.map_or(0, |build| build.size.memory_mb),
        disk_size_mb: newest.map_or(0, |build| build.size.disk_mb),
        public: *public,
        aliases: name.iter().cloned().collect(),
        names: template.names(),
        created_at: view::time(*created_at),
        updated_at: view::time(*updated_at),
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: builds.len() as u64,
        envd_version: ENVD_VERSION.to_owned(),
        build_status: newest.map_or(rest::BuildStatus::Waiting, |build| status(build.status)),
        is_default: None,
        description: None,
    }
}

fn wire_build(build: &Build) -> rest::TemplateBuild {
    rest::TemplateBuild {
        build_id: build.id.to_string(),
        status: status(build.status),
        created_at: view::time(build.created_at),
        updated_at: view::time(build.finished_at.unwrap_or(build.created_at)),
        finished_at: build.finished_at.map(view::time),
        cpu_count: build.size.cpu_count,
        memory_mb: build.size.memory_mb,
        disk_size_mb: Some(build.size.disk_mb),
        envd_version: Some(ENVD_VERSION.to_owned()),
    }
}

pub(super) fn status(status: BuildStatus) -> rest::BuildStatus {
    match status {
        BuildStatus::Waiting => rest::BuildStatus::Waiting,
        BuildStatus::Building => rest::BuildStatus::Building,
        BuildStatus::Ready => rest::BuildStatus::Ready,
        BuildStatus::Failed => rest::BuildStatus::Error,
    }
}
