//! What the loop itself costs: everything of a turn but the model and the tool. `cargo run --release --example overhead -p sandbar-agent`.
//!
//! 200 turns on SQLite with every write synced, in a temporary directory or the one that is named.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbar_agent::approval::{Nobody, Policy};
use sandbar_agent::model::{ModelError, ModelStop, Price, Request, Tell, Turn, Usage};
use sandbar_agent::records::DatabaseRunRecords;
use sandbar_agent::{Block, Feed, Model, Parts, PlainWorkplace, Plan, Run, RunId, Settings, ToolUse};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tools::{ToolDispatcher, ToolResult, Watch};

const TURNS: u64 = 200;

/// When a turn was asked for, and how long the tool of the turn before took.
#[derive(Default)]
struct Clock {
    asked: Mutex<Vec<Instant>>,
    tools: AtomicU64,
}

struct Counting(Arc<Clock>);

#[async_trait]
impl Model for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn window(&self) -> u64 {
        10_000_000
    }

    fn longest_answer(&self) -> u64 {
        1000
    }

    fn price(&self) -> Option<Price> {
        None
    }

    async fn turn(&self, request: Request<'_>, _tell: Tell<'_>) -> Result<Turn, ModelError> {
        let mut asked = self.0.asked.lock().expect("nobody panics");
        asked.push(Instant::now());
        let number = asked.len();
        drop(asked);
        let usage = Usage { input_tokens: 1000 * request.messages.len() as u64, output_tokens: 20, ..Usage::default() };
        if number as u64 > TURNS {
            return Ok(Turn {
                content: vec![Block::Text("Done.".into())],
                stop: ModelStop::EndTurn,
                usage,
                faults: Vec::new(),
            });
        }
        let call = ToolUse {
            id: format!("call_{number}"),
            name: "bash".into(),
            input: json!({ "command": format!("echo {number}") }),
            extra: Map::new(),
        };
        Ok(Turn {
            content: vec![Block::Text("Next.".into()), Block::ToolUse(call)],
            stop: ModelStop::ToolUse,
            usage,
            faults: Vec::new(),
        })
    }
}

struct Echo(Arc<Clock>);

#[async_trait]
impl ToolDispatcher for Echo {
    async fn dispatch_watched(&self, _name: &str, input: Value, _watch: Watch) -> ToolResult {
        let begun = Instant::now();
        let text = format!("{}\n{}[exit 0]", input["command"], "a line of output\n".repeat(50));
        let result = ToolResult {
            is_error: false,
            code: None,
            content: vec![tools::Block::Text(text)],
            structured: json!({ "exit_code": 0 }),
        };
        self.0.tools.fetch_add(u64::try_from(begun.elapsed().as_nanos()).expect("short"), Ordering::Relaxed);
        result
    }

    async fn close(&self) {}
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let file = directory.join(format!("overhead-{}.sqlite", std::process::id()));
    let records = DatabaseRunRecords::open(&format!("sqlite://{}", file.display()).into()).await?;
    let clock = Arc::new(Clock::default());
    let parts = Parts {
        model: Arc::new(Counting(Arc::clone(&clock))),
        tools: Arc::new(Echo(Arc::clone(&clock))),
        workplace: Arc::new(PlainWorkplace),
        records: Arc::new(records),
        approver: Arc::new(Nobody),
        feed: Feed::default(),
        cancel: CancellationToken::new(),
    };
    let plan = Plan {
        goal: "Count.".into(),
        phases: Vec::new(),
        model: "counting".into(),
        workspace: None,
        system: "You count.".into(),
        settings: Settings { max_turns: 1000, ..Settings::default() },
        policy: Policy::default(),
        details: Value::Null,
    };
    let before = resident();
    let report = Run::begin(parts, RunId::new(), plan).await?.drive().await?;
    let after = resident();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    let asked = clock.asked.lock().expect("nobody panics");
    let gaps: Vec<Duration> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let middle = |gaps: &[Duration]| {
        let mut sorted = gaps.to_vec();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    };
    let half = gaps.len() / 2;
    println!("{} after {} turns", report.stop_reason, report.turns);
    println!(
        "overhead per turn, p50: {:?} (first half {:?}, second half {:?})",
        middle(&gaps),
        middle(&gaps[..half]),
        middle(&gaps[half..])
    );
    println!("tools in all: {:?}", Duration::from_nanos(clock.tools.load(Ordering::Relaxed)));
    println!("memory: {before} kB before, {after} kB after");
    Ok(())
}
