//! The supported languages, run by the sandbox's own interpreters.

use std::collections::BTreeMap;
use std::str::FromStr;

use protocol::rpc::process::ProcessConfig;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::json;

use crate::http::HttpError;
use crate::process::Interrupt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Language {
    Python,
    Javascript,
    Typescript,
    Bash,
}

/// An empty name means Python.
impl FromStr for Language {
    type Err = HttpError;

    fn from_str(name: &str) -> Result<Self, HttpError> {
        match name.to_ascii_lowercase().as_str() {
            "" | "python" | "python3" => Ok(Self::Python),
            "javascript" | "js" => Ok(Self::Javascript),
            "typescript" | "ts" => Ok(Self::Typescript),
            "bash" | "sh" => Ok(Self::Bash),
            _ => Err(HttpError::bad_request(format!(
                "language '{name}' is not available; there are python, javascript, typescript and bash"
            ))),
        }
    }
}

impl Language {
    /// The interpreter with its driver script.
    pub(super) fn process(self, cwd: &str) -> ProcessConfig {
        let (command, arguments): (&str, &[&str]) = match self {
            Self::Python => ("python3", &["-c", include_str!("drivers/python.py")]),
            Self::Javascript => ("node", &["-e", include_str!("drivers/node.js"), "javascript"]),
            Self::Typescript => ("node", &["-e", include_str!("drivers/node.js"), "typescript"]),
            Self::Bash => ("bash", &["-c", include_str!("drivers/bash.sh")]),
        };
        ProcessConfig {
            cmd: command.to_owned(),
            args: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            cwd: Some(cwd.to_owned()),
            ..ProcessConfig::default()
        }
    }

    /// How it is interrupted. Bash gets a separate signal, because it handles SIGINT unreliably:
    /// one that arrives while bash prepares to wait for a command makes it signal itself forever.
    pub(super) fn interrupt(self) -> Interrupt {
        match self {
            Self::Python | Self::Javascript | Self::Typescript => Interrupt::Group,
            Self::Bash => Interrupt::Signal(Signal::URG),
        }
    }

    /// Encodes code for the driver script.
    pub(super) fn encode_request(self, code: &str, env: &BTreeMap<String, String>) -> Vec<u8> {
        match self {
            // A NUL would truncate it, and has no meaning in a shell.
            Self::Bash => {
                let mut order = code.replace('\0', "").into_bytes();
                for (name, value) in env {
                    order.extend_from_slice(format!("\0{name}={}", value.replace('\0', "")).as_bytes());
                }
                order.extend_from_slice(b"\0\0");
                order
            }
            Self::Python | Self::Javascript | Self::Typescript => {
                format!("{}\n", json!({"code": code, "env": env})).into()
            }
        }
    }
}
