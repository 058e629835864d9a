//! Who may do what: tokens, cookies, other people's builds, foreign pages, and how often.

use std::collections::HashMap;

use sandbar_studio::rest::{Face, Limits, Rate};
use serde_json::json;

use super::lab::{Database, Lab, Person, fill, on_both};

/// Something for each name in a path.
fn values(job: &str, project: &str) -> HashMap<&'static str, String> {
    HashMap::from([
        ("job_id", job.to_owned()),
        ("project_id", project.to_owned()),
        ("screenshot_id", "pic_0123456789abcdef0123".to_owned()),
        ("question_id", "call_1".to_owned()),
    ])
}

/// A body that the call would take.
fn body(path: &str) -> &'static str {
    match path.rsplit('/').next() {
        Some("restore") => r#"{"key": "k"}"#,
        Some("rebuild") => r#"{"confirm": true}"#,
        Some("{question_id}") => r#"{"allow": true}"#,
        _ => "{}",
    }
}

async fn attempt(lab: &Lab, who: &Person, method: &str, path: &str, values: &HashMap<&str, String>) -> u16 {
    let bearer = format!("Bearer {}", who.token);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let query = if path.ends_with("/file") { "?path=a" } else { "" };
    let line = format!("{method} {}{query}", fill(path, values));
    let answer = lab.open_raw(&line, &headers, body(path).to_owned()).await;
    answer.status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_build_is_as_good_as_none_in_every_call() {
    on_both(Face::default(), async |lab| {
        let (ada, eve) = (lab.person("ada", 5).await, lab.person("eve", 5).await);
        let job = lab.start(&ada, "page").await;
        lab.make_ready(&job, Some("isome")).await;
        let project = lab.get(&ada, &format!("/api/jobs/{job}")).await.is(200)["project_id"].clone();
        let theirs = values(job.as_str(), project.as_str().expect("an id"));
        let unknown = values("job_0123456789abcdef0123", "prj_0123456789abcdef0123");
        let malformed = values("..%2f..", "%00");
        let mut tried = 0;
        for (method, path, _) in lab.operations().await {
            if !path.contains('{') {
                continue;
            }
            tried += 1;
            for values in [&theirs, &unknown, &malformed] {
                let status = attempt(&lab, &eve, &method, &path, values).await;
                assert_eq!(status, 404, "{method} {} as somebody else", fill(&path, values));
            }
        }
        assert!(tried >= 18, "{tried}");
        lab.get(&eve, &format!("/api/jobs?project_id={}", project.as_str().expect("an id"))).await.is(404);
        assert_eq!(lab.get(&eve, "/api/jobs").await.is(200), json!({"jobs": []}));
        assert_eq!(lab.get(&ada, &format!("/api/jobs/{job}")).await.is(200)["status"], "ready");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_nothing_is_told() {
    on_both(Face::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let job = lab.start(&ada, "page").await;
        let values = values(job.as_str(), "prj_0123456789abcdef0123");
        let wrong = "Bearer sbt_0123456789012345678901234567890123456789";
        for (method, path, _) in lab.operations().await {
            if path == "/api/openapi.json" {
                continue;
            }
            let line = format!("{method} {}", fill(&path, &values));
            for headers in [&[][..], &[("authorization", wrong)], &[("authorization", "Basic dTpw")]] {
                let refused = lab.raw(&line, headers, "").await;
                assert_eq!(refused.header("www-authenticate"), "Bearer", "{line} {headers:?}");
                refused.is(401);
            }
            lab.raw(&line, &[("cookie", "sandbar_session=sbt_x")], "").await.is(401);
        }
    })
    .await;
}

/// The cookie as a browser would send it.
async fn sign_in(lab: &Lab, who: &Person) -> String {
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let signed_in = lab.raw("POST /login", &form, &format!("token={}", who.token)).await;
    assert_eq!((signed_in.status.as_u16(), signed_in.header("location")), (303, "/"), "{}", signed_in.text);
    let cookie = signed_in.header("set-cookie");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(part), "{part} is missing");
    }
    assert!(!cookie.contains("Domain") && !cookie.contains("Secure"));
    cookie.split(';').next().expect("a pair").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_works_for_our_own_pages_only() {
    let lab = Lab::open(Database::Sqlite, Face::default()).await;
    let ada = lab.person("ada", 5).await;
    let cookie = sign_in(&lab, &ada).await;
    let own = format!("http://{}", lab.address);
    let session = ("cookie", cookie.as_str());
    let kind = ("content-type", "application/json");
    let csrf = ("x-sandbar-csrf", "1");
    let build = r#"{"name": "page", "goal": "Make a page."}"#;
    assert_eq!(lab.raw("GET /api/me", &[session], "").await.is(200)["name"], "ada");
    let refused = [
        vec![session, kind],
        vec![session, kind, ("origin", own.as_str())],
        vec![session, kind, csrf, ("origin", "http://evil.test")],
        vec![session, kind, csrf, ("origin", "null")],
        vec![session, kind, csrf, ("origin", "http://3000-iabc.localhost:4980")],
    ];
    for headers in refused {
        assert_eq!(lab.raw("POST /api/generation", &headers, build).await.is(403)["error_type"], "csrf", "{headers:?}");
    }
    assert_eq!(lab.raw("GET /api/me", &[session], "").await.is(200)["credits"], 5);
    lab.raw("POST /api/generation", &[session, kind, csrf], build).await.is(202);
    lab.raw("POST /api/generation", &[session, kind, csrf, ("origin", own.as_str())], build).await.is(202);
    // Whoever has the token itself is no browser that was led here.
    let bearer = format!("Bearer {}", ada.token);
    let foreign = [("authorization", bearer.as_str()), kind, ("origin", "http://evil.test")];
    lab.raw("POST /api/generation", &foreign, build).await.is(202);

    let out = lab.raw("POST /logout", &[session, csrf], "").await;
    assert_eq!((out.status.as_u16(), out.header("location")), (303, "/login"));
    assert!(
        out.header("set-cookie").starts_with("sandbar_session=; ") && out.header("set-cookie").contains("Max-Age=0")
    );
    lab.raw("POST /logout", &[session, ("origin", "http://evil.test")], "").await.is(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_signs_nobody_in() {
    let lab = Lab::open(Database::Sqlite, Face::default()).await;
    let ada = lab.person("ada", 5).await;
    let form = ("content-type", "application/x-www-form-urlencoded");
    let right = format!("token={}", ada.token);
    let wrong = lab.raw("POST /login", &[form], "token=sbt_0123456789012345678901234567890123456789").await;
    assert_eq!(wrong.header("set-cookie"), "");
    wrong.is(401);
    let page = lab.raw("POST /login", &[form, ("accept", "text/html,*/*")], "token=%3Cscript%3E").await;
    assert_eq!((page.status.as_u16(), page.header("set-cookie")), (401, ""));
    assert!(page.header("content-type").starts_with("text/html") && page.text.contains("not known here"));
    assert!(!page.text.contains("<script>"));
    lab.raw("POST /login", &[form, ("origin", "http://evil.test")], &right).await.is(403);
    lab.raw("POST /login", &[], &right).await.is(415);
    lab.raw("POST /login", &[form], "nothing=1").await.is(422);
    // Behind a proxy that ends TLS the cookie must not travel in the clear.
    let host = format!("https://{}", lab.address);
    let secure = lab.raw("POST /login", &[form, ("origin", host.as_str())], &right).await;
    assert!(secure.header("set-cookie").ends_with("; Secure"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_too_often_waits_and_nobody_else_does() {
    let few = Rate { burst: 3.0, per_second: 0.01 };
    let limits = Limits { reads: few, writes: few, wrong_tokens: few, streams: 1 };
    let lab = Lab::open(Database::Sqlite, Face { limits, ..Face::default() }).await;
    let (ada, bob) = (lab.person("ada", 50).await, lab.person("bob", 50).await);
    for _ in 0..3 {
        lab.get(&ada, "/api/me").await.is(200);
        lab.start(&ada, "page").await;
    }
    let line = "POST /api/generation";
    for line in ["GET /api/me", line] {
        let refused = lab.call(&ada, line, Some(json!({"name": "n", "goal": "g"}))).await;
        let wait: u64 = refused.header("retry-after").parse().expect("seconds");
        assert!((1..=100).contains(&wait), "{wait}");
        refused.is(429);
    }
    let job = lab.start(&bob, "page").await;
    let events = format!("GET /api/jobs/{job}/events");
    let bearer = format!("Bearer {}", bob.token);
    let authorized = [("authorization", bearer.as_str())];
    let held = lab.open_raw(&events, &authorized, String::new()).await;
    assert_eq!(held.status(), 200);
    lab.raw(&events, &authorized, "").await.is(429);
    let wrong = [("authorization", "Bearer sbt_0123456789012345678901234567890123456789")];
    for _ in 0..3 {
        lab.raw("GET /api/me", &wrong, "").await.is(401);
    }
    lab.raw("GET /api/me", &wrong, "").await.is(429);
    // Whoever has a right token is not locked out by those who try.
    lab.get(&bob, "/api/me").await.is(200);
}
