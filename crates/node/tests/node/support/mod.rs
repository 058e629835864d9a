//! A node with an engine in memory, with a guest that answers the few calls of the node.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use parking_lot::Mutex;
use protocol::guest::{GuestConfig, LEASE_PATH, LOG_PATH, Lease, LogEntry, LogLevel};
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::memory::{MemoryEngine, MemoryRecords};
use sandbar_node::ports::Records;
use sandbar_node::{
    Egress, Ingress, NewSandbox, Node, OnTimeout, Resources, RuntimeClock, SandboxSpec, SandboxesConfig, template,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// The leases that the guests received, by sandbox.
pub(crate) type Leases = Arc<Mutex<HashMap<String, Vec<Option<u64>>>>>;

pub(crate) struct Lab {
    /// Removed with the lab.
    directory: TempDir,
    pub(crate) engine: Arc<MemoryEngine>,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) clock: Arc<RuntimeClock>,
    pub(crate) config: SandboxesConfig,
    pub(crate) leases: Leases,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with_records(Arc::new(MemoryRecords::default()))
    }

    pub(crate) fn with_records(records: Arc<dyn Records>) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let leases = Leases::default();
        let received = Arc::clone(&leases);
        let engine = MemoryEngine::new(directory.path(), move |listener, config, ended| {
            tokio::spawn(guest(listener, config, ended, Arc::clone(&received)));
        });
        let start = "2026-01-02T03:04:05.678901Z".parse::<Timestamp>().expect("a moment");
        Self {
            directory,
            engine: Arc::new(engine),
            records,
            clock: Arc::new(RuntimeClock::starting_at(start)),
            config: SandboxesConfig::default(),
            leases,
        }
    }

    /// Starts a server; a second one takes over from the first.
    pub(crate) async fn open(&self) -> Arc<Node> {
        let (engine, records, clock) = (self.engine.clone(), self.records.clone(), self.clock.clone());
        Node::open_with(engine, records, clock, self.config.clone(), &self.directory.path().join("uploads"))
            .await
            .expect("the node opens")
    }

    pub(crate) fn leases_of(&self, id: &str) -> Vec<Option<u64>> {
        self.leases.lock().get(id).cloned().unwrap_or_default()
    }
}

pub(crate) fn new_sandbox() -> NewSandbox {
    NewSandbox {
        from: template::base(),
        timeout: Duration::from_secs(60),
        secure: true,
        public_traffic: true,
        spec: SandboxSpec {
            resources: Resources { cpu_count: 1, memory_mb: 128, disk_mb: 64, pids: 64 },
            allow_internet: None,
            egress: Egress::default(),
            ingress: Ingress::default(),
            volumes: Vec::new(),
            on_timeout: OnTimeout::Kill,
            auto_resume: false,
            metadata: BTreeMap::new(),
            env_vars: BTreeMap::new(),
            mcp: None,
        },
    }
}

/// A new sandbox with one change of what it is to be.
pub(crate) fn with_spec(change: impl FnOnce(&mut SandboxSpec)) -> NewSandbox {
    let mut new = new_sandbox();
    change(&mut new.spec);
    new
}

pub(crate) fn pausing(kept: PauseMode) -> NewSandbox {
    with_spec(|spec| spec.on_timeout = OnTimeout::Pause(kept))
}

async fn guest(listener: UnixListener, config: GuestConfig, ended: CancellationToken, leases: Leases) {
    let id = config.sandbox_id;
    leases.lock().entry(id.clone()).or_default().push(config.lease_ends_unix_ms);
    while let Some(accepted) = ended.run_until_cancelled(listener.accept()).await {
        let (stream, _) = accepted.expect("the listener works");
        let (id, leases, ended) = (id.clone(), Arc::clone(&leases), ended.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &id, &leases));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that disconnects is no failure of the guest.
            let _ = ended.run_until_cancelled(connection).await;
        });
    }
}

async fn answer(request: Request<Incoming>, id: &str, leases: &Leases) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match (request.method(), request.uri().path()) {
        (&Method::PUT, LEASE_PATH) => {
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let lease: Lease = serde_json::from_slice(&body).expect("a lease");
            leases.lock().entry(id.to_owned()).or_default().push(lease.ends_unix_ms);
            Vec::new()
        }
        (&Method::GET, LOG_PATH) => {
            let entry = LogEntry {
                seq: 1,
                unix_ms: 1,
                level: LogLevel::Info,
                message: "from the guest".to_owned(),
                fields: BTreeMap::new(),
            };
            serde_json::to_vec(&[entry]).expect("a log")
        }
        _ => Vec::new(),
    };
    Ok(Response::new(body.into()))
}
