//! Attacks with wrong credentials: every route of the control plane, of a guest and of the studio,
//! and signed file URLs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use testing::User;

use crate::support::{Sandbox, Server, http};

/// Routes of the control plane. `{sandbox}` is replaced by the id of a running sandbox, `{volume}`
/// by that of a volume.
const CONTROL_ROUTES: &[(&str, &str)] = &[
    ("POST", "/sandboxes"),
    ("POST", "/v2/sandboxes"),
    ("GET", "/sandboxes"),
    ("GET", "/v2/sandboxes"),
    ("GET", "/sandboxes/metrics"),
    ("GET", "/sandboxes/{sandbox}"),
    ("DELETE", "/sandboxes/{sandbox}"),
    ("POST", "/sandboxes/{sandbox}/connect"),
    ("POST", "/v2/sandboxes/{sandbox}/connect"),
    ("POST", "/sandboxes/{sandbox}/resume"),
    ("POST", "/sandboxes/{sandbox}/pause"),
    ("POST", "/sandboxes/{sandbox}/timeout"),
    ("POST", "/sandboxes/{sandbox}/refreshes"),
    ("GET", "/sandboxes/{sandbox}/metrics"),
    ("GET", "/sandboxes/{sandbox}/logs"),
    ("GET", "/v2/sandboxes/{sandbox}/logs"),
    ("PUT", "/sandboxes/{sandbox}/network"),
    ("POST", "/sandboxes/{sandbox}/fork"),
    ("POST", "/sandboxes/{sandbox}/snapshots"),
    ("GET", "/snapshots"),
    ("GET", "/secrets"),
    ("POST", "/secrets"),
    ("GET", "/secrets/a"),
    ("POST", "/secrets/a"),
    ("DELETE", "/secrets/a"),
    ("GET", "/teams"),
    ("GET", "/volumes"),
    ("POST", "/volumes"),
    ("GET", "/volumes/a"),
    ("DELETE", "/volumes/a"),
    ("GET", "/volumecontent/{volume}/file?path=a"),
    ("PUT", "/volumecontent/{volume}/file?path=a"),
    ("GET", "/volumecontent/{volume}/path?path=a"),
    ("PATCH", "/volumecontent/{volume}/path?path=a"),
    ("DELETE", "/volumecontent/{volume}/path?path=a"),
    ("GET", "/volumecontent/{volume}/dir?path=a"),
    ("POST", "/volumecontent/{volume}/dir?path=a"),
    ("GET", "/sandbar/capabilities"),
    ("GET", "/sandbar/trash"),
    ("POST", "/sandbar/trash/a"),
    ("POST", "/sandbar/templates/a/builds/b"),
    ("POST", "/v3/templates"),
    ("GET", "/templates"),
    ("GET", "/v2/templates"),
    ("POST", "/templates/tags"),
    ("DELETE", "/templates/tags"),
    ("GET", "/templates/aliases/base"),
    ("GET", "/templates/aliases/team/base"),
    ("GET", "/templates/base/files/00"),
    ("PUT", "/templates/base/files/00"),
    ("POST", "/v2/templates/base/builds/b"),
    ("GET", "/templates/base/builds/b/status"),
    ("GET", "/templates/base/builds/b/logs"),
    ("GET", "/templates/base/tags"),
    ("GET", "/templates/base"),
    ("DELETE", "/templates/base"),
    ("PATCH", "/templates/base"),
    ("PATCH", "/v2/templates/base"),
];

/// Routes of the guest, through the edge.
const GUEST_ROUTES: &[(&str, &str)] = &[
    ("GET", "/files?path=/home/user/mine"),
    ("POST", "/files?path=/home/user/mine"),
    ("PUT", "/files?path=/home/user/mine"),
    ("POST", "/files/compose"),
    ("GET", "/metrics"),
    ("GET", "/envs"),
    ("POST", "/process.Process/List"),
    ("POST", "/process.Process/Start"),
    ("POST", "/process.Process/Connect"),
    ("POST", "/process.Process/SendInput"),
    ("POST", "/process.Process/SendSignal"),
    ("POST", "/process.Process/StreamInput"),
    ("POST", "/process.Process/Update"),
    ("POST", "/process.Process/CloseStdin"),
    ("POST", "/filesystem.Filesystem/Stat"),
    ("POST", "/filesystem.Filesystem/MakeDir"),
    ("POST", "/filesystem.Filesystem/Move"),
    ("POST", "/filesystem.Filesystem/ListDir"),
    ("POST", "/filesystem.Filesystem/Remove"),
    ("POST", "/filesystem.Filesystem/WatchDir"),
    ("POST", "/filesystem.Filesystem/CreateWatcher"),
    ("POST", "/filesystem.Filesystem/GetWatcherEvents"),
    ("POST", "/filesystem.Filesystem/RemoveWatcher"),
];

const JSON: (&str, &str) = ("Content-Type", "application/json");

fn status(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
    let all: Vec<_> = [JSON].into_iter().chain(headers.iter().copied()).collect();
    http::request(&server.address, method, path, &all, b"{}").map_or(0, |reply| reply.status)
}

/// The routes in the `match` of a source file: `GET /sandboxes/*/logs`, variables as `*`.
fn served_routes(source: &str) -> BTreeSet<String> {
    let mut routes = BTreeSet::new();
    for arm in source.split("\n        (").skip(1) {
        let Some((pattern, _)) = arm.split_once("=>") else { continue };
        let Some((method, paths)) = pattern.split_once(',') else { continue };
        let method = method.trim().trim_start_matches('&').trim_start_matches("Method::");
        for path in paths.split('|') {
            let Some(path) = path.split_once('[').and_then(|(_, rest)| rest.split_once(']')) else { continue };
            let segments: Vec<&str> = path.0.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
            // One that passes on to the next `match`.
            if segments.contains(&"..") {
                continue;
            }
            let segment = |part: &&str| if part.starts_with('"') { part.trim_matches('"') } else { "*" }.to_owned();
            routes.insert(format!("{method} /{}", segments.iter().map(segment).collect::<Vec<_>>().join("/")));
        }
    }
    routes
}

/// Whether `path`, of which `pattern` has variables as `*`, is that route.
fn is_route(pattern: &str, method: &str, path: &str) -> bool {
    let path = path.split('?').next().expect("a path");
    let Some((wanted, pattern)) = pattern.split_once(' ') else { return false };
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), path.split('/').collect());
    wanted == method
        && pattern.len() == path.len()
        && pattern.iter().zip(&path).all(|(wanted, part)| *wanted == "*" || wanted == part)
}

#[test]
fn every_route_of_the_control_plane_is_attacked() {
    let served = served_routes(include_str!("../../../../api/src/control/mod.rs"));
    assert!(served.len() > 45 && served.contains("GET /sandboxes/*/logs"), "{served:#?}");
    let is_attacked = |route: &&String| CONTROL_ROUTES.iter().any(|(method, path)| is_route(route, method, path));
    let missing: Vec<&String> = served.iter().filter(|route| !is_attacked(route)).collect();
    assert!(missing.is_empty(), "add to CONTROL_ROUTES: {missing:#?}");
}

#[test]
fn every_procedure_of_the_guest_is_attacked() {
    let services = [
        ("process.Process", include_str!("../../../../protocol/proto/process.proto")),
        ("filesystem.Filesystem", include_str!("../../../../protocol/proto/filesystem.proto")),
    ];
    for (service, schema) in services {
        let procedures = schema.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split_once('('));
        let paths: Vec<String> = procedures.map(|(name, _)| format!("/{service}/{name}")).collect();
        assert!(paths.len() > 7, "{paths:?}");
        for path in paths {
            assert!(GUEST_ROUTES.contains(&("POST", path.as_str())), "add {path} to GUEST_ROUTES");
        }
    }
}

fn studio_token(server: &Server) -> String {
    std::fs::read_to_string(server.file("studio/token")).expect("the first user's token").trim().to_owned()
}

#[test]
fn no_route_of_the_control_plane_takes_a_wrong_key() {
    let server = Server::start();
    let sandbox = server.create();
    let made = server.call("POST", "/volumes", Some(serde_json::json!({ "name": "attacked" }))).json();
    let volume = made["volumeID"].as_str().expect("a volume");
    let key = server.key.as_str();
    let (longer, shorter, upper) = (format!("{key}0"), &key[..key.len() - 1], key.to_uppercase());
    let (bearer, studio) = (format!("Bearer {key}"), studio_token(&server));
    let wrong: [&[(&str, &str)]; 10] = [
        &[],
        &[("X-API-Key", "")],
        &[("X-API-Key", "e2b_0000000000000000000000000000000000000000")],
        &[("X-API-Key", &longer)],
        &[("X-API-Key", shorter)],
        &[("X-API-Key", &upper)],
        &[("X-API-Key", &sandbox.token)],
        &[("X-API-Key", &studio)],
        &[("X-API-Key", "wrong"), ("X-API-Key", key)],
        &[("Authorization", &bearer)],
    ];
    let mut through = Vec::new();
    for (method, path) in CONTROL_ROUTES {
        let path = path.replace("{sandbox}", &sandbox.id).replace("{volume}", volume);
        for headers in wrong {
            // E2B's command line program sends the key as a bearer token for this route.
            if path == "/teams" && headers.iter().any(|(name, _)| *name == "Authorization") {
                continue;
            }
            let status = status(&server, method, &path, headers);
            if !matches!(status, 400 | 401 | 403 | 429) {
                through.push(format!("{method} {path} with {headers:?}: {status}"));
            }
        }
        let queried = format!("{path}{}api_key={key}&X-API-Key={key}", if path.contains('?') { '&' } else { '?' });
        let status = status(&server, method, &queried, &[]);
        assert!(matches!(status, 401 | 403), "{method} {path}: a key in the query: {status}");
    }
    assert!(through.is_empty(), "{}", through.join("\n"));
    // The control: the key is accepted, and no attempt killed or paused the sandbox.
    let seen = server.call("GET", &format!("/sandboxes/{}", sandbox.id), None);
    assert_eq!((seen.status, seen.json()["state"].as_str()), (200, Some("running")));
}

#[test]
fn no_route_of_the_guest_takes_a_foreign_token() {
    assert_refuses_foreign_tokens(&Server::with(&["--no-studio"]));
}

#[test]
fn rootless_guests_take_no_foreign_token() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        assert_refuses_foreign_tokens(&Server::for_user(user, &["--no-studio"]));
    }
}

fn assert_refuses_foreign_tokens(server: &Server) {
    let (sandbox, other) = (server.create(), server.create());
    assert_eq!(sandbox.write("/home/user/mine", b"mine").status, 200);
    let host = format!("49983-{}.localhost", sandbox.id);
    let by_headers = [("E2b-Sandbox-Id", sandbox.id.as_str()), ("E2b-Sandbox-Port", "49983")];
    let by_host = [("Host", host.as_str())];
    let routes: [&[(&str, &str)]; 2] = [&by_headers, &by_host];
    let user = "Basic dXNlcjo=";
    let bearer = format!("Bearer {}", sandbox.token);
    let tokens: [&[(&str, &str)]; 5] = [
        &[],
        &[("X-Access-Token", "")],
        &[("X-Access-Token", &other.token)],
        &[("X-Access-Token", &server.key), ("X-API-Key", &server.key)],
        &[("Authorization", &bearer)],
    ];
    let mut through = Vec::new();
    for (method, path) in GUEST_ROUTES {
        for route in routes {
            for token in tokens {
                let mut headers = [route, token].concat();
                if !token.iter().any(|(name, _)| *name == "Authorization") {
                    headers.push(("Authorization", user));
                }
                let status = status(server, method, path, &headers);
                if status != 401 {
                    through.push(format!("{method} {path} with {headers:?}: {status}"));
                }
            }
        }
    }
    assert!(through.is_empty(), "{}", through.join("\n"));
    // The control: the sandbox's own token is accepted on both routes.
    for route in routes {
        let headers = [route, &[("X-Access-Token", sandbox.token.as_str())]].concat();
        assert_eq!(status(server, "GET", "/files?path=/home/user/mine", &headers), 200, "{route:?}");
    }
    assert_eq!(sandbox.read("/home/user/mine").body, b"mine");
}

/// The signature that E2B's clients compute. Implemented here again, so that the test does not
/// depend on the server's code.
fn sign(sandbox: &Sandbox, path: &str, operation: &str, user: &str, expiration: Option<i64>) -> String {
    let mut text = format!("{path}:{operation}:{user}:{}", sandbox.token);
    if let Some(seconds) = expiration {
        text.push_str(&format!(":{seconds}"));
    }
    format!("v1_{}", BASE64_STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

fn encode(signature: &str) -> String {
    signature.replace('+', "%2B").replace('/', "%2F")
}

#[test]
fn a_signed_url_opens_what_was_signed_and_nothing_else() {
    let server = Server::with(&["--no-studio"]);
    let (sandbox, other) = (server.create(), server.create());
    for (to, content) in [(&sandbox, b"mine"), (&other, b"his_")] {
        assert_eq!(to.write("/home/user/a", content).status, 200);
        assert_eq!(to.write("/home/user/b", content).status, 200);
    }
    let get =
        |query: &str| http::request(&server.address, "GET", &format!("/files?{query}"), &[], b"").expect("an answer");
    let (a, b) = ("/home/user/a", "/home/user/b");
    let good = encode(&sign(&sandbox, a, "read", "", None));
    assert_eq!(get(&format!("path={a}&signature={good}")).body, b"mine", "the control");

    let future = jiff::Timestamp::now().as_second() + 3600;
    let expires = encode(&sign(&sandbox, a, "read", "", Some(future)));
    assert_eq!(get(&format!("path={a}&signature={expires}&signature_expiration={future}")).body, b"mine");
    let past = encode(&sign(&sandbox, a, "read", "", Some(1)));
    let foreign = encode(&sign(&other, a, "read", "", None));
    let written = encode(&sign(&sandbox, a, "write", "", None));
    let rooted = encode(&sign(&sandbox, a, "read", "root", None));
    for (what, query) in [
        ("none", format!("path={a}")),
        ("empty", format!("path={a}&signature=")),
        ("forged", format!("path={a}&signature=v1_{}", "A".repeat(43))),
        ("cut short", format!("path={a}&signature={}", &good[..good.len() - 1])),
        ("another path", format!("path={b}&signature={good}")),
        ("a path that climbs", format!("path={a}/../b&signature={good}")),
        ("doubled path, last", format!("path={b}&path={a}&signature={good}")),
        ("another user", format!("path={a}&username=root&signature={good}")),
        ("a user taken away", format!("path={a}&signature={rooted}")),
        ("another operation", format!("path={a}&signature={written}")),
        ("expired", format!("path={a}&signature={past}&signature_expiration=1")),
        ("longer than signed", format!("path={a}&signature={past}&signature_expiration={future}")),
        ("expiry taken away", format!("path={a}&signature={expires}")),
        ("expiry added", format!("path={a}&signature={good}&signature_expiration={future}")),
        ("an odd expiry", format!("path={a}&signature={good}&signature_expiration=later")),
        ("upper case", format!("path={a}&signature={}", good.to_uppercase())),
    ] {
        let reply = get(&query);
        assert_eq!(reply.status, 401, "{what}: {query}: {}", reply.text());
    }
    // The edge finds the sandbox by the signature, and refuses a request that names another one.
    assert_eq!(get(&format!("path={a}&signature={foreign}")).body, b"his_", "the control");
    let named = [("E2b-Sandbox-Id", sandbox.id.as_str()), ("E2b-Sandbox-Port", "49983")];
    let query = format!("/files?path={a}&signature={foreign}");
    assert_eq!(http::request(&server.address, "GET", &query, &named, b"").expect("an answer").status, 401);
    let query = format!("/files?path={a}&signature={good}");
    let posted = http::request(&server.address, "POST", &query, &[("Content-Type", "application/octet-stream")], b"x");
    assert_eq!(posted.expect("an answer").status, 401, "a signature to read does not write");
    assert_eq!(sandbox.read(a).body, b"mine");
}

#[test]
fn no_call_of_the_studio_takes_a_wrong_token() {
    let server = Server::start();
    let token = studio_token(&server);
    let bearer = format!("Bearer {token}");
    let asked = http::request(&server.address, "GET", "/api/openapi.json", &[("Authorization", &bearer)], b"");
    let document = asked.expect("an answer").json();
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 15, "{paths:?}");
    let key = format!("Bearer {}", server.key);
    let (shorter, cookie) = (format!("Bearer {}", &token[..token.len() - 1]), format!("sandbar_session={token}"));
    let mut through = Vec::new();
    let mut calls = 0;
    for (path, operations) in paths {
        let concrete: String = path
            .split('/')
            .map(|part| if part.starts_with('{') { "01JD0000000000000000000000" } else { part })
            .collect::<Vec<_>>()
            .join("/");
        for (method, operation) in operations.as_object().expect("operations") {
            // Public calls: signing in, and health checks of a load balancer.
            if operation["security"].as_array().is_some_and(Vec::is_empty) {
                continue;
            }
            calls += 1;
            let method = method.to_uppercase();
            let mut wrong: Vec<Vec<(&str, &str)>> =
                vec![vec![], vec![("Authorization", &shorter)], vec![("Authorization", &key)]];
            if method != "GET" {
                // A cookie without the CSRF header, as a page of another origin makes the browser
                // send.
                wrong.push(vec![("Cookie", &cookie)]);
                wrong.push(vec![("Cookie", &cookie), ("X-Sandbar-Csrf", "1"), ("Origin", "https://evil.example")]);
            }
            for headers in wrong {
                let status = status(&server, &method, &concrete, &headers);
                if !matches!(status, 401 | 403 | 429) {
                    through.push(format!("{method} {path} with {headers:?}: {status}"));
                }
            }
        }
    }
    assert!(calls > 20, "{calls}");
    assert!(through.is_empty(), "{}", through.join("\n"));
    let me = http::request(&server.address, "GET", "/api/me", &[("Authorization", &bearer)], b"").expect("an answer");
    assert_eq!(me.status, 200, "the control: {}", me.text());
}
