//! A guest as the engine starts it: process 1 of its own pid, mount and network namespaces, with a
//! user `user` whose home is in a temporary directory. Dropping the value kills everything in it.
//!
//! Requests are written and read byte by byte, so that the tests see the real wire format.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::guest::GuestConfig;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::http::{Reply, Streaming};
use testing::{SOON, eventually};

/// Timeout of every read; a hanging guest fails the test instead of blocking it.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct TestGuest {
    child: Child,
    directory: TempDir,
}

impl TestGuest {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(adjust: impl FnOnce(&mut GuestConfig)) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path();
        // The user must be able to reach its home.
        fs::set_permissions(base, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
        let home = base.join("home");
        fs::create_dir_all(&home).expect("a home");
        std::os::unix::fs::chown(&home, Some(1000), Some(1000)).expect("tests run as root");
        fs::create_dir_all(base.join("small")).expect("a mount point");
        let passwd = format!("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::{}:/bin/bash\n", home.display());
        fs::write(base.join("passwd"), passwd).expect("passwd");
        fs::write(base.join("group"), "root:x:0:\nsudo:x:27:user\nuser:x:1000:\n").expect("group");
        let mut config = GuestConfig {
            sandbox_id: "itest".into(),
            template_id: "base".into(),
            default_user: "user".into(),
            system_env: BTreeMap::from([("E2B_SANDBOX".into(), "true".into())]),
            memory_limit_bytes: 512 << 20,
            cpu_count: 2,
            disk_limit_bytes: 1 << 30,
            ..GuestConfig::default()
        };
        adjust(&mut config);
        fs::write(base.join("config.json"), serde_json::to_vec(&config).expect("a config")).expect("a file");
        let listener = UnixListener::bind(base.join("socket")).expect("a socket");
        // Signals are ignored, as by a server that a script started in the background.
        let script = r#"set -e
            trap '' HUP INT QUIT
            mount -n --make-rprivate /
            mount -n -t tmpfs none /run
            mount -n -t tmpfs -o size=1m none "$1/small"
            mount -n --bind "$1/passwd" /etc/passwd
            mount -n --bind "$1/group" /etc/group
            ip link set lo up
            exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
                "$0" 3<&0 4<"$1/config.json" 0</dev/null 1>/dev/null"#;
        let child = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script])
            .arg(env!("CARGO_BIN_EXE_sandbar-guest"))
            .arg(base)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .spawn()
            .expect("unshare of util-linux");
        Self { child, directory }
    }

    /// A directory shared by the guest and the test.
    pub(crate) fn base(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.base().join("home")
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.base().join("socket")).expect("the socket");
        stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
        stream
    }

    /// One request on a new connection.
    pub(crate) fn request(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut stream = self.connect();
        // In one write: a refusal closes the connection without reading the body.
        stream.write_all(&[&head(method, target, headers, Some(body.len())), body].concat()).expect("written");
        Reply::read(BufReader::new(stream))
    }

    pub(crate) fn get(&self, target: &str) -> Reply {
        self.request("GET", target, &[], b"")
    }

    /// A unary call in JSON.
    pub(crate) fn call(&self, method: &str, request: &Value) -> Result<Value, RpcError> {
        self.call_with(method, request, &[])
    }

    pub(crate) fn call_with(&self, method: &str, request: &Value, headers: &[(&str, &str)]) -> Result<Value, RpcError> {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let response = self.request("POST", &format!("/{method}"), &headers, request.to_string().as_bytes());
        assert_eq!(response.header("content-type"), Some("application/json"), "{method}");
        let answer: Value = serde_json::from_slice(&response.body).expect("JSON");
        if response.status == 200 {
            return Ok(answer);
        }
        let text = |key: &str| answer[key].as_str().unwrap_or_else(|| panic!("no {key} in {answer}")).to_owned();
        Err(RpcError { status: response.status, code: text("code"), message: text("message") })
    }

    /// A streaming call in JSON, with a chunked request body as newer clients send it.
    pub(crate) fn stream(&self, method: &str, request: &Value, headers: &[(&str, &str)]) -> EventStream {
        let payload = request.to_string();
        let headers =
            [&[("content-type", "application/connect+json"), ("connect-protocol-version", "1")], headers].concat();
        let mut stream = self.connect();
        stream.write_all(&head("POST", &format!("/{method}"), &headers, None)).expect("written");
        write_chunk(&mut stream, &envelope(0, payload.as_bytes()));
        stream.write_all(b"0\r\n\r\n").expect("written");
        EventStream::read(stream, "application/connect+json")
    }

    /// Runs a shell command to completion as the default user.
    pub(crate) fn run(&self, command: &str) -> Run {
        self.run_with(command, &json!({}), &[])
    }

    pub(crate) fn run_with(&self, command: &str, more: &Value, headers: &[(&str, &str)]) -> Run {
        let mut request = json!({"process": {"cmd": "/bin/bash", "args": ["-c", command]}, "stdin": false});
        merge(&mut request, more);
        self.stream("process.Process/Start", &request, headers).finish()
    }

    pub(crate) fn start_process(&self, command: &str, more: &Value, headers: &[(&str, &str)]) -> (u64, EventStream) {
        let mut request = json!({"process": {"cmd": "/bin/bash", "args": ["-c", command]}});
        merge(&mut request, more);
        let mut stream = self.stream("process.Process/Start", &request, headers);
        (stream.started(), stream)
    }

    pub(crate) fn upload(&self, path: &str, content: &[u8]) -> Reply {
        let target = format!("/files?path={}", encode(path));
        self.request("POST", &target, &[("content-type", "application/octet-stream")], content)
    }

    pub(crate) fn log(&self, after: u64) -> Vec<Value> {
        let response = self.get(&format!("/sandbar/log?after={after}"));
        serde_json::from_slice(&response.body).expect("a list")
    }

    /// The host's pid of process 1.
    pub(crate) fn host_pid(&self) -> u32 {
        let unshare = self.child.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        eventually("process 1 started", SOON, || {
            fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok()
        })
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_some()
    }
}

impl Drop for TestGuest {
    fn drop(&mut self) {
        // `--kill-child` kills the guest, and with process 1 its whole pid namespace.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn merge(into: &mut Value, more: &Value) {
    for (key, value) in more.as_object().expect("an object") {
        match (&mut into[key], value) {
            (Value::Object(existing), Value::Object(new)) => existing.extend(new.clone()),
            (slot, value) => *slot = value.clone(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct RpcError {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
}

pub(crate) fn head(method: &str, target: &str, headers: &[(&str, &str)], length: Option<usize>) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: guest\r\n");
    match length {
        Some(length) => text.push_str(&format!("content-length: {length}\r\n")),
        None => text.push_str("transfer-encoding: chunked\r\n"),
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

pub(crate) fn write_chunk(to: &mut impl Write, bytes: &[u8]) {
    write!(to, "{:x}\r\n", bytes.len()).expect("written");
    to.write_all(bytes).expect("written");
    to.write_all(b"\r\n").expect("written");
}

pub(crate) fn envelope(flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small message");
    [&[flags][..], &length.to_be_bytes(), payload].concat()
}

/// Encodes a query value like Python clients.
pub(crate) fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string().replace("%20", "+")
}

/// The response of a streaming call, message by message.
pub(crate) struct EventStream {
    body: Streaming<BufReader<UnixStream>>,
    /// Of the body, what no frame has taken.
    pending: VecDeque<u8>,
    started: Option<u64>,
}

/// One message of a stream, or its end with the error, if any.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    Event(Value),
    Over(Option<Value>),
}

impl EventStream {
    pub(crate) fn read(stream: UnixStream, content_type: &str) -> Self {
        let body = Streaming::read("POST", BufReader::new(stream)).expect("a response");
        assert_eq!(body.status, 200, "streams answer 200, errors included");
        let types: Vec<_> =
            body.headers.iter().filter(|header| header.0 == "content-type").map(|header| &header.1).collect();
        assert_eq!(types, [content_type], "exactly this type");
        Self { body, pending: VecDeque::new(), started: None }
    }

    pub(crate) fn frame(&mut self) -> (u8, Vec<u8>) {
        let prefix = self.take(5);
        let length = u32::from_be_bytes(prefix[1..].try_into().expect("four bytes"));
        (prefix[0], self.take(length as usize))
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        while self.pending.len() < count {
            self.pending.extend(self.body.next_piece().expect("readable").expect("the body goes on"));
        }
        self.pending.drain(..count).collect()
    }

    pub(crate) fn message(&mut self) -> Message {
        let (flags, payload) = self.frame();
        let value: Value = serde_json::from_slice(&payload).expect("JSON");
        match flags {
            0 => Message::Event(value["event"].clone()),
            2 => Message::Over(value.get("error").cloned()),
            other => panic!("flags {other}"),
        }
    }

    pub(crate) fn event(&mut self) -> Value {
        match self.message() {
            Message::Event(event) => event,
            Message::Over(error) => panic!("the stream ended: {error:?}"),
        }
    }

    /// Reads the start event, the first of every process stream.
    pub(crate) fn started(&mut self) -> u64 {
        let event = self.event();
        let pid = event["start"]["pid"].as_u64().unwrap_or_else(|| panic!("not a start: {event}"));
        self.started = Some(pid);
        pid
    }

    /// Reads output until it contains `text`.
    pub(crate) fn until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            let event = self.event();
            for kind in ["stdout", "stderr", "pty"] {
                if let Some(data) = event["data"][kind].as_str() {
                    seen.push_str(&String::from_utf8_lossy(&STANDARD.decode(data).expect("base64")));
                }
            }
        }
        seen
    }

    /// Reads to the end and checks the order: a start, data and keepalives, one end, the end of the
    /// stream.
    pub(crate) fn finish(mut self) -> Run {
        let mut run = Run { pid: self.started, ..Run::default() };
        loop {
            match self.message() {
                Message::Over(error) => {
                    run.error = error;
                    assert!(run.error.is_some() || run.end.is_some(), "a clean end needs an end event");
                    return run;
                }
                Message::Event(event) => {
                    assert!(run.end.is_none(), "nothing follows the end event: {event}");
                    let object = event.as_object().expect("an object");
                    assert_eq!(object.len(), 1, "one kind per event: {event}");
                    let (kind, event) = object.iter().next().expect("one");
                    match kind.as_str() {
                        "start" => {
                            assert!(run.pid.is_none(), "one start");
                            run.pid = event["pid"].as_u64();
                        }
                        "data" => {
                            assert!(run.pid.is_some(), "the start comes first");
                            for (kind, into) in
                                [("stdout", &mut run.stdout), ("stderr", &mut run.stderr), ("pty", &mut run.pty)]
                            {
                                if let Some(data) = event[kind].as_str() {
                                    into.extend(STANDARD.decode(data).expect("base64"));
                                    run.chunks += 1;
                                }
                            }
                        }
                        "keepalive" => run.keepalives += 1,
                        "end" => run.end = Some(event.clone()),
                        other => panic!("unknown event {other}"),
                    }
                }
            }
        }
    }
}

/// A completed stream.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) pid: Option<u64>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    pub(crate) chunks: usize,
    pub(crate) keepalives: usize,
    pub(crate) end: Option<Value>,
    pub(crate) error: Option<Value>,
}

impl Run {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn end(&self) -> &Value {
        self.end.as_ref().unwrap_or_else(|| panic!("no end event: {:?}", self.error))
    }

    pub(crate) fn error_code(&self) -> &str {
        self.error
            .as_ref()
            .and_then(|error| error["code"].as_str())
            .unwrap_or_else(|| panic!("no error: {:?}", self.end))
    }
}
