//! Attacks on the network rules: names, secrets, neighbours, DNS.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::internet::{Internet, NEIGHBOUR, PUBLIC};
use crate::support::{Sandbox, Server, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

const SECRET: &str = "sk-never-in-plain-text-51c0";

/// A lenient web server on ports 80 and 8080 (plain), 443 and 8443 (TLS). It skips empty lines,
/// accepts any method, and answers with the host and the authorization of the request.
const WEB: &str = r#"
import socket, ssl, sys, threading
def answer(connection, context):
    try:
        connection.settimeout(30)
        if context:
            connection = context.wrap_socket(connection, server_side=True)
        rest = b''
        while True:
            while b'\r\n\r\n' not in rest.lstrip(b'\r\n'):
                more = connection.recv(65536)
                if not more:
                    return
                rest += more
            head, rest = rest.lstrip(b'\r\n').split(b'\r\n\r\n', 1)
            lines = head.decode('latin-1').split('\r\n')
            fields = dict((name.strip().lower(), value.strip()) for name, _, value in (line.partition(':') for line in lines[1:]))
            body = f"saw {lines[0].split(' ')[0]} host={fields.get('host')} authorization={fields.get('authorization')}\n".encode()
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
    except OSError:
        pass
    finally:
        connection.close()
def serve(port, context=None):
    listener = socket.create_server(('0.0.0.0', port), backlog=64)
    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection, context), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
serve(80); serve(8080); serve(443, context); serve(8443, context)
print('.')
threading.Event().wait()
"#;

/// Makes the attempts of `attempts.json`, each over its own connection, and prints what each
/// received until the expected number of responses arrived or the connection ended.
const CLIENT: &str = r#"
import json, socket, ssl, sys
results = {}
for label, address, port, sni, payload, answers in json.load(open('/tmp/attempts.json')):
    heard = b''
    try:
        connection = socket.create_connection((address, port), timeout=10)
        if sni is not False:
            context = ssl.create_default_context()
            if sni is None or sni.startswith('!'):
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(connection, server_hostname=sni and sni.lstrip('!'))
        connection.sendall(payload.encode('latin-1'))
        while heard.count(b'saw ') < answers:
            more = connection.recv(65536)
            if not more:
                break
            heard += more
        connection.close()
    except OSError as error:
        heard += b' [' + str(error).encode() + b']'
    results[label] = heard.decode('latin-1')
print(json.dumps(results))
"#;

/// Sends each question to the sandbox's name server and prints the response code and the number of
/// records. Code 0 is no error, 3 NXDOMAIN, 5 REFUSED.
const RESOLVE: &str = r#"
import json, socket, struct
codes = {}
for name, kind, klass in json.load(open('/tmp/questions.json')):
    labels = b''.join(bytes([len(label)]) + label.encode() for label in name.split('.') if label)
    question = struct.pack('>HHHHHH', 7, 0x100, 1, 0, 0, 0) + labels + b'\0' + struct.pack('>HH', kind, klass)
    connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connection.settimeout(10)
    connection.connect(('192.0.0.3', 53))
    connection.send(question)
    answer = connection.recv(4096)
    codes[f'{name} {kind} {klass}'] = [answer[3] & 15, struct.unpack('>H', answer[6:8])[0]]
print(json.dumps(codes))
"#;

struct Scene {
    internet: Internet,
    directory: TempDir,
    certificate: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (certificate, key) = (directory.path().join("web.pem"), directory.path().join("web.key"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=far", "-addext", "subjectAltName=DNS:registry.test,DNS:forbidden.test"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output();
        assert!(made.is_ok_and(|made| made.status.success()), "openssl makes a certificate");
        let mut internet = Internet::new();
        let quoted = |path: &Path| format!("{path:?}");
        internet.serve(&WEB.replace("CERTIFICATE", &quoted(&certificate)).replace("KEY", &quoted(&key)));
        Self { internet, directory, certificate }
    }

    /// Starts a server with these lines in its section `[egress]`.
    fn server(&self, lines: &str) -> Server {
        let config = self.directory.path().join("sandbar.toml");
        let (names, roots) = (self.internet.nameserver, &self.certificate);
        let text = format!("[egress]\nnameservers = [\"{names}\"]\nextra_roots = [{roots:?}]\n{lines}\n");
        std::fs::write(&config, text).expect("the configuration is written");
        Server::with(&["--config", config.to_str().expect("a text path")])
    }
}

/// The server name of an attempt: `PLAIN` is TCP without TLS, `NO_NAME` is TLS without a server
/// name.
const PLAIN: Value = Value::Bool(false);
const NO_NAME: Value = Value::Null;

/// Makes the attempts in the sandbox and returns what each received, by label.
fn attempt(sandbox: &Sandbox, attempts: &[(&str, &str, u16, Value, String, u32)]) -> Value {
    let reply = sandbox.write("/tmp/attempts.json", json!(attempts).to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(sandbox.write("/tmp/client.py", CLIENT.as_bytes()).status, 200);
    let output = sandbox.must("user", "/usr/bin/python3 /tmp/client.py");
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

fn resolve(sandbox: &Sandbox, questions: &[(&str, u16, u16)]) -> Value {
    assert_eq!(sandbox.write("/tmp/questions.json", json!(questions).to_string().as_bytes()).status, 200);
    assert_eq!(sandbox.write("/tmp/resolve.py", RESOLVE.as_bytes()).status, 200);
    let output = sandbox.must("user", "/usr/bin/python3 /tmp/resolve.py");
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Waits until the sandbox's log has `text`, and returns the log.
fn log_with(server: &Server, sandbox: &Sandbox, text: &str) -> String {
    let path = format!("/v2/sandboxes/{}/logs", sandbox.id);
    eventually(format!("{text:?} in the log"), Duration::from_secs(20), || {
        Some(server.call("GET", &path, None).text()).filter(|log| log.contains(text))
    })
}

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// Egress rules for `registry.test` that set a header with a secret, with `further` fields.
fn secret_rule(further: &[(&str, Value)]) -> Value {
    let headers = json!({ "Authorization": "Bearer ${e2b.secrets.key}" });
    let mut rule = json!({ "transform": { "headers": headers } });
    for (name, value) in further {
        rule[name] = value.clone();
    }
    json!({ "registry.test": [rule] })
}

#[test]
fn secrets_are_not_filled_into_plain_http() {
    testing::needs_network!();
    let scene = Scene::new();
    let server = scene.server("");
    assert_eq!(server.call("POST", "/secrets", Some(json!({ "name": "key", "value": SECRET }))).status, 201);
    let make = |rules: &Value| server.create_with(json!({ "templateID": "base", "network": { "rules": rules } }));

    let sandbox = make(&secret_rule(&[]));
    for port in [80, 8080] {
        let output = sandbox.must("user", &format!("curl -sS -m 10 -w '%{{http_code}}' http://registry.test:{port}/"));
        assert!(
            output.ends_with("403") && output.contains("https://") && output.contains("allowPlaintext"),
            "{output}"
        );
        assert!(!output.contains(SECRET) && !output.contains("saw"), "{output}");
    }
    let log = log_with(&server, &sandbox, "plain HTTP");
    assert!(!log.contains(SECRET), "{log}");
    // The control: over TLS the header is set on any port, since the certificate is verified.
    for port in [443, 8443] {
        let output = sandbox.must("user", &format!("curl -sS -m 10 https://registry.test:{port}/"));
        assert!(output.contains(&format!("authorization=Bearer {SECRET}")), "{port}: {output}");
    }
    // A header without a secret is set in plain requests as well.
    let literal = json!({ "registry.test": [{ "transform": { "headers": { "Authorization": "literal" } } }] });
    let output = make(&literal).must("user", "curl -sS -m 10 http://registry.test/");
    assert!(output.contains("authorization=literal"), "{output}");

    // With `allowPlaintext` the secret is sent in plain, and the API returns the rule unchanged.
    let allowed = secret_rule(&[("allowPlaintext", json!(true))]);
    let sandbox = make(&allowed);
    let output = sandbox.must("user", "curl -sS -m 10 http://registry.test:8080/");
    assert!(output.contains(&format!("authorization=Bearer {SECRET}")), "{output}");
    let seen: Value = server.call("GET", &format!("/sandboxes/{}", sandbox.id), None).json();
    assert_eq!(seen["network"]["rules"], allowed);
    for wrong in [json!("yes"), json!(1)] {
        let body =
            json!({ "templateID": "base", "network": { "rules": secret_rule(&[("allowPlaintext", wrong.clone())]) } });
        assert_eq!(server.call("POST", "/sandboxes", Some(body)).status, 400, "{wrong}");
    }
}

#[test]
fn rules_by_name_cannot_be_evaded_at_a_shared_address() {
    testing::needs_network!();
    let scene = Scene::new();
    let server = scene.server("");
    let network = json!({ "allowOut": ["registry.test"], "denyOut": ["0.0.0.0/0"] });
    let sandbox = server.create_with(json!({ "templateID": "base", "network": network }));
    sandbox.must("user", "getent hosts registry.test");
    let address = PUBLIC.to_string();
    let address = address.as_str();
    let (allowed, forbidden) = (get("registry.test"), get("forbidden.test"));
    let mut attempts = Vec::new();
    let mut plain = |label, payload: String| attempts.push((label, address, 80, PLAIN, payload, 1));
    plain("plain", forbidden.clone());
    plain("crlf", format!("\r\n{forbidden}"));
    plain("lf", format!("\n{forbidden}"));
    plain("many", format!("{}{forbidden}", "\r\n".repeat(100)));
    plain("endless", format!("{}{forbidden}", "\r\n".repeat(40_000)));
    plain("space", format!(" {forbidden}"));
    plain("lower", forbidden.replace("GET", "get"));
    plain("tab", forbidden.replace("GET / ", "GET\t/\t"));
    plain("hostless 1.1", "GET / HTTP/1.1\r\n\r\n".to_owned());
    plain("hostless 1.0", "GET / HTTP/1.0\r\n\r\n".to_owned());
    plain("two hosts", format!("GET / HTTP/1.1\r\nHost: registry.test\r\n{}", &forbidden[16..]));
    plain("absolute", "GET http://forbidden.test/ HTTP/1.1\r\nHost: registry.test\r\n\r\n".to_owned());
    plain("h2 by prior knowledge", format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{forbidden}"));
    plain("other protocol", format!("\u{1}\r\n\r\n{forbidden}"));
    plain("long line", format!("GET /{} HTTP/1.1\r\nHost: forbidden.test\r\n\r\n", "x".repeat(100_000)));
    let connect = "CONNECT registry.test:80 HTTP/1.1\r\nHost: registry.test\r\n\r\n";
    attempts.push(("connect", address, 80, PLAIN, format!("{connect}{forbidden}"), 2));
    attempts.push(("pipelined", address, 80, PLAIN, format!("{allowed}{forbidden}"), 2));
    attempts.push(("pipelined hostless", address, 80, PLAIN, format!("{allowed}GET /next HTTP/1.1\r\n\r\n"), 2));
    attempts.push(("nameless tls", address, 443, NO_NAME, forbidden.clone(), 1));
    attempts.push(("nameless tls, allowed host", address, 443, NO_NAME, allowed.clone(), 1));
    attempts.push(("forbidden tls", address, 443, json!("!forbidden.test"), forbidden.clone(), 1));
    // The controls.
    attempts.push(("allowed", address, 80, PLAIN, allowed.clone(), 1));
    attempts.push(("allowed after lines", address, 80, PLAIN, format!("\r\n\n{allowed}"), 1));
    attempts.push(("allowed twice", address, 80, PLAIN, format!("{allowed}{allowed}"), 2));
    attempts.push(("allowed tls", address, 443, json!("!registry.test"), allowed.clone(), 1));
    let heard = attempt(&sandbox, &attempts);
    for (label, heard) in heard.as_object().expect("an object") {
        let heard = heard.as_str().expect("a text");
        if label.starts_with("allowed") {
            let answers = if label.ends_with("twice") { 2 } else { 1 };
            assert_eq!(heard.matches("saw GET host=registry.test").count(), answers, "{label}: {heard}");
        } else {
            assert!(!heard.contains("host=forbidden") && !heard.contains("host=None"), "{label}: {heard}");
            let first = if label.starts_with("pipelined") { 1 } else { 0 };
            assert_eq!(heard.matches("saw ").count(), first, "{label}: {heard}");
        }
    }
    log_with(&server, &sandbox, "says no name");

    // A TLS connection that is judged by its server name alone can carry requests for other hosts.
    // A rule that inspects the connection refuses them.
    let fronted = [("fronted", address, 443, json!("registry.test"), forbidden, 1)];
    let honest = [("honest", address, 443, json!("registry.test"), allowed, 1)];
    let rules = json!({ "registry.test": [{ "inspect": true }] });
    let mut network = network;
    network["rules"] = rules.clone();
    let path = format!("/sandboxes/{}/network", sandbox.id);
    let changed = server.call("PUT", &path, Some(network));
    assert_eq!(changed.status, 204, "{}", changed.text());
    let heard = attempt(&sandbox, &honest);
    assert!(heard["honest"].as_str().is_some_and(|heard| heard.contains("host=registry.test")), "{heard}");
    let heard = attempt(&sandbox, &fronted);
    let answer = heard["fronted"].as_str().expect("a text");
    assert!(answer.contains("421") && !answer.contains("saw"), "{heard}");
    let seen: Value = server.call("GET", &format!("/sandboxes/{}", sandbox.id), None).json();
    assert_eq!(seen["network"]["rules"], rules);
}

#[test]
fn neighbours_of_the_host_are_out_of_reach() {
    testing::needs_network!();
    let scene = Scene::new();
    let strict = scene.server("");
    let sandbox = strict.create();
    let reaches = |sandbox: &Sandbox, host: &str| sandbox.run(&format!("curl -sS -m 5 http://{host}/")).ok();
    assert!(reaches(&sandbox, &PUBLIC.to_string()), "the control: an address behind a router");
    assert!(!reaches(&sandbox, &NEIGHBOUR.to_string()), "an address on the host's own link");
    assert!(!reaches(&sandbox, "neighbour.test"), "a name that leads there");
    // Rules of the API's caller do not open what the server's configuration closes.
    let network = json!({ "allowOut": ["neighbour.test", NEIGHBOUR.to_string()], "denyOut": ["0.0.0.0/0"] });
    let allowing = strict.create_with(json!({ "templateID": "base", "network": network }));
    assert!(!reaches(&allowing, &NEIGHBOUR.to_string()));
    log_with(&strict, &allowing, "egress.allow_ranges");
    // The server's configuration opens it.
    let open = scene.server(&format!("allow_ranges = [\"{NEIGHBOUR}/32\"]"));
    assert!(reaches(&open.create(), &NEIGHBOUR.to_string()));
}

#[test]
fn names_of_the_hosts_network_stay_there() {
    testing::needs_network!();
    const A: u16 = 1;
    const PTR: u16 = 12;
    const TXT: u16 = 16;
    const SRV: u16 = 33;
    let scene = Scene::new();
    let server = scene.server("");
    let sandbox = server.create();
    let refused = [
        ("registry.test", 252, 1), // AXFR
        ("registry.test", 251, 1), // IXFR
        ("registry.test", 255, 1), // ANY
        ("version.bind", TXT, 3),  // of class CHAOS
    ];
    let absent = [
        ("5.0.0.10.in-addr.arpa", PTR, 1),
        ("_dns-sd._udp.0.1.168.192.in-addr.arpa", PTR, 1),
        ("129.100.51.198.in-addr.arpa", PTR, 1), // the host
        ("131.100.51.198.in-addr.arpa", PTR, 1), // a neighbour
        ("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", PTR, 1),
        ("printer", A, 1),
        ("printer", TXT, 1),
        ("db.corp.internal", A, 1),
        ("_ldap._tcp.dc._msdcs.ad.local", SRV, 1),
        ("Router.LAN", A, 1),
        ("nas.home.arpa", A, 1),
    ];
    let codes = resolve(&sandbox, &[&refused[..], &absent[..]].concat());
    for (list, code) in [(&refused[..], 5), (&absent[..], 3)] {
        for (name, kind, class) in list {
            assert_eq!(codes[format!("{name} {kind} {class}")][0], code, "{name} {kind}: {codes}");
        }
    }
    let asked = scene.internet.asked();
    assert!(asked.is_empty(), "the host's name server heard of it: {asked:?}");
    // The control: queries for other names are forwarded, of any type.
    let open = [
        ("registry.test", A, 1),
        ("registry.test", TXT, 1),
        ("_sip._tcp.registry.test", SRV, 1),
        ("130.100.51.198.in-addr.arpa", PTR, 1),
        ("test", 2, 1), // NS
    ];
    let codes = resolve(&sandbox, &open);
    assert_eq!(codes["registry.test 1 1"], json!([0, 1]), "{codes}");
    assert_eq!(scene.internet.asked().len(), open.len(), "{codes}");

    // The server's configuration opens such names and the addresses that they resolve to.
    let named = scene.server("allow_names = [\"*.corp.internal\", \"printer\"]");
    let codes = resolve(&named.create(), &[("db.corp.internal", A, 1), ("printer", A, 1), ("nas.lan", A, 1)]);
    assert_eq!(codes["db.corp.internal 1 1"], json!([0, 1]), "{codes}");
    assert_eq!(codes["printer 1 1"], json!([0, 1]), "{codes}");
    assert_eq!(codes["nas.lan 1 1"], json!([3, 0]), "{codes}");
}
