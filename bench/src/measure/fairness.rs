//! A neighbour's commands while six other sandboxes take all they can.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Plan, Row, Target};
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::stats::{Samples, millis};

/// Five hostile programs. The policy refuses the targets of their packets: none leaves the host.
const ABUSES: [&str; 5] = [
    "bomb() { bomb | bomb & }; bomb; sleep 1000",
    "while :; do /usr/bin/python3 -c 'x = [bytearray(1 << 20) for _ in range(4096)]'; done",
    "while :; do dd if=/dev/zero of=/home/user/big bs=1M count=256 conv=fsync; rm -f /home/user/big; done",
    "exec /usr/bin/python3 -c \"import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nwhile True:\n  try: s.sendto(b'x', ('10.213.99.9', 9))\n  except OSError: pass\"",
    "exec /usr/bin/python3 -c \"import socket\nwhile True:\n  s = socket.socket(); s.setblocking(False)\n  try: s.connect(('10.213.99.9', 9))\n  except OSError: pass\n  s.close()\"",
];
/// The sixth, whose output is streamed to a client.
const LOGS: &str = "yes 'a line of a log' | head -c 20000000";

pub(crate) fn fairness(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut neighbour = Sandbox::create(server, server.connect()?)?;
    // The second largest of 200 values is no 99th percentile.
    let mut measure = || -> anyhow::Result<Samples> {
        (0..5 * plan.runs)
            .map(|_| Ok(neighbour.run()?.end))
            .collect::<anyhow::Result<Vec<Duration>>>()
            .map(Samples::from_iter)
    };
    measure()?; // Warms.
    let quiet = measure()?;
    let mut hostile = Vec::new();
    for abuse in ABUSES {
        let mut sandbox = Sandbox::create(server, server.connect()?)?;
        let quoted = abuse.replace('\'', r"'\''");
        sandbox.run_command(&format!("setsid bash -c '{quoted}' >/dev/null 2>&1 </dev/null & echo started"))?;
        hostile.push(sandbox);
    }
    let mut talker = Sandbox::create(server, server.connect()?)?;
    let over = AtomicBool::new(false);
    let loaded = thread::scope(|scope| {
        let talking = scope.spawn(|| -> anyhow::Result<()> {
            while !over.load(Ordering::Relaxed) {
                talker.run_command(LOGS)?;
            }
            Ok(())
        });
        // The server sees within a second which sandboxes only compute.
        let loaded = measure().and_then(|_| measure());
        over.store(true, Ordering::Relaxed);
        let talked = talking.join().map_err(|_| anyhow::anyhow!("the talker failed"))?;
        talked.and(loaded)
    })?;
    for sandbox in hostile.into_iter().chain([talker, neighbour]) {
        sandbox.kill()?;
    }
    let (before, during) = (quiet.percentile(0.99), loaded.percentile(0.99));
    Ok(vec![Row {
        name: "beside six hostile, p99",
        figure: format!("{} (median {})", millis(during), millis(loaded.p50())),
        baseline: format!("{} (median {}) alone", millis(before), millis(quiet.p50())),
        value: during.as_secs_f64() / before.as_secs_f64(),
        unit: "x",
        target: Some(Target::AtMost { limit: 3.0, sane: 300.0 }),
        method: format!(
            "{} times `bash -l -c 'echo hi'` in one sandbox, alone and then beside six others: a fork bomb, a memory bomb, a \
             writer of files with fsync, a flood of datagrams and one of connections to a refused address, and a program whose \
             output a client reads as fast as it can, all of which have run for as many commands before. Ratio of the 99th \
             percentiles.",
            loaded.len()
        ),
    }])
}
