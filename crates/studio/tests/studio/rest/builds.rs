//! Builds: every status of every call.

use sandbar_studio::rest::RestOptions;
use serde_json::{Value, json};

use super::lab::{Answer, Lab, Person, on_both};

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

async fn ask(lab: &Lab, who: &Person, body: Value) -> Answer {
    lab.post(who, "/api/generation", body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_costs_one_credit() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 2).await;
        let started = ask(&lab, &ada, json!({"name": "Shop", "goal": "Make a shop."})).await.is(202);
        assert_eq!(keys(&started), ["job_id", "status"]);
        assert_eq!(started["status"], "queued");
        assert_eq!(lab.get(&ada, "/api/me").await.is(200), json!({"name": "ada", "credits": 1}));
        let job = lab.get(&ada, &format!("/api/jobs/{}", started["job_id"].as_str().expect("an id"))).await.is(200);
        let again = json!({"project_id": job["project_id"], "goal": "Make it blue.", "phases": ["One.", "Two."]});
        ask(&lab, &ada, again.clone()).await.is(202);
        let refused = ask(&lab, &ada, again).await.is(402);
        assert_eq!(refused["error_type"], "no_credits");
        assert!(refused["hint"].as_str().expect("a hint").contains("sandbar user credits"));
        assert_eq!(lab.get(&ada, "/api/me").await.is(200)["credits"], 0);
        assert_eq!(lab.get(&ada, "/api/jobs").await.is(200)["jobs"].as_array().expect("jobs").len(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_builds_are_refused_without_cost() {
    on_both(RestOptions::default(), async |lab| {
        let (ada, bob) = (lab.person("ada", 5).await, lab.person("bob", 5).await);
        let theirs = lab.start(&bob, "secret").await;
        let theirs = lab.get(&bob, &format!("/api/jobs/{theirs}")).await.is(200)["project_id"].clone();
        let refused = [
            (json!({"goal": "g"}), 422, "either `project_id` or `name`"),
            (json!({"goal": "g", "name": "n", "project_id": "prj_0123456789abcdef0123"}), 422, "not both"),
            (json!({"name": "n"}), 422, "missing field `goal`"),
            (json!({"name": "n", "goal": " \n"}), 422, "goal: there must be something"),
            (json!({"name": "n", "goal": "a\u{0}"}), 422, "NUL"),
            (json!({"name": "n", "goal": "a".repeat(20_001)}), 422, "goal: longer than 20000"),
            (json!({"name": "n", "goal": "g", "colour": "red"}), 422, "unknown field `colour`"),
            (json!({"name": "n", "goal": "g", "budget_usd": 0}), 422, "budget_usd: must be more than 0"),
            (json!({"name": "n", "goal": "g", "phases": vec!["p"; 51]}), 422, "more than 50"),
            (json!({"name": "n", "goal": "g", "model": "nobody:knows"}), 422, "nobody:knows"),
            (json!({"name": "n", "goal": "g", "repo": "/etc"}), 422, "repo"),
            (json!({"name": "n", "goal": "g", "approvals": [["bash", null, "ask"]]}), 422, "invalid type"),
            (
                json!({"name": "n", "goal": "g", "approvals": [{"tool": "bash", "decision": "perhaps"}]}),
                422,
                "approvals[0]: ",
            ),
            (
                json!({"name": "n", "goal": "g", "approvals": [{"tool": "bash", "pattern": "(", "decision": "ask"}]}),
                422,
                "regular",
            ),
            (json!(["n", "g"]), 422, "invalid type"),
            (json!({"project_id": "prj_0123456789abcdef0123", "goal": "g"}), 404, "no such thing"),
            (json!({"project_id": theirs, "goal": "g"}), 404, "no such thing"),
        ];
        for (body, status, text) in refused {
            let answer = ask(&lab, &ada, body.clone()).await.is(status);
            assert!(answer["message"].as_str().expect("a message").contains(text), "{body}: {answer}");
        }
        let bearer = format!("Bearer {}", ada.token);
        let with = |kind| [("authorization", bearer.as_str()), ("content-type", kind)];
        let line = "POST /api/generation";
        lab.raw(line, &with("application/json"), "{\"goal\": ").await.is(400);
        lab.raw(line, &with("application/json"), "").await.is(400);
        lab.raw(line, &with("text/plain"), "{}").await.is(415);
        lab.raw(line, &with("application/json"), &" ".repeat(3 << 20)).await.is(413);
        lab.raw("PUT /api/generation", &with("application/json"), "{}").await.is(405);
        assert_eq!(lab.get(&ada, "/api/me").await.is(200)["credits"], 5);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view_of_a_build_is_consistent() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let (one, two) = (lab.start(&ada, "first").await, lab.start(&ada, "second").await);
        let status = lab.get(&ada, &format!("/api/generation/{one}/status")).await.is(200);
        assert_eq!(
            keys(&status),
            [
                "build_version",
                "debug_id",
                "error_message",
                "job_id",
                "preview_url",
                "sandbox_expires_at",
                "sandbox_paused",
                "stage_label",
                "status"
            ]
        );
        assert_eq!((&status["status"], &status["sandbox_paused"]), (&json!("queued"), &json!(false)));
        let job = lab.get(&ada, &format!("/api/jobs/{one}")).await.is(200);
        assert_eq!((&job["goal"], &job["project_name"]), (&json!("Make a page."), &json!("first")));
        let listed = lab.get(&ada, "/api/jobs").await.is(200);
        assert_eq!(listed["jobs"][1], job);
        assert_eq!(listed["jobs"][0]["job_id"], two.as_str());
        let project = job["project_id"].as_str().expect("an id");
        let of_one = lab.get(&ada, &format!("/api/jobs?project_id={project}")).await.is(200);
        assert_eq!(of_one["jobs"], json!([job]));
        lab.get(&ada, "/api/jobs?project_id=none").await.is(400);
        let dashboard = lab.get(&ada, "/api/dashboard").await.is(200);
        assert_eq!(keys(&dashboard), ["default_model", "jobs", "models", "projects", "usage", "user"]);
        assert_eq!(dashboard["jobs"], listed["jobs"]);
        assert_eq!(dashboard["user"], json!({"name": "ada", "credits": 3}));
        assert_eq!(dashboard["projects"].as_array().expect("projects").len(), 2);
        for path in [format!("/api/jobs/{one}/usage"), format!("/api/projects/{project}/usage")] {
            assert_eq!(lab.get(&ada, &path).await.is(200), json!({"total_usd": 0.0, "lines": []}), "{path}");
        }
        let none = lab.get(&ada, &format!("/api/jobs/{one}/screenshots")).await.is(200);
        assert_eq!(none, json!({"screenshots": []}));
        let none = lab.get(&ada, &format!("/api/jobs/{one}/snapshots")).await.is(200);
        assert_eq!(none, json!({"snapshots": []}));
        let preview = lab.get(&ada, &format!("/api/jobs/{one}/preview")).await.is(200);
        let coming = json!({"state": "starting", "preview_url": null, "reason": "Waiting for a builder"});
        assert_eq!(preview, coming, "it may still come");
        lab.post(&ada, &format!("/api/jobs/{one}/cancel"), json!({})).await.is(200);
        assert_eq!(lab.get(&ada, &format!("/api/jobs/{one}/preview")).await.is(200)["state"], "none");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_are_cancelled_rebuilt_and_deleted() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 2).await;
        let job = lab.start(&ada, "page").await;
        let of = |call: &str| format!("/api/generation/{job}/{call}");
        assert_eq!(lab.call(&ada, &format!("DELETE /api/jobs/{job}"), None).await.is(409)["error_type"], "conflict");
        assert_eq!(lab.post(&ada, &of("rebuild"), json!({"confirm": true})).await.is(409)["error_type"], "conflict");
        for _ in 0..2 {
            let cancelled = lab.call(&ada, &format!("POST /api/jobs/{job}/cancel"), None).await.is(200);
            assert_eq!(cancelled, json!({"job_id": job.as_str(), "status": "cancelled"}));
        }
        assert_eq!(lab.get(&ada, "/api/me").await.is(200)["credits"], 2, "given back, once");
        for asked in [Some(json!({"confirm": false})), Some(json!({})), None] {
            let question = lab.call(&ada, &format!("POST {}", of("rebuild")), asked).await.is(409);
            assert_eq!(question["message"], "This will use 1 build credit. Continue?");
            assert_eq!(question["error_type"], "confirm_needed");
        }
        lab.post(&ada, &of("rebuild"), json!({"confirm": "yes"})).await.is(422);
        let again = lab.post(&ada, &of("rebuild"), json!({"confirm": true})).await.is(202);
        let again = lab.get(&ada, &format!("/api/jobs/{}", again["job_id"].as_str().expect("an id"))).await.is(200);
        assert_eq!((&again["rebuilt_from"], &again["goal"]), (&json!(job.as_str()), &json!("Make a page.")));
        assert_eq!(again["build_version"], 2);
        lab.post(&ada, &of("rebuild"), json!({"confirm": true})).await.is(202);
        assert_eq!(lab.post(&ada, &of("rebuild"), json!({"confirm": true})).await.is(402)["error_type"], "no_credits");
        let gone = lab.call(&ada, &format!("DELETE /api/jobs/{job}"), None).await;
        assert_eq!((gone.status.as_u16(), gone.text.as_str()), (204, ""));
        lab.call(&ada, &format!("DELETE /api/jobs/{job}"), None).await.is(404);
        lab.get(&ada, &format!("/api/jobs/{job}")).await.is(404);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_project_never_joins_an_existing_one() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 9).await;
        let new = json!({"name": "Twice", "new_project": true, "goal": "Make a page."});
        let first = ask(&lab, &ada, new.clone()).await.is(202)["job_id"].as_str().expect("an id").to_owned();
        let refused = ask(&lab, &ada, new.clone()).await.is(409);
        assert_eq!(refused["error_type"], "project_exists", "{refused}");
        assert!(refused["message"].as_str().expect("a message").contains("already a project named \"Twice\""));
        assert_eq!(lab.get(&ada, "/api/me").await.is(200)["credits"], 8, "a refused build costs nothing");
        // Builds in an existing project, by its name or id, still work.
        let project = lab.get(&ada, &format!("/api/jobs/{first}")).await.is(200)["project_id"].clone();
        for body in [
            json!({"name": "Twice", "goal": "g"}),
            json!({"name": "Twice", "new_project": false, "goal": "g"}),
            json!({"name": "Twice", "new_project": null, "goal": "g"}),
            json!({"project_id": project, "goal": "g"}),
        ] {
            ask(&lab, &ada, body).await.is(202);
        }
        ask(&lab, &ada, json!({"project_id": project, "new_project": true, "goal": "g"})).await.is(422);
        // Another user's project with that name does not count.
        let bob = lab.person("bob", 1).await;
        ask(&lab, &bob, new.clone()).await.is(202);
        // A project without builds has no files that a new build could start from.
        let listed = lab.get(&ada, "/api/jobs").await.is(200);
        for job in listed["jobs"].as_array().expect("jobs") {
            let id = job["job_id"].as_str().expect("an id");
            lab.post(&ada, &format!("/api/jobs/{id}/cancel"), json!({})).await.is(200);
            lab.call(&ada, &format!("DELETE /api/jobs/{id}"), None).await;
        }
        ask(&lab, &ada, new).await.is(202);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_ready_builds_are_paused_and_resumed() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let job = lab.start(&ada, "page").await;
        let (pause, resume) = (format!("/api/jobs/{job}/snapshot"), format!("/api/generation/{job}/resume"));
        let other_pause = format!("/api/generation/{job}/snapshot");
        for path in [&pause, &other_pause, &resume] {
            assert_eq!(
                lab.call(&ada, &format!("POST {path}"), None).await.is(422)["error_type"],
                "not_ready",
                "{path}"
            );
        }
        let restore = format!("/api/jobs/{job}/restore");
        lab.post(&ada, &restore, json!({"key": "projects/x"})).await.is(422);
        // Ready without a sandbox.
        lab.make_ready(&job, None).await;
        for path in [&pause, &other_pause, &resume] {
            lab.call(&ada, &format!("POST {path}"), None).await.is(404);
        }
        // Ready, and its sandbox is gone.
        let other = lab.start(&ada, "page").await;
        lab.make_ready(&other, Some("igone")).await;
        lab.call(&ada, &format!("POST /api/jobs/{other}/snapshot"), None).await.is(404);
        let expired = lab.call(&ada, &format!("POST /api/generation/{other}/resume"), None).await.is(503);
        assert_eq!(expired["error_type"], "sandbox_expired");
        assert_eq!(expired["message"], "The sandbox has expired and can't be recovered.");
        assert_eq!(lab.get(&ada, &format!("/api/jobs/{other}")).await.is(200)["status"], "ready");
        for path in ["files", "file?path=index.html", "files?path=../..", "files?path=%2Fetc"] {
            let answer = lab.get(&ada, &format!("/api/jobs/{other}/{path}")).await;
            assert!([404, 422].contains(&answer.status.as_u16()), "{path}: {} {}", answer.status, answer.text);
        }
        lab.get(&ada, &format!("/api/jobs/{other}/file")).await.is(400);
        lab.get(&ada, &format!("/api/jobs/{other}/file?path=%00")).await.is(400);
        lab.post(&ada, &format!("/api/jobs/{other}/approvals/call_1"), json!({"allow": true})).await.is(404);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_resume_does_not_block_the_next() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let job = lab.start(&ada, "page").await;
        lab.make_ready(&job, Some("igone")).await;
        let resume = format!("POST /api/generation/{job}/resume");
        lab.breaks(true);
        // Callers that join also receive the error, and later calls start a new attempt.
        for _ in 0..2 {
            let (one, two) = tokio::join!(lab.call(&ada, &resume, None), lab.call(&ada, &resume, None));
            for answer in [one, two] {
                assert_eq!(answer.is(503)["error_type"], "unavailable");
            }
        }
        lab.breaks(false);
        assert_eq!(lab.call(&ada, &resume, None).await.is(503)["error_type"], "sandbox_expired");
        lab.call(&ada, &format!("POST /api/jobs/{job}/snapshot"), None).await.is(404);
    })
    .await;
}
