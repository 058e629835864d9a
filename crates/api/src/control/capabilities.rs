//! Capabilities that this server adds to E2B. Without extensions the path does not exist.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use http::{Response, StatusCode};
use node::EngineCapabilities;
use protocol::guest::{STDIN_ENCODING, STDIN_GZIP};
use protocol::rest::Capabilities;
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::server::App;

pub(super) fn list(app: &App) -> Response<Body> {
    let config = app.node.config();
    let range = |range: RangeInclusive<u32>, default: u32| -> Value {
        json!({ "min": range.start(), "max": range.end(), "default": default })
    };
    let resources = json!({
        "cpuCount": range(config.cpu_counts(), config.cpu_count),
        "memoryMB": range(config.memory_sizes(), config.memory_mb),
        "diskSizeMB": range(config.disk_sizes(), config.disk_mb),
    });
    let limits = json!({
        "maxSandboxes": config.max_sandboxes,
        "maxTimeout": config.max_timeout_seconds,
        "maxProcesses": config.pids,
    });
    // `PUT /files` with `If-Match` or `If-None-Match`: atomic, and only if the file is as the
    // client saw it.
    let replacing = json!({ "conditions": ["sha256", "absent"] });
    // E2B's is SOCKS5 only; a scheme before the address selects another kind.
    let proxies = json!({ "schemes": ["socks5", "http", "https"] });
    // `POST /sandbar/templates/{id}/builds/{buildID}`.
    let builds = json!({ "origins": ["image", "template", "stage", "archive"] });
    // The variable of a process that declares the encoding, and its values.
    let encodings = json!({ "variable": STDIN_ENCODING, "encodings": [STDIN_GZIP] });
    let EngineCapabilities { isolation, memory_snapshots, live_fork, instant_copies: _ } = app.node.capabilities();
    let isolation = json!({ "class": isolation.name(), "memorySnapshots": memory_snapshots, "liveFork": live_fork });
    let capabilities = [
        ("createResources", resources),
        ("egressProxy", proxies),
        ("isolation", isolation),
        ("limits", limits),
        ("replaceFiles", replacing),
        ("stagedBuilds", builds),
        ("stdinEncodings", encodings),
        ("trash", json!({ "days": config.trash_days })),
    ];
    let capabilities = BTreeMap::from(capabilities.map(|(name, value)| (name.to_owned(), value)));
    let answer = Capabilities {
        server: "sandbar".to_owned(),
        server_id: Some(app.node.id().to_string()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        capabilities,
    };
    body::json(StatusCode::OK, &answer)
}
