//! Chooses the server that shows a project. The project's files are not the only evidence: a
//! process in the sandbox may already serve it.
//!
//! ```text
//! declared by the user                            →  that one
//! detected in the files, and already answering    →  that one, started by another process
//! any server that answers on the usual port       →  the detected one, moved to that port
//! detected in the files                           →  that one, to be started
//! any other server that answers                   →  its port, as long as it runs
//! ```

use std::time::Duration;

use sdk::Sandbox;

use super::detect::{ProjectFiles, decide, read};
use super::{DevServer, DevServerError};
use crate::shell::{script, tail_of};

/// The port on which agents are instructed to serve and which users open first.
const USUAL_PORT: u16 = 3000;
const LISTENING: &str = include_str!("scripts/listening.sh");
/// Covers two probes with the long timeout and twenty with the short one on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// The server that shows a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The server to declare, and to start unless it answers.
    pub server: Option<DevServer>,
    /// Another port that answers, shown when `server` does not become ready. No command is known
    /// that would start it again.
    pub fallback_port: Option<u16>,
}

/// The ports that answer in a sandbox.
#[derive(Debug, Default)]
struct AnsweringPorts {
    /// Whether a server that this module started is among them.
    ours: bool,
    ports: Vec<u16>,
}

/// Chooses the server for the project in `root`. `declared` is the declared server: by the user, or
/// as detected before.
///
/// # Errors
/// [`DevServerError::File`] or [`DevServerError::Sandbox`] when the sandbox cannot be queried,
/// [`DevServerError::NotStarted`] when the port probe fails.
pub async fn choose(sandbox: &Sandbox, root: &str, declared: Option<DevServer>) -> Result<Choice, DevServerError> {
    let files = read(sandbox, root).await?;
    let found = decide(&files, None);
    if declared.is_some() && declared != found {
        return Ok(Choice { server: declared, fallback_port: None });
    }
    let answering = probe_ports(sandbox, found.as_ref().map(|server| server.port)).await?;
    Ok(prefer(&files, found, &answering))
}

fn prefer(files: &ProjectFiles, found: Option<DevServer>, answering: &AnsweringPorts) -> Choice {
    let answers = |port: u16| answering.ports.contains(&port);
    let Some(found) = found else { return Choice { server: None, fallback_port: answering.ports.first().copied() } };
    let theirs = answers(found.port) && !answering.ours;
    let server = if !theirs && answers(USUAL_PORT) && found.port != USUAL_PORT {
        decide(files, Some(USUAL_PORT)).unwrap_or(found)
    } else {
        found
    };
    let fallback_port = answering.ports.iter().copied().find(|port| *port != server.port);
    Choice { server: Some(server), fallback_port }
}

async fn probe_ports(sandbox: &Sandbox, found: Option<u16>) -> Result<AnsweringPorts, DevServerError> {
    let first = [Some(USUAL_PORT), found].into_iter().flatten().map(|port| port.to_string());
    let output = sandbox.commands().run(script(LISTENING, first).timeout(DEADLINE)).await?;
    if !output.success() {
        return Err(DevServerError::NotStarted { tail: tail_of(&output) });
    }
    let text = output.stdout_text();
    let ports = text.lines().filter_map(|line| line.parse().ok()).collect();
    Ok(AnsweringPorts { ours: text.lines().any(|line| line == "ours"), ports })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], answering: &AnsweringPorts, server: Option<u16>, fallback_port: Option<u16>) {
        let files = ProjectFiles::from_texts(files);
        let choice = prefer(&files, decide(&files, None), answering);
        let port = choice.server.as_ref().map(|server| server.port);
        assert_eq!((port, choice.fallback_port), (server, fallback_port), "{answering:?}");
        if let Some(DevServer { command, port, .. }) = choice.server {
            assert!(command.contains(&port.to_string()) || command == "npm run dev", "{command} {port}");
        }
    }

    fn answering(ours: bool, ports: &[u16]) -> AnsweringPorts {
        AnsweringPorts { ours, ports: ports.to_vec() }
    }

    #[test]
    fn a_server_that_answers_is_preferred() {
        let page = [("index.html", "")];
        check(&page, &answering(false, &[]), Some(8000), None);
        check(&page, &answering(false, &[3000]), Some(3000), None);
        check(&page, &answering(false, &[3000, 8000]), Some(8000), Some(3000));
        check(&page, &answering(true, &[8000]), Some(8000), None);
        check(&page, &answering(true, &[3000, 8000]), Some(3000), Some(8000));
        // An unusual port may serve anything, so the detected server is tried first.
        check(&page, &answering(false, &[4000]), Some(8000), Some(4000));
        let vite = [("package.json", r#"{"scripts":{"dev":"vite"},"devDependencies":{"vite":"7"}}"#)];
        check(&vite, &answering(false, &[3000]), Some(3000), None);
        check(&vite, &answering(false, &[5173]), Some(5173), None);
        let next = [("package.json", r#"{"scripts":{"dev":"next dev"},"dependencies":{"next":"15"}}"#)];
        check(&next, &answering(false, &[3000]), Some(3000), None);
        check(&[], &answering(false, &[4000, 9000]), None, Some(4000));
        check(&[], &answering(false, &[]), None, None);
    }
}
