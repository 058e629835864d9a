//! The state of the server: sandboxes, templates, volumes, secrets and scripts.

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

use crate::process::{Processes, Script};
use crate::secrets::FakeSecret;
use crate::templates::FakeTemplate;
use crate::volumes::FakeVolume;
use protocol::SandboxId;

#[derive(Debug)]
pub(crate) struct FakeState {
    pub(crate) sandboxes: BTreeMap<String, FakeSandbox>,
    pub(crate) templates: Vec<FakeTemplate>,
    pub(crate) uploads: HashMap<String, Bytes>,
    pub(crate) volumes: BTreeMap<String, FakeVolume>,
    pub(crate) secrets: BTreeMap<String, FakeSecret>,
    pub(crate) scripts: HashMap<String, Script>,
    /// Bodies and responses of creates, by idempotency key.
    pub(crate) created: HashMap<String, (Bytes, rest::Sandbox)>,
    /// The clock of sandbox lifetimes.
    pub(crate) clock: Clock,
    made: u64,
}

/// Follows tokio's time, so that a test which pauses it also pauses lifetimes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started_at: Timestamp,
    started: Instant,
}

impl Clock {
    pub(crate) fn now(self) -> Timestamp {
        self.started_at + self.started.elapsed()
    }

    pub(crate) fn put_ahead(&mut self, by: jiff::SignedDuration) {
        self.started_at += by;
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self { started_at: Timestamp::now(), started: Instant::now() }
    }
}

#[derive(Debug)]
pub(crate) struct FakeSandbox {
    pub(crate) id: String,
    pub(crate) template_id: String,
    pub(crate) alias: Option<String>,
    pub(crate) started_at: Timestamp,
    pub(crate) end_at: Timestamp,
    pub(crate) state: SandboxState,
    pub(crate) pause_mode: Option<PauseMode>,
    pub(crate) token: Option<String>,
    pub(crate) traffic_token: Option<String>,
    pub(crate) request: NewSandbox,
    pub(crate) network: Network,
    pub(crate) files: BTreeMap<String, FileNode>,
    /// The record exists but the files are lost; see `FakeServer::lose_files`.
    pub(crate) files_missing: bool,
    pub(crate) processes: Processes,
    pub(crate) log: Vec<SandboxLogEntry>,
    pub(crate) clock: Clock,
}

/// A file or directory of a sandbox.
#[derive(Debug, Clone)]
pub(crate) enum FileNode {
    File { content: Bytes, metadata: BTreeMap<String, String> },
    Directory,
}

impl Default for FakeState {
    fn default() -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            templates: vec![FakeTemplate::base()],
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

impl FakeState {
    /// A unique number.
    pub(crate) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// An id in the form of E2B's build ids.
    pub(crate) fn uuid(&mut self) -> String {
        format!("00000000-0000-4000-8000-{:012x}", self.number())
    }

    pub(crate) fn sandbox_ids(&mut self) -> Vec<SandboxId> {
        self.expire();
        self.sandboxes.keys().filter_map(|id| id.parse().ok()).collect()
    }

    pub(crate) fn file(&self, sandbox: &str, path: &str) -> Option<Bytes> {
        match self.sandboxes.get(sandbox)?.files.get(path)? {
            FileNode::File { content, .. } => Some(content.clone()),
            FileNode::Directory => None,
        }
    }

    /// Kills or pauses sandboxes whose lifetime has ended.
    pub(crate) fn expire(&mut self) {
        let now = self.clock.now();
        let over = |sandbox: &FakeSandbox| sandbox.state == SandboxState::Running && sandbox.end_at <= now;
        for sandbox in self.sandboxes.values_mut().filter(|sandbox| over(sandbox)) {
            if sandbox.request.auto_pause == Some(true) {
                sandbox.pause(sandbox.request.auto_pause_memory != Some(false));
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

    /// Creates a sandbox of an existing template with these files.
    pub(crate) fn make(
        &mut self,
        template: (String, Option<String>),
        request: NewSandbox,
        files: Files,
    ) -> rest::Sandbox {
        let number = self.number();
        let id = format!("i{number:020}");
        let now = self.clock.now();
        let network = request.network.clone().unwrap_or_default();
        let private = network.allow_public_traffic == Some(false);
        let home = ["/home", "/home/user", "/tmp"].map(|path| (path.to_owned(), FileNode::Directory));
        let mut sandbox = FakeSandbox {
            template_id: template.0,
            alias: template.1,
            started_at: now,
            end_at: now + lifetime(request.timeout.unwrap_or(300)),
            state: SandboxState::Running,
            pause_mode: None,
            token: (request.secure != Some(false)).then(|| format!("envd-token-{number}")),
            traffic_token: private.then(|| format!("traffic-token-{number}")),
            network,
            request,
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

pub(crate) type Files = BTreeMap<String, FileNode>;

pub(crate) fn lifetime(seconds: i64) -> Duration {
    Duration::from_secs(seconds.clamp(0, 10_000_000).unsigned_abs())
}

impl FakeSandbox {
    pub(crate) fn note(&mut self, message: &str) {
        let timestamp = self.clock.now().to_string();
        let entry = SandboxLogEntry {
            timestamp,
            message: message.into(),
            level: rest::LogLevel::Info,
            fields: BTreeMap::new(),
        };
        self.log.push(entry);
    }

    pub(crate) fn pause(&mut self, memory: bool) {
        self.state = SandboxState::Paused;
        self.end_at = self.clock.now();
        self.pause_mode = Some(if memory { PauseMode::Full } else { PauseMode::Filesystem });
        // External connections do not survive a pause.
        self.processes.cut();
        self.note("sandbox paused");
    }

    pub(crate) fn resume(&mut self, seconds: i64) {
        self.state = SandboxState::Running;
        self.end_at = self.clock.now() + lifetime(seconds);
        self.pause_mode = None;
        self.note("sandbox resumed");
    }

    pub(crate) fn wire(&self) -> rest::Sandbox {
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

    pub(crate) fn listed(&self) -> ListedSandbox {
        let size =
            |request: Option<i64>, default: u32| request.and_then(|size| u32::try_from(size).ok()).unwrap_or(default);
        ListedSandbox {
            template_id: self.template_id.clone(),
            alias: self.alias.clone(),
            sandbox_id: self.id.clone(),
            client_id: "fake".into(),
            started_at: self.started_at.to_string(),
            end_at: self.end_at.to_string(),
            envd_version: ENVD_VERSION.into(),
            cpu_count: size(self.request.cpu_count, 2),
            memory_mb: size(self.request.memory_mb, 512),
            disk_size_mb: size(self.request.disk_size_mb, 1024),
            state: self.state,
            metadata: self.request.metadata.clone().unwrap_or_default(),
            volume_mounts: self.request.volume_mounts.clone().unwrap_or_default(),
            pause_mode: self.pause_mode,
        }
    }

    pub(crate) fn detail(&self) -> SandboxDetail {
        SandboxDetail {
            listed: self.listed(),
            envd_access_token: self.token.clone(),
            allow_internet_access: self.request.allow_internet_access,
            domain: None,
            network: Some(self.network.clone()),
            lifecycle: Some(Lifecycle {
                auto_resume: self.request.auto_resume.is_some_and(|resume| resume.enabled),
                on_timeout: if self.request.auto_pause == Some(true) { OnTimeout::Pause } else { OnTimeout::Kill },
            }),
        }
    }
}
