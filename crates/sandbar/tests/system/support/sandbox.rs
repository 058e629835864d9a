//! A client of one sandbox through the edge: commands, files, raw requests.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testing::http::{self, Reply, Streaming};

#[derive(Clone)]
pub(crate) struct Sandbox {
    address: String,
    pub(crate) id: String,
    pub(crate) token: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The exit code. A shell reports 128 plus the signal of its child; -1 is a process that was
    /// itself ended by a signal.
    pub(crate) exit: i64,
}

impl Output {
    pub(crate) fn ok(&self) -> bool {
        self.exit == 0
    }
}

/// A command that runs, and the stream of its events.
pub(crate) struct Running {
    stream: Streaming,
    pending: Vec<u8>,
}

impl Sandbox {
    pub(crate) fn new(address: &str, id: String, token: String) -> Self {
        Self { address: address.to_owned(), id, token }
    }

    /// The same sandbox at the address of a restarted server.
    pub(crate) fn at(&self, address: &str) -> Self {
        Self { address: address.to_owned(), ..self.clone() }
    }

    pub(crate) fn try_request(
        &self,
        port: u16,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Streaming> {
        let port = port.to_string();
        let mut all = vec![("E2b-Sandbox-Id", self.id.as_str()), ("E2b-Sandbox-Port", port.as_str())];
        if port == "49983" {
            all.push(("X-Access-Token", self.token.as_str()));
        }
        all.extend_from_slice(headers);
        http::start(&self.address, method, target, &all, body)
    }

    #[track_caller]
    pub(crate) fn request(
        &self,
        port: u16,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        self.try_request(port, method, target, headers, body)
            .and_then(Streaming::finish)
            .unwrap_or_else(|error| panic!("{method} {target} on port {port}: {error}"))
    }

    #[track_caller]
    pub(crate) fn run(&self, command: &str) -> Output {
        self.run_as("user", command)
    }

    #[track_caller]
    pub(crate) fn run_as(&self, user: &str, command: &str) -> Output {
        self.start_as(user, command).wait()
    }

    /// Asserts exit code 0 and returns stdout.
    #[track_caller]
    pub(crate) fn must(&self, user: &str, command: &str) -> String {
        let output = self.run_as(user, command);
        assert!(output.ok(), "{command}: {output:?}");
        output.stdout
    }

    #[track_caller]
    pub(crate) fn start_as(&self, user: &str, command: &str) -> Running {
        self.try_start_as(user, command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub(crate) fn try_start_as(&self, user: &str, command: &str) -> std::io::Result<Running> {
        let message = json!({
            "process": { "cmd": "/bin/bash", "args": ["-l", "-c", command] },
            "stdin": false,
        })
        .to_string();
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).expect("a short message").to_be_bytes());
        body.extend_from_slice(message.as_bytes());
        let user = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:")));
        let headers = [
            ("Content-Type", "application/connect+json"),
            ("Connect-Protocol-Version", "1"),
            ("Authorization", user.as_str()),
        ];
        let stream = self.try_request(49983, "POST", "/process.Process/Start", &headers, &body)?;
        if stream.status != 200 {
            let reply = stream.finish()?;
            return Err(std::io::Error::other(format!("{} {}", reply.status, reply.text())));
        }
        Ok(Running { stream, pending: Vec::new() })
    }

    #[track_caller]
    pub(crate) fn write(&self, path: &str, content: &[u8]) -> Reply {
        let target = format!("/files?path={path}");
        self.request(49983, "POST", &target, &[("Content-Type", "application/octet-stream")], content)
    }

    #[track_caller]
    pub(crate) fn read(&self, path: &str) -> Reply {
        self.request(49983, "GET", &format!("/files?path={path}"), &[], b"")
    }
}

impl Running {
    /// The next event, or `None` at the end of the stream.
    pub(crate) fn next_event(&mut self) -> std::io::Result<Option<Value>> {
        loop {
            if self.pending.len() >= 5 {
                let length = u32::from_be_bytes(self.pending[1..5].try_into().expect("four bytes")) as usize;
                if self.pending.len() >= 5 + length {
                    let last = self.pending[0] & 2 != 0;
                    let message: Value = serde_json::from_slice(&self.pending[5..5 + length])?;
                    self.pending.drain(..5 + length);
                    if last {
                        return match message.get("error") {
                            Some(error) => Err(std::io::Error::other(error.to_string())),
                            None => Ok(None),
                        };
                    }
                    return Ok(Some(message["event"].clone()));
                }
            }
            match self.stream.next_piece()? {
                Some(piece) => self.pending.extend_from_slice(&piece),
                None => return Err(std::io::Error::other("the stream ended without its end-of-stream message")),
            }
        }
    }

    /// The pid inside the sandbox. Consumes the start event.
    #[track_caller]
    pub(crate) fn pid(&mut self) -> u64 {
        let event = self.next_event().expect("the stream is open").expect("an event comes");
        event["start"]["pid"].as_u64().unwrap_or_else(|| panic!("not a start event: {event}"))
    }

    #[track_caller]
    pub(crate) fn wait(mut self) -> Output {
        self.collect().unwrap_or_else(|error| panic!("the command's stream broke: {error}"))
    }

    /// Reads events until the end event.
    ///
    /// # Errors
    /// The error of the stream, if it ends before the end event.
    pub(crate) fn collect(&mut self) -> std::io::Result<Output> {
        let (mut stdout, mut stderr, mut exit) = (Vec::new(), Vec::new(), None);
        while let Some(event) = self.next_event()? {
            if let Some(data) = event["data"]["stdout"].as_str() {
                stdout.extend(BASE64_STANDARD.decode(data).map_err(std::io::Error::other)?);
            }
            if let Some(data) = event["data"]["stderr"].as_str() {
                stderr.extend(BASE64_STANDARD.decode(data).map_err(std::io::Error::other)?);
            }
            if let Some(end) = event.get("end") {
                exit = Some(end["exitCode"].as_i64().unwrap_or(0));
            }
        }
        let exit = exit.ok_or_else(|| std::io::Error::other("no end event"))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { stdout: text(stdout), stderr: text(stderr), exit })
    }
}
