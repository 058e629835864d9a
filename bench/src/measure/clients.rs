//! Our client beside the official ones: the same work on the same server, by elapsed time and by
//! processor time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tempfile::NamedTempFile;

use super::{Plan, Row, Target};
use crate::server::Server;
use crate::stats::{Samples, millis};

/// The root of the repository, with the programs that drive the clients; the official packages are
/// in its cache.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PYTHON: &str = "python-2.63.0";
const JS: &str = "js-2.51.0";

/// The result of one client.
#[derive(Debug, Deserialize)]
struct Done {
    /// Seconds.
    wall: f64,
    cpu: f64,
    samples: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Ours,
    Python,
    Js,
}

const ALL: [Client; 3] = [Client::Ours, Client::Python, Client::Js];

/// One kind of work, and the limit of our client's processor time as a share of the better official
/// client's.
struct Work {
    task: &'static str,
    row: &'static str,
    count: usize,
    share: f64,
    method: &'static str,
}

pub(crate) fn clients(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let file = some_file(plan.transfer_mib)?;
    let size = plan.transfer_mib * 1024 * 1024;
    let work = [
        Work {
            task: "commands",
            row: "client: commands",
            count: plan.client_commands,
            share: 0.2,
            method: "`echo hi`, one after another, in one sandbox",
        },
        Work {
            task: "concurrent",
            row: "client: 500 at once",
            count: 500,
            share: 0.2,
            method: "500 times `echo hi` at once, in five sandboxes",
        },
        Work {
            task: "files",
            row: "client: small files",
            count: plan.client_files,
            share: 0.2,
            method: "files of 1 KiB written and read back, 16 at once",
        },
        Work { task: "upload", row: "client: upload", count: size, share: 0.5, method: "one file up, from disk" },
        Work {
            task: "download",
            row: "client: download",
            count: size,
            share: 0.5,
            method: "the same file down, counted",
        },
    ];
    let mut rows = Vec::new();
    for one in work {
        rows.extend(compare(server, plan, &one, file.path())?);
    }
    Ok(rows)
}

/// Does the work with each client in turn, several rounds, and takes each client's median round.
fn compare(server: &Server, plan: &Plan, work: &Work, file: &Path) -> anyhow::Result<Vec<Row>> {
    let mut rounds: [Vec<Done>; 3] = Default::default();
    for _ in 0..plan.client_rounds {
        for (client, taken) in ALL.into_iter().zip(&mut rounds) {
            let mut done = drive(client, server, work, file);
            // The native parts of the official packages crash once in some dozens of runs, which is
            // not measured here. Our own client is not run again.
            if let Err(error) = &done
                && client != Client::Ours
            {
                eprintln!("{} with the client {client:?}, once more: {error:#}", work.task);
                done = drive(client, server, work, file);
            }
            taken.push(done.with_context(|| format!("{} with the client {client:?}", work.task))?);
        }
    }
    let [ours, python, js] = &rounds;
    let cpu = |rounds: &[Done]| median(rounds.iter().map(|done| done.cpu).collect());
    let wall = |rounds: &[Done]| median(rounds.iter().map(|done| done.wall).collect());
    let mut rows = Vec::new();
    if work.task == "commands" {
        let latency = |rounds: &[Done]| {
            let mut samples = Samples::default();
            for &sample in rounds.iter().flat_map(|done| &done.samples) {
                samples.push(Duration::from_secs_f64(sample));
            }
            samples.p50()
        };
        let (mine, theirs) = (latency(ours), latency(python).min(latency(js)));
        rows.push(Row {
            name: "client: latency",
            figure: millis(mine),
            baseline: format!("Python {}, JS {}", millis(latency(python)), millis(latency(js))),
            value: mine.as_secs_f64() / theirs.as_secs_f64(),
            unit: "x",
            target: Some(Target::AtMost { limit: 1.0, sane: 3.0 }),
            method: "The median time of one warm `commands.run(\"echo hi\")`, against the quicker official SDK.".into(),
        });
    }
    let figure = |rounds: &[Done]| format!("{:.0} ms cpu, {:.2} s", cpu(rounds) * 1e3, wall(rounds));
    let count = if work.count >= 1024 * 1024 { format!("{} MiB", work.count >> 20) } else { work.count.to_string() };
    rows.push(Row {
        name: work.row,
        figure: figure(ours),
        baseline: format!("Python {}; JS {}", figure(python), figure(js)),
        value: cpu(ours) / cpu(python).min(cpu(js)),
        unit: "x",
        target: Some(Target::AtMost { limit: work.share, sane: 1.0 }),
        method: format!(
            "{count}: {}. Processor time of the client's process during the work, against the better of Python `e2b` \
             2.63.0 (async) and npm `e2b` 2.51.0; beside it the time by the clock. Median of {} rounds.",
            work.method, plan.client_rounds
        ),
    });
    Ok(rows)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn drive(client: Client, server: &Server, work: &Work, file: &Path) -> anyhow::Result<Done> {
    let cache = std::env::var_os("SANDBAR_CACHE").map_or_else(|| Path::new(ROOT).join(".cache"), PathBuf::from);
    let packages = cache.join("conformance");
    let programs = Path::new(ROOT).join("bench/clients");
    let mut command = match client {
        Client::Ours => Command::new(std::env::current_exe()?.with_file_name("sandbar-bench-client")),
        Client::Python => {
            let mut command = Command::new(packages.join(PYTHON).join("bin/python"));
            command.arg(programs.join("client.py"));
            command
        }
        Client::Js => {
            let mut command = Command::new("node");
            command.arg(programs.join("client.mjs")).arg(packages.join(JS));
            command
        }
    };
    let url = format!("http://{}", server.address);
    command.arg(work.task).arg(work.count.to_string()).arg(file);
    command.envs([("E2B_API_URL", &url), ("E2B_SANDBOX_URL", &url), ("E2B_API_KEY", &server.key)]);
    let output = command.env("NO_PROXY", "*").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("it failed, {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let done: Done = serde_json::from_slice(&output.stdout).context("its answer is not the JSON that is due")?;
    ensure!(done.cpu > 0.0 && done.wall > 0.0, "it measured nothing");
    Ok(done)
}

/// Creates a file of random bytes, which compression cannot make smaller.
fn some_file(mib: usize) -> anyhow::Result<NamedTempFile> {
    use std::io::{Read, Write};
    let mut file = NamedTempFile::new().context("cannot make a file to send")?;
    let mut random = std::fs::File::open("/dev/urandom")?;
    let mut block = vec![0; 1024 * 1024];
    for _ in 0..mib {
        random.read_exact(&mut block)?;
        file.write_all(&block)?;
    }
    Ok(file)
}
