//! The calls of the protocol that are measured, byte for byte as the SDKs send them.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::http::Connection;
use crate::server::Server;

/// The command of both the sandbox and the baselines.
pub(crate) const COMMAND: &str = "echo hi";

#[derive(Debug, Deserialize)]
struct Created {
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "envdAccessToken")]
    token: String,
}

/// A sandbox and the connection that talks to it.
pub(crate) struct Sandbox<'a> {
    pub(crate) id: String,
    token: String,
    key: &'a str,
    connection: Connection,
}

/// How long a command took: to its first output, and to the end of its stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) first_output: Duration,
    pub(crate) end: Duration,
}

impl<'a> Sandbox<'a> {
    /// Creates a sandbox over a connection that is already open.
    pub(crate) fn create(server: &'a Server, mut connection: Connection) -> anyhow::Result<Self> {
        let headers = [("X-API-Key", server.key.as_str()), ("Content-Type", "application/json")];
        let body = br#"{"templateID":"base","timeout":3600,"metadata":{},"envVars":{}}"#;
        let answer = connection.send("POST", "/v2/sandboxes", &headers, body)?.expect(201).context("create")?;
        let Created { id, token } = serde_json::from_str(&answer).context("answer of create")?;
        Ok(Self { id, token, key: &server.key, connection })
    }

    /// Runs [`COMMAND`] in a login shell, as `commands.run` does.
    pub(crate) fn run(&mut self) -> anyhow::Result<Run> {
        self.run_command(COMMAND)
    }

    pub(crate) fn run_command(&mut self, command: &str) -> anyhow::Result<Run> {
        let command = serde_json::to_string(command)?;
        let message = format!(r#"{{"process":{{"cmd":"/bin/bash","args":["-l","-c",{command}]}},"stdin":false}}"#);
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
        body.extend_from_slice(message.as_bytes());

        let started = Instant::now();
        let headers = [
            ("E2b-Sandbox-Id", self.id.as_str()),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", self.token.as_str()),
            ("Content-Type", "application/connect+json"),
            ("Connect-Protocol-Version", "1"),
            ("Connect-Timeout-Ms", "60000"),
            ("Keepalive-Ping-Interval", "50"),
        ];
        let mut response = self.connection.send("POST", "/process.Process/Start", &headers, &body)?;
        if response.status != 200 {
            let status = response.status;
            bail!("Start answered {status}: {}", response.text()?);
        }
        let (mut seen, mut buffer, mut first_output) = (Vec::new(), [0; 16 * 1024], None);
        loop {
            let count = response.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            seen.extend_from_slice(&buffer[..count]);
            if first_output.is_none() && contains(&seen, b"\"stdout\"") {
                first_output = Some(started.elapsed());
            }
        }
        let end = started.elapsed();
        ensure!(
            contains(&seen, b"\"end\"") && !contains(&seen, b"\"error\""),
            "the command did not end well: {}",
            String::from_utf8_lossy(&seen)
        );
        Ok(Run { first_output: first_output.context("the command printed nothing")?, end })
    }

    /// Replaces the sandbox's network rules.
    pub(crate) fn set_network(&mut self, body: &str) -> anyhow::Result<()> {
        let (path, key) = (format!("/sandboxes/{}/network", self.id), self.key);
        let headers = [("X-API-Key", key), ("Content-Type", "application/json")];
        self.connection.send("PUT", &path, &headers, body.as_bytes())?.expect(204).context("network")?;
        Ok(())
    }

    pub(crate) fn pause(&mut self) -> anyhow::Result<Duration> {
        let (path, key) = (format!("/sandboxes/{}/pause", self.id), self.key);
        let headers = [("X-API-Key", key), ("Content-Type", "application/json")];
        let started = Instant::now();
        self.connection.send("POST", &path, &headers, b"{}")?.expect(204).context("pause")?;
        Ok(started.elapsed())
    }

    /// Resumes, then requests the health of the sandbox's guest; returns the time until that
    /// answer.
    pub(crate) fn resume(&mut self) -> anyhow::Result<Duration> {
        let (path, key) = (format!("/v2/sandboxes/{}/connect", self.id), self.key);
        let headers = [("X-API-Key", key), ("Content-Type", "application/json")];
        let started = Instant::now();
        self.connection.send("POST", &path, &headers, br#"{"timeout":3600}"#)?.expect(201).context("connect")?;
        self.health()?;
        Ok(started.elapsed())
    }

    pub(crate) fn health(&mut self) -> anyhow::Result<()> {
        let headers = [("E2b-Sandbox-Id", self.id.as_str()), ("E2b-Sandbox-Port", "49983")];
        self.connection.send("GET", "/health", &headers, b"")?.expect(204).context("health")?;
        Ok(())
    }

    /// A file's content, or `None` if it is absent.
    pub(crate) fn read_file(&mut self, path: &str) -> anyhow::Result<Option<String>> {
        let target = format!("/files?path={path}");
        let token = self.token.clone();
        let headers = [("E2b-Sandbox-Id", self.id.as_str()), ("E2b-Sandbox-Port", "49983"), ("X-Access-Token", &token)];
        let response = self.connection.send("GET", &target, &headers, b"")?;
        if response.status == 404 {
            response.text()?;
            return Ok(None);
        }
        response.expect(200).map(Some)
    }

    /// The headers of a file request, and the connection to send it on.
    pub(crate) fn files(&mut self) -> (Vec<(&str, &str)>, &mut Connection) {
        let headers = vec![
            ("E2b-Sandbox-Id", self.id.as_str()),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", self.token.as_str()),
        ];
        (headers, &mut self.connection)
    }

    /// Kills the sandbox and returns the connection.
    pub(crate) fn kill(mut self) -> anyhow::Result<Connection> {
        let path = format!("/sandboxes/{}", self.id);
        let key = self.key;
        self.connection.send("DELETE", &path, &[("X-API-Key", key)], b"")?.expect(204).context("kill")?;
        Ok(self.connection)
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
