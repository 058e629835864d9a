//! Tokens, health, settings, the lease, the log, CORS, and the listener inside the sandbox.

use std::io::{BufReader, Write};

use serde_json::json;
use testing::http::Reply;
use testing::{SOON, eventually};

use crate::common::{TestGuest, head};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn the_token_protects_all_routes_but_health() {
    let guest = TestGuest::start_with(|config| config.access_token = Some("t0ken".into()));
    let health = guest.get("/health");
    assert_eq!((health.status, health.header("cache-control")), (204, Some("no-store")));
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/envs"),
        ("POST", "/files/compose"),
        ("POST", "/process.Process/List"),
        ("POST", "/process.Process/Start"),
        ("POST", "/filesystem.Filesystem/Stat"),
    ] {
        for headers in [&[JSON][..], &[JSON, ("x-access-token", "t0keN")], &[JSON, ("x-access-token", "")]] {
            let refused = guest.request(method, path, headers, b"{}");
            assert_eq!((refused.status, refused.json()["code"].as_u64()), (401, Some(401)), "{path}");
            assert!(refused.json()["message"].is_string());
            assert_eq!(refused.header("content-type"), Some("application/json; charset=utf-8"));
            assert_eq!(refused.header("connection"), Some("close"), "the body was not read");
        }
    }
    let listed = guest.call_with("process.Process/List", &json!({}), &[("x-access-token", "t0ken")]);
    assert_eq!(listed.expect("allowed"), json!({}));
    assert_eq!(guest.request("GET", "/nothing", &[("x-access-token", "t0ken")], b"").status, 404);
}

#[test]
fn init_changes_settings_but_not_the_token() {
    let guest = TestGuest::start_with(|config| config.access_token = Some("one".into()));
    let init = |body: serde_json::Value| guest.request("POST", "/init", &[JSON], body.to_string().as_bytes());
    assert_eq!(init(json!({"accessToken": "two", "envVars": {"A": "1"}})).status, 401);
    let done = init(json!({
        "accessToken": "one", "envVars": {"B": "2"}, "defaultUser": "root", "defaultWorkdir": "/usr",
        "timestamp": "2026-01-01T00:00:00Z", "hyperloopIP": "", "volumeMounts": []
    }));
    assert_eq!((done.status, done.header("x-envd-version")), (204, Some("0.6.13")));
    assert_eq!(guest.request("POST", "/init", &[], b"").status, 204);
    assert_eq!(guest.request("PUT", "/sandbar/lease", &[JSON], br#"{"endsUnixMs":null}"#).status, 204);
    assert_eq!(guest.request("PUT", "/sandbar/lease", &[JSON], b"{").status, 400);
    let token = [("x-access-token", "one")];
    let run = guest.run_with("id -un; pwd; echo $B", &json!({}), &token);
    assert_eq!(run.out(), "root\n/usr\n2\n");
    let envs = guest.request("GET", "/envs", &token, b"");
    assert_eq!(envs.json(), json!({"B": "2", "E2B_SANDBOX": "true"}));
}

#[test]
fn metrics_stay_within_the_limits() {
    let guest = TestGuest::start();
    let first = guest.get("/metrics").json();
    assert_eq!((&first["cpu_count"], &first["mem_total"]), (&json!(2), &json!(512 << 20)));
    assert_eq!((&first["mem_total_mib"], &first["disk_total"]), (&json!(512), &json!(1 << 30)));
    assert!(first["ts"].as_i64().is_some_and(|ts| ts > 1_700_000_000));
    for (used, total) in [("mem_used", "mem_total"), ("mem_cache", "mem_total"), ("disk_used", "disk_total")] {
        assert!(first[used].as_u64() <= first[total].as_u64(), "{first}");
    }
    assert!(first["mem_used"].as_u64() > Some(0));
    let (_, _busy) = guest.start_process("while :; do :; done", &json!({}), &[]);
    eventually("a busy process shows", SOON, || {
        guest.get("/metrics").json()["cpu_used_pct"].as_f64().filter(|percent| (1.0..=100.0).contains(percent))
    });
}

#[test]
fn cors_permits_any_origin() {
    let guest = TestGuest::start_with(|config| config.access_token = Some("t".into()));
    let headers = [
        ("origin", "https://example.org"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "x-access-token,authorization,connect-protocol-version"),
    ];
    let allowed = guest.request("OPTIONS", "/process.Process/Start", &headers, b"");
    assert_eq!(allowed.status, 204);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("*"));
    assert_eq!(allowed.header("access-control-allow-methods"), Some("HEAD, GET, POST, PUT, PATCH, DELETE"));
    assert_eq!(allowed.header("access-control-allow-headers"), Some(headers[2].1));
    assert_eq!(allowed.header("access-control-max-age"), Some("7200"));
    // Error responses need CORS headers too.
    let refused = guest.request("GET", "/envs", &headers[..1], b"");
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some("*")));
    assert_eq!(guest.get("/health").header("access-control-allow-origin"), None);
}

#[test]
fn the_log_names_commands_and_no_secrets() {
    let guest = TestGuest::start();
    let run = guest.run_with("exit 5 # argument-secret", &json!({"process": {"envs": {"K": "value-secret"}}}), &[]);
    let entries = guest.log(0);
    let of = |message: &str| {
        entries.iter().find(|entry| entry["message"] == message).unwrap_or_else(|| panic!("{entries:?}"))
    };
    let pid = run.pid.expect("a pid").to_string();
    assert_eq!(of("process started")["fields"], json!({"command": "/bin/bash", "pid": pid}));
    assert_eq!(of("process ended")["fields"], json!({"command": "/bin/bash", "pid": pid, "exit": "exit status 5"}));
    assert_eq!(of("process ended")["level"], "info");
    assert!(of("process ended")["unixMs"].as_u64() > Some(1_700_000_000_000));
    assert!(!json!(entries).to_string().contains("secret"));
    let last = entries.last().expect("one")["seq"].as_u64().expect("a number");
    assert!(guest.log(last).is_empty());
    guest.run("true");
    assert_eq!(guest.log(last).len(), 2);
    assert_eq!(guest.get("/sandbar/log?after=x").status, 400);
}

#[test]
fn the_inside_port_serves_no_control_routes() {
    let guest = TestGuest::start_with(|config| config.access_token = Some("t".into()));
    let token = [("x-access-token", "t")];
    let ask = |request: &str| {
        let script = format!(
            "exec 5<>/dev/tcp/127.0.0.1/49983; printf '{request} HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\ncontent-length: 0\\r\\n\\r\\n' >&5; head -1 <&5"
        );
        guest.run_with(&script, &json!({}), &token).out()
    };
    assert!(ask("GET /health").starts_with("HTTP/1.1 204"));
    assert!(ask("GET /envs").starts_with("HTTP/1.1 401"));
    for request in ["POST /init", "PUT /sandbar/lease", "GET /sandbar/log"] {
        assert!(ask(request).starts_with("HTTP/1.1 404"), "{request}");
    }
    let facts = guest.run_with(
        "cat /run/e2b/.E2B_SANDBOX /run/e2b/.E2B_SANDBOX_ID /run/e2b/.E2B_TEMPLATE_ID",
        &json!({}),
        &token,
    );
    assert_eq!(facts.out(), "trueitestbase");
}

#[test]
fn a_connection_serves_many_requests() {
    let guest = TestGuest::start();
    let mut stream = guest.connect();
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle"));
    for _ in 0..3 {
        stream.write_all(&head("GET", "/health", &[], Some(0))).expect("written");
        assert_eq!(Reply::read(&mut answers).status, 204);
        stream.write_all(&head("POST", "/process.Process/List", &[JSON], Some(2))).expect("written");
        stream.write_all(b"{}").expect("written");
        assert_eq!(Reply::read(&mut answers).body, b"{}");
    }
}
