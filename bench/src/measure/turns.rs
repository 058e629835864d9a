//! The overhead of the agent's loop per turn: everything but the model and the tools. Both answer
//! at once here, so the rest is the loop: its records, its events, its handling of the
//! conversation.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent::approval::{ApprovalPolicy, DenyAll};
use agent::model::{DeltaSink, ModelError, ModelPrice, ModelStop, Request, Turn, Usage};
use agent::records::DatabaseRunRecords;
use agent::{Block, Feed, Model, NoCheckpoints, Parts, Run, RunId, Settings, ToolUse};
use anyhow::ensure;
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tools::{BashOutput, StructuredResult, ToolDispatcher, ToolOutput, ToolResult, Watch};

use super::{Plan, Row, Target};
use crate::server::Server;
use crate::stats::{Samples, millis};

const TURNS: usize = 200;
/// Turns at the beginning and at the end that are compared.
const SHARE: usize = 50;
/// A turn is recorded twice: before the tool is called, and before the next request to the model.
const WRITES: usize = 2;
/// Approximate bytes per write.
const WRITTEN: usize = 4096;

/// When turns were requested, and the resident memory of the process at that time.
#[derive(Default)]
struct Clock {
    asked: Vec<Instant>,
    resident: Vec<u64>,
    in_tool: Vec<Duration>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Clock>>);

impl Shared {
    fn note<T>(&self, note: impl FnOnce(&mut Clock) -> T) -> T {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A model that calls one command per turn.
struct AtOnce(Shared);

#[async_trait]
impl Model for AtOnce {
    fn name(&self) -> &str {
        "at once"
    }

    fn window(&self) -> u64 {
        10_000_000
    }

    fn max_answer_tokens(&self) -> u64 {
        1000
    }

    fn price(&self) -> Option<ModelPrice> {
        None
    }

    async fn turn(&self, request: Request<'_>, _tell: DeltaSink<'_>) -> Result<Turn, ModelError> {
        let number = self.0.note(|clock| {
            clock.resident.push(resident());
            clock.asked.push(Instant::now());
            clock.asked.len()
        });
        let usage = Usage { input_tokens: 1000 * request.messages.len() as u64, output_tokens: 20, ..Usage::default() };
        let text = Block::Text("Next.".into());
        let (content, stop) = if number > TURNS {
            (vec![text], ModelStop::EndTurn)
        } else {
            let input = json!({ "command": format!("echo {number}") });
            let call = ToolUse { id: format!("call_{number}"), name: "bash".into(), input, extra: Map::new() };
            (vec![text, Block::ToolUse(call)], ModelStop::ToolUse)
        };
        Ok(Turn { content, stop, usage, faults: Vec::new() })
    }
}

struct Echo(Shared);

#[async_trait]
impl ToolDispatcher for Echo {
    async fn dispatch_watched(&self, _name: &str, input: Value, _watch: Watch) -> ToolResult {
        let begun = Instant::now();
        let text = format!("{}\n{}[exit 0]", input["command"], "a line of output\n".repeat(50));
        let content = vec![tools::Block::Text(text)];
        let output = ToolOutput::Bash(BashOutput { exit_code: Some(0), ..BashOutput::default() });
        let structured = StructuredResult { output, ..StructuredResult::default() };
        let result = ToolResult { is_error: false, code: None, content, structured };
        self.0.note(|clock| clock.in_tool.push(begun.elapsed()));
        result
    }

    async fn close(&self) {}
}

/// The resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

pub(crate) fn turns(_server: &Server, _plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let directory = TempDir::with_prefix("sandbar-bench-runs-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let clock = runtime.block_on(drive(directory.path()))?;
    let plain = plain_writes(directory.path())?;
    let turns: Vec<Duration> = clock
        .asked
        .windows(2)
        .zip(&clock.in_tool)
        .map(|(pair, in_tool)| (pair[1] - pair[0]).saturating_sub(*in_tool))
        .collect();
    let p50 = |turns: &[Duration]| turns.iter().copied().collect::<Samples>().p50();
    let (all, first, last) = (p50(&turns), p50(&turns[..SHARE]), p50(&turns[turns.len() - SHARE..]));
    let grown = clock.resident[TURNS].saturating_sub(clock.resident[SHARE]) as f64 / 1024.0;
    let method = format!(
        "A run of {TURNS} turns with one command each, recorded in SQLite; model and tool answer at once. Time from one request to \
         the model to the next, less the tool's"
    );
    Ok(vec![
        Row {
            name: "loop, per turn",
            figure: millis(all),
            baseline: format!("{} to write and sync {WRITES} times", millis(plain)),
            value: all.as_secs_f64() * 1e3,
            unit: "ms",
            target: Some(Target::AtMost { limit: 5.0, sane: 100.0 }),
            method: format!("{method}; the median. What is acknowledged is on the disk, {WRITES} times a turn."),
        },
        Row {
            name: "loop, late turns",
            figure: millis(last),
            baseline: format!("{} at first", millis(first)),
            value: last.as_secs_f64() / first.as_secs_f64(),
            unit: "x",
            target: Some(Target::AtMost { limit: 1.5, sane: 10.0 }),
            method: format!("{method}; medians of the first and the last {SHARE} turns."),
        },
        Row {
            name: "loop, memory",
            figure: format!("{} MiB", clock.resident[TURNS] / 1024),
            baseline: format!("{} MiB after {SHARE} turns", clock.resident[SHARE] / 1024),
            value: grown,
            unit: "MiB",
            target: Some(Target::AtMost { limit: 4.0, sane: 64.0 }),
            method: format!("The same run: what this process holds more after {TURNS} turns than after {SHARE}."),
        },
    ])
}

async fn drive(directory: &Path) -> anyhow::Result<Clock> {
    let url = format!("sqlite://{}", directory.join("runs.sqlite").display());
    let records = DatabaseRunRecords::open(&url.into()).await?;
    let shared = Shared::default();
    let parts = Parts {
        model: Arc::new(AtOnce(shared.clone())),
        tools: Arc::new(Echo(shared.clone())),
        checkpointer: Arc::new(NoCheckpoints),
        records: Arc::new(records),
        approver: Arc::new(DenyAll),
        feed: Feed::default(),
        cancel: CancellationToken::new(),
    };
    let plan = agent::Plan {
        goal: "Count.".into(),
        phases: Vec::new(),
        model: "at once".into(),
        workspace: None,
        system: "You count.".into(),
        settings: Settings { max_turns: 10 * TURNS as u64, ..Settings::default() },
        policy: ApprovalPolicy::default(),
        details: Value::Null,
    };
    let report = Run::begin(parts, RunId::new(), plan).await?.drive().await?;
    ensure!(report.turns == TURNS as u64 + 1, "the run ended early: {}", report.message);
    Ok(shared.note(std::mem::take))
}

/// How long it takes to write and sync as many bytes as a turn writes, without a database.
fn plain_writes(directory: &Path) -> anyhow::Result<Duration> {
    let mut file = File::create(directory.join("plain"))?;
    // Preallocated: growing a file costs its file system more than the writes themselves.
    file.write_all(&vec![0; TURNS * WRITES * WRITTEN])?;
    file.sync_all()?;
    file.rewind()?;
    let mut times = Samples::default();
    for _ in 0..TURNS {
        let begun = Instant::now();
        for _ in 0..WRITES {
            file.write_all(&[b'x'; WRITTEN])?;
            file.sync_data()?;
        }
        times.push(begun.elapsed());
    }
    Ok(times.p50())
}
