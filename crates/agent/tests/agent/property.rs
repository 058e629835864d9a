//! Property test: random responses, errors, cancellations and crashes from fixed seeds leave the
//! conversation valid.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandbar_agent::model::{Fault, ModelError, ModelStop, Turn};
use sandbar_agent::{Block, Model, Run, RunError, RunId, Settings, StopReason};
use serde_json::json;
use tools::Step;

use crate::support::{FakeModel, Rig, bash, call, check_ended, done, plan, quick, says};
use crate::valid::wrong_with;

/// Deterministic numbers from a seed.
struct Dice(AtomicU64);

impl Dice {
    fn roll(&self, sides: u64) -> u64 {
        let step = |mut x: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^ (x << 17)
        };
        let rolled = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |x| Some(step(x))).expect("always some");
        step(rolled) % sides
    }
}

fn random_answer(dice: &Dice, ids: &AtomicU64) -> Result<Turn, ModelError> {
    let id = || format!("c{}", ids.fetch_add(1, Ordering::SeqCst));
    match dice.roll(14) {
        0 => return Err(ModelError::Busy { message: "busy".into(), retry_after: None }),
        1 => return Err(ModelError::Interrupted("cut".into())),
        2 => return done(),
        3 => return says(Vec::new()),
        _ => {}
    }
    let (mut content, mut faults) = (Vec::new(), Vec::new());
    if dice.roll(2) == 0 {
        content.push(Block::Text("thinking aloud".into()));
    }
    for _ in 0..=dice.roll(5) {
        let id = id();
        content.push(match dice.roll(9) {
            0 => call(&id, "fly", json!({})),
            1 => {
                faults.push((id.clone(), Fault::Invalid { problem: "no".into(), begins: "{".into() }));
                call(&id, "bash", json!({}))
            }
            2 => {
                faults.push((id.clone(), Fault::Unfinished));
                call(&id, "write_file", json!({}))
            }
            3 => call(&id, "read_file", json!({ "path": "nothing" })),
            4 => call(&id, "glob", json!({ "pattern": "**" })),
            5 => call(&id, "write_file", json!({ "path": format!("f{}", dice.roll(4)), "content": id })),
            6 => bash(&id, "hang"),
            _ => bash(&id, &format!("echo {}; sleep 0.{}", dice.roll(100), dice.roll(9))),
        });
    }
    let stop = if faults.is_empty() { ModelStop::ToolUse } else { ModelStop::MaxTokens };
    Ok(Turn { content, stop, usage: sandbar_agent::model::Usage::default(), faults })
}

async fn schedule(seed: u64) {
    let dice = Arc::new(Dice(AtomicU64::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)));
    let ids = Arc::new(AtomicU64::new(0));
    let mut rig = Rig::new();
    rig.memory.on("hang", [Step::Never]);
    let model = {
        let (dice, ids) = (Arc::clone(&dice), Arc::clone(&ids));
        move || -> Arc<dyn Model> {
            let (dice, ids) = (Arc::clone(&dice), Arc::clone(&ids));
            Arc::new(FakeModel::new(move |_, _| random_answer(&dice, &ids)).window(20_000))
        }
    };
    let settings = Settings { max_turns: 15, max_answer_tokens: 100, ..quick() };
    let id = RunId::new();
    let mut watcher = rig.feed.watch();
    let mut run = Some(Run::begin(rig.parts(model()), id.clone(), plan(settings)).await.expect("begun"));
    for _ in 0..6 {
        let Some(driven) = run.take() else { break };
        let fate = dice.roll(3);
        let wait = Duration::from_millis(dice.roll(4000));
        let ended = tokio::select! {
            ended = driven.drive() => Some(ended.expect("it can be recorded")),
            // A crash: the run is dropped silently.
            () = tokio::time::sleep(wait), if fate == 0 => None,
            () = cancel_later(&rig, wait), if fate == 1 => unreachable!("it never comes back"),
        };
        if let Some(report) = &ended {
            let wire = serde_json::to_value(&report.conversation).expect("messages");
            assert_eq!(wrong_with(&wire), None, "seed {seed}: {wire:#}");
            if report.stop_reason != StopReason::Cancelled {
                break;
            }
        }
        rig.cancel = tokio_util::sync::CancellationToken::new();
        run = match Run::resume(rig.parts(model()), id.clone()).await {
            Ok(run) => Some(run),
            Err(RunError::Completed(_)) => None,
            Err(error) => panic!("seed {seed}: {error}"),
        };
    }
    if let Some(run) = run {
        let report = run.drive().await.expect("an end");
        check_ended(&report, &watcher.drain());
    }
}

async fn cancel_later(rig: &Rig, wait: Duration) {
    tokio::time::sleep(wait).await;
    rig.cancel.cancel();
    std::future::pending::<()>().await;
}

#[test]
fn conversation_stays_valid_for_random_schedules() {
    for seed in 1..=testing::repeats(150, 5000) as u64 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(schedule(seed));
    }
}
