//! Several studios on one Postgres share the work; one that is killed loses nothing.

use sandbar_studio::records::Records;
use sandbar_studio::{JobId, Status};
use sdk::Secret;
use serde_json::json;
use tempfile::TempDir;
use testing::{Server, eventually_async, repeats};

use super::programs::{Alone, Caller, PATIENCE, scripts};

/// Whatever a killed worker had begun may or may not have been done, so that each command can be run again: the page is made by
/// whichever comes first, and leaves one line.
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
    let owner = records.user_named("owner").await.expect("read").expect("the first user");
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
    // Both work: with two builds each, three at once are not one's alone.
    eventually_async("both studios work, and one builds", PATIENCE, || async {
        let all = all().await;
        let count = |wanted: &[Status]| all.iter().filter(|job| wanted.contains(&job.status)).count();
        (count(&[Status::Provisioning, Status::Building]) >= 3 && count(&[Status::Building]) >= 1).then_some(())
    })
    .await;
    first.process.end_by("KILL", PATIENCE);
    let patience = PATIENCE * u32::try_from(jobs.div_ceil(4)).expect("few");
    let settled = eventually_async("all jobs have ended", patience, || async {
        let all = all().await;
        all.iter().all(|job| job.settled).then_some(all)
    });
    let settled = settled.await;
    assert!(settled.iter().any(|job| job.attempt > 1), "somebody took up what the killed one had");
    for job in settled {
        assert_eq!((job.status, job.sandbox_paused), (Status::Ready, true), "{job:?}");
        let mut told = Vec::new();
        loop {
            let after = told.last().and_then(|event: &sandbar_studio::TimelineEvent| event.seq).unwrap_or_default();
            let page = records.events(&job.id, after).await.expect("read");
            if page.is_empty() {
                break;
            }
            told.extend(page);
        }
        let of = |kind: &str| told.iter().filter(|event| event.body["type"] == kind).count();
        let became_ready = told.iter().filter(|event| {
            event.body["type"] == "job_status"
                && event.body["status"] == "ready"
                && event.body["sandbox_paused"] == false
        });
        assert_eq!((became_ready.count(), of("run_finished")), (1, 1), "{told:#?}");
        assert_eq!(of("tool_call_started"), of("tool_call_finished"), "{told:#?}");
        let log = user.get(&format!("/api/jobs/{}/file?path=log", job.id)).await;
        assert_eq!(log["text"], "once\n", "its work was done once");
    }
    assert_eq!(records.credits(&owner.id).await.expect("read"), 10, "each job cost one credit");
}
