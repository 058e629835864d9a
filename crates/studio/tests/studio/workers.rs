//! Several studios on one Postgres share the work, and a killed one loses nothing.

use sandbar_studio::records::Records;
use sandbar_studio::{JobId, Status};
use sdk::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::{Server, eventually_async, repeats};

use super::programs::{Alone, Caller, TIMEOUT, scripts};

/// A command that was interrupted by the kill may or may not have been executed, so every command
/// can run twice: `mkdir` lets only the first one create the page, and the log has one line.
const SCRIPT: &str = r#"{"turns": [
    {"text": "The page.", "tool_calls": [{"name": "bash", "input": {"command":
        "cd /home/user/project; mkdir .once && { echo '<h1>Hello</h1>' > index.html; echo once >> log; }; sleep 2; ls"}}]},
    {"text": "Is it there?",
     "if_interrupted": {"tool_calls": [{"name": "bash", "input": {"command":
        "cd /home/user/project; mkdir .once && { echo '<h1>Hello</h1>' > index.html; echo once >> log; }; ls"}}]},
     "tool_calls": [{"name": "bash", "input": {"command": "cat /home/user/project/log; sleep 1"}}]},
    {"text": "Done.", "if_interrupted": {"tool_calls": [{"name": "bash", "input": {"command": "cat /home/user/project/log"}}]}}
]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_loses_nothing_and_every_job_ends_once() {
    let jobs = repeats(4, 50);
    let server = Server::start(&["--no-studio"]);
    let directory = TempDir::new().expect("a directory");
    let database = testing::postgres::database();
    let scripts = scripts(directory.path(), &[("page.json", SCRIPT)]);
    let config = directory.path().join("config.toml");
    let text = format!(
        "[[providers]]\nname = \"shared\"\nkind = \"e2b\"\ndeployment_mode = \"self_hosted\"\napi_url = \"{url}\"\nsandbox_url = \"{url}\"\n\
         api_key_env = \"TEST_KEY\"\n[objects]\nurl = \"file://{objects}\"\n",
        url = server.url(),
        objects = directory.path().join("objects").display(),
    );
    std::fs::write(&config, text).expect("written");
    let start = |name: &str| {
        let place = directory.path().join(name);
        std::fs::create_dir(&place).expect("a directory");
        let config = config.to_str().expect("a plain path");
        let arguments = ["--config", config, "--scripts", scripts.to_str().expect("a plain path"), "--builds", "2"];
        Alone::start(&place, &arguments, &[("SANDBAR_DATABASE", &database), ("TEST_KEY", server.key())])
    };
    let mut first = start("first");
    let second = start("second");
    let token = first.token.clone().expect("the first studio makes the first user");
    assert_eq!(second.token, None, "whose token only the first one knows");
    let user = Caller::new(&second.address, &token);
    let records = Records::open(&Secret::from(database.as_str())).await.expect("the records");
    let owner = records.user_by_name("owner").await.expect("read").expect("the first user");
    let count = i64::try_from(jobs).expect("few");
    records.credit(&owner.id, count, "for the test").await.expect("given");
    let mut ids = Vec::new();
    for number in 0..jobs {
        let body = json!({ "name": format!("p{}", number % 3), "goal": "g", "model": "scripted:page.json" });
        ids.push(user.build(&body).await.parse::<JobId>().expect("an id"));
    }
    let all = async || {
        let mut all = Vec::new();
        for id in &ids {
            all.push(records.job(id).await.expect("read").expect("a job"));
        }
        all
    };
    // With two builds per studio, three builds at once need both.
    eventually_async("both studios work, and one builds", TIMEOUT, || async {
        let all = all().await;
        let count = |wanted: &[Status]| all.iter().filter(|job| wanted.contains(&job.status)).count();
        (count(&[Status::Provisioning, Status::Building]) >= 3 && count(&[Status::Building]) >= 1).then_some(())
    })
    .await;
    first.process.end_by("KILL", TIMEOUT);
    let timeout = TIMEOUT * u32::try_from(jobs.div_ceil(4)).expect("few");
    let settled = eventually_async("all jobs have ended", timeout, || async {
        let all = all().await;
        all.iter().all(|job| job.settled).then_some(all)
    });
    let settled = settled.await;
    assert!(settled.iter().any(|job| job.attempt > 1), "another worker claimed the jobs of the killed one");
    for job in settled {
        assert_eq!((job.status, job.sandbox_paused), (Status::Ready, true), "{job:?}");
        let mut events = Vec::new();
        loop {
            let after = events.last().and_then(|event: &sandbar_studio::TimelineEvent| event.seq).unwrap_or_default();
            let page = records.events(&job.id, after).await.expect("read");
            if page.is_empty() {
                break;
            }
            events.extend(page);
        }
        let events: Vec<Value> = events.iter().map(|event| serde_json::to_value(event).expect("JSON")).collect();
        let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        let became_ready = events.iter().filter(|event| {
            event["type"] == "job_status" && event["status"] == "ready" && event["sandbox_paused"] == false
        });
        assert_eq!((became_ready.count(), of("run_finished")), (1, 1), "{events:#?}");
        assert_eq!(of("tool_call_started"), of("tool_call_finished"), "{events:#?}");
        let log = user.get(&format!("/api/jobs/{}/file?path=log", job.id)).await;
        assert_eq!(log["text"], "once\n", "its work was done once");
    }
    assert_eq!(records.credits(&owner.id).await.expect("read"), 10, "each job cost one credit");
}
