//! Templates and their builds, and snapshots, which are templates too.

mod build;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use jiff::Timestamp;
use protocol::guest::ENVD_VERSION;
use protocol::rest::Snapshot;
use protocol::rest::template::{
    AssignTags, AssignedTags, BuildStatus, FileUpload, RemoveTags, Template, TemplateAlias, TemplateBuild, TemplateTag,
    TemplateUpdate, TemplateUpdated, TemplateWithBuilds,
};

use crate::exchange::{FakeRequest, FakeResponse, empty, json, page, refuse};
use crate::state::{FakeState, Files};
use build::{FakeBuild, poll_build, request_build, start};

const DEFAULT: &str = "default";
/// Namespace of this server's only team.
const NAMESPACE: &str = "team";

#[derive(Debug)]
pub(crate) struct FakeTemplate {
    id: String,
    name: Option<String>,
    public: bool,
    cpu_count: u32,
    memory_mb: u32,
    builds: Vec<FakeBuild>,
    /// Maps tags to builds.
    tags: BTreeMap<String, String>,
    /// The sandbox a snapshot was taken of.
    snapshot_of: Option<String>,
    files: Files,
    made_at: Timestamp,
}

impl FakeTemplate {
    pub(crate) fn base() -> Self {
        let build = FakeBuild::ready("00000000-0000-4000-8000-000000000000".into());
        let mut base = Self::new("base".into(), Some("base".into()));
        base.public = true;
        base.tag(DEFAULT, &build.id);
        base.builds.push(build);
        base
    }

    fn new(id: String, name: Option<String>) -> Self {
        Self {
            id,
            name,
            public: false,
            cpu_count: 2,
            memory_mb: 512,
            builds: Vec::new(),
            tags: BTreeMap::new(),
            snapshot_of: None,
            files: Files::new(),
            made_at: Timestamp::now(),
        }
    }

    fn tag(&mut self, tag: &str, build: &str) {
        self.tags.insert(tag.to_owned(), build.to_owned());
    }

    fn is(&self, reference: &str) -> bool {
        let bare = reference.strip_prefix(NAMESPACE).and_then(|rest| rest.strip_prefix('/')).unwrap_or(reference);
        self.id == bare || self.name.as_deref() == Some(bare)
    }

    fn names(&self) -> Vec<String> {
        self.name.iter().map(|name| format!("{NAMESPACE}/{name}")).collect()
    }

    fn snapshot(&self) -> Snapshot {
        let named = |name: &String| format!("{NAMESPACE}/{name}:{DEFAULT}");
        let snapshot_id = self.name.as_ref().map_or_else(|| format!("{}:{DEFAULT}", self.id), named);
        Snapshot { snapshot_id, names: self.names() }
    }

    fn wire(&self) -> Template {
        let newest = self.builds.last();
        Template {
            template_id: self.id.clone(),
            build_id: newest.map(|build| build.id.clone()).unwrap_or_default(),
            cpu_count: self.cpu_count,
            memory_mb: self.memory_mb,
            disk_size_mb: 1024,
            public: self.public,
            aliases: self.name.iter().cloned().collect(),
            names: self.names(),
            created_at: self.made_at.to_string(),
            updated_at: self.made_at.to_string(),
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: self.builds.len() as u64,
            envd_version: ENVD_VERSION.into(),
            build_status: newest.map_or(BuildStatus::Waiting, |build| build.status),
            is_default: None,
            description: None,
        }
    }

    fn with_builds(&self) -> TemplateWithBuilds {
        let build = |build: &FakeBuild| TemplateBuild {
            build_id: build.id.clone(),
            status: build.status,
            created_at: self.made_at.to_string(),
            updated_at: self.made_at.to_string(),
            finished_at: None,
            cpu_count: self.cpu_count,
            memory_mb: self.memory_mb,
            disk_size_mb: None,
            envd_version: None,
        };
        TemplateWithBuilds { template: self.wire(), builds: self.builds.iter().map(build).collect() }
    }
}

/// Splits `name[:tag]`.
fn split_reference(reference: &str) -> (String, Option<String>) {
    let lower = reference.trim().to_lowercase();
    match lower.split_once(':') {
        Some((name, tag)) => (name.to_owned(), Some(tag.to_owned())),
        None => (lower, None),
    }
}

/// Resolves a template reference to the template and its files.
pub(crate) fn resolve(state: &FakeState, reference: &str) -> Result<((String, Option<String>), Files), FakeResponse> {
    let (name, tag) = split_reference(reference);
    let Some(template) = state.templates.iter().find(|template| template.is(&name)) else {
        return Err(refuse(404, format!("template '{reference}' not found")));
    };
    let tag = tag.unwrap_or_else(|| DEFAULT.into());
    let build = template.tags.get(&tag).and_then(|id| template.builds.iter().find(|build| build.id == *id));
    match build {
        Some(build) if build.status == BuildStatus::Ready => {
            Ok(((template.id.clone(), template.name.clone()), template.files.clone()))
        }
        _ => Err(refuse(404, format!("tag '{tag}' does not exist for template '{name}'"))),
    }
}

/// Saves a sandbox's files as a snapshot.
pub(crate) fn save_snapshot(state: &mut FakeState, sandbox: &str, name: Option<&str>, files: Files) -> Snapshot {
    let build = FakeBuild::ready(state.uuid());
    let number = state.number();
    let name = name.map(|name| split_reference(name).0);
    let known = state.templates.iter().position(|held| name.is_some() && held.name == name);
    let at = known.unwrap_or_else(|| {
        state.templates.push(FakeTemplate::new(format!("snap{number:016}"), name.clone()));
        state.templates.len() - 1
    });
    let template = &mut state.templates[at];
    template.snapshot_of = Some(sandbox.to_owned());
    template.files = files;
    template.tag(DEFAULT, &build.id);
    template.builds.push(build);
    template.snapshot()
}

pub(crate) fn snapshots(state: &FakeState, request: &FakeRequest) -> FakeResponse {
    let (sandbox, name) = (request.query("sandboxID"), request.query("name"));
    let name = name.map(|name| split_reference(&name).0);
    let matches = |held: &&FakeTemplate| {
        held.snapshot_of.is_some()
            && (sandbox.is_none() || held.snapshot_of == sandbox)
            && name.as_ref().is_none_or(|name| held.is(name))
    };
    page(request, &state.templates.iter().filter(matches).map(FakeTemplate::snapshot).collect::<Vec<_>>())
}

pub(crate) fn handle(
    state: &mut FakeState,
    address: SocketAddr,
    request: &FakeRequest,
    segments: &[&str],
) -> Result<FakeResponse, FakeResponse> {
    let missing = |name: &str| refuse(404, format!("template '{name}' not found"));
    let find = |state: &FakeState, name: &str| {
        let (name, _) = split_reference(name);
        state.templates.iter().position(|held| held.is(&name)).ok_or_else(|| missing(&name))
    };
    match (request.method.as_str(), segments) {
        ("PUT", ["upload", hash]) => {
            // Object stores require it too. The upload headers are not checked: older SDKs do not
            // send them.
            if request.header("content-length").is_none() {
                return Err(refuse(411, "an upload needs its length"));
            }
            state.uploads.insert((*hash).to_owned(), request.body.clone());
            Ok(empty(200))
        }
        ("GET", ["templates"]) => Ok(json(200, &state.templates.iter().map(FakeTemplate::wire).collect::<Vec<_>>())),
        ("GET", ["v2", "templates"]) => {
            Ok(page(request, &state.templates.iter().map(FakeTemplate::wire).collect::<Vec<_>>()))
        }
        ("POST", ["v3", "templates"]) => Ok(request_build(state, request.json()?)),
        ("GET", ["templates", "aliases", name]) => {
            let held = &state.templates[find(state, name)?];
            Ok(json(200, &TemplateAlias { template_id: held.id.clone(), public: held.public }))
        }
        ("POST", ["templates", "tags"]) => {
            let AssignTags { target, tags } = request.json()?;
            let at = find(state, &target)?;
            let held = &mut state.templates[at];
            let from = split_reference(&target).1.unwrap_or_else(|| DEFAULT.into());
            let Some(build) = held.tags.get(&from).cloned() else { return Err(missing(&target)) };
            tags.iter().for_each(|tag| held.tag(tag, &build));
            Ok(json(201, &AssignedTags { build_id: build, tags }))
        }
        ("DELETE", ["templates", "tags"]) => {
            let RemoveTags { name, tags } = request.json()?;
            let at = find(state, &name)?;
            let held = &mut state.templates[at];
            if tags.iter().any(|tag| tag == DEFAULT) {
                return Err(refuse(400, "the default tag cannot be removed"));
            }
            held.tags.retain(|tag, _| !tags.contains(tag));
            Ok(empty(204))
        }
        ("GET", ["templates", name, "tags"]) => {
            let held = &state.templates[find(state, name)?];
            let tag = |(tag, build): (&String, &String)| TemplateTag {
                tag: tag.clone(),
                build_id: build.clone(),
                created_at: held.made_at.to_string(),
            };
            Ok(json(200, &held.tags.iter().map(tag).collect::<Vec<_>>()))
        }
        ("GET", ["templates", name, "files", hash]) => {
            find(state, name)?;
            let present = state.uploads.contains_key(*hash);
            let headers = BTreeMap::from([("x-upload".to_owned(), "allowed".to_owned())]);
            let url = (!present).then(|| format!("http://{address}/upload/{hash}"));
            Ok(json(201, &FileUpload { present, url, headers: (!present).then_some(headers) }))
        }
        ("POST", ["v2", "templates", name, "builds", build]) => {
            let at = find(state, name)?;
            start(state, at, build, &request.json()?)
        }
        ("GET", ["templates", name, "builds", build, what @ ("status" | "logs")]) => {
            let at = find(state, name)?;
            poll_build(&mut state.templates[at], build, request, what)
        }
        ("GET", ["templates", name]) => Ok(json(200, &state.templates[find(state, name)?].with_builds())),
        ("DELETE", ["templates", name]) => {
            let at = find(state, name)?;
            let id = &state.templates[at].id;
            if state.sandboxes.values().any(|sandbox| sandbox.template_id == *id) {
                return Err(refuse(400, format!("template '{name}' is in use")));
            }
            state.templates.remove(at);
            Ok(empty(204))
        }
        ("PATCH", ["v2", "templates", name] | ["templates", name]) => {
            let TemplateUpdate { public } = request.json()?;
            let at = find(state, name)?;
            let held = &mut state.templates[at];
            held.public = public.unwrap_or(held.public);
            Ok(json(200, &TemplateUpdated { names: held.names() }))
        }
        _ => Err(refuse(404, format!("path '{}' not found", request.path()))),
    }
}
