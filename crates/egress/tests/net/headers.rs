//! Headers that egress rules set, in plain requests and inside TLS; and that a secret is sent to no
//! other target.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::rr::RecordType;
use sandbar_egress::{EgressConfig, Headers, Rules};
use tempfile::TempDir;

use crate::dns::{ask, config, name_server};
use crate::lab::{SECRET, SERVER, SERVER_V6, Sandbox, World, at, connect};
use crate::tls::{Heard, ask_http, authority, get, header, http_server, https_server, tls, trust};

/// The header that a request of a rule carries.
const EXPECTED: &str = "Bearer s3cret-v4lue";

struct Scene {
    world: World,
    names: SocketAddr,
    directory: TempDir,
    /// The authority that the egress proxy trusts for targets.
    outer: Arc<ca::Authority>,
}

impl Scene {
    fn new() -> Self {
        let (world, directory) = (World::new(), tempfile::tempdir().unwrap());
        let names = name_server(&world.internet, SERVER, 0);
        let outer = authority(directory.path(), "outer");
        Self { world, names, directory, outer }
    }

    fn config(&self) -> EgressConfig {
        let inner = self.directory.path().join("inner");
        let trust = trust(&inner, vec![self.outer.certificate_path()]);
        EgressConfig { trust: Some(trust), ..config(self.names) }
    }

    fn sandbox(&self, rules: Rules) -> (Sandbox, String) {
        let config = self.config();
        let root = config.trust.as_ref().unwrap().certificate_pem().unwrap();
        (self.world.sandbox_with(config, rules), root)
    }
}

fn ruled(rules: Rules, value: &str) -> Rules {
    let headers = Headers::new([("Authorization", value), ("X-Plain", "yes")]).unwrap();
    rules.with_headers([("public.example".parse().unwrap(), headers)])
}

fn secret() -> Rules {
    ruled(Rules::default(), "Bearer ${e2b.secrets.key}")
}

/// As [`secret`], for plain HTTP as well.
fn plain_secret() -> Rules {
    let headers = Headers::new([("Authorization", "Bearer ${e2b.secrets.key}"), ("X-Plain", "yes")]).unwrap();
    Rules::default().with_headers([("public.example".parse().unwrap(), headers.allow_plaintext(true))])
}

#[track_caller]
fn carried(heard: &Heard, expected: &[Option<&str>]) {
    let heard = heard.lock();
    let found: Vec<Option<&str>> = heard
        .iter()
        .map(|head| {
            let all: Vec<_> = head.lines().filter(|line| line.to_lowercase().starts_with("authorization:")).collect();
            assert!(all.len() == 1 || header(head, "x-plain").is_none(), "others were replaced: {head}");
            header(head, "authorization")
        })
        .collect();
    assert_eq!(found, expected, "{heard:?}");
}

#[test]
fn plain_requests_get_their_headers_one_by_one() {
    let scene = Scene::new();
    let (target, heard) = http_server(&scene.world.internet, at(SERVER, 80));
    let (sandbox, _) = scene.sandbox(plain_secret());
    sandbox.run(|| {
        ask("public.example.", RecordType::A);
        let mut stream = connect(target).unwrap();
        let body = "x".repeat(3_000_000);
        let post =
            format!("POST / HTTP/1.1\r\nhost: PUBLIC.example:80\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert!(ask_http(&mut stream, &get("public.example")).unwrap().ends_with("ok 0"));
        assert!(ask_http(&mut stream, &post).unwrap().ends_with("ok 360000000"), "bodies stream through");
        // Another name at the same address has no rule; a request with two hosts is refused.
        assert!(ask_http(&mut stream, &get("shared.example")).unwrap().ends_with("ok 0"));
        let trace = get("public.example").replace("GET", "TRACE");
        assert!(ask_http(&mut stream, &trace).unwrap().starts_with("HTTP/1.1 405"));
        let mut stream = connect(target).unwrap();
        let two =
            "GET / HTTP/1.1\r\nHost: public.example\r\n\r\nGET / HTTP/1.1\r\nHost: public.example\r\nHost: x\r\n\r\n";
        let mut answers = String::new();
        stream.write_all(two.as_bytes()).unwrap();
        stream.read_to_string(&mut answers).unwrap();
        assert!(answers.contains("ok 0") && answers.contains("HTTP/1.1 400") && !answers.contains(SECRET), "{answers}");
        // An upgraded connection passes unchanged.
        let mut stream = connect(target).unwrap();
        let upgrade = "GET / HTTP/1.1\r\nHost: public.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        assert!(ask_http(&mut stream, upgrade).unwrap().starts_with("HTTP/1.1 101"));
        stream.write_all(b"hello").unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"hello");
    });
    let bearer = Some(EXPECTED);
    carried(&heard, &[bearer, bearer, Some("mine"), bearer, bearer]);
    let decisions = sandbox.heard();
    assert!(!format!("{decisions:?}").contains(SECRET));
    let reasons: Vec<&str> = decisions.iter().map(|decision| decision.reason.as_str()).collect();
    assert!(reasons.contains(&"a rule sets headers of the request: authorization, x-plain"), "{reasons:?}");
}

#[test]
fn requests_inside_tls_get_headers_for_their_name_only() {
    let scene = Scene::new();
    let (target, heard) = https_server(&scene.world.internet, at(SERVER, 443), &scene.outer);
    let (sandbox, root) = scene.sandbox(secret());
    let outer = scene.outer.certificate_pem().to_owned();
    sandbox.run(|| {
        ask("public.example.", RecordType::A);
        ask("shared.example.", RecordType::A);
        let mut stream = tls(target, "public.example", &root).unwrap();
        for _ in 0..2 {
            assert!(ask_http(&mut stream, &get("public.example")).unwrap().ends_with("ok 0"));
        }
        assert!(tls(target, "public.example", &outer).is_err(), "the certificate is ours");
        let mut stream = tls(target, "shared.example", &outer).expect("the target's own certificate");
        assert!(ask_http(&mut stream, &get("shared.example")).unwrap().ends_with("ok 0"));
        // The name of the handshake differs from that of the request.
        let mut stream = tls(target, "public.example", &root).unwrap();
        let answer = ask_http(&mut stream, &get("shared.example")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
        let mut stream = tls(target, "shared.example", &outer).unwrap();
        assert!(
            ask_http(&mut stream, &get("public.example")).unwrap().ends_with("ok 0"),
            "it passes, and gets nothing"
        );
    });
    carried(&heard, &[Some(EXPECTED), Some(EXPECTED), Some("mine"), Some("mine")]);
    assert!(!format!("{:?}", sandbox.heard()).contains(SECRET));

    // New rules apply to the next connection, and close connections that were not inspected before.
    let (sandbox, root) = scene.sandbox(Rules::default());
    let mut before = sandbox.run(|| {
        ask("public.example.", RecordType::A);
        tls(target, "public.example", &outer).expect("the target's own certificate")
    });
    sandbox.set_rules(secret());
    assert!(ask_http(&mut before, &get("public.example")).is_err());
    sandbox.run(|| ask_http(&mut tls(target, "public.example", &root).unwrap(), &get("public.example"))).unwrap();
    assert_eq!(header(heard.lock().last().unwrap(), "authorization"), Some(EXPECTED));
}

#[test]
fn a_secret_is_sent_to_the_verified_target_only() {
    let scene = Scene::new();
    let internet = &scene.world.internet;
    let stranger = authority(scene.directory.path(), "stranger");
    let (unverified, heard) = https_server(internet, at(SERVER, 443), &stranger);
    let (sandbox, root) = scene.sandbox(secret());
    let answer = sandbox.run(|| {
        ask("public.example.", RecordType::A);
        ask_http(&mut tls(unverified, "public.example", &root).unwrap(), &get("public.example")).unwrap()
    });
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("certificate"), "{answer}");
    assert!(!answer.contains(SECRET));
    carried(&heard, &[]);

    // Addresses that the name does not resolve to, whatever name the connection has.
    let evil: IpAddr = SERVER_V6.parse().unwrap();
    let (plain, heard_plain) = http_server(internet, at(evil, 80));
    let (secured, heard_secured) = https_server(internet, at(evil, 443), &scene.outer);
    let outer = scene.outer.certificate_pem().to_owned();
    sandbox.run(|| {
        ask_http(&mut connect(plain).unwrap(), &get("public.example")).unwrap();
        let mut stream = tls(secured, "public.example", &outer).expect("not read: the certificate is the target's own");
        ask_http(&mut stream, &get("public.example")).unwrap();
    });
    carried(&heard_plain, &[Some("mine")]);
    carried(&heard_secured, &[Some("mine")]);
    let denied = sandbox.heard().into_iter().filter(|decision| !decision.allowed).map(|decision| decision.reason);
    let denied: Vec<String> = denied.collect();
    assert!(denied.iter().any(|reason| reason.contains("the name does not lead to this address")), "{denied:?}");

    // Plain HTTP, unless the rule allows it.
    let (target, heard) = http_server(internet, at(SERVER, 80));
    let plain = || sandbox.run(|| ask_http(&mut connect(target).unwrap(), &get("public.example"))).unwrap();
    let answer = plain();
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("allowPlaintext"), "{answer}");
    assert!(!answer.contains(SECRET) && !format!("{:?}", sandbox.heard()).contains(SECRET));
    carried(&heard, &[]);
    sandbox.set_rules(plain_secret());
    assert!(plain().ends_with("ok 0"));
    carried(&heard, &[Some(EXPECTED)]);

    // A secret that does not exist.
    let (target, heard) = https_server(internet, at(SERVER, 8443), &scene.outer);
    sandbox.set_rules(ruled(Rules::default(), "${e2b.secrets.gone}"));
    let missing = || ask_http(&mut tls(target, "public.example", &root).unwrap(), &get("public.example")).unwrap();
    let answer = sandbox.run(missing);
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("the secret 'gone' does not exist"), "{answer}");
    carried(&heard, &[]);
}

#[test]
fn what_is_inspected_is_held_against_the_names_inside_tls() {
    let scene = Scene::new();
    let (target, heard) = https_server(&scene.world.internet, at(SERVER, 443), &scene.outer);
    let elsewhere: IpAddr = SERVER_V6.parse().unwrap();
    let (other, _) = https_server(&scene.world.internet, at(elsewhere, 443), &scene.outer);
    let by_name = || Rules::new(&["public.example", "v6.example"], &["0.0.0.0/0"], &[]).unwrap();
    let outer = scene.outer.certificate_pem().to_owned();
    let (sandbox, root) = scene.sandbox(by_name());
    sandbox.run(|| {
        ask("public.example.", RecordType::A);
        ask("v6.example.", RecordType::AAAA);
        let mut fronted = tls(target, "public.example", &outer).expect("the target's own certificate");
        assert!(ask_http(&mut fronted, &get("shared.example")).is_ok(), "the control: only the server name is judged");
    });
    sandbox.set_rules(by_name().with_headers([("public.example".parse().unwrap(), Headers::default())]));
    sandbox.run(|| {
        let mut stream = tls(target, "public.example", &root).unwrap();
        assert!(ask_http(&mut stream, &get("public.example")).unwrap().ends_with("ok 0"));
        let answer = ask_http(&mut stream, &get("shared.example")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
        // The address of another allowed name does not bypass the check.
        assert!(tls(other, "public.example", &outer).is_err() && tls(other, "public.example", &root).is_err());
        assert!(tls(other, "v6.example", &outer).is_ok(), "the control: a name that is not inspected");
    });
    carried(&heard, &[Some("mine"), Some("mine")]);
}

#[test]
fn an_unresolved_name_is_resolved_when_its_rule_needs_it() {
    let scene = Scene::new();
    let (target, heard) = http_server(&scene.world.internet, at(SERVER, 80));
    let (sandbox, _) = scene.sandbox(plain_secret());
    sandbox.run(|| ask_http(&mut connect(target).unwrap(), &get("public.example"))).unwrap();
    carried(&heard, &[Some(EXPECTED)]);
}

#[test]
fn every_request_of_a_connection_is_checked_by_name() {
    let scene = Scene::new();
    let (target, heard) = http_server(&scene.world.internet, at(SERVER, 80));
    let rules = Rules::new(&["public.example"], &["0.0.0.0/0"], &[]).unwrap();
    let (sandbox, _) = scene.sandbox(rules);
    sandbox.run(|| {
        ask("public.example.", RecordType::A);
        let mut stream = connect(target).unwrap();
        assert!(ask_http(&mut stream, &get("public.example")).unwrap().ends_with("ok 0"));
        let answer = ask_http(&mut stream, &get("shared.example")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        let hostless = "GET / HTTP/1.0\r\n\r\n";
        assert!(ask_http(&mut connect(target).unwrap(), hostless).is_err(), "reset");
        let mut stream = connect(target).unwrap();
        assert!(ask_http(&mut stream, &format!("\r\n{}", get("public.example"))).unwrap().ends_with("ok 0"));
        let answer = ask_http(&mut stream, hostless).unwrap();
        assert!(answer.contains(" 403 ") && answer.contains("says no name"), "{answer}");
        let hidden = "CONNECT public.example:80 HTTP/1.1\r\nHost: public.example\r\n\r\n";
        assert!(ask_http(&mut connect(target).unwrap(), hidden).is_err(), "reset");
    });
    assert_eq!(heard.lock().len(), 2);
    let denied = sandbox.heard().into_iter().find(|decision| !decision.allowed).unwrap();
    assert_eq!(denied.name.as_deref(), Some("shared.example"));
}
