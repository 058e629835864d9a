//! Conversations that outgrow the context window.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use sandbar_agent::model::Purpose;
use sandbar_agent::{Block, Event, Happened, Message, Settings, StopReason};
use serde_json::{Value, json};
use tools::{Step, StructuredResult, ToolDispatcher, ToolResult, Watch};

use crate::support::{FakeModel, Rig, bash, call, done, plan, quick, results, says};

fn shortened(events: &[Happened]) -> Vec<(u64, u64)> {
    let of = |one: &Happened| match one.event {
        Event::Compacted { before, after } => Some((before, after)),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn long() -> Settings {
    Settings { max_turns: 400, ..quick() }
}

#[tokio::test]
async fn old_results_are_pruned_to_placeholders() {
    const WINDOW: u64 = 40_000;
    let rig = Rig::new();
    for file in 0..40 {
        rig.memory.put(&format!("/home/user/f{file}"), format!("{file}\n").repeat(1500));
    }
    let model = FakeModel::new(|turn, _| match turn {
        turn if turn < 40 => {
            says(vec![call(&format!("t{turn}"), "read_file", json!({ "path": format!("/home/user/f{turn}") }))])
        }
        _ => done(),
    });
    let model = Arc::new(model.window(WINDOW));
    let (report, events) = rig.run(Arc::clone(&model) as Arc<_>, plan(long())).await;
    assert_eq!(report.stop_reason, StopReason::Completed, "{}", report.message);
    assert!(shortened(&events).is_empty(), "pruning was enough");
    let all = results(&report.conversation);
    assert_eq!(all[0], "[read_file /home/user/f0 lines 1–1500: removed to save space; read again if needed]");
    assert!(all[all.len() - 5..].iter().all(|text| text.len() > 5000), "the last five stay");
    let prunes: Vec<(u64, u64)> = events
        .iter()
        .filter_map(|one| match one.event {
            Event::Pruned { before, after, .. } => Some((before, after)),
            _ => None,
        })
        .collect();
    assert!(prunes.len() < 12 && prunes.iter().all(|(before, after)| (before - after) * 4 >= *before), "{prunes:?}");
    // Between two prunes nothing before the newest message changes.
    let requests = model.requests.lock();
    let changed = requests.windows(2).filter(|pair| !pair[1].1.starts_with(pair[0].1.trim_end_matches(']'))).count();
    assert_eq!(changed, prunes.len());
}

/// Makes commands fail with long output, which pruning keeps: errors of the last turns stay.
fn stubborn(rig: &Rig) {
    let lines: String = (0..60).map(|line| format!("{line}: a line of output that helps in no way\n")).collect();
    rig.memory.on("fail", [Step::Out(lines), Step::Exit(1)]);
}

#[tokio::test]
async fn full_conversation_is_compacted_with_the_work_summary() {
    const WINDOW: u64 = 16_000;
    let rig = Rig::new();
    stubborn(&rig);
    let model = FakeModel::new(|turn, _| match turn {
        turn if turn < 60 => says(vec![
            Block::Text(format!("Plan: step {turn}.")),
            call(
                &format!("w{turn}"),
                "write_file",
                json!({ "path": format!("/home/user/out/{turn}"), "content": "x\n" }),
            ),
            bash(&format!("t{turn}"), &format!("fail {turn}")),
        ]),
        _ => done(),
    });
    let model = Arc::new(model.window(WINDOW));
    let (report, events) = rig.run(Arc::clone(&model) as Arc<_>, plan(long())).await;
    assert_eq!(report.stop_reason, StopReason::Completed, "{}", report.message);
    let shortened = shortened(&events);
    assert!(!shortened.is_empty(), "pruning was enough");
    assert!(shortened.iter().all(|(_, after)| after * 100 <= WINDOW * 40), "{shortened:?}");
    let first = report.conversation[0].text();
    for part in [
        "Do it.\n",
        "Nothing in them needs to be done again",
        "Files changed:\n- /home/user/out/0 (+1/−0)",
        "`fail ",
        "[exit 1]",
        "A summary.",
        "The last plan:\nPlan: step",
    ] {
        assert!(first.contains(part), "{part:?} is missing in {first}");
    }
    // Nothing was done twice.
    assert_eq!(report.files_changed.len(), 60);
    let summaries = model.requests.lock().iter().filter(|(purpose, _)| *purpose == Purpose::Summary).count();
    assert_eq!(summaries, shortened.len());
}

#[tokio::test]
async fn provider_token_count_decides() {
    const WINDOW: u64 = 30_000;
    let rig = Rig::new();
    stubborn(&rig);
    let model = FakeModel::new(|turn, _| match turn {
        turn if turn < 40 => says(vec![
            call(&format!("w{turn}"), "write_file", json!({ "path": format!("out/{turn}"), "content": "x\n" })),
            bash(&format!("t{turn}"), &format!("fail {turn}")),
        ]),
        _ => done(),
    });
    // A tokenizer that counts twice the loop's estimate.
    let model = Arc::new(model.window(WINDOW).counts(2));
    let (report, events) = rig.run(Arc::clone(&model) as Arc<_>, plan(long())).await;
    assert_eq!(report.stop_reason, StopReason::Completed, "{}", report.message);
    let shortened = shortened(&events);
    assert!(!shortened.is_empty() && shortened.iter().all(|(_, after)| after * 100 <= WINDOW * 40), "{shortened:?}");
    let counted = model.counted.lock();
    assert!(shortened.iter().all(|(before, after)| counted.contains(before) && counted.contains(after)), "{counted:?}");
}

#[tokio::test]
async fn second_compaction_without_progress_ends_the_run() {
    let rig = Rig::new();
    stubborn(&rig);
    // The same command prints something new each time, so that it is not a repetition, but it makes
    // no progress.
    let model = FakeModel::new(|turn, _| {
        says(vec![call(&format!("t{turn}"), "grep", json!({ "pattern": format!("{turn}{}", "y".repeat(3000)) }))])
    });
    let (report, events) = rig.run(Arc::new(model.window(12_000)), plan(long())).await;
    assert_eq!(report.stop_reason, StopReason::ContextExhausted, "{}", report.message);
    assert_eq!(shortened(&events).len(), 1);
}

#[tokio::test]
async fn oversized_task_is_reported() {
    let model = FakeModel::new(|turn, _| says(vec![bash(&format!("t{turn}"), &format!("echo {turn}"))]));
    let mut plan = plan(long());
    plan.goal = "word ".repeat(10_000);
    let (report, _) = Rig::new().run(Arc::new(model.window(12_000)), plan).await;
    assert_eq!(report.stop_reason, StopReason::ContextExhausted, "{}", report.message);
}

/// Tools that return two images.
struct ImageTools;

#[async_trait]
impl ToolDispatcher for ImageTools {
    async fn dispatch_watched(&self, _name: &str, _input: Value, _watch: Watch) -> ToolResult {
        let bytes = base64::engine::general_purpose::STANDARD.decode("UklGRg==").expect("base64").into();
        let image = tools::Block::Image(tools::Image { media_type: "image/webp", bytes });
        let content = vec![tools::Block::Text("two pictures".into()), image.clone(), image];
        ToolResult { is_error: false, code: None, content, structured: StructuredResult::default() }
    }

    async fn close(&self) {}
}

#[tokio::test]
async fn old_images_are_removed_in_chunks() {
    let rig = Rig { tools: Arc::new(ImageTools), ..Rig::new() };
    let seen = |messages: &[Message]| serde_json::to_string(messages).expect("messages").matches("image/webp").count();
    let model = FakeModel::new(move |turn, messages| {
        assert!(seen(messages) <= 12, "{}", seen(messages));
        match turn {
            turn if turn < 15 => {
                says(vec![call(&format!("t{turn}"), "take_screenshot", json!({ "url_path": format!("/{turn}") }))])
            }
            _ => done(),
        }
    });
    let (report, events) = rig.run(Arc::new(model), plan(quick())).await;
    assert_eq!(report.stop_reason, StopReason::Completed);
    let chunks: Vec<u64> = events
        .iter()
        .filter_map(|one| match one.event {
            Event::Pruned { images, .. } => Some(images),
            _ => None,
        })
        .collect();
    assert!(!chunks.is_empty() && chunks.iter().all(|images| *images == 4), "{chunks:?}");
    assert!((8..12).contains(&seen(&report.conversation)));
}
