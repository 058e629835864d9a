//! What the server holds: sandboxes, templates, volumes, secrets, and what commands do.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use protocol::guest::ENVD_VERSION;
use protocol::rest::{
    self, Lifecycle, ListedSandbox, Network, NewSandbox, OnTimeout, PauseMode, SandboxDetail, SandboxLogEntry,
    SandboxState,
};
use tokio::time::Instant;

use super::process::{Processes, Script};
use super::secrets::HeldSecret;
use super::templates::HeldTemplate;
use super::volumes::HeldVolume;
use crate::id::SandboxId;

#[derive(Debug)]
pub(super) struct World {
    pub(super) sandboxes: BTreeMap<String, HeldSandbox>,
    pub(super) templates: Vec<HeldTemplate>,
    pub(super) uploads: HashMap<String, Bytes>,
    pub(super) volumes: BTreeMap<String, HeldVolume>,
    pub(super) secrets: BTreeMap<String, HeldSecret>,
    pub(super) scripts: HashMap<String, Script>,
    /// Bodies and answers of creates by their idempotency keys.
    pub(super) created: HashMap<String, (Bytes, rest::Sandbox)>,
    /// What time it is for sandboxes.
    pub(super) clock: Clock,
    made: u64,
}

/// Goes with tokio's time, so that a test which pauses that one pauses sandboxes' lives too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    started_at: Timestamp,
    started: Instant,
}

impl Clock {
    pub(super) fn now(self) -> Timestamp {
        self.started_at + self.started.elapsed()
    }

    pub(super) fn put_ahead(&mut self, by: jiff::SignedDuration) {
        self.started_at += by;
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self { started_at: Timestamp::now(), started: Instant::now() }
    }
}

#[derive(Debug)]
pub(super) struct HeldSandbox {
    pub(super) id: String,
    pub(super) template_id: String,
    pub(super) alias: Option<String>,
    pub(super) started_at: Timestamp,
    pub(super) end_at: Timestamp,
    pub(super) state: SandboxState,
    pub(super) pause_mode: Option<PauseMode>,
    pub(super) token: Option<String>,
    pub(super) traffic_token: Option<String>,
    pub(super) asked: NewSandbox,
    pub(super) network: Network,
    pub(super) files: BTreeMap<String, Node>,
    /// The files are gone although the sandbox is known: see `Server::lose_files`.
    pub(super) files_missing: bool,
    pub(super) processes: Processes,
    pub(super) log: Vec<SandboxLogEntry>,
    pub(super) clock: Clock,
}

/// A file or directory of a sandbox, by its absolute path.
#[derive(Debug, Clone)]
pub(super) enum Node {
    File { content: Bytes, metadata: BTreeMap<String, String> },
    Directory,
}

impl Default for World {
    fn default() -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            templates: vec![HeldTemplate::base()],
            uploads: HashMap::new(),
            volumes: BTreeMap::new(),
            secrets: BTreeMap::new(),
            scripts: HashMap::new(),
            created: HashMap::new(),
            clock: Clock::default(),
            made: 0,
        }
    }
}

impl World {
    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// The form of E2B's build ids.
    pub(super) fn uuid(&mut self) -> String {
        format!("00000000-0000-4000-8000-{:012x}", self.number())
    }

    pub(super) fn sandbox_ids(&mut self) -> Vec<SandboxId> {
        self.expire();
        self.sandboxes.keys().filter_map(|id| id.parse().ok()).collect()
    }

    pub(super) fn file(&self, sandbox: &str, path: &str) -> Option<Bytes> {
        match self.sandboxes.get(sandbox)?.files.get(path)? {
            Node::File { content, .. } => Some(content.clone()),
            Node::Directory => None,
        }
    }

    /// Ends or pauses what has reached its end.
    pub(super) fn expire(&mut self) {
        let now = self.clock.now();
        let over = |sandbox: &HeldSandbox| sandbox.state == SandboxState::Running && sandbox.end_at <= now;
        for sandbox in self.sandboxes.values_mut().filter(|sandbox| over(sandbox)) {
            if sandbox.asked.auto_pause == Some(true) {
                sandbox.pause(sandbox.asked.auto_pause_memory != Some(false));
            }
        }
        self.sandboxes.retain(|_, sandbox| {
            let stays = !over(sandbox);
            if !stays {
                sandbox.processes.cut();
            }
            stays
        });
    }

    /// A new sandbox of a template that exists, with the files given.
    pub(super) fn make(
        &mut self,
        template: (String, Option<String>),
        asked: NewSandbox,
        files: Files,
    ) -> rest::Sandbox {
        let number = self.number();
        let id = format!("i{number:020}");
        let now = self.clock.now();
        let network = asked.network.clone().unwrap_or_default();
        let private = network.allow_public_traffic == Some(false);
        let home = ["/home", "/home/user", "/tmp"].map(|path| (path.to_owned(), Node::Directory));
        let mut sandbox = HeldSandbox {
            template_id: template.0,
            alias: template.1,
            started_at: now,
            end_at: now + lifetime(asked.timeout.unwrap_or(300)),
            state: SandboxState::Running,
            pause_mode: None,
            token: (asked.secure != Some(false)).then(|| format!("envd-token-{number}")),
            traffic_token: private.then(|| format!("traffic-token-{number}")),
            network,
            asked,
            files: home.into_iter().chain(files).collect(),
            files_missing: false,
            processes: Processes::default(),
            log: Vec::new(),
            clock: self.clock,
            id,
        };
        sandbox.note("sandbox started");
        let made = sandbox.wire();
        self.sandboxes.insert(sandbox.id.clone(), sandbox);
        made
    }
}

pub(super) type Files = BTreeMap<String, Node>;

pub(super) fn lifetime(seconds: i64) -> Duration {
    Duration::from_secs(seconds.clamp(0, 10_000_000).unsigned_abs())
}

impl HeldSandbox {
    pub(super) fn note(&mut self, message: &str) {
        let timestamp = self.clock.now().to_string();
        let entry = SandboxLogEntry {
            timestamp,
            message: message.into(),
            level: rest::LogLevel::Info,
            fields: BTreeMap::new(),
        };
        self.log.push(entry);
    }

    pub(super) fn pause(&mut self, memory: bool) {
        self.state = SandboxState::Paused;
        self.end_at = self.clock.now();
        self.pause_mode = Some(if memory { PauseMode::Full } else { PauseMode::Filesystem });
        // Connections from outside do not outlive a pause.
        self.processes.cut();
        self.note("sandbox paused");
    }

    pub(super) fn resume(&mut self, seconds: i64) {
        self.state = SandboxState::Running;
        self.end_at = self.clock.now() + lifetime(seconds);
        self.pause_mode = None;
        self.note("sandbox resumed");
    }

    pub(super) fn wire(&self) -> rest::Sandbox {
        rest::Sandbox {
            template_id: self.template_id.clone(),
            sandbox_id: self.id.clone(),
            client_id: "fake".into(),
            envd_version: ENVD_VERSION.into(),
            alias: self.alias.clone(),
            envd_access_token: self.token.clone(),
            traffic_access_token: self.traffic_token.clone(),
            domain: None,
        }
    }

    pub(super) fn listed(&self) -> ListedSandbox {
        let size =
            |asked: Option<i64>, default: u32| asked.and_then(|size| u32::try_from(size).ok()).unwrap_or(default);
        ListedSandbox {
            template_id: self.template_id.clone(),
            alias: self.alias.clone(),
            sandbox_id: self.id.clone(),
            client_id: "fake".into(),
            started_at: self.started_at.to_string(),
            end_at: self.end_at.to_string(),
            envd_version: ENVD_VERSION.into(),
            cpu_count: size(self.asked.cpu_count, 2),
            memory_mb: size(self.asked.memory_mb, 512),
            disk_size_mb: size(self.asked.disk_size_mb, 1024),
            state: self.state,
            metadata: self.asked.metadata.clone().unwrap_or_default(),
            volume_mounts: self.asked.volume_mounts.clone().unwrap_or_default(),
            pause_mode: self.pause_mode,
        }
    }

    pub(super) fn detail(&self) -> SandboxDetail {
        SandboxDetail {
            listed: self.listed(),
            envd_access_token: self.token.clone(),
            allow_internet_access: self.asked.allow_internet_access,
            domain: None,
            network: Some(self.network.clone()),
            lifecycle: Some(Lifecycle {
                auto_resume: self.asked.auto_resume.is_some_and(|resume| resume.enabled),
                on_timeout: if self.asked.auto_pause == Some(true) { OnTimeout::Pause } else { OnTimeout::Kill },
            }),
        }
    }
}
