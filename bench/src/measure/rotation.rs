//! How long the gate of a workspace is closed while its sandbox is replaced.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use checkpoint::Which;
use tempfile::TempDir;
use workspace::config::{ProviderConfig, ProviderKind, WorkspaceConfig};
use workspace::events::NoopObserver;
use workspace::provider::{LocalEndpoint, LocalServer, NoLocalServer};
use workspace::setup::Setup;
use workspace::{Settings, Unsaved, Workspace, Workspaces};

use super::snapshots::{FILE_BYTES, make_files};
use super::{Plan, Row, Target};
use crate::server::Server;
use crate::stats::Samples;

/// The server under measurement, as the only provider.
struct Measured {
    url: String,
    key: String,
}

#[async_trait]
impl LocalServer for Measured {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        Ok(LocalEndpoint { url: self.url.clone(), api_key: self.key.as_str().into() })
    }
}

/// Samples of all rounds.
#[derive(Default)]
struct Times {
    closed: Samples,
    /// A checkpoint and a restore of the same files by themselves.
    needed: Samples,
}

pub(crate) fn rotation(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let times = runtime.block_on(measure(server, plan))?;
    let (closed, needed) = (times.closed.p50(), times.needed.p50());
    Ok(vec![Row {
        name: "rotation",
        figure: format!("{:.2} s closed", closed.as_secs_f64()),
        baseline: format!("{:.2} s to save and restore", needed.as_secs_f64()),
        value: closed.saturating_sub(needed).as_secs_f64(),
        unit: "s",
        target: Some(Target::AtMost { limit: 3.0, sane: 30.0 }),
        method: format!(
            "A workspace of {} MB is given a new sandbox; how long its fence is closed, less what one snapshot and one restore \
             of it took just before. {} rounds, medians.",
            plan.rotation_files * FILE_BYTES / 1_000_000,
            times.closed.len()
        ),
    }])
}

async fn measure(server: &Server, plan: &Plan) -> anyhow::Result<Times> {
    let directory = TempDir::with_prefix("sandbar-bench-workspaces-")?;
    let workspaces = workspaces(server, directory.path()).await?;
    let created = workspaces.create(&"bench".parse()?, Setup::default()).await.context("creating a workspace")?;
    let workspace = created.workspace;
    let measured = rounds(&workspace, plan).await;
    workspace.destroy(Unsaved::Discard).await?;
    measured
}

async fn workspaces(server: &Server, directory: &Path) -> anyhow::Result<Workspaces> {
    let provider = ProviderConfig::new("measured".parse()?, ProviderKind::Local);
    let config = WorkspaceConfig { providers: vec![provider], ..WorkspaceConfig::default() };
    let config = config.resolve(directory, &|_| None)?;
    let (url, key) = (format!("http://{}", server.address), server.key.clone());
    let local: Arc<dyn LocalServer> = Arc::new(Measured { url, key });
    Ok(Workspaces::from_config(&config, &|_| None, &local, Arc::new(NoopObserver), Settings::default()).await?)
}

async fn rounds(workspace: &Workspace, plan: &Plan) -> anyhow::Result<Times> {
    let output = workspace.exec(make_files(plan.rotation_files)).await.context("making the files")?;
    ensure!(output.success(), "making the files: {}", output.stderr_text());
    let mut times = Times::default();
    for _ in 0..plan.rotations {
        let begun = Instant::now();
        workspace.save_checkpoint().await.context("saving")?;
        workspace.restore(Which::Newest).await.context("restoring")?;
        times.needed.push(begun.elapsed());
        times.closed.push(workspace.rotate().await.context("rotating")?.gate_closed);
    }
    Ok(times)
}
