//! Templates and forks: the cost of many steps, of many bytes, and of a cached build.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sdk::templates::{Build, Template};
use sdk::{Client, Command, Create, Fork, Pause, Sandbox};

use super::{Plan, Row, Target};
use crate::remote::{self, run};
use crate::server::Server;
use crate::stats::Samples;

const LAYERS: usize = 20;
const STEPS: usize = 10;
/// Megabytes written before a sandbox is paused and forked.
const SMALL_MB: usize = 10;

pub(crate) fn templates(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let client = remote::client(server)?;
        Ok(vec![layers(&client, plan).await?, rebuild(&client, plan).await?, forks(&client, plan).await?])
    })
}

/// A template of `steps` steps that each write a file.
fn template(steps: usize) -> Template {
    let mut template = Template::from_image("e2bdev/base").user("root").workdir("/opt");
    for number in 0..steps {
        template = template.run(format!("echo {number} > /opt/step-{number}"));
    }
    template
}

async fn layers(client: &Client, plan: &Plan) -> anyhow::Result<Row> {
    client.templates().build(&Build::new("bench-layers", template(LAYERS))).await.context("building")?;
    let (mut plain, mut layered) = (Samples::default(), Samples::default());
    for _ in 0..plan.creates {
        for (name, samples) in [("base", &mut plain), ("bench-layers", &mut layered)] {
            let begun = Instant::now();
            let sandbox = client.create(Create::template(name)).await?;
            samples.push(begun.elapsed());
            sandbox.kill().await?;
        }
    }
    Ok(Row {
        name: "create from a template of 20 layers",
        figure: milliseconds(&layered),
        baseline: format!("{} from base", milliseconds(&plain)),
        value: layered.p50().as_secs_f64() / plain.p50().as_secs_f64(),
        unit: "x",
        target: Some(Target::AtMost { limit: 1.3, sane: 10.0 }),
        method: format!("{} creates each, alternately; medians.", plan.creates),
    })
}

async fn rebuild(client: &Client, plan: &Plan) -> anyhow::Result<Row> {
    let build = Build::new("bench-rebuild", template(STEPS));
    client.templates().build(&build).await.context("building")?;
    let mut samples = Samples::default();
    for _ in 0..plan.snapshot_rounds.max(3) {
        let begun = Instant::now();
        client.templates().build(&build).await.context("building again")?;
        samples.push(begun.elapsed());
    }
    Ok(Row {
        name: "cached rebuild of 10 steps",
        figure: milliseconds(&samples),
        baseline: "-".to_owned(),
        value: samples.p50().as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost { limit: 1000.0, sane: 20_000.0 }),
        method: format!(
            "A build whose steps are all known, asked for and waited for; {} rounds; median.",
            samples.len()
        ),
    })
}

async fn forks(client: &Client, plan: &Plan) -> anyhow::Result<Row> {
    let large = if plan.quick { 100 } else { 1024 };
    let (small_times, large_times) = (fork(client, SMALL_MB, plan).await?, fork(client, large, plan).await?);
    Ok(Row {
        name: "fork of a paused sandbox",
        figure: format!("{} with {large} MB", milliseconds(&large_times)),
        baseline: format!("{} with {SMALL_MB} MB", milliseconds(&small_times)),
        value: large_times.p50().as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost { limit: 50.0, sane: 2000.0 }),
        method: format!(
            "One child, from the call until it can be used; {} forks for each size. Ratio of the two sizes: {:.2}.",
            plan.pauses,
            large_times.p50().as_secs_f64() / small_times.p50().as_secs_f64()
        ),
    })
}

async fn fork(client: &Client, megabytes: usize, plan: &Plan) -> anyhow::Result<Samples> {
    let create = Create::default().timeout(Duration::from_secs(3600)).disk_size_mb(8192);
    let sandbox = client.create(create).await.context("creating a sandbox")?;
    let measured = fork_again(client, &sandbox, megabytes, plan).await;
    sandbox.kill().await?;
    measured
}

async fn fork_again(client: &Client, sandbox: &Sandbox, megabytes: usize, plan: &Plan) -> anyhow::Result<Samples> {
    let write = format!("head -c {megabytes}M /dev/urandom > big && sync");
    run(sandbox, Command::exec("/bin/bash", ["-c", &write])).await?;
    client.pause(sandbox.id(), Pause::default()).await?;
    let mut samples = Samples::default();
    for _ in 0..plan.pauses {
        let begun = Instant::now();
        let children = client.fork(sandbox.id(), Fork::new()).await?;
        samples.push(begun.elapsed());
        ensure!(children.len() == 1, "{} children instead of one", children.len());
        for child in children {
            child?.kill().await?;
        }
    }
    Ok(samples)
}

fn milliseconds(samples: &Samples) -> String {
    format!("{:.1} ms (p95 {:.1} ms)", samples.p50().as_secs_f64() * 1e3, samples.p95().as_secs_f64() * 1e3)
}
