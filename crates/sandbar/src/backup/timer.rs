//! Backups and scrubs that the server starts at an interval. Each runs as a child process, so that
//! one that fails or takes hours does not affect the server.

use crate::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};
use tokio::process::Command;
use tokio::task::JoinSet;
use tracing::{error, info};

/// Before a failed backup or scrub is retried.
const RETRY_BACKOFF: Duration = Duration::from_secs(3600);
/// After the start of the server, which has other work first.
const FIRST_DELAY: Duration = Duration::from_secs(5);

/// `[backup]`: where the server's backups go, and how often.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BackupConfig {
    /// A directory or `s3://BUCKET/PREFIX`; none: no backups by the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// URL of another service than AWS with S3's protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "AWS"))]
    pub endpoint: Option<String>,
    /// Hours between two backups.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = DEFAULT_BACKUP_HOURS))]
    pub interval_hours: Option<f64>,
}

/// `[scrub]`: how often the server verifies stored data.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScrubConfig {
    /// Hours between two scrubs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "never"))]
    pub interval_hours: Option<f64>,
}

const DEFAULT_BACKUP_HOURS: f64 = 24.0;

/// The tasks that start backups and scrubs. Dropping it ends them and kills their child processes.
pub(crate) struct Timers(#[expect(dead_code, reason = "held: its tasks end with it")] JoinSet<()>);

impl Timers {
    pub(crate) fn start(config: &Config, file: Option<&Path>) -> Self {
        let mut tasks = JoinSet::new();
        let common = |arguments: &mut Vec<String>| {
            arguments.extend(["--json".to_owned(), "--data".to_owned(), config.data.display().to_string()]);
            arguments.extend(file.map(|file| format!("--config={}", file.display())));
        };
        if let Some(target) = &config.backup.target {
            let mut arguments = vec!["backup".to_owned(), target.clone()];
            arguments.extend(config.backup.endpoint.iter().map(|endpoint| format!("--endpoint={endpoint}")));
            common(&mut arguments);
            let hours = config.backup.interval_hours.unwrap_or(DEFAULT_BACKUP_HOURS);
            tasks.spawn(repeat("backup", arguments, hours, config.data.join("backup.last")));
        }
        if let Some(hours) = config.scrub.interval_hours {
            let mut arguments = vec!["scrub".to_owned()];
            common(&mut arguments);
            tasks.spawn(repeat("scrub", arguments, hours, config.data.join("scrub.last")));
        }
        Self(tasks)
    }
}

/// Runs this program with `arguments` every `hours`, counted from the last success, whose time is
/// the modification time of `note`.
async fn repeat(name: &'static str, arguments: Vec<String>, hours: f64, note: PathBuf) {
    let interval = Duration::try_from_secs_f64(hours * 3600.0).unwrap_or(RETRY_BACKOFF);
    tokio::time::sleep(FIRST_DELAY.min(interval)).await;
    loop {
        let last = fs::metadata(&note).and_then(|found| found.modified()).ok();
        let since = last.and_then(|last| SystemTime::now().duration_since(last).ok());
        if let Some(left) = since.and_then(|since| interval.checked_sub(since)).filter(|left| !left.is_zero()) {
            tokio::time::sleep(left).await;
            continue;
        }
        match run(&arguments).await {
            Ok(report) => {
                info!(report, "{name} done");
                if fs::write(&note, "").is_ok() {
                    continue;
                }
            }
            Err(cause) => error!(cause, "{name} failed; it is tried again"),
        }
        tokio::time::sleep(RETRY_BACKOFF.min(interval)).await;
    }
}

async fn run(arguments: &[String]) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let done = command.output().await.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match done.status.success() {
        true => Ok(text(&done.stdout)),
        false => Err([text(&done.stdout), text(&done.stderr)].join(" ")),
    }
}
