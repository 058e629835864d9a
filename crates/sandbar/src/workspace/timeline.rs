//! Observes the events of workspaces: logs them, prints messages and requests screenshots.

use super::auto_screenshots::DueScreenshot;
use super::progress::Progress;
use async_trait::async_trait;
use browser::store::Occasion;
use cli::show::{printable, printable_lines, span};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::info;
use workspace::WorkspaceName;
use workspace::events::{EventKind, Observer, WorkspaceEvent};

pub(super) struct Timeline {
    progress: Progress,
    sender: mpsc::UnboundedSender<DueScreenshot>,
    dev_server_error: Mutex<Option<String>>,
    screenshots: Mutex<ScreenshotHandling>,
}

/// What happens to screenshots that become due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScreenshotHandling {
    Take,
    /// They are not taken by this process; `any` is set when one became due.
    Defer {
        any: bool,
    },
}

impl Timeline {
    pub(super) fn new(progress: Progress, sender: mpsc::UnboundedSender<DueScreenshot>) -> Self {
        Self { progress, sender, dev_server_error: Mutex::default(), screenshots: Mutex::new(ScreenshotHandling::Take) }
    }

    /// From here on this process takes no screenshots.
    pub(super) fn defer_screenshots(&self) {
        *self.screenshots.lock() = ScreenshotHandling::Defer { any: false };
    }

    /// Whether any became due since [`Timeline::defer_screenshots`].
    pub(super) fn has_deferred_screenshots(&self) -> bool {
        *self.screenshots.lock() == ScreenshotHandling::Defer { any: true }
    }

    /// Why the last start of a dev server failed, if it did.
    pub(super) fn dev_server_error(&self) -> Option<String> {
        self.dev_server_error.lock().clone()
    }
}

#[async_trait]
impl Observer for Timeline {
    async fn event(&self, event: &WorkspaceEvent) {
        let kind = serde_json::to_string(&event.kind).unwrap_or_default();
        info!(workspace = %event.workspace, event = kind, "a workspace's event");
        match &event.kind {
            EventKind::DevServerReady { sandbox, port, .. } => self.request_screenshot(DueScreenshot {
                workspace: event.workspace.clone(),
                sandbox: Some(sandbox.clone()),
                port: Some(*port),
                occasion: Occasion::DevServer { at: event.at },
            }),
            EventKind::PhaseCommitted { commit, .. } => self.request_screenshot(DueScreenshot {
                workspace: event.workspace.clone(),
                sandbox: None,
                port: None,
                occasion: Occasion::Commit { id: commit.clone() },
            }),
            _ => {}
        }
        let dev_server_error = match &event.kind {
            EventKind::DevServerReady { .. } => Some(None),
            EventKind::DevServerFailed { reason } => Some(Some(reason.clone())),
            _ => None,
        };
        if let Some(error) = dev_server_error {
            *self.dev_server_error.lock() = error;
        }
        match describe(&event.workspace, &event.kind) {
            Message::Warning(text) => self.progress.print_line(&printable_lines(&text)),
            Message::Step(line) => self.progress.show_step(printable(&line)),
            Message::Silent => {}
        }
    }
}

impl Timeline {
    fn request_screenshot(&self, due: DueScreenshot) {
        let mut screenshots = self.screenshots.lock();
        match &mut *screenshots {
            ScreenshotHandling::Defer { any } => *any = true,
            // Fails when the task has ended with the program.
            ScreenshotHandling::Take => drop(self.sender.send(due)),
        }
    }
}

/// The message for an event.
enum Message {
    /// Printed as a line.
    Warning(String),
    /// Shown in the progress line.
    Step(String),
    Silent,
}

fn describe(name: &WorkspaceName, kind: &EventKind) -> Message {
    match kind {
        EventKind::Created { provider, sandbox } => Message::Step(format!("sandbox {sandbox} at {provider} is set up")),
        EventKind::CheckpointSaved { files, .. } => Message::Step(format!("snapshot of {files} files saved")),
        EventKind::CheckpointUnchanged { stamp } => {
            Message::Step(format!("nothing has changed since snapshot {stamp}"))
        }
        EventKind::CheckpointFailed { reason } => Message::Warning(format!("no snapshot was saved: {reason}")),
        EventKind::DevServerAwaited { command, port, within } => Message::Warning(format!(
            "waiting up to {} for the dev server `{command}` to answer on port {port}",
            span(*within)
        )),
        EventKind::DevServerReady { port, .. } => Message::Step(format!("the dev server answers on port {port}")),
        EventKind::DevServerFailed { reason } => Message::Warning(format!("the dev server does not run: {reason}")),
        EventKind::Rotated { sandbox, took, .. } => {
            Message::Step(format!("in sandbox {sandbox} after {}", span(*took)))
        }
        EventKind::Moved { to, sandbox, took, .. } => {
            Message::Step(format!("at {to} in sandbox {sandbox} after {}", span(*took)))
        }
        EventKind::LeftBehind { provider, sandbox, since } => Message::Warning(format!(
            "what was changed since snapshot {since} is in sandbox {sandbox} at {provider} and nowhere else; when {provider} \
             answers again, `sandbar workspace attach {name} {sandbox}` goes back to it"
        )),
        EventKind::HandoverFailed { reason } => {
            Message::Warning(format!("the sandbox was not replaced, and stays in use: {reason}"))
        }
        EventKind::SandboxLost { sandbox } => Message::Warning(format!("sandbox {sandbox} is gone")),
        EventKind::Stopped { reason } => Message::Warning(format!("the workspace is stopped: {reason}")),
        EventKind::LimitWarning(warning) => {
            Message::Warning(format!("{} % of {} are used: {}", warning.percent, warning.limit, warning.used))
        }
        _ => Message::Silent,
    }
}
