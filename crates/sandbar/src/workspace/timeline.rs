//! What happens to workspaces, as this program tells it: to the log, to people, and to whoever takes the pictures.

use super::photographs::Wanted;
use super::progress::Progress;
use crate::sandbox::show::{printable, printable_lines, span};
use async_trait::async_trait;
use browser::store::Occasion;
use std::sync::{Mutex, PoisonError};
use tokio::sync::mpsc;
use tracing::info;
use workspace::WorkspaceName;
use workspace::events::{EventKind, Observer, WorkspaceEvent};

pub(super) struct Timeline {
    progress: Progress,
    wanted: mpsc::UnboundedSender<Wanted>,
    dev_server: Mutex<Option<String>>,
    pictures: Mutex<PicturesDue>,
}

/// What becomes of pictures that are due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PicturesDue {
    Taken,
    /// Somebody else takes them.
    Left {
        any: bool,
    },
}

impl Timeline {
    pub(super) fn new(progress: Progress, wanted: mpsc::UnboundedSender<Wanted>) -> Self {
        Self { progress, wanted, dev_server: Mutex::default(), pictures: Mutex::new(PicturesDue::Taken) }
    }

    /// From here on nobody takes the pictures that become due.
    pub(super) fn leave_pictures(&self) {
        *self.pictures.lock().unwrap_or_else(PoisonError::into_inner) = PicturesDue::Left { any: false };
    }

    /// Whether any became due since.
    pub(super) fn pictures_left(&self) -> bool {
        *self.pictures.lock().unwrap_or_else(PoisonError::into_inner) == PicturesDue::Left { any: true }
    }

    /// Why the last dev server that was to be started does not run, if it does not.
    pub(super) fn dev_server_trouble(&self) -> Option<String> {
        self.dev_server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Observer for Timeline {
    async fn event(&self, event: &WorkspaceEvent) {
        let told = serde_json::to_string(&event.kind).unwrap_or_default();
        info!(workspace = %event.workspace, event = told, "a workspace's event");
        match &event.kind {
            EventKind::DevServerReady { sandbox, port, .. } => self.want(Wanted {
                workspace: event.workspace.clone(),
                sandbox: Some(sandbox.clone()),
                port: Some(*port),
                occasion: Occasion::DevServer { at: event.at },
            }),
            EventKind::PhaseCommitted { commit, .. } => self.want(Wanted {
                workspace: event.workspace.clone(),
                sandbox: None,
                port: None,
                occasion: Occasion::Commit { id: commit.clone() },
            }),
            _ => {}
        }
        let trouble = match &event.kind {
            EventKind::DevServerReady { .. } => Some(None),
            EventKind::DevServerFailed { reason } => Some(Some(reason.clone())),
            _ => None,
        };
        if let Some(trouble) = trouble {
            *self.dev_server.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        }
        match describe(&event.workspace, &event.kind) {
            Told::Worry(text) => self.progress.tell(&printable_lines(&text)),
            Told::Step(line) => self.progress.doing(printable(&line)),
            Told::Nothing => {}
        }
    }
}

impl Timeline {
    fn want(&self, wanted: Wanted) {
        let mut pictures = self.pictures.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *pictures {
            PicturesDue::Left { any } => *any = true,
            // Nobody takes pictures any more when the program ends.
            PicturesDue::Taken => drop(self.wanted.send(wanted)),
        }
    }
}

/// What people are told.
enum Told {
    /// Worth a line of its own.
    Worry(String),
    /// Worth a look while it lasts.
    Step(String),
    Nothing,
}

fn describe(name: &WorkspaceName, kind: &EventKind) -> Told {
    match kind {
        EventKind::Created { provider, sandbox } => Told::Step(format!("sandbox {sandbox} at {provider} is set up")),
        EventKind::SnapshotSaved { files, .. } => Told::Step(format!("snapshot of {files} files saved")),
        EventKind::SnapshotUnchanged { stamp } => Told::Step(format!("nothing has changed since snapshot {stamp}")),
        EventKind::SnapshotFailed { reason } => Told::Worry(format!("no snapshot was saved: {reason}")),
        EventKind::DevServerAwaited { command, port, within } => Told::Worry(format!(
            "waiting up to {} for the dev server `{command}` to answer on port {port}",
            span(*within)
        )),
        EventKind::DevServerReady { port, .. } => Told::Step(format!("the dev server answers on port {port}")),
        EventKind::DevServerFailed { reason } => Told::Worry(format!("the dev server does not run: {reason}")),
        EventKind::Rotated { sandbox, took, .. } => Told::Step(format!("in sandbox {sandbox} after {}", span(*took))),
        EventKind::Moved { to, sandbox, took, .. } => {
            Told::Step(format!("at {to} in sandbox {sandbox} after {}", span(*took)))
        }
        EventKind::LeftBehind { provider, sandbox, since } => Told::Worry(format!(
            "what was changed since snapshot {since} is in sandbox {sandbox} at {provider} and nowhere else; when {provider} \
             answers again, `sandbar workspace attach {name} {sandbox}` goes back to it"
        )),
        EventKind::HandoverFailed { reason } => {
            Told::Worry(format!("the sandbox was not replaced, and stays in use: {reason}"))
        }
        EventKind::SandboxLost { sandbox } => Told::Worry(format!("sandbox {sandbox} is gone")),
        EventKind::Stopped { reason } => Told::Worry(format!("the workspace is stopped: {reason}")),
        EventKind::LimitWarning(warning) => {
            Told::Worry(format!("{} % of {} are used: {}", warning.percent, warning.limit, warning.used))
        }
        _ => Told::Nothing,
    }
}
