//! Egress rules on the wire.

use egress::{Headers, Proxy, ProxyTls, Rules};
use serde_json::{Value, json};

use crate::support::Server;

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    Rules::new(allow, deny, &[]).expect("rules")
}

async fn make(server: &Server, body: Value) -> String {
    server.create(body).await["sandboxID"].as_str().expect("an ID").to_owned()
}

async fn network(server: &Server, id: &str) -> Value {
    server.call(&format!("GET /sandboxes/{id}"), "").await.json()["network"].clone()
}

#[tokio::test]
async fn lists_are_applied_and_returned_unchanged() {
    let server = Server::start().await;
    let asked =
        json!({ "allowOut": ["api.example.com", "1.1.1.1"], "denyOut": ["0.0.0.0/0"], "dnsServers": ["9.9.9.9"] });
    let id = make(&server, json!({ "templateID": "base", "network": asked })).await;
    let seen = network(&server, &id).await;
    for (name, value) in asked.as_object().expect("an object") {
        assert_eq!(&seen[name], value, "{name}");
    }
    let expected = Rules::new(&["api.example.com", "1.1.1.1"], &["0.0.0.0/0"], &[[9, 9, 9, 9].into()]).expect("rules");
    assert_eq!(server.engine.egress_of(&id.parse().expect("an ID")), Some(expected));

    // The older form, and disabled internet access with an allowed list.
    for body in [
        json!({ "templateID": "base", "network": { "egressCIDRs": ["10.1.0.0/16", "1.1.1.1"] } }),
        json!({ "templateID": "base", "network": { "allowOut": ["10.1.0.0/16", "1.1.1.1"] }, "allow_internet_access": false }),
    ] {
        let id = make(&server, body.clone()).await;
        let expected = rules(&["10.1.0.0/16", "1.1.1.1"], &["0.0.0.0/0"]);
        assert_eq!(server.engine.egress_of(&id.parse().expect("an ID")), Some(expected), "{body}");
    }
    let id = make(&server, json!({ "templateID": "base", "network": { "egressCIDRs": [] } })).await;
    assert_eq!(server.engine.egress_of(&id.parse().expect("an ID")), Some(rules(&[], &["0.0.0.0/0"])));
}

#[tokio::test]
async fn rules_and_proxies_are_applied_and_passwords_stay() {
    let server = Server::start().await;
    let rules = json!({ "api.example.com": [{ "transform": { "headers": { "Authorization": "Bearer ${e2b.secrets.key}" } } }] });
    let proxy = json!({ "address": "proxy.example.com:1080", "username": "me", "password": "hunter2", "tls": { "enabled": true } });
    let asked = json!({ "rules": rules, "egressProxy": proxy });
    let id = make(&server, json!({ "templateID": "base", "network": asked })).await;
    let seen = network(&server, &id).await;
    assert_eq!(seen["rules"], rules);
    let shown = json!({ "address": "proxy.example.com:1080", "username": "me", "tls": { "enabled": true } });
    assert_eq!(seen["egressProxy"], shown);
    let headers = Headers::new([("Authorization", "Bearer ${e2b.secrets.key}")]).expect("headers");
    let expected = Proxy::new("proxy.example.com:1080", Some("me"), Some("hunter2"), Some(ProxyTls::default()));
    let expected = Rules::default()
        .with_headers([("api.example.com".parse().expect("a name"), headers)])
        .with_proxy(Some(expected.expect("a proxy")));
    let sandbox = id.parse().expect("an ID");
    assert_eq!(server.engine.egress_of(&sandbox), Some(expected));

    let line = format!("PUT /sandboxes/{id}/network");
    for (body, message) in [
        (json!({ "rules": { "a b": [] } }), "network.rules: 'a b' is not a domain name"),
        (rule("Host", "x"), "network.rules: 'a.example': the header 'Host' cannot be set"),
        (rule("x", "${e2b.secrets.a b}"), "'x' holds a placeholder that is none"),
        (rule("x", "${e2b.identity.tokens.aws}"), "a placeholder that this server does not fill"),
        (json!({ "rules": { "a.example": [{ "transform": { "headers": { "x": 5 } } }] } }), "network.rules"),
        (json!({ "egressProxy": { "address": "proxy" } }), "network.egressProxy: address: 'proxy' is not host:port"),
        (json!({ "egressProxy": { "address": "p:1", "password": "hunter2" } }), "a password needs a username"),
        (json!({ "egressProxy": "me:hunter2@proxy:1" }), "network.egressProxy: must be an object"),
        (json!({ "egressProxy": { "address": "p:1", "tls": { "caCert": "x" } } }), "tls.caCert"),
    ] {
        let answer = server.call(&line, &body.to_string()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(answer.text().contains(message) && !answer.text().contains("hunter2"), "{body}: {}", answer.text());
    }
    assert_eq!(server.call(&line, "{}").await.status, 204);
    assert_eq!(server.engine.egress_of(&sandbox), Some(Rules::default()));
    assert_eq!(network(&server, &id).await.get("rules"), None);
}

fn rule(header: &str, value: &str) -> Value {
    json!({ "rules": { "a.example": [{ "transform": { "headers": { header: value } } }] } })
}

#[tokio::test]
async fn fields_of_rules_beside_e2b_s_own_are_applied_and_returned() {
    let server = Server::start().await;
    let transform = json!({ "headers": { "Authorization": "Bearer ${e2b.secrets.key}" } });
    let asked = json!({
        "plain.example": [{ "transform": transform, "allowPlaintext": true }],
        "secret.example": [{ "transform": transform, "allowPlaintext": false }],
        "read.example": [{ "inspect": true }],
    });
    let id = make(&server, json!({ "templateID": "base", "network": { "rules": asked } })).await;
    let mut given = asked;
    given["secret.example"] = json!([{ "transform": transform }]);
    assert_eq!(network(&server, &id).await["rules"], given);
    let headers = || Headers::new([("Authorization", "Bearer ${e2b.secrets.key}")]).expect("headers");
    let expected = [
        ("plain.example", headers().allow_plaintext(true)),
        ("secret.example", headers()),
        ("read.example", Headers::default()),
    ];
    let expected = expected.map(|(domain, headers)| (domain.parse().expect("a name"), headers));
    let sandbox = id.parse().expect("an ID");
    assert_eq!(server.engine.egress_of(&sandbox), Some(Rules::default().with_headers(expected)));
    for field in ["allowPlaintext", "inspect"] {
        let body = json!({ "rules": { "a.example": [{ field: "yes" }] } });
        let answer = server.call(&format!("PUT /sandboxes/{id}/network"), &body.to_string()).await;
        let message = format!("network.rules: 'a.example': {field} must be true or false");
        assert!(answer.status == 400 && answer.text().contains(&message), "{}", answer.text());
    }
}

#[tokio::test]
async fn an_update_replaces_everything() {
    let server = Server::start().await;
    let id = make(&server, json!({ "templateID": "base", "allow_internet_access": false })).await;
    let (line, sandbox) = (format!("PUT /sandboxes/{id}/network"), id.parse().expect("an ID"));
    for (body, expected, internet) in [
        (json!({ "denyOut": ["1.1.1.1"] }), rules(&[], &["1.1.1.1"]), Value::Null),
        (
            json!({ "allowOut": ["a.example"], "denyOut": ["0.0.0.0/0"] }),
            rules(&["a.example"], &["0.0.0.0/0"]),
            Value::Null,
        ),
        (
            json!({ "allowOut": ["*.a.example"], "allow_internet_access": false }),
            rules(&["*.a.example"], &["0.0.0.0/0"]),
            json!(false),
        ),
        (json!({}), Rules::default(), Value::Null),
        (json!({ "rules": {}, "egressProxy": null, "allow_internet_access": true }), Rules::default(), json!(true)),
    ] {
        let answer = server.call(&line, &body.to_string()).await;
        assert_eq!(answer.status, 204, "{body}: {}", answer.text());
        assert_eq!(server.engine.egress_of(&sandbox), Some(expected), "{body}");
        let detail = server.call(&format!("GET /sandboxes/{id}"), "").await.json();
        assert_eq!(detail["allowInternetAccess"], internet, "{body}");
        assert_eq!(detail["network"].get("denyOut"), body.get("denyOut"), "{body}");
    }
    // An invalid update changes nothing.
    assert_eq!(server.call(&line, r#"{"denyOut":["1.1.1.1"]}"#).await.status, 204);
    for (body, status, message) in [
        (r#"{"denyOut":["a.example"]}"#, 400, "network.denyOut: 'a.example' is not an IP address or CIDR range"),
        (r#"{"allowOut":["a b"]}"#, 400, "network.allowOut: 'a b' is not an IP address, a CIDR range or a domain name"),
        (
            r#"{"allowOut":["a.example"]}"#,
            400,
            "network.allowOut: the domain 'a.example' needs '0.0.0.0/0' in network.denyOut",
        ),
        (r#"{"dnsServers":["::1"]}"#, 400, "network.dnsServers: '::1' is not an IPv4 address"),
        (r#"{"allowOut":"x"}"#, 400, "field 'allowOut'"),
    ] {
        let answer = server.call(&line, body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}");
        assert!(answer.text().contains(message), "{body}: {}", answer.text());
    }
    assert_eq!(server.engine.egress_of(&sandbox), Some(rules(&[], &["1.1.1.1"])));
    assert_eq!(server.call("PUT /sandboxes/iabc/network", "{}").await.status, 404);
    assert_eq!(server.call(&format!("POST /sandboxes/{id}/network"), "{}").await.status, 405);
}
