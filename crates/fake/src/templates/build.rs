//! Builds of templates: requested, started and polled.

use jiff::Timestamp;
use protocol::rest::LogLevel;
use protocol::rest::template::{
    BuildFailure, BuildLogEntry, BuildLogPage, BuildProgress, BuildStart, BuildStatus, NewBuild, RequestedBuild,
};

use super::{DEFAULT, FakeTemplate, split_reference};
use crate::exchange::{FakeRequest, FakeResponse, empty, json, refuse};
use crate::state::FakeState;

#[derive(Debug)]
pub(super) struct FakeBuild {
    pub(super) id: String,
    pub(super) status: BuildStatus,
    /// The status that later polls return.
    pub(super) outcome: Option<BuildStatus>,
    pub(super) log: Vec<BuildLogEntry>,
    pub(super) reason: Option<BuildFailure>,
}

impl FakeBuild {
    pub(super) fn ready(id: String) -> Self {
        Self { id, status: BuildStatus::Ready, outcome: None, log: Vec::new(), reason: None }
    }
}

pub(super) fn request_build(state: &mut FakeState, new: NewBuild) -> FakeResponse {
    let (name, tag) = split_reference(&new.name);
    let build = FakeBuild { status: BuildStatus::Waiting, ..FakeBuild::ready(state.uuid()) };
    let number = state.number();
    let at = state.templates.iter().position(|held| held.is(&name)).unwrap_or_else(|| {
        state.templates.push(FakeTemplate::new(format!("tmpl{number:016}"), Some(name)));
        state.templates.len() - 1
    });
    let held = &mut state.templates[at];
    held.cpu_count = new.cpu_count.unwrap_or(held.cpu_count);
    held.memory_mb = new.memory_mb.unwrap_or(held.memory_mb);
    let mut tags: Vec<String> = tag.into_iter().chain(new.tags).collect();
    if tags.is_empty() {
        tags.push(DEFAULT.into());
    }
    tags.iter().for_each(|tag| held.tag(tag, &build.id));
    let requested = RequestedBuild {
        template_id: held.id.clone(),
        build_id: build.id.clone(),
        public: held.public,
        names: held.names(),
        tags,
        aliases: held.name.iter().cloned().collect(),
    };
    held.builds.push(build);
    json(202, &requested)
}

/// Simulates a build: copies need their files, and commands behave as scripted.
pub(super) fn start(
    state: &mut FakeState,
    at: usize,
    build: &str,
    body: &BuildStart,
) -> Result<FakeResponse, FakeResponse> {
    let FakeState { templates, uploads, scripts, .. } = state;
    let entry = |level: LogLevel, message: String, step: usize| BuildLogEntry {
        timestamp: Timestamp::now().to_string(),
        level,
        message,
        step: Some(step.to_string()),
    };
    let waiting = templates[at].builds.iter_mut().find(|held| held.id == build && held.status == BuildStatus::Waiting);
    let Some(held) = waiting else { return Err(refuse(400, "build is not in waiting state")) };
    let mut failure = None;
    for (number, step) in (1..).zip(&body.steps) {
        held.log.push(entry(LogLevel::Info, format!("[{number}/{}] {}", body.steps.len(), step.kind), number));
        let missing = |hash: &String| !uploads.contains_key(hash);
        let script = step.args.first().and_then(|line| scripts.get(line)).filter(|_| step.kind == "RUN");
        let problem = match script {
            Some(script) if script.exit_code() != 0 => Some(format!("exit status {}", script.exit_code())),
            _ if step.kind == "COPY" && step.files_hash.as_ref().is_none_or(missing) => {
                Some("the files were not uploaded".to_owned())
            }
            _ => None,
        };
        if let Some(message) = problem {
            held.log.push(entry(LogLevel::Error, message.clone(), number));
            failure = Some(BuildFailure { message, step: Some(number.to_string()), log_entries: Vec::new() });
            break;
        }
    }
    held.status = BuildStatus::Building;
    held.outcome = Some(if failure.is_some() { BuildStatus::Error } else { BuildStatus::Ready });
    held.reason = failure;
    Ok(empty(202))
}

/// The first poll returns `building`, later ones the outcome.
pub(super) fn poll_build(
    held: &mut FakeTemplate,
    build: &str,
    request: &FakeRequest,
    what: &str,
) -> Result<FakeResponse, FakeResponse> {
    let template_id = held.id.clone();
    let found = held.builds.iter_mut().find(|held| held.id == build);
    let Some(build) = found else { return Err(refuse(400, "build not found")) };
    if what == "logs" {
        let mut logs = build.log.clone();
        if request.query("direction").as_deref() != Some("forward") {
            logs.reverse();
        }
        return Ok(json(200, &BuildLogPage { logs }));
    }
    let seen = request.query("logsOffset").and_then(|text| text.parse().ok()).unwrap_or(0);
    let status = build.status;
    if let (BuildStatus::Building, Some(outcome)) = (status, build.outcome) {
        build.status = outcome;
    }
    let progress = BuildProgress {
        template_id,
        build_id: build.id.clone(),
        status,
        logs: Vec::new(),
        log_entries: build.log.iter().skip(seen).take(100).cloned().collect(),
        reason: build.reason.clone().filter(|_| status == BuildStatus::Error),
    };
    Ok(json(200, &progress))
}
