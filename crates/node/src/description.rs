//! Descriptions that the pool keeps beside files: enough to write a lost record again. They contain
//! no secrets: a rewritten record gets new tokens, and values of variables, headers and proxies are
//! left out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::{Engine, EngineError, FilesId, Resources};
use jiff::Timestamp;
use protocol::SandboxId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::egress::{Egress, Lists};
use crate::id::Token;
use crate::ingress::Ingress;
use crate::lifecycle::PauseMode;
use crate::sandbox::{OnTimeout, PersistedState, Record, SandboxSpec};
use crate::template::{Build, BuildFiles, Defaults, Tag, Template, TemplateRecord};
use crate::volume::{Volume, VolumeMount};

/// What files belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Description {
    Sandbox(Box<DescribedSandbox>),
    /// One build of a template; a snapshot is one, too.
    Template(Box<DescribedBuild>),
    Volume {
        id: String,
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DescribedSandbox {
    pub id: String,
    pub template_id: String,
    pub template_alias: Option<String>,
    pub started_at: Timestamp,
    lease_seconds: u64,
    resources: Resources,
    secure: bool,
    public_traffic: bool,
    allow_internet: Option<bool>,
    egress: Egress,
    ingress: Ingress,
    volumes: Vec<VolumeMount>,
    /// Absent if the sandbox is killed on timeout.
    pause_on_timeout: Option<PauseOnTimeout>,
    auto_resume: bool,
    pub metadata: BTreeMap<String, String>,
    /// Names of variables; their values are not kept here.
    pub env_names: Vec<String>,
    defaults: Defaults,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PauseOnTimeout {
    Memory,
    Files,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DescribedBuild {
    pub template_id: String,
    pub name: Option<String>,
    public: bool,
    created_at: Timestamp,
    build: Build,
    pub tags: Vec<String>,
}

/// Keeps a description beside `files`, replacing the one before.
pub(crate) async fn write_description(
    engine: &dyn Engine,
    files: &FilesId,
    description: &Description,
) -> Result<(), EngineError> {
    let note = serde_json::to_value(description)
        .map_err(|error| EngineError::failed("cannot write the description of files", error))?;
    engine.write_note(files, note).await
}

/// The description of `files`; `None` also if it cannot be parsed.
pub(crate) async fn read_description(engine: &dyn Engine, files: &FilesId) -> Result<Option<Description>, EngineError> {
    Ok(engine.note(files).await?.and_then(Description::from_note))
}

impl Description {
    /// `None` if this version cannot parse it.
    pub(crate) fn from_note(note: Value) -> Option<Self> {
        serde_json::from_value(note).ok()
    }

    pub(crate) fn for_sandbox(record: &Record) -> Self {
        let lists = record.spec.egress.lists();
        // The sandbox's traffic went through a proxy whose password is not kept. Without it the
        // sandbox may reach nothing.
        let allow_internet = if lists.proxy.is_some() { Some(false) } else { record.spec.allow_internet };
        let plain = Lists { headers: BTreeMap::new(), allow_plaintext: BTreeSet::new(), proxy: None, ..lists.clone() };
        Self::Sandbox(Box::new(DescribedSandbox {
            id: record.id.to_string(),
            template_id: record.template.id.clone(),
            template_alias: record.template.alias.clone(),
            started_at: record.started_at,
            lease_seconds: record.lease.as_secs(),
            resources: record.spec.resources,
            secure: record.access_token.is_some(),
            public_traffic: record.traffic_token.is_none(),
            allow_internet,
            egress: Egress::try_from(plain).expect("a part of valid lists is valid"),
            ingress: record.spec.ingress.clone(),
            volumes: record.spec.volumes.clone(),
            pause_on_timeout: match record.spec.on_timeout {
                OnTimeout::Kill => None,
                OnTimeout::Pause(PauseMode::Full) => Some(PauseOnTimeout::Memory),
                OnTimeout::Pause(PauseMode::Filesystem) => Some(PauseOnTimeout::Files),
            },
            auto_resume: record.spec.auto_resume,
            metadata: record.spec.metadata.clone(),
            env_names: record.spec.env_vars.keys().cloned().collect(),
            defaults: record.defaults.clone(),
        }))
    }

    pub(crate) fn for_volume(volume: &Volume) -> Self {
        Self::Volume { id: volume.id.clone(), name: volume.name.clone() }
    }

    /// Descriptions of all builds of a template that have files of their own.
    pub(crate) fn for_builds(template: &TemplateRecord) -> Vec<(FilesId, Self)> {
        let describe = |build: &Build| {
            let BuildFiles::Kept(files) = &build.files else { return None };
            let tags = template.tags.iter().filter(|(_, tag)| tag.build == build.id).map(|(name, _)| name.clone());
            let described = DescribedBuild {
                template_id: template.id.clone(),
                name: template.name.clone(),
                public: template.public,
                created_at: template.created_at,
                build: build.clone(),
                tags: tags.collect(),
            };
            Some((files.clone(), Self::Template(Box::new(described))))
        };
        template.builds.iter().filter_map(describe).collect()
    }

    /// Whether `text` is its id, or the name of its template or volume.
    pub(crate) fn is_called(&self, text: &str) -> bool {
        match self {
            Self::Sandbox(sandbox) => sandbox.id == text,
            Self::Template(build) => build.template_id == text || build.name.as_deref() == Some(text),
            Self::Volume { id, name } => id == text || name == text,
        }
    }
}

impl DescribedSandbox {
    /// The record of a sandbox that is paused with its files, with new tokens.
    pub(crate) fn record(self, id: SandboxId, now: Timestamp) -> Record {
        Record {
            id,
            template: Template { id: self.template_id, alias: self.template_alias },
            standing: PersistedState::Paused(PauseMode::Filesystem),
            instance: None,
            started_at: self.started_at,
            end_at: now,
            lease: Duration::from_secs(self.lease_seconds),
            spec: SandboxSpec {
                resources: self.resources,
                allow_internet: self.allow_internet,
                egress: self.egress,
                ingress: self.ingress,
                volumes: self.volumes,
                on_timeout: match self.pause_on_timeout {
                    None => OnTimeout::Kill,
                    Some(PauseOnTimeout::Memory) => OnTimeout::Pause(PauseMode::Full),
                    Some(PauseOnTimeout::Files) => OnTimeout::Pause(PauseMode::Filesystem),
                },
                auto_resume: self.auto_resume,
                metadata: self.metadata,
                env_vars: BTreeMap::new(),
                mcp: None,
            },
            access_token: self.secure.then(Token::random),
            traffic_token: (!self.public_traffic).then(Token::random),
            boot_id: Uuid::new_v4().to_string(),
            defaults: self.defaults,
        }
    }
}

impl DescribedBuild {
    /// A template with only this build, whose files are `files`.
    pub(crate) fn record(mut self, files: FilesId, now: Timestamp) -> TemplateRecord {
        self.build.files = BuildFiles::Kept(files);
        let tag = Tag { build: self.build.id, created_at: now };
        TemplateRecord {
            id: self.template_id,
            name: self.name,
            public: self.public,
            created_at: self.created_at,
            updated_at: now,
            tags: self.tags.into_iter().map(|name| (name, tag)).collect(),
            builds: vec![self.build],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Older and newer servers read what this one writes beside files.
    #[test]
    fn the_description_of_a_sandbox_keeps_its_form() {
        let pair = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let lists = Lists { deny_out: vec!["0.0.0.0/0".to_owned()], ..Lists::default() };
        let record = Record {
            id: "iabc".parse().expect("an id"),
            template: Template { id: "base".to_owned(), alias: Some("alias".to_owned()) },
            standing: PersistedState::Running,
            instance: None,
            started_at: "2026-01-02T03:04:05.678901Z".parse().expect("a moment"),
            end_at: "2026-01-02T03:09:05.678901Z".parse().expect("a moment"),
            lease: Duration::from_secs(300),
            spec: SandboxSpec {
                resources: Resources { cpu_count: 2, memory_mb: 1024, disk_mb: 10240, pids: 4096 },
                allow_internet: Some(false),
                egress: lists.try_into().expect("lists"),
                ingress: Ingress { mask_request_host: Some("${PORT}.test".to_owned()), https_ports: vec![443] },
                volumes: vec![VolumeMount {
                    volume: "v1".to_owned(),
                    name: "cache".to_owned(),
                    path: "/cache".to_owned(),
                    files: "f1".parse().expect("an id"),
                }],
                on_timeout: OnTimeout::Pause(PauseMode::Filesystem),
                auto_resume: true,
                metadata: pair("a", "b"),
                env_vars: pair("NAME", "secret"),
                mcp: Some(serde_json::json!({ "key": 1 })),
            },
            access_token: Some(Token::random()),
            traffic_token: None,
            boot_id: "8a6e0804".to_owned(),
            defaults: Defaults::default(),
        };
        let description = Description::for_sandbox(&record);
        let expected = serde_json::json!({
            "kind": "sandbox",
            "id": "iabc",
            "template_id": "base",
            "template_alias": "alias",
            "started_at": "2026-01-02T03:04:05.678901Z",
            "lease_seconds": 300,
            "resources": { "cpu_count": 2, "memory_mb": 1024, "disk_mb": 10240, "pids": 4096 },
            "secure": true,
            "public_traffic": true,
            "allow_internet": false,
            "egress": { "allow_out": [], "deny_out": ["0.0.0.0/0"], "dns_servers": [], "headers": {} },
            "ingress": { "mask_request_host": "${PORT}.test", "https_ports": [443] },
            "volumes": [{ "volume": "v1", "name": "cache", "path": "/cache", "files": "f1" }],
            "pause_on_timeout": "files",
            "auto_resume": true,
            "metadata": { "a": "b" },
            "env_names": ["NAME"],
            "defaults": {
                "env": {}, "user": null, "workdir": null, "start_command": null, "ready_command": null
            }
        });
        assert_eq!(serde_json::to_value(&description).expect("JSON"), expected);
        assert_eq!(serde_json::from_value::<Description>(expected).expect("read"), description);
    }
}
