//! What a sandbox can reach: the internet, names, package registries. And what it cannot reach: the
//! host, its loopback, private networks that are not allowed, metadata services.

use crate::support::internet::{HOST_SIDE, Internet, PRIVATE, PUBLIC};
use crate::support::{Sandbox, Server};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A plain web server on port 8000 of all addresses of the remote machine.
const WEB: &str = "
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'far')
    def do_POST(self):
        n = int(self.headers['Content-Length']); body = self.rfile.read(n)
        self.send_response(200); self.end_headers(); self.wfile.write(str(sum(body)).encode())
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(('0.0.0.0', 8000), Page)
print('.')
server.serve_forever()
";

/// A UDP service on port 8001 that answers every datagram with its length.
const UDP: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('0.0.0.0', 8001))
print('.')
while True:
    d, a = s.recvfrom(70000); s.sendto(str(len(d)).encode(), a)
";

/// A package index on port 8002 for pip and npm, with one package each, which the script creates.
const REGISTRY: &str = r#"
import base64, hashlib, http.server, io, json, tarfile, zipfile
wheel = io.BytesIO()
with zipfile.ZipFile(wheel, 'w') as z:
    z.writestr('tiny_sand.py', 'grain = 41\n')
    z.writestr('tiny_sand-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: tiny-sand\nVersion: 1.0\n')
    z.writestr('tiny_sand-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr('tiny_sand-1.0.dist-info/RECORD', 'tiny_sand.py,,\n')
package = io.BytesIO()
with tarfile.open(fileobj=package, mode='w:gz') as t:
    for name, text in [('package/package.json', json.dumps({'name': 'tiny-sand', 'version': '1.0.0', 'main': 'index.js'})),
                       ('package/index.js', 'module.exports = 42;\n')]:
        info = tarfile.TarInfo(name); info.size = len(text); t.addfile(info, io.BytesIO(text.encode()))
sha = base64.b64encode(hashlib.sha512(package.getvalue()).digest()).decode()
npm = {'name': 'tiny-sand', 'dist-tags': {'latest': '1.0.0'}, 'versions': {'1.0.0': {'name': 'tiny-sand', 'version': '1.0.0',
       'dist': {'tarball': 'http://registry.test:8002/tiny-sand.tgz', 'integrity': 'sha512-' + sha}}}}
files = {'/simple/tiny-sand/': ('text/html', b'<a href="/tiny_sand-1.0-py3-none-any.whl">tiny_sand-1.0-py3-none-any.whl</a>'),
         '/tiny_sand-1.0-py3-none-any.whl': ('application/zip', wheel.getvalue()),
         '/tiny-sand': ('application/json', json.dumps(npm).encode()),
         '/tiny-sand.tgz': ('application/gzip', package.getvalue())}
class Index(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind, body = files.get(self.path.split('?')[0], (None, b'absent'))
        self.send_response(200 if kind else 404); self.send_header('Content-Type', kind or 'text/plain')
        self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(('0.0.0.0', 8002), Index)
print('.')
server.serve_forever()
"#;

fn get(sandbox: &Sandbox, url: &str) -> crate::support::Output {
    sandbox.run(&format!("curl -sS -m 5 {url}"))
}

#[track_caller]
fn assert_refused(sandbox: &Sandbox, what: &str, url: &str) {
    let output = get(sandbox, url);
    assert!(!output.ok(), "{what}: {url} answered {output:?}");
}

/// Starts a service on all addresses of the host that answers `host`. Returns its port.
fn start_host_service() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhost");
        }
    });
    port
}

#[test]
fn the_network_reaches_the_internet_and_not_the_host() {
    testing::needs_network!();
    let mut internet = Internet::new();
    for script in [WEB, UDP, REGISTRY] {
        internet.serve(script);
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, egress: &str| {
        let path = directory.path().join(name);
        let text = format!("[egress]\nnameservers = [\"{}\"]\n{egress}", internet.nameserver);
        std::fs::write(&path, text).expect("the configuration is written");
        path.to_str().expect("a text path").to_owned()
    };
    let strict = Server::with(&["--config", &file("strict.toml", "")]);
    let sandbox = strict.create();

    // Names, TCP and UDP to a public address.
    assert_eq!(get(&sandbox, "http://registry.test:8000/").stdout, "far");
    let posted = sandbox.must(
        "user",
        "head -c 5000000 /dev/zero | tr '\\0' '\\1' | curl -sS -m 20 --data-binary @- http://registry.test:8000/",
    );
    assert_eq!(posted, "5000000");
    let udp = format!(
        "/usr/bin/python3 -c \"import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5); \
         s.sendto(b'x'*60000,('{PUBLIC}',8001)); print(s.recv(100).decode())\""
    );
    assert_eq!(sandbox.must("user", &udp).trim(), "60000");
    let closed = get(&sandbox, "http://registry.test:8009/");
    assert!(closed.stderr.contains("refused") || closed.stderr.contains("Failed to connect"), "{closed:?}");
    assert!(get(&sandbox, "http://nowhere.test/").stderr.contains("resolve"));

    // Package managers, with the flags that users give.
    let pip = "python3 -m pip install -q --no-cache-dir --index-url http://registry.test:8002/simple \
               --trusted-host registry.test tiny-sand && python3 -c 'import tiny_sand; print(tiny_sand.grain)'";
    assert_eq!(sandbox.must("user", pip).lines().last(), Some("41"));
    let npm = "mkdir -p app && cd app && npm install --silent --no-fund --no-audit --registry http://registry.test:8002/ \
               tiny-sand >/dev/null && node -p \"require('tiny-sand')\"";
    assert_eq!(sandbox.must("user", npm).trim(), "42");

    // The host, by every name and address of it.
    let port = start_host_service();
    let control =
        std::process::Command::new("curl").args(["-s", "-m", "5", &format!("http://{HOST_SIDE}:{port}/")]).output();
    assert_eq!(control.expect("curl runs").stdout, b"host", "the control: the host reaches its own service");
    let gateway = sandbox.must("user", "grep nameserver /etc/resolv.conf | cut -d' ' -f2").trim().to_owned();
    for (what, host) in [
        ("loopback", "127.0.0.1"),
        ("loopback by name", "localhost"),
        ("the host's address on a link", &HOST_SIDE.to_string()),
        ("the gateway", &gateway),
        ("a name that points to loopback", "loopback.test"),
        ("a name that points to the host", "host.test"),
        ("IPv4-mapped loopback", "[::ffff:127.0.0.1]"),
        ("unspecified", "0.0.0.0"),
    ] {
        assert_refused(&sandbox, what, &format!("http://{host}:{port}/"));
    }
    assert_refused(&sandbox, "metadata", "http://169.254.169.254/");
    assert_refused(&sandbox, "metadata by name", "http://metadata.test/");

    // Private networks are refused unless the configuration allows them.
    assert_refused(&sandbox, "a private address", &format!("http://{PRIVATE}:8000/"));
    assert_refused(&sandbox, "a private name", "http://private.test:8000/");
    let by_range = Server::with(&["--config", &file("range.toml", "allow_ranges = [\"10.213.7.0/24\"]")]);
    assert_eq!(get(&by_range.create(), &format!("http://{PRIVATE}:8000/")).stdout, "far");
    let by_name = Server::with(&["--config", &file("name.toml", "allow_names = [\"private.test\"]")]);
    assert_eq!(get(&by_name.create(), "http://private.test:8000/").stdout, "far");

    // A sandbox without internet access, and its control.
    let offline = strict.create_with(json!({ "templateID": "base", "allow_internet_access": false }));
    assert_refused(&offline, "internet that is off", "http://registry.test:8000/");
    assert_refused(&offline, "internet that is off, by address", &format!("http://{PUBLIC}:8000/"));
    assert_eq!(get(&sandbox, &format!("http://{PUBLIC}:8000/")).stdout, "far", "the control");

    // A sandbox reaches the internet again after a crash of the server.
    let mut strict = strict;
    strict.kill_9();
    strict.start_again();
    let sandbox = sandbox.at(&strict.address);
    assert_eq!(get(&sandbox, "http://registry.test:8000/").stdout, "far");
}
