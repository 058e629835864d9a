//! Checkpoints of a workspace and their restores, beside plain `tar` in the same sandbox.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use checkpoint::{CheckpointOptions, Checkpoints, Objects, ProjectId, Which};
use sdk::{Client, Command, Create, Sandbox};
use tempfile::TempDir;
use workspace::ClientSandbox;

use super::{Plan, Row, Target};
use crate::remote::{self, run};
use crate::server::Server;
use crate::stats::Samples;

/// Files of 50 kB in directories of a hundred: text that a program could have written, then bytes
/// that cannot be compressed. Argument: the number of files.
const MAKE: &str = r"
import os, sys
words = [bytes(b % 26 + 97 for b in os.urandom(2 + n % 9)) for n in range(2000)]
for number in range(int(sys.argv[1])):
    folder = 'w/d%d' % (number // 100)
    os.makedirs(folder, exist_ok=True)
    picks = os.urandom(16000)
    text = b' '.join(words[(picks[at] << 8 | picks[at + 1]) % 2000] for at in range(0, 16000, 2))[:40000]
    with open('%s/f%d' % (folder, number), 'wb') as file:
        file.write(text + os.urandom(50000 - len(text)))
";
pub(super) const FILE_BYTES: usize = 50_000;

/// Makes `count` files below the working directory.
pub(super) fn make_files(count: usize) -> Command {
    Command::exec("python3", ["-c", MAKE, &count.to_string()])
}

/// Samples of the four operations.
#[derive(Default)]
struct Times {
    pack: Samples,
    save: Samples,
    unpack: Samples,
    restore: Samples,
}

pub(crate) fn snapshots(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let times = runtime.block_on(measure(server, plan))?;
    let size = format!("{} files, {} MB", plan.snapshot_files, plan.snapshot_files * FILE_BYTES / 1_000_000);
    Ok(vec![
        row(
            "snapshot",
            (&times.save, &times.pack),
            1.2,
            &format!(
                "{size}: the files of a sandbox saved to a store on disk, archive and manifest; against `tar cz | cat >file` in \
                 the same sandbox."
            ),
        ),
        row(
            "restore",
            (&times.restore, &times.unpack),
            1.5,
            &format!(
                "{size}: that snapshot brought into another sandbox, every file verified; against `tar xz` of the plain archive."
            ),
        ),
    ])
}

fn row(name: &'static str, (ours, plain): (&Samples, &Samples), limit: f64, method: &str) -> Row {
    let seconds =
        |samples: &Samples| format!("{:.2} s (p95 {:.2} s)", samples.p50().as_secs_f64(), samples.p95().as_secs_f64());
    Row {
        name,
        figure: seconds(ours),
        baseline: seconds(plain),
        value: ours.p50().as_secs_f64() / plain.p50().as_secs_f64(),
        unit: "x",
        target: Some(Target::AtMost { limit, sane: limit * 10.0 }),
        method: format!("{method} {} rounds, alternately; medians.", ours.len()),
    }
}

async fn measure(server: &Server, plan: &Plan) -> anyhow::Result<Times> {
    let client = remote::client(server)?;
    let (old, new) = (create(&client).await?, create(&client).await?);
    let measured = rounds(&old, &new, plan).await;
    old.kill().await?;
    new.kill().await?;
    measured
}

async fn create(client: &Client) -> anyhow::Result<Sandbox> {
    let create = Create::default().timeout(Duration::from_secs(3600)).disk_size_mb(8192);
    client.create(create).await.context("creating a sandbox")
}

async fn rounds(old: &Sandbox, new: &Sandbox, plan: &Plan) -> anyhow::Result<Times> {
    run(old, make_files(plan.snapshot_files)).await.context("making the files")?;
    let directory = TempDir::with_prefix("sandbar-bench-objects-")?;
    let checkpoints = Checkpoints::new(Objects::disk(directory.path())?);
    let project: ProjectId = "bench".parse()?;
    let mut times = Times::default();
    for _ in 0..plan.snapshot_rounds {
        times.pack.push(timed(old, "tar cz -C /home/user . | cat >/var/plain.tgz").await?);
        let begun = Instant::now();
        let saved = checkpoints
            .save(&ClientSandbox(old.clone()), &project, &CheckpointOptions::default())
            .await
            .context("saving")?;
        times.save.push(begun.elapsed());

        timed(old, "rm -rf /var/out && mkdir /var/out").await?;
        times.unpack.push(timed(old, "tar xz -C /var/out </var/plain.tgz").await?);
        timed(new, "rm -rf /home/user/w").await?;
        let begun = Instant::now();
        let restored =
            checkpoints.restore(&ClientSandbox(new.clone()), &project, Which::Newest).await.context("restoring")?;
        times.restore.push(begun.elapsed());
        ensure!(restored.files == saved.files, "{} files were saved and {} came back", saved.files, restored.files);
    }
    Ok(times)
}

/// Runs a command as root and returns how long it took.
async fn timed(sandbox: &Sandbox, line: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    run(sandbox, Command::exec("/bin/bash", ["-c", line]).user("root")).await?;
    Ok(begun.elapsed())
}
