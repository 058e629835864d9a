//! `sandbar sandbox info`: prints the details of a sandbox.

use super::Session;
use crate::show::{ago, ahead, local_time, printable, span};
use clap::Args;
use sdk::SandboxId;
use sdk::model::{OnTimeout, PauseMode, SandboxState};

/// Show everything the service knows of a sandbox.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox info iabc123
  sandbar sandbox info iabc123 --json | jq -r .state  its answer has the access token too

Looking neither wakes a sandbox nor extends its life.")]
pub(crate) struct Info {
    /// The sandbox
    id: SandboxId,
}

impl Info {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let detail = session.detail(&self.id).await?;
        let show = session.show;
        if show.json {
            return Ok(show.object(&detail)?);
        }
        let listed = &detail.listed;
        let template = match &listed.alias {
            Some(alias) => format!("{} ({})", printable(alias), printable(&listed.template_id)),
            None => printable(&listed.template_id),
        };
        let started = ago(&listed.started_at).map_or_else(String::new, |age| format!(" ({} ago)", span(age)));
        let mut state = show.state(listed.state);
        if let Some(mode) = listed.pause_mode {
            state.push_str(match mode {
                PauseMode::Full => ", with its memory",
                PauseMode::Filesystem => ", files only",
            });
        }
        let mut pairs = vec![
            ("sandbox", printable(&listed.sandbox_id)),
            ("template", template),
            ("state", state),
            ("started", format!("{}{started}", local_time(&listed.started_at))),
        ];
        if listed.state == SandboxState::Running {
            let left = ahead(&listed.end_at).map_or_else(String::new, |left| format!(" (in {})", span(left)));
            let then = detail.lifecycle.map_or("", |lifecycle| match lifecycle.on_timeout {
                OnTimeout::Kill => ", then it is killed",
                OnTimeout::Pause => ", then it is paused",
            });
            pairs.push(("ends", format!("{}{left}{then}", local_time(&listed.end_at))));
        }
        pairs.push((
            "size",
            format!("{} CPUs, {} MiB memory, {} MiB disk", listed.cpu_count, listed.memory_mb, listed.disk_size_mb),
        ));
        if let Some(allowed) = detail.allow_internet_access {
            pairs.push(("internet", if allowed { "yes" } else { "no" }.to_owned()));
        }
        if detail.lifecycle.is_some_and(|lifecycle| lifecycle.auto_resume) {
            pairs.push(("wakes", "when one of its ports is asked for".to_owned()));
        }
        if let Some(domain) = &detail.domain {
            pairs.push(("domain", printable(domain)));
        }
        pairs.extend(
            listed
                .volume_mounts
                .iter()
                .map(|mount| ("volume", printable(&format!("{} at {}", mount.name, mount.path)))),
        );
        pairs.extend(listed.metadata.iter().map(|(key, value)| ("metadata", printable(&format!("{key}={value}")))));
        pairs.push(("daemon", format!("envd {}", printable(&listed.envd_version))));
        Ok(show.pairs(&pairs)?)
    }
}
