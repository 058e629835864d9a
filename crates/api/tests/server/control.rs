//! The control plane, call by call: statuses, bodies and headers as SDKs of both API versions need
//! them.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{KEY, SERVICE_PORT, Server, edge_headers, text};
use node::memory::guest_config;
use node::{EngineError, SandboxesConfig};
use serde_json::{Value, json};
use testing::{SOON, eventually_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Checks one call: its status, and that its body has at least these fields.
async fn check(server: &Server, line: &str, body: &str, status: u16, expected: Value) {
    let answer = server.call(line, body).await;
    assert_eq!(answer.status, status, "{line} {body}: {}", answer.text());
    if status >= 400 {
        assert_eq!(answer.json()["code"], status, "{line}: the body repeats the status");
        assert!(answer.json()["message"].is_string(), "{line}");
        let final_answer = status >= 500 || status == 429;
        assert_eq!(answer.header("should-retry"), final_answer.then_some("false"), "{line}");
    }
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&answer.json()[field], value, "{line} {body}: {field}");
    }
}

#[tokio::test]
async fn both_api_versions_create() {
    let server = Server::start().await;
    let domain = format!("localhost:{}", server.address.port());
    for (line, body) in [
        ("POST /v2/sandboxes", r#"{"templateID":"base","metadata":{},"envVars":{}}"#),
        ("POST /v2/sandboxes", r#"{"templateID":"base"}"#),
        (
            "POST /sandboxes",
            r#"{"templateID":"base","allow_internet_access":true,"autoPause":false,"envVars":{"E":"1"},"metadata":{"m":"1"},"secure":true,"timeout":300}"#,
        ),
        ("POST /sandboxes", r#"{"templateID":"code-interpreter-v1:default","future":{"x":1}}"#),
    ] {
        let answer = server.call(line, body).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let body = answer.json();
        for field in ["templateID", "sandboxID", "clientID", "alias", "envdAccessToken"] {
            assert!(!text(&body, field).is_empty(), "{field}");
        }
        assert_eq!(body["envdVersion"], "0.6.13");
        assert_eq!(body["domain"], domain.as_str());
        assert_eq!(body["trafficAccessToken"], Value::Null);
        let id = text(&body, "sandboxID");
        assert!(id.len() == 21 && id.starts_with('i'), "{id}");
    }
    let open = server.call("POST /sandboxes", r#"{"templateID":"base","secure":false}"#).await.json();
    assert_eq!(open["envdAccessToken"], Value::Null, "the first generation may ask for no token");
    let boots = server.engine.boots();
    assert_eq!(guest_config(&boots[2]).expect("JSON").env_vars.get("E").map(String::as_str), Some("1"));
    assert_eq!(guest_config(&boots[0]).expect("JSON").system_env.get("E2B_SANDBOX").map(String::as_str), Some("true"));
    assert_eq!(boots[0].egress.rules, egress::Rules::default());
}

#[tokio::test]
async fn defaults_differ_by_api_version() {
    let server = Server::start().await;
    for (line, seconds) in [("POST /sandboxes", 15), ("POST /v2/sandboxes", 300)] {
        let id = text(&server.call(line, r#"{"templateID":"base"}"#).await.json(), "sandboxID").to_owned();
        let record = server.node.get(&id.parse().expect("an ID")).expect("it runs").record;
        assert_eq!(record.end_at.duration_since(record.started_at).as_secs(), seconds, "{line}");
    }
}

#[tokio::test]
async fn a_create_that_is_wrong_says_what() {
    let server = Server::start().await;
    for (body, status, message) in [
        ("{}", 400, "missing field `templateID`"),
        ("", 400, "missing field `templateID`"),
        ("[]", 400, "the request body must be a JSON object"),
        (
            r#"{"templateID":"a b"}"#,
            400,
            "invalid template reference 'a b': expected [namespace/]alias[:tag] or a template ID",
        ),
        (r#"{"templateID":"nope"}"#, 404, "template 'nope' not found"),
        (r#"{"templateID":"base:v2"}"#, 404, "tag 'v2' does not exist for template 'base'"),
        (r#"{"templateID":"base","timeout":0}"#, 400, "Timeout must be greater than 0"),
        (r#"{"templateID":"base","timeout":-1}"#, 400, "Timeout must be greater than 0"),
        (r#"{"templateID":"base","timeout":2592001}"#, 400, "Timeout cannot be greater than 2592000 seconds"),
        (r#"{"templateID":"base","timeout":"1"}"#, 400, "field 'timeout': invalid type: string \"1\", expected i64"),
        (r#"{"templateID":"base","autoPauseMemory":false}"#, 400, "autoPauseMemory false needs autoPause"),
        (
            r#"{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}"#,
            400,
            "autoPauseMemory false cannot go with autoResume: only memory resumes by itself",
        ),
        (r#"{"templateID":"base","cpuCount":0}"#, 400, "cpuCount is 0; it must be between 1 and 64"),
        (r#"{"templateID":"base","memoryMB":64}"#, 400, "memoryMB is 64; it must be between 128 and 65536"),
        (r#"{"templateID":"base","diskSizeMB":-5}"#, 400, "diskSizeMB is -5; it must be between 64 and 262144"),
        (r#"{"templateID":"base","envVars":{"A=B":"c"}}"#, 400, "envVars: 'A=B' cannot be an environment variable"),
        (
            r#"{"templateID":"base","network":{"denyOut":["example.com"]}}"#,
            400,
            "network.denyOut: 'example.com' is not an IP address or CIDR range",
        ),
        (
            r#"{"templateID":"base","network":{"allowOut":["example.com"],"denyOut":["10.0.0.0/8"]}}"#,
            400,
            "network.allowOut: the domain 'example.com' needs '0.0.0.0/0' in network.denyOut",
        ),
        (r#"{"templateID":"base","network":{"maskRequestHost":"ü"}}"#, 400, "network.maskRequestHost must be ASCII"),
        (
            r#"{"templateID":"base","network":{"maskRequestHost":"a b"}}"#,
            400,
            "network.maskRequestHost must be a host name of at most 300 characters",
        ),
        (r#"{"templateID":"base","network":{"httpsPorts":[49983]}}"#, 400, "network.httpsPorts must not hold 49983"),
        (
            r#"{"templateID":"base","network":{"httpsPorts":[443,70000]}}"#,
            400,
            "network.httpsPorts: 70000 is not a port",
        ),
        (
            r#"{"templateID":"base","volumeMounts":[{"name":"v","path":"a/b"}]}"#,
            400,
            "volumeMounts: 'a/b' is not a clean absolute path",
        ),
        (
            r#"{"templateID":"base","iam":{"tokens":{"t":{"audience":"a","tokenType":"X"}}}}"#,
            400,
            "iam.tokens: the type of 't' must be JWT-SVID",
        ),
        (
            r#"{"templateID":"base","network":{"rules":{"1.2.3.4":[]}}}"#,
            400,
            "network.rules: '1.2.3.4' is not a domain name, nor one after `*.`",
        ),
        (
            r#"{"templateID":"base","network":{"egressProxy":{"password":"hunter2"}}}"#,
            400,
            "network.egressProxy: must be an object with address, and perhaps username, password and tls {enabled, serverName, caCert}",
        ),
        (
            r#"{"templateID":"base","volumeMounts":[{"name":"v","path":"/a"}]}"#,
            400,
            "volumeMounts: volume 'v' not found",
        ),
    ] {
        check(&server, "POST /v2/sandboxes", body, status, json!({ "message": message })).await;
    }
    let private = r#"{"templateID":"base","secure":false,"network":{"allowPublicTraffic":false}}"#;
    let message = "network.allowPublicTraffic: private traffic needs a secured sandbox";
    check(&server, "POST /sandboxes", private, 400, json!({ "message": message })).await;
    assert!(server.engine.boots().is_empty(), "nothing was made");
    let harmless = r#"{"templateID":"base","network":{"allowOut":[],"denyOut":[],"rules":{},"allowPublicTraffic":null},"iam":null,"mcp":{},"volumeMounts":[]}"#;
    check(&server, "POST /v2/sandboxes", harmless, 201, json!({})).await;
}

#[tokio::test]
async fn resources_are_an_addition() {
    let body = r#"{"templateID":"base","cpuCount":1,"memoryMB":512,"diskSizeMB":100}"#;
    let size = |body: &Value| (body["cpuCount"].clone(), body["memoryMB"].clone(), body["diskSizeMB"].clone());
    let server = Server::start().await;
    let id = text(&server.call("POST /v2/sandboxes", body).await.json(), "sandboxID").to_owned();
    let detail = server.call(&format!("GET /sandboxes/{id}"), "").await.json();
    assert_eq!(size(&detail), (json!(1), json!(512), json!(100)));
    let offered = server.call("GET /sandbar/capabilities", "").await.json();
    let memory = &offered["capabilities"]["createResources"]["memoryMB"];
    assert_eq!(memory, &json!({"min": 128, "max": 65536, "default": 1024}));
    let isolation = &offered["capabilities"]["isolation"];
    assert_eq!(isolation, &json!({"class": "namespaces", "memorySnapshots": false, "liveFork": false}));

    let plain = Server::with(SandboxesConfig::default(), false).await;
    let id = text(&plain.call("POST /v2/sandboxes", body).await.json(), "sandboxID").to_owned();
    let detail = plain.call(&format!("GET /sandboxes/{id}"), "").await.json();
    assert_eq!(size(&detail), (json!(2), json!(1024), json!(10240)), "ignored like any unknown field");
    check(&plain, "GET /sandbar/capabilities", "", 404, json!({})).await;
}

#[tokio::test]
async fn everything_but_health_needs_the_key() {
    let server = Server::start().await;
    let health = server.send("GET /health", &[], "").await;
    assert_eq!(health.status, 200);
    for headers in [vec![], vec![("x-api-key", "e2b_00")], vec![("authorization", "Bearer x")]] {
        let answer = server.send("GET /v2/sandboxes", &headers, "").await;
        assert_eq!((answer.status.as_u16(), answer.json()["code"].clone()), (401, json!(401)));
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    assert_eq!(server.send("GET /v2/sandboxes", &[("X-API-KEY", KEY)], "").await.status, 200);
    // The same key as a token grants the list of teams, and nothing else.
    let token = format!("Bearer {KEY}");
    let teams = server.send("GET /teams", &[("authorization", &token)], "").await;
    assert_eq!((teams.status.as_u16(), teams.json()[0]["apiKey"].clone()), (200, json!(KEY)));
    assert_eq!(server.send("GET /teams", &[("authorization", "Bearer x")], "").await.status, 401);
    assert_eq!(server.send("GET /v2/sandboxes", &[("authorization", &token)], "").await.status, 401);
}

#[tokio::test]
async fn unknown_and_unserved_calls_have_different_statuses() {
    let server = Server::start().await;
    for (line, status) in [
        ("POST /sandboxes/iabc/fork", 404),
        ("POST /sandboxes/iabc/snapshots", 404),
        ("GET /sandboxes/iabc/fork", 405),
        ("POST /snapshots", 405),
        ("PUT /sandboxes/iabc/network", 404),
        ("POST /v3/templates", 400),
        ("PUT /templates/t/files/x", 411),
        ("GET /templates/aliases/team%2Fname", 404),
        ("GET /templates/aliases/team/name", 404),
        ("DELETE /templates/local%2Fnothing%3Adefault", 404),
        ("DELETE /templates/base", 403),
        ("GET /volumes", 200),
        ("GET /volumes/v", 404),
        ("PATCH /volumes", 405),
        ("GET /teams", 200),
        ("POST /teams", 405),
        ("GET /teams/t/metrics", 501),
        ("GET /teams/t/metrics/max", 501),
        ("POST /access-tokens", 501),
        ("GET /api-keys", 501),
        ("GET /nodes", 501),
        ("POST /templates", 501),
        ("POST /templates/t", 501),
        ("POST /templates/t/builds/b", 501),
        ("POST /v2/templates", 501),
        ("GET /snapshots/s", 404),
        ("GET /templates/t/nothing", 404),
        ("GET /", 404),
        ("GET /nothing", 404),
        ("GET /v2/nothing", 404),
        ("GET /sandboxes/iabc/nothing", 404),
        ("GET /v2/sandboxes/iabc", 404),
        ("PATCH /sandboxes", 405),
        ("GET /sandboxes/iabc/pause", 405),
        ("GET /sandboxes/a-b-c", 400),
        ("GET /sandboxes/A", 400),
        ("DELETE /sandboxes/nonexistingsandbox", 404),
        ("GET /sandboxes/iabc", 404),
        ("GET /sandboxes/iabc/metrics", 404),
        ("GET /sandboxes/iabc/logs", 404),
        ("POST /sandboxes/iabc/pause", 404),
        ("POST /sandboxes/iabc/resume", 404),
    ] {
        check(&server, line, "", status, json!({})).await;
    }
    check(&server, "POST /sandboxes/iabc/timeout", r#"{"timeout":1}"#, 404, json!({})).await;
    check(&server, "POST /v2/sandboxes/iabc/connect", "{}", 404, json!({})).await;
    let invalid = json!({"message": "Invalid sandbox ID"});
    check(&server, "GET /sandboxes/a%2Fb", "", 400, invalid).await;
}

#[tokio::test]
async fn a_sandbox_through_pause_connect_and_kill() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base", "metadata": {"k": "v"}, "timeout": 600})).await;
    let id = text(&made, "sandboxID");
    let at = |path: &str| format!("/sandboxes/{id}{path}");
    let detail = server.call(&format!("GET {}", at("")), "").await.json();
    assert_eq!(detail["state"], "running");
    assert_eq!(detail["metadata"], json!({"k": "v"}));
    assert_eq!(detail["lifecycle"], json!({"autoResume": false, "onTimeout": "kill"}));
    assert_eq!(detail["envdAccessToken"], made["envdAccessToken"]);
    assert_eq!(text(&detail, "endAt").len(), "2026-01-02T03:04:05.678901Z".len(), "microseconds");

    // A shorter connect leaves the end unchanged to the byte; in both API versions, and with the
    // older form of the id.
    check(&server, &format!("POST /sandboxes/{id}-client/connect"), r#"{"timeout":5}"#, 200, json!({"sandboxID": id}))
        .await;
    check(&server, &format!("POST /v2{}", at("/connect")), "{}", 200, json!({})).await;
    check(&server, &format!("POST {}", at("/connect")), "{}", 400, json!({"message": "missing field `timeout`"})).await;
    check(&server, &format!("POST {}", at("/refreshes")), r#"{"duration":10}"#, 204, json!({})).await;
    check(&server, &format!("POST {}", at("/refreshes")), r#"{"duration":3601}"#, 400, json!({})).await;
    let same = server.call(&format!("GET {}", at("")), "").await.json();
    assert_eq!(same["endAt"], detail["endAt"]);
    check(&server, &format!("POST {}", at("/timeout")), r#"{"timeout":300}"#, 204, json!({})).await;
    check(&server, &format!("POST {}", at("/timeout")), r#"{"timeout":-1}"#, 400, json!({})).await;
    check(&server, &format!("POST {}", at("/resume")), "", 409, json!({})).await;

    // Old SDKs pause without a body, newer ones with one.
    check(&server, &format!("POST {}", at("/pause")), "", 204, json!({})).await;
    check(&server, &format!("POST {}", at("/pause")), r#"{"memory":true}"#, 409, json!({})).await;
    let paused = server.call(&format!("GET {}", at("")), "").await.json();
    assert_eq!((text(&paused, "state"), text(&paused, "pauseMode")), ("paused", "full"));
    assert!(text(&paused, "endAt") < text(&detail, "endAt"), "the end is the time of the pause");
    check(&server, &format!("POST {}", at("/timeout")), r#"{"timeout":300}"#, 404, json!({})).await;
    let token = json!({"sandboxID": id, "envdAccessToken": made["envdAccessToken"]});
    check(&server, &format!("POST {}", at("/connect")), r#"{"timeout":300}"#, 201, token.clone()).await;

    check(&server, &format!("POST {}", at("/pause")), r#"{"memory":false,"requireHealthyGuest":true}"#, 204, json!({}))
        .await;
    let paused = server.call(&format!("GET {}", at("")), "").await.json();
    assert_eq!(text(&paused, "pauseMode"), "filesystem");
    check(&server, &format!("POST {}", at("/resume")), "", 201, token).await;

    check(&server, &format!("POST {}", at("/pause")), "{}", 204, json!({})).await;
    check(&server, &format!("DELETE {}", at("")), "", 204, json!({})).await;
    check(&server, &format!("DELETE {}", at("")), "", 404, json!({})).await;
    assert!(server.engine.files().is_empty());
}

#[tokio::test]
async fn timeout_zero_means_now() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base"})).await;
    let line = format!("/sandboxes/{}", text(&made, "sandboxID"));
    check(&server, &format!("POST {line}/timeout"), r#"{"timeout":0}"#, 204, json!({})).await;
    eventually_async("it has ended", SOON, async || {
        (server.call(&format!("GET {line}"), "").await.status == 404).then_some(())
    })
    .await;
}

#[tokio::test]
async fn lists_filter_order_and_page() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for (index, group) in ["a b", "a b", "c&d=%"].into_iter().enumerate() {
        let metadata = json!({"group": group, "index": index.to_string()});
        let made = server.create(json!({"templateID": "base", "metadata": metadata})).await;
        ids.push(text(&made, "sandboxID").to_owned());
    }
    check(&server, &format!("POST /sandboxes/{}/pause", ids[1]), "", 204, json!({})).await;
    let listed = async |query: &str| {
        let answer = server.call(&format!("GET /v2/sandboxes{query}"), "").await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        let rows: Vec<String> =
            answer.json().as_array().expect("a list").iter().map(|row| text(row, "sandboxID").to_owned()).collect();
        let header = |name| answer.header(name).map(str::to_owned);
        (rows, header("x-next-token"), header("x-total-running"))
    };
    let newest_first: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(listed("").await, (newest_first.clone(), None, Some("2".to_owned())));
    assert_eq!(listed("?order=asc").await.0, ids);
    assert_eq!(listed("?state=running,paused").await.0, newest_first);
    assert_eq!(listed("?state=running%2Cpaused").await.0, newest_first);
    assert_eq!(listed("?state=paused").await, (vec![ids[1].clone()], None, None));
    assert_eq!(listed("?state=running&state=paused").await.0.len(), 3);
    assert_eq!(listed("?metadata=group%3Da%252520b").await.0, [ids[1].clone(), ids[0].clone()]);
    assert_eq!(listed("?metadata=group%3Dc%252526d%25253D%252525%26index%3D2").await.0, [ids[2].clone()]);
    assert_eq!(listed("?metadata=group%3Dnone").await.0.len(), 0);
    assert_eq!(listed("?template=base").await.0.len(), 3);
    assert_eq!(listed("?template=unknown").await.0.len(), 0);

    let second = server.call(&format!("GET /sandboxes/{}", ids[1]), "").await.json();
    let started = text(&second, "startedAt").replace('Z', "%2B00:00");
    assert_eq!(listed(&format!("?startedAfter={started}")).await.0, [ids[2].clone(), ids[1].clone()]);

    let mut paged = Vec::new();
    let mut token = String::new();
    for _ in 0..3 {
        let (rows, next, running) = listed(&format!("?limit=1&nextToken={token}")).await;
        assert_eq!(running.as_deref(), Some("2"), "of all pages");
        paged.extend(rows);
        token = next.unwrap_or_default();
    }
    assert_eq!((paged, token.as_str()), (newest_first, ""));

    for (query, message) in [
        ("?nextToken=%21", "Invalid next token"),
        ("?limit=0", "limit is '0'; it must be between 1 and 100"),
        ("?limit=101", "limit is '101'; it must be between 1 and 100"),
        ("?state=dead", "state 'dead' is neither running nor paused"),
        ("?order=up", "order 'up' is neither asc nor desc"),
        (
            "?template=base:v1",
            "invalid template reference 'base:v1': expected [namespace/]alias[:tag] or a template ID",
        ),
    ] {
        check(&server, &format!("GET /v2/sandboxes{query}"), "", 400, json!({ "message": message })).await;
    }
    let old = server.call("GET /sandboxes?metadata=group%3Da%252520b", "").await.json();
    assert_eq!(old.as_array().map(Vec::len), Some(1), "the first generation lists what runs");
}

#[tokio::test]
async fn creates_can_be_repeated() {
    let server = Server::start().await;
    let send = async |key: &str, body: &'static str| {
        server.send("POST /v2/sandboxes", &[("x-api-key", KEY), ("idempotency-key", key)], body).await
    };
    let first = send("k-1", r#"{"templateID":"base","metadata":{"a":"1","b":"2"}}"#).await;
    let again = send("k-1", r#"{ "metadata":{"b":"2","a":"1"}, "templateID":"base" }"#).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 201));
    assert_eq!(first.json(), again.json());
    let other = send("k-1", r#"{"templateID":"base"}"#).await;
    assert_eq!(other.status, 422);
    assert_eq!(other.json()["error_code"], "idempotency_request_mismatch");
    assert_eq!(send("K_1", r#"{"templateID":"base"}"#).await.status, 400);
    assert_eq!(server.engine.boots().len(), 1);
}

#[tokio::test]
async fn a_full_machine_refuses_without_retry() {
    let server = Server::with(SandboxesConfig { max_sandboxes: 1, ..SandboxesConfig::default() }, true).await;
    server.create(json!({"templateID": "base"})).await;
    check(&server, "POST /v2/sandboxes", r#"{"templateID":"base"}"#, 429, json!({})).await;
    let server = Server::start().await;
    server.engine.refuse_boots(Some(|| EngineError::NoSpace("df -h /data".to_owned())));
    let message = "no space left for sandboxes on this machine: df -h /data";
    check(&server, "POST /v2/sandboxes", r#"{"templateID":"base"}"#, 507, json!({ "message": message })).await;
    server.engine.refuse_boots(Some(|| EngineError::failed("cannot boot the sandbox", "secret detail")));
    let message = "cannot boot the sandbox";
    check(&server, "POST /v2/sandboxes", r#"{"templateID":"base"}"#, 500, json!({ "message": message })).await;
}

#[tokio::test]
async fn metrics_and_logs() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base"})).await;
    let id = text(&made, "sandboxID");
    let metric = eventually_async("a first reading", SOON, async || {
        let list = server.call(&format!("GET /sandboxes/{id}/metrics"), "").await.json();
        list.as_array().expect("a list").first().cloned()
    })
    .await;
    for field in [
        "timestamp",
        "timestampUnix",
        "cpuCount",
        "cpuUsedPct",
        "memUsed",
        "memTotal",
        "memCache",
        "diskUsed",
        "diskTotal",
    ] {
        assert!(!metric[field].is_null(), "{field}");
    }
    let before = server.call(&format!("GET /sandboxes/{id}/metrics?start=1&end=2"), "").await;
    assert_eq!(before.json(), json!([]));
    check(&server, &format!("GET /sandboxes/{id}/metrics?start=x"), "", 400, json!({})).await;
    let several = server.call(&format!("GET /sandboxes/metrics?sandbox_ids={id},iunknown"), "").await.json();
    assert_eq!(several["sandboxes"].as_object().map(|map| map.keys().collect::<Vec<_>>()), Some(vec![&id.to_owned()]));

    let logs = server.call(&format!("GET /sandboxes/{id}/logs"), "").await.json();
    assert_eq!(logs["logs"][0], json!({"timestamp": "1970-01-01T00:00:00.005000Z", "line": "from the guest"}));
    assert_eq!(logs["logEntries"][0]["fields"], json!({"a": "b"}));
    let newest = server.call(&format!("GET /v2/sandboxes/{id}/logs?limit=1"), "").await.json();
    assert_eq!(newest["logs"][0]["message"], "sandbox started");
    let warned = server.call(&format!("GET /v2/sandboxes/{id}/logs?level=warn&direction=forward"), "").await.json();
    assert_eq!(warned["logs"].as_array().map(Vec::len), Some(1));
    let searched = server.call(&format!("GET /v2/sandboxes/{id}/logs?search=guest"), "").await.json();
    assert_eq!(searched["logs"][0]["level"], "warn");
    check(&server, &format!("GET /v2/sandboxes/{id}/logs?limit=1001"), "", 400, json!({})).await;
}

#[tokio::test]
async fn bodies_may_be_chunked() {
    use http_body_util::BodyExt;
    let server = Server::start().await;
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let parts = [r#"{"templateID""#, r#":"base"}"#].map(|part| Ok::<_, std::io::Error>(bytes::Bytes::from(part)));
    let frames = futures::stream::iter(parts.map(|part| part.map(hyper::body::Frame::data)));
    let request = http::Request::builder()
        .method("POST")
        .uri("/v2/sandboxes")
        .header("host", "localhost")
        .header("x-api-key", KEY)
        .body(http_body_util::StreamBody::new(frames).boxed())
        .expect("a request");
    assert_eq!(sender.send_request(request).await.expect("an answer").status(), 201);
}

/// How long the server keeps a connection on which only `sent` arrives.
async fn kept(server: &Server, sent: &[u8]) -> Duration {
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    stream.write_all(sent).await.expect("written");
    let start = tokio::time::Instant::now();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("the end");
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_head_times_out_before_an_idle_connection() {
    let server = Server::start().await;
    let head = kept(&server, b"GET /health HTTP/1.1\r\nx-long: ").await;
    assert!((25..60).contains(&head.as_secs()), "{head:?}");
    let answered = kept(&server, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answered.as_secs() >= 600, "{answered:?}");
    let silent = kept(&server, b"").await;
    assert!(silent.as_secs() >= 600, "{silent:?}");
}

#[tokio::test]
async fn every_response_has_a_request_id() {
    let server = Server::start().await;
    let id = text(&server.create(json!({"templateID": "base"})).await, "sandboxID").to_owned();
    let port = SERVICE_PORT.to_string();
    let to_service = edge_headers(&id, &port);
    let to_nothing = edge_headers(&id, "4444");
    let key = [("x-api-key", KEY)];
    let mut seen = HashSet::new();
    for (line, headers, status) in [
        ("GET /health", &[][..], 200),
        ("GET /v2/sandboxes", &key, 200),
        ("GET /v2/sandboxes", &[], 401),
        ("GET /nothing", &key, 404),
        ("GET /", &to_service, 200),
        ("GET /", &to_nothing, 502),
    ] {
        let made = server.send(line, headers, "").await;
        let made_id = made.header("x-request-id").unwrap_or_else(|| panic!("{line} has none")).to_owned();
        assert!(made.status == status && seen.insert(made_id), "{line}: {:?}", made.headers);
        let own = [headers, &[("x-request-id", "mine-1")]].concat();
        assert_eq!(server.send(line, &own, "").await.header("x-request-id"), Some("mine-1"), "{line}");
    }
    // A service gets the client's headers, without the server's id.
    let arrived = server.send("GET /", &to_service, "").await.json();
    assert_eq!(arrived["headers"].get("x-request-id"), None);
}
