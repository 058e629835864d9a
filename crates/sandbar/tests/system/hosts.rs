//! The server's host names over TLS, by an independent client: curl, which resolves names under
//! `localhost` itself.

use crate::support::server::PROGRAM;
use crate::support::{Server, eventually};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

fn port(server: &Server) -> &str {
    server.address.rsplit(':').next().expect("an address has a port")
}

/// Runs curl with the server's authority as the only trusted root.
fn curl(server: &Server, arguments: &[&str]) -> Output {
    curl_trusting("hosts", server, arguments)
}

fn curl_trusting(authority: &str, server: &Server, arguments: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "30", "--noproxy", "*", "--cacert"]);
    command.arg(server.file(&format!("authority/{authority}/certificate.pem"))).args(arguments);
    command.output().expect("curl is installed")
}

#[track_caller]
fn body(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn one_port_serves_http_and_https_in_both_versions() {
    let server = Server::start();
    let sandbox = server.create();
    let serve = "mkdir -p /tmp/www && echo hello from inside > /tmp/www/index.html && cd /tmp/www && \
                 (setsid python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &)";
    sandbox.must("user", serve);
    let host = format!("8000-{}.localhost:{}", sandbox.id, port(&server));
    let version = ["--write-out", "%{http_version} %{response_code}"];
    let ask = |flags: &[&str], url: &str| curl(&server, &[flags, &version, &[url]].concat());
    eventually("the service in the sandbox answers", ANSWER_TIMEOUT, || {
        let answer = ask(&[], &format!("https://{host}/"));
        body(&answer).ends_with(" 200").then_some(())
    });
    for (flags, scheme, expected) in [
        (&["--http1.1"][..], "https", "hello from inside\n1.1 200"),
        (&["--http2"], "https", "hello from inside\n2 200"),
        (&["--tls-max", "1.2", "--http2"], "https", "hello from inside\n2 200"),
        (&["--http1.1"], "http", "hello from inside\n1.1 200"),
        (&["--http2-prior-knowledge"], "http", "hello from inside\n2 200"),
    ] {
        assert_eq!(body(&ask(flags, &format!("{scheme}://{host}/"))), expected, "{flags:?}");
    }
    // The control plane by its names, and by an address: then the handshake has no server name.
    let key = format!("X-API-Key: {}", server.key);
    for name in ["localhost", "api.localhost", "127.0.0.1"] {
        let url = format!("https://{name}:{}/v2/sandboxes", port(&server));
        let listed: Value = serde_json::from_str(&body(&curl(&server, &["--header", &key, &url]))).expect("JSON");
        assert_eq!(listed[0]["sandboxID"], json!(sandbox.id), "{name}");
    }
    // Programs get JSON, browsers a page.
    let closed = format!("https://4444-{}.localhost:{}/", sandbox.id, port(&server));
    assert!(body(&curl(&server, &[&closed])).starts_with("{\"sandboxId\":"));
    let page = body(&curl(&server, &["--user-agent", "Mozilla/5.0", "--header", "Accept: text/html", &closed]));
    assert!(page.contains("<h1>Nothing listens on port 4444</h1>"), "{page}");
    // For a foreign name that resolves to this machine the server has no certificate and serves
    // nothing.
    let resolve = format!("example.com:{}:127.0.0.1", port(&server));
    let foreign = format!("https://example.com:{}/health", port(&server));
    let refused = curl(&server, &["--insecure", "--resolve", &resolve, &foreign]);
    assert_eq!(refused.status.code(), Some(35), "no handshake: {refused:?}");
}

/// A service that answers every request with the head of the request.
const RAW_SERVICE: &str = r#"
import socket
listener = socket.create_server(("127.0.0.1", 8000))
while True:
    client, _ = listener.accept()
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    client.sendall(b"HTTP/1.1 200 OK\r\nX-AnsWer: 1\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))
    client.close()
"#;

#[test]
fn services_see_header_names_as_the_client_wrote_them() {
    let server = Server::start();
    let sandbox = server.create();
    sandbox.must(
        "user",
        &format!("cat > /tmp/raw.py <<'END'{RAW_SERVICE}END\n(setsid python3 /tmp/raw.py >/dev/null 2>&1 &)"),
    );
    let host = format!("8000-{}.localhost:{}", sandbox.id, port(&server));
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-MiXeD: 1\r\nConnection: close\r\n\r\n");
    let answer = eventually("the service in the sandbox answers", ANSWER_TIMEOUT, || {
        let mut stream = TcpStream::connect(&server.address).expect("the server listens");
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("a socket");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.starts_with("HTTP/1.1 200 ").then_some(answer)
    });
    let (head, seen) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("\r\nX-AnsWer: 1\r\n"), "{head}");
    assert_eq!(seen, format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-MiXeD: 1\r\n\r\n"));
    for version in ["--http1.1", "--http2"] {
        let seen = body(&curl(&server, &[version, "--header", "X-MiXeD: 1", &format!("https://{host}/")]));
        let spelled = if version == "--http2" { "X-Mixed: 1" } else { "X-MiXeD: 1" };
        assert!(seen.contains(&format!("\r\nHost: {host}\r\n")) && seen.contains(spelled), "{version}: {seen}");
    }
}

#[test]
fn a_custom_domain_has_certificates_and_is_reported() {
    let server = Server::with(&["--domain", "Sandbox.test"]);
    let curl = |arguments: &[&str]| curl_trusting("hosts-sandbox.test", &server, arguments);
    let resolve = |name: &str| format!("{name}:{}:127.0.0.1", port(&server));
    let (api, key) = ("api.sandbox.test", format!("X-API-Key: {}", server.key));
    let url = format!("https://{api}:{}/v2/sandboxes", port(&server));
    let create = ["--header", &key, "--json", "{\"templateID\":\"base\"}", "--resolve", &resolve(api), &url];
    let made: Value = serde_json::from_str(&body(&curl(&create))).expect("JSON");
    let domain = made["domain"].as_str().expect("a domain");
    assert_eq!(domain, format!("sandbox.test:{}", port(&server)));
    // The host name that SDKs derive from the domain.
    let name = format!("49983-{}.sandbox.test", made["sandboxID"].as_str().expect("an ID"));
    let guest = format!("https://{name}:{}/health", port(&server));
    let asked = curl(&["--write-out", "%{response_code}", "--resolve", &resolve(&name), &guest]);
    assert_eq!(body(&asked), "204");
    let path = body(&trust(server.data(), &["--domain", "sandbox.test", "--path"]));
    assert_eq!(Path::new(path.trim_end()), server.file("authority/hosts-sandbox.test/certificate.pem"));
    let local = format!("https://localhost:{}/health", port(&server));
    assert_eq!(body(&curl(&["--output", "/dev/null", "--write-out", "%{response_code}", &local])), "200");
    // The dashboard's content security policy allows frames of that domain.
    let page = format!("http://{}/login", server.address);
    let headers = body(&curl(&["--output", "/dev/null", "--dump-header", "-", &page]));
    assert!(headers.contains(&format!(" http://*.{domain} https://*.{domain};")), "{headers}");
}

#[test]
fn unfinished_handshakes_block_no_other_client() {
    /// More than the server allows at once.
    const HANDSHAKES: usize = 400;
    let server = Server::start();
    let url = format!("https://localhost:{}/health", port(&server));
    let ask = || body(&curl(&server, &["--output", "/dev/null", "--write-out", "%{response_code}", &url]));
    assert_eq!(ask(), "200");
    let half: Vec<TcpStream> = (0..HANDSHAKES)
        .map(|_| {
            let mut stream = TcpStream::connect(&server.address).expect("the server listens");
            stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc").expect("half a handshake");
            stream
        })
        .collect();
    // Plain requests need no handshake.
    assert_eq!(server.call("GET", "/health", None).status, 200);
    drop(half);
    assert_eq!(ask(), "200", "their places are free again");
    let mut rubbish = TcpStream::connect(&server.address).expect("the server listens");
    rubbish.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("a socket");
    rubbish.write_all(b"\x16GET / HTTP/1.1\r\n\r\n").expect("it is sent");
    let mut answer = Vec::new();
    let ended = rubbish.read_to_end(&mut answer);
    assert!(ended.is_err() || answer.first() == Some(&0x15), "an alert at most: {ended:?} {answer:?}");
    assert_eq!(ask(), "200");
}

#[test]
fn a_connection_takes_one_descriptor() {
    const MANY: usize = 300;
    let server = Server::start();
    let note: Value =
        serde_json::from_slice(&std::fs::read(server.file("server.json")).expect("a note")).expect("JSON");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", note["pid"])).expect("the server runs").count();
    let before = open();
    let silent: Vec<TcpStream> =
        (0..MANY).map(|_| TcpStream::connect(&server.address).expect("the server listens")).collect();
    eventually("all connections are accepted", ANSWER_TIMEOUT, || (open() >= before + MANY).then_some(()));
    // This request is accepted after the others. The server's own work takes a few descriptors
    // more.
    assert_eq!(server.call("GET", "/health", None).status, 200);
    assert!(open() < before + MANY + 50, "{} for {MANY} connections", open() - before);
    drop(silent);
}

fn trust(data: &Path, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(["trust", "--data"]).arg(data).args(arguments).output().expect("the program runs")
}

#[test]
fn trust_prints_what_a_server_will_use() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let certificate = body(&trust(&data, &[]));
    assert!(
        certificate.starts_with("-----BEGIN CERTIFICATE-----\n")
            && certificate.ends_with("-----END CERTIFICATE-----\n")
    );
    assert!(!certificate.contains("PRIVATE"));
    let path = body(&trust(&data, &["--path"]));
    assert_eq!(std::fs::read_to_string(path.trim_end()).expect("the file"), certificate);
    let report: Value = serde_json::from_str(&body(&trust(&data, &["--json"]))).expect("JSON");
    assert_eq!((&report["certificate"], &report["installed"]), (&json!(certificate), &json!(false)), "{report:#}");
    // The same fingerprint as OpenSSL computes.
    let shown =
        Command::new("openssl").args(["x509", "-noout", "-fingerprint", "-sha256", "-in", path.trim_end()]).output();
    let shown = body(&shown.expect("openssl is installed")).replace(':', "").to_lowercase();
    assert!(shown.contains(report["sha256"].as_str().expect("a text")), "{shown}");
    let both = trust(&data, &["--install", "--remove"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

/// Runs in a mount namespace with a separate trust store, so that the machine's own does not
/// change.
#[test]
fn trust_is_installed_and_removed() {
    let server = Server::start();
    let script = "set -e
        mount -t tmpfs none /usr/local/share
        mkdir /usr/local/share/ca-certificates /usr/local/share/certs
        cp -dR /etc/ssl/certs/. /usr/local/share/certs
        mount --bind /usr/local/share/certs /etc/ssl/certs
        ask() { curl --silent --noproxy '*' --max-time 30 --output /dev/null --write-out '%{http_code}\\n' \"$3\" || true; }
        ask \"$@\"
        \"$1\" trust --data \"$2\" --install
        \"$1\" trust --data \"$2\" --install --json
        ask \"$@\"
        \"$1\" trust --data \"$2\" --remove
        ask \"$@\"
        find /etc/ssl/certs -xtype l -name 'sandbar-*'";
    let url = format!("https://localhost:{}/health", port(&server));
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh", PROGRAM]).arg(server.data()).arg(&url);
    let output = body(&command.output().expect("unshare runs"));
    let answers: Vec<&str> = output.lines().filter(|line| line.len() == 3 && line.parse::<u16>().is_ok()).collect();
    assert_eq!(answers, ["000", "200", "000"], "{output}");
    assert!(
        output.contains("This machine trusts the server's hosts") && output.contains("\"installed\": true"),
        "{output}"
    );
    assert!(output.contains("is removed") && !output.contains("/etc/ssl/certs/sandbar-"), "nothing dangles: {output}");
}

/// Interpreter packages before 2.9 ignore `E2B_SANDBOX_URL`, so that the server prints the variable
/// that they need instead.
#[test]
fn up_prints_the_roots_for_old_interpreter_packages() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let mut up = Command::new(PROGRAM);
    testing::without_settings(&mut up).args(["up", "--listen", "127.0.0.1:0", "--ephemeral", "--no-studio", "--data"]);
    let mut up = up.arg(data.path()).stdout(std::process::Stdio::piped()).spawn().expect("the program runs");
    let mut output = std::io::BufReader::new(up.stdout.take().expect("a pipe"));
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &String| line.starts_with("ready: ")) {
        let mut line = String::new();
        assert!(std::io::BufRead::read_line(&mut output, &mut line).expect("text") > 0, "it ended: {lines:?}");
        lines.push(line.trim_end().to_owned());
    }
    let hint = lines.iter().find(|line| line.starts_with("# e2b-code-interpreter before 2.9 speaks https only"));
    let roots = hint.and_then(|line| line.split_once("export SSL_CERT_FILE=")).map(|(_, file)| file.to_owned());
    let url = lines.last().and_then(|line| line.strip_prefix("ready: http://127.0.0.1:")).map(str::to_owned);
    let answer = url.zip(roots.as_ref()).map(|(port, roots)| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--noproxy", "*", "--cacert", roots]);
        curl.arg(format!("https://localhost:{port}/health")).output().expect("curl is installed")
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&up), rustix::process::Signal::TERM)
        .expect("it runs");
    up.wait().expect("it ends");
    body(&answer.unwrap_or_else(|| panic!("no hint in {lines:?}")));
    let bundle = std::fs::read_to_string(roots.expect("a file")).expect("it is written");
    assert!(bundle.matches("BEGIN CERTIFICATE").count() > 50, "the host's own roots stay trusted");
}
