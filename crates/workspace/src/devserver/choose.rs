//! Which server shows a project, when the project's files are not all there is: whoever built it may have started one.
//!
//! ```text
//! declared by somebody                                  →  that
//! found in the files, and answering there already       →  that, as somebody started it
//! anything that answers on the usual port                →  what was found in the files, on that port from now on
//! found in the files                                     →  that, to be started
//! anything else that answers                             →  its port, as long as it runs
//! ```

use std::time::Duration;

use sdk::Sandbox;

use super::detect::{ProjectFiles, decide, read};
use super::{DevServer, DevServerError};
use crate::shell::{script, tail_of};

/// Where those who build are told to serve, and where people look first.
const USUAL: u16 = 3000;
const LISTENING: &str = include_str!("scripts/listening.sh");
/// Two patient questions, twenty impatient ones, and a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(180);

/// What shows a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// To be declared, and started unless it answers.
    pub server: Option<DevServer>,
    /// What answers besides, and is looked at when the server does not come to answer. Nothing is known that would start it again.
    pub else_at: Option<u16>,
}

/// What answers in a sandbox.
#[derive(Debug, Default)]
struct Heard {
    /// A server that was started here is among them.
    ours: bool,
    ports: Vec<u16>,
}

/// What shows the project in `root`, where `declared` is what is declared so far: by somebody, or as it was found before.
///
/// # Errors
/// When the sandbox could not be asked.
pub async fn choose(sandbox: &Sandbox, root: &str, declared: Option<DevServer>) -> Result<Choice, DevServerError> {
    let files = read(sandbox, root).await?;
    let found = decide(&files, None);
    if declared.is_some() && declared != found {
        return Ok(Choice { server: declared, else_at: None });
    }
    let heard = listen(sandbox, found.as_ref().map(|server| server.port)).await?;
    Ok(prefer(&files, found, &heard))
}

fn prefer(files: &ProjectFiles, found: Option<DevServer>, heard: &Heard) -> Choice {
    let answers = |port: u16| heard.ports.contains(&port);
    let Some(found) = found else { return Choice { server: None, else_at: heard.ports.first().copied() } };
    let theirs = answers(found.port) && !heard.ours;
    let server = if !theirs && answers(USUAL) && found.port != USUAL {
        decide(files, Some(USUAL)).unwrap_or(found)
    } else {
        found
    };
    let else_at = heard.ports.iter().copied().find(|port| *port != server.port);
    Choice { server: Some(server), else_at }
}

async fn listen(sandbox: &Sandbox, found: Option<u16>) -> Result<Heard, DevServerError> {
    let first = [Some(USUAL), found].into_iter().flatten().map(|port| port.to_string());
    let output = sandbox.commands().run(script(LISTENING, first).timeout(DEADLINE)).await?;
    if !output.success() {
        return Err(DevServerError::NotStarted { tail: tail_of(&output) });
    }
    let said = output.stdout_text();
    let ports = said.lines().filter_map(|line| line.parse().ok()).collect();
    Ok(Heard { ours: said.lines().any(|line| line == "ours"), ports })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], heard: &Heard, server: Option<u16>, else_at: Option<u16>) {
        let files = ProjectFiles::of(files);
        let choice = prefer(&files, decide(&files, None), heard);
        let port = choice.server.as_ref().map(|server| server.port);
        assert_eq!((port, choice.else_at), (server, else_at), "{heard:?}");
        if let Some(DevServer { command, port, .. }) = choice.server {
            assert!(command.contains(&port.to_string()) || command == "npm run dev", "{command} {port}");
        }
    }

    fn heard(ours: bool, ports: &[u16]) -> Heard {
        Heard { ours, ports: ports.to_vec() }
    }

    #[test]
    fn what_really_answers_is_shown() {
        let page = [("index.html", "")];
        check(&page, &heard(false, &[]), Some(8000), None);
        check(&page, &heard(false, &[3000]), Some(3000), None);
        check(&page, &heard(false, &[3000, 8000]), Some(8000), Some(3000));
        check(&page, &heard(true, &[8000]), Some(8000), None);
        check(&page, &heard(true, &[3000, 8000]), Some(3000), Some(8000));
        // Another port may be anything: what the files speak of is tried first.
        check(&page, &heard(false, &[4000]), Some(8000), Some(4000));
        let vite = [("package.json", r#"{"scripts":{"dev":"vite"},"devDependencies":{"vite":"7"}}"#)];
        check(&vite, &heard(false, &[3000]), Some(3000), None);
        check(&vite, &heard(false, &[5173]), Some(5173), None);
        let next = [("package.json", r#"{"scripts":{"dev":"next dev"},"dependencies":{"next":"15"}}"#)];
        check(&next, &heard(false, &[3000]), Some(3000), None);
        check(&[], &heard(false, &[4000, 9000]), None, Some(4000));
        check(&[], &heard(false, &[]), None, None);
    }
}
