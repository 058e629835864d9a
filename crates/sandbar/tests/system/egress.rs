//! Egress rules that set headers with secrets in requests, by programs of a real sandbox.

use crate::support::internet::{Internet, PUBLIC};
use crate::support::{Sandbox, Server};
use serde_json::json;
use std::path::Path;
use std::process::Command;

const VALUE: &str = "sk-never-inside-7f3a";

/// A service on ports 80 and 443 that describes the authorization of a request. The certificate is
/// for `registry.test` and `private.test`.
fn web_service(certificate: &Path, key: &Path) -> String {
    format!(
        r#"
import http.server, json, ssl, threading
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        given = self.headers.get('Authorization', '')
        body = json.dumps({{'right': given == 'Bearer {VALUE}', 'length': len(given), 'count': len(self.headers.get_all('Authorization', []))}}).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *a): pass
plain, secured = Server(('0.0.0.0', 80), Page), Server(('0.0.0.0', 443), Page)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain({certificate:?}, {key:?})
secured.socket = context.wrap_socket(secured.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=plain.serve_forever, daemon=True).start()
print('.')
secured.serve_forever()
"#
    )
}

const CURL: &str = "curl -sS -m 20 -H 'Authorization: mine'";
/// With the default roots of Python and of Node.js, as users call them.
const PYTHON: &str = "/usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"https://registry.test/\", timeout=20).read().decode())'";
const NODE: &str = "node -e 'fetch(\"https://registry.test/\").then(r => r.text()).then(console.log, e => { console.error(e.cause); process.exit(1) })'";

/// Asserts that the service gets the secret in exactly one header.
#[track_caller]
fn assert_secret_sent(sandbox: &Sandbox, command: &str) {
    let output = sandbox.must("user", command);
    assert!(output.contains("\"right\": true") && output.contains("\"count\": 1"), "{command}: {output}");
}

/// Asserts that no file changed within two hours, no environment, no log and no response of the API
/// has the value.
#[track_caller]
fn assert_not_inside(server: &Server, sandbox: &Sandbox, id: &str) {
    let search = format!(
        "find / -path /proc -prune -o -path /sys -prune -o -type f -cmin -120 -print0 | xargs -0 grep -lsaF {VALUE}; \
         for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -F {VALUE}; done; echo searched"
    );
    // The value is split, so that the search does not find its own command line.
    let (head, tail) = VALUE.split_at(9);
    let search = search.replace(VALUE, &format!("\"{head}\"\"{tail}\""));
    let found = sandbox.run_as("root", &search);
    assert_eq!(found.stdout.trim(), "searched", "{found:?}");
    for path in [format!("/v2/sandboxes/{id}/logs"), format!("/sandboxes/{id}"), "/secrets".to_owned()] {
        let answer = server.call("GET", &path, None).text();
        assert!(!answer.contains(VALUE), "{path}: {answer}");
    }
}

#[test]
fn requests_carry_secrets_that_never_are_inside() {
    testing::needs_network!();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let (certificate, key) = (path("web.pem"), path("web.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=far", "-addext", "subjectAltName=DNS:registry.test,DNS:private.test"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    assert!(made.is_ok_and(|made| made.status.success()), "openssl makes a certificate");
    let mut internet = Internet::new();
    internet.serve(&web_service(&certificate, &key));
    let config = path("sandbar.toml");
    let text = format!("[egress]\nnameservers = [\"{}\"]\nextra_roots = [{certificate:?}]\n", internet.nameserver);
    std::fs::write(&config, text).expect("the configuration is written");
    let mut server = Server::with(&["--config", config.to_str().expect("text")]);

    let secret = server.call("POST", "/secrets", Some(json!({ "name": "key", "value": VALUE })));
    assert_eq!(secret.status, 201, "{}", secret.text());
    let headers = json!({ "Authorization": "Bearer ${e2b.secrets.key}" });
    let rules = json!({ "registry.test": [{ "transform": { "headers": headers }, "allowPlaintext": true }] });
    let sandbox = server.create_with(json!({ "templateID": "base", "network": { "rules": rules } }));
    for command in [&format!("{CURL} http://registry.test/"), &format!("{CURL} https://registry.test/"), PYTHON, NODE] {
        assert_secret_sent(&sandbox, command);
    }
    // Another connection of the sandbox to the same address, for a name without a rule: the client
    // sees the service's own certificate, and no header is set.
    let direct = format!("curl -sSkv -m 20 --resolve private.test:443:{PUBLIC} https://private.test/ 2>&1");
    let output = sandbox.must("user", &direct);
    assert!(output.contains("issuer: CN=far") && output.contains("\"length\": 0"), "{output}");
    assert_not_inside(&server, &sandbox, &sandbox.id);
    let log = server.call("GET", &format!("/v2/sandboxes/{}/logs", sandbox.id), None).text();
    assert!(log.contains("a rule sets headers of the request: authorization"), "{log}");

    // Rules survive a restart of the server. The next request has a changed value of the secret,
    // and a deleted secret is an error that names it.
    server.kill_9();
    server.start_again();
    let sandbox = sandbox.at(&server.address);
    assert_secret_sent(&sandbox, &format!("{CURL} https://registry.test/"));
    let other = server.call("POST", "/secrets/key", Some(json!({ "value": "another" })));
    assert_eq!(other.status, 200, "{}", other.text());
    let output = sandbox.must("user", &format!("{CURL} http://registry.test/"));
    assert!(output.contains("\"right\": false") && output.contains(&format!("\"length\": {}", "Bearer another".len())));
    assert_eq!(server.call("DELETE", "/secrets/key", None).status, 204);
    let output = sandbox.must("user", &format!("{CURL} http://registry.test/"));
    assert!(output.contains("the secret 'key' does not exist"), "{output}");

    // A sandbox without rules has no added certificate. It gets one when rules are set.
    let sandbox = server.create();
    let trusted = "ls /usr/local/share/ca-certificates /etc/profile.d; echo $NODE_EXTRA_CA_CERTS";
    assert!(!sandbox.must("user", trusted).contains("sandbar-egress"));
    let plain =
        json!({ "registry.test": [{ "transform": { "headers": { "Authorization": format!("Bearer {VALUE}") } } }] });
    let path = format!("/sandboxes/{}/network", sandbox.id);
    assert_eq!(server.call("PUT", &path, Some(json!({ "rules": plain }))).status, 204);
    for command in [PYTHON, NODE, &format!("{CURL} https://registry.test/")] {
        assert_secret_sent(&sandbox, command);
    }
    assert_not_in_files(&sandbox);
}

/// Asserts that no file has a value that is part of a rule itself.
#[track_caller]
fn assert_not_in_files(sandbox: &Sandbox) {
    let (head, tail) = VALUE.split_at(9);
    let search =
        format!("grep -rIlsaF -D skip \"{head}\"\"{tail}\" /etc /home /root /run /tmp /usr/local; echo searched");
    assert_eq!(sandbox.run_as("root", &search).stdout.trim(), "searched");
}
