//! A neighbour's commands while seven other sandboxes take all they can.
//!
//! Half of the quiet side is measured before the hostile sandboxes run and half after they are
//! gone, so that a machine that becomes slower during the run slows both sides.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use super::{Plan, Row, Target};
use crate::http::Connection;
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::stats::{Samples, millis};

/// A hostile program. The policy refuses the targets of their packets: none leaves the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Abuse {
    Forks,
    Memory,
    Disk,
    Packets,
    Connections,
    /// Computes in bursts shorter than the interval at which the server looks.
    Bursts,
    /// Its output is streamed to a client.
    Logs,
}

impl Abuse {
    fn script(self) -> &'static str {
        match self {
            Self::Forks => "bomb() { bomb | bomb & }; bomb; sleep 1000",
            Self::Memory => "while :; do /usr/bin/python3 -c 'x = [bytearray(1 << 20) for _ in range(4096)]'; done",
            Self::Disk => {
                "while :; do dd if=/dev/zero of=/home/user/big bs=1M count=256 conv=fsync; rm -f /home/user/big; done"
            }
            Self::Packets => {
                "exec /usr/bin/python3 -c \"import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nwhile True:\n  try: s.sendto(b'x', ('10.213.99.9', 9))\n  except OSError: pass\""
            }
            Self::Connections => {
                "exec /usr/bin/python3 -c \"import socket\nwhile True:\n  s = socket.socket(); s.setblocking(False)\n  try: s.connect(('10.213.99.9', 9))\n  except OSError: pass\n  s.close()\""
            }
            Self::Bursts => {
                "burst() { exec /usr/bin/python3 -c \"import time\nwhile True:\n  end = time.monotonic() + 0.08\n  while time.monotonic() < end: pass\n  time.sleep(0.02)\"; }; burst & burst & wait"
            }
            Self::Logs => "yes 'a line of a log' | head -c 20000000",
        }
    }
}

/// Rounds of the quiet side before and after; twice as many beside the hostile sandboxes.
const ROUNDS: usize = 5;
/// Time after the hostile sandboxes begin in which nothing is measured: the server tells within it
/// which sandboxes only compute.
const ONSET: Duration = Duration::from_secs(1);
/// Time after the end of the hostile sandboxes, in which the disk takes what they wrote.
const CALM: Duration = Duration::from_millis(500);

/// The neighbour's commands and the control plane's answers of one side.
#[derive(Default)]
struct Side {
    commands: Samples,
    answers: Samples,
}

pub(crate) fn fairness(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let all = Abuse::value_variants();
    let Some(chosen) = plan.abuse else {
        let (quiet, loaded) = measure(server, plan, all)?;
        return Ok(rows(&quiet, &loaded, all));
    };
    let (quiet, loaded) = measure(server, plan, &[chosen])?;
    Ok(rows(&quiet, &loaded, &[chosen]).into_iter().map(|row| Row { target: None, ..row }).collect())
}

fn measure(server: &Server, plan: &Plan, abuses: &[Abuse]) -> anyhow::Result<(Side, Side)> {
    let mut neighbour = Sandbox::create(server, server.connect()?)?;
    let mut control = server.connect()?;
    let (mut quiet, mut loaded) = (Side::default(), Side::default());
    take(server, &mut neighbour, &mut control, plan.runs, &mut Side::default())?; // Warms.
    (0..ROUNDS).try_for_each(|_| take(server, &mut neighbour, &mut control, plan.runs, &mut quiet))?;
    let mut hostile = Vec::new();
    for abuse in abuses.iter().filter(|abuse| **abuse != Abuse::Logs) {
        let mut sandbox = Sandbox::create(server, server.connect()?)?;
        let quoted = abuse.script().replace('\'', r"'\''");
        sandbox.run_command(&format!("setsid bash -c '{quoted}' >/dev/null 2>&1 </dev/null & echo started"))?;
        hostile.push(sandbox);
    }
    let talker = abuses.contains(&Abuse::Logs).then(|| Sandbox::create(server, server.connect()?)).transpose()?;
    let talk = Talk::default();
    thread::scope(|scope| {
        let talking = talker.map(|talker| scope.spawn(|| talk.repeat(talker)));
        talk.set(true);
        let mut side = || -> anyhow::Result<()> {
            let begun = Instant::now();
            while begun.elapsed() < ONSET {
                neighbour.run()?;
            }
            (0..2 * ROUNDS).try_for_each(|_| take(server, &mut neighbour, &mut control, plan.runs, &mut loaded))
        };
        let done = side();
        talk.end();
        let talked = talking.map_or(Ok(Ok(())), thread::ScopedJoinHandle::join);
        done.and(talked.map_err(|_| anyhow::anyhow!("the client of the logs failed"))?)
    })?;
    for sandbox in hostile {
        sandbox.kill()?;
    }
    thread::sleep(CALM);
    (0..ROUNDS).try_for_each(|_| take(server, &mut neighbour, &mut control, plan.runs, &mut quiet))?;
    neighbour.kill()?;
    Ok((quiet, loaded))
}

fn take(
    server: &Server,
    neighbour: &mut Sandbox<'_>,
    control: &mut Connection,
    runs: usize,
    side: &mut Side,
) -> anyhow::Result<()> {
    let path = format!("/sandboxes/{}", neighbour.id);
    for _ in 0..runs {
        side.commands.push(neighbour.run()?.end);
        let begun = Instant::now();
        control.send("GET", &path, &[("X-API-Key", server.key.as_str())], b"")?.expect(200)?;
        side.answers.push(begun.elapsed());
    }
    Ok(())
}

/// Starts and stops the client that reads the output of [`Abuse::Logs`].
#[derive(Default)]
struct Talk {
    over: AtomicBool,
    on: Mutex<bool>,
    changed: Condvar,
}

impl Talk {
    fn set(&self, on: bool) {
        *self.on.lock().unwrap_or_else(PoisonError::into_inner) = on;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.set(true);
    }

    fn repeat(&self, mut talker: Sandbox<'_>) -> anyhow::Result<()> {
        loop {
            let on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.changed.wait_while(on, |on| !*on).unwrap_or_else(PoisonError::into_inner));
            if self.over.load(Ordering::Relaxed) {
                return talker.kill().map(drop);
            }
            talker.run_command(Abuse::Logs.script())?;
        }
    }
}

fn rows(quiet: &Side, loaded: &Side, abuses: &[Abuse]) -> Vec<Row> {
    let row = |name, quiet: &Samples, loaded: &Samples, sane, method| {
        let (before, during) = (quiet.percentile(0.99), loaded.percentile(0.99));
        Row {
            name,
            figure: format!("{} (median {})", millis(during), millis(loaded.p50())),
            baseline: format!("{} (median {}) alone", millis(before), millis(quiet.p50())),
            value: during.as_secs_f64() / before.as_secs_f64(),
            unit: "x",
            target: Some(Target::AtMost { limit: 3.0, sane }),
            method,
        }
    };
    let names = abuses.iter().filter_map(|abuse| Some(abuse.to_possible_value()?.get_name().to_owned()));
    let names = names.collect::<Vec<_>>().join(", ");
    let command = format!(
        "{} times `bash -l -c 'echo hi'` in one sandbox, half of them before and half after the same number beside \
         others that are hostile ({names}): a fork bomb, a memory bomb, a writer of files with fsync, a flood of datagrams \
         and one of connections to a refused address, two processes that compute for 80 of every 100 ms, and a program \
         whose output a client reads as fast as it can. They have run for {} s when the first command is measured. Ratio of \
         the 99th percentiles.",
        loaded.commands.len(),
        ONSET.as_secs()
    );
    let answer =
        "`GET /sandboxes/{id}` over one connection after each of these commands; ratio of the 99th percentiles.";
    vec![
        row("beside seven hostile, p99", &quiet.commands, &loaded.commands, 300.0, command),
        row("the API beside them, p99", &quiet.answers, &loaded.answers, 3000.0, answer.to_owned()),
    ]
}
