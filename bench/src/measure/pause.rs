//! Pausing a sandbox and resuming it.

use super::{Plan, Row, Target};
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::stats::{Samples, millis};

pub(crate) fn pause(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut sandbox = Sandbox::create(server, server.connect()?)?;
    let (mut frozen, mut thawed) = (Samples::default(), Samples::default());
    for _ in 0..plan.pauses {
        // Uses the connection to the sandbox, as a client does that pauses after its work.
        sandbox.health()?;
        frozen.push(sandbox.pause()?);
        thawed.push(sandbox.resume()?);
    }
    sandbox.kill()?;
    let row = |name, samples: &Samples, limit, sane, method: &str| Row {
        name,
        figure: format!("{} (p95 {})", millis(samples.p50()), millis(samples.p95())),
        baseline: String::new(),
        value: samples.p50().as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost { limit, sane }),
        method: format!("{method} {} rounds, median.", samples.len()),
    };
    Ok(vec![
        row("freeze", &frozen, 5.0, 500.0, "The whole `POST /sandboxes/{id}/pause` with memory, over HTTP."),
        row(
            "thaw to HTTP reply",
            &thawed,
            20.0,
            1000.0,
            "`POST /v2/sandboxes/{id}/connect`, then `GET /health` of the sandbox's daemon: first request to second answer.",
        ),
    ])
}
