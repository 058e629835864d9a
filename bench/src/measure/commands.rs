//! Creating a sandbox and running commands, against starting processes directly.

use std::time::Instant;

use super::{Plan, Row, Target};
use crate::baseline::Shell;
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::stats::{Samples, millis};

/// Rounds that warm caches on both sides and are not counted.
const WARM_UP: usize = 3;

/// Create to the first output of a command, against `unshare` with the same command.
pub(crate) fn create(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut connection = server.connect()?;
    let mut first = Sandbox::create(server, connection)?;
    let shell = Shell::like(&mut first)?;
    connection = first.kill()?;

    let (mut created, mut output, mut unshared) = (Samples::default(), Samples::default(), Samples::default());
    for round in 0..plan.creates + WARM_UP {
        let baseline = shell.unshare()?;
        let started = Instant::now();
        let mut sandbox = Sandbox::create(server, connection)?;
        let create = started.elapsed();
        let run = sandbox.run()?;
        let total = create + run.first_output;
        connection = sandbox.kill()?;
        if round >= WARM_UP {
            unshared.push(baseline.first_output);
            created.push(create);
            output.push(total);
        }
    }
    let ratio = output.p50().as_secs_f64() / unshared.p50().as_secs_f64();
    Ok(vec![
        Row {
            name: "create to first output",
            figure: format!("{} (p95 {})", millis(output.p50()), millis(output.p95())),
            baseline: format!("{} (p95 {})", millis(unshared.p50()), millis(unshared.p95())),
            value: ratio,
            unit: "x",
            target: Some(Target::AtMost { limit: 3.0, sane: 30.0 }),
            method: format!(
                "{} rounds, alternately: `POST /v2/sandboxes`, then `process.Process/Start` of `bash -l -c 'echo hi'` on the \
                 same kept connection, to the first `stdout` event; against `unshare -mpfiun /bin/bash -l -c 'echo hi'`, \
                 spawn to first byte, with the sandbox's `/etc/profile`. Ratio of medians. The sandbox is killed between \
                 rounds, outside the clock.",
                output.len()
            ),
        },
        Row {
            name: "create alone",
            figure: format!("{} (p95 {})", millis(created.p50()), millis(created.p95())),
            baseline: String::new(),
            value: created.p50().as_secs_f64() * 1e3,
            unit: "ms",
            target: Some(Target::AtMost { limit: 150.0, sane: 1500.0 }),
            method: "The same rounds: request to the whole answer of `POST /v2/sandboxes`. Median.".to_owned(),
        },
    ])
}

/// A command in a sandbox that runs, against starting the same shell directly.
pub(crate) fn warm(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut sandbox = Sandbox::create(server, server.connect()?)?;
    let shell = Shell::like(&mut sandbox)?;
    let (mut inside, mut outside) = (Samples::default(), Samples::default());
    for round in 0..plan.runs + WARM_UP {
        let baseline = shell.spawn()?;
        let run = sandbox.run()?;
        if round >= WARM_UP {
            outside.push(baseline.end);
            inside.push(run.end);
        }
    }
    sandbox.kill()?;
    let ratio = inside.p50().as_secs_f64() / outside.p50().as_secs_f64();
    Ok(vec![Row {
        name: "warm run",
        figure: format!("{} (p95 {})", millis(inside.p50()), millis(inside.p95())),
        baseline: format!("{} (p95 {})", millis(outside.p50()), millis(outside.p95())),
        value: ratio,
        unit: "x",
        target: Some(Target::AtMost { limit: 1.5, sane: 15.0 }),
        method: format!(
            "{} rounds, alternately: `process.Process/Start` of `bash -l -c 'echo hi'` over HTTP, request to end of stream; \
             against the same shell started directly, spawn to exit, as the same user id with the same variables, a copy of \
             the sandbox's shell files as its home, and the sandbox's `/etc/profile`. Ratio of medians.",
            inside.len()
        ),
    }])
}
