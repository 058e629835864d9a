//! Authentication, authorization, CSRF and rate limits.

use std::collections::HashMap;
use std::time::Duration;

use sandbar_studio::rest::{Limits, Rate, RestOptions};
use sandbar_studio::token::{TokenDigest, new_token};
use serde_json::json;

use super::lab::{Database, Lab, Person, fill, on_both};

/// Values of all path parameters.
fn values(job: &str, project: &str) -> HashMap<&'static str, String> {
    HashMap::from([
        ("job_id", job.to_owned()),
        ("project_id", project.to_owned()),
        ("screenshot_id", "pic_0123456789abcdef0123".to_owned()),
        ("question_id", "call_1".to_owned()),
    ])
}

/// A valid body of the call.
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
async fn every_call_hides_builds_of_other_users() {
    on_both(RestOptions::default(), async |lab| {
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
                assert_eq!(status, 404, "{method} {} as another user", fill(&path, values));
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
async fn every_call_requires_authentication() {
    on_both(RestOptions::default(), async |lab| {
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

/// Signs in and returns the cookie as a browser sends it.
pub(super) async fn sign_in(lab: &Lab, who: &Person) -> String {
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
async fn sessions_are_bound_to_our_own_origin() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
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
    // A caller with the token itself is no browser that a foreign page uses.
    let bearer = format!("Bearer {}", ada.token);
    let foreign = [("authorization", bearer.as_str()), kind, ("origin", "http://evil.test")];
    lab.raw("POST /api/generation", &foreign, build).await.is(202);

    let out = lab.raw("POST /logout", &[session, csrf], "").await;
    assert_eq!((out.status.as_u16(), out.header("location")), (303, "/login"));
    assert!(
        out.header("set-cookie").starts_with("sandbar_session=; ") && out.header("set-cookie").contains("Max-Age=0")
    );
    lab.raw("POST /logout", &[session, ("origin", "http://evil.test")], "").await.is(403);
    lab.raw("GET /api/me", &[session], "").await.is(401);
    lab.get(&ada, "/api/me").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cookie_is_a_session_and_not_the_token() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let user = lab.studio.records().user_by_name("ada").await.expect("read").expect("there");
        let (one, two) = (sign_in(&lab, &ada).await, sign_in(&lab, &ada).await);
        assert!(one != two && !one.contains(&ada.token));
        let listed = lab.studio.records().sessions(&user.id).await.expect("read");
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|session| session.expires_at > session.created_at && session.id.len() == 12));
        // The cookie of earlier versions, which was the token; and a session as a bearer token.
        let old = format!("sandbar_session={}", ada.token);
        let events = lab.raw("GET /api/me", &[("cookie", old.as_str())], "").await.is(401);
        assert_eq!(events["message"], "the session has ended; sign in again");
        let bearer = format!("Bearer {}", one.split_once('=').expect("a pair").1);
        lab.raw("GET /api/me", &[("authorization", bearer.as_str())], "").await.is(401);
        // Signing out ends this session and no other.
        lab.raw("POST /logout", &[("cookie", one.as_str())], "").await;
        lab.raw("GET /api/me", &[("cookie", one.as_str())], "").await.is(401);
        lab.raw("GET /api/me", &[("cookie", two.as_str())], "").await.is(200);
        assert_eq!(lab.studio.records().end_sessions(&user.id).await.expect("written"), 1);
        assert!(lab.studio.records().sessions(&user.id).await.expect("read").is_empty());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_the_token_ends_all_sessions() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let user = lab.studio.records().user_by_name("ada").await.expect("read").expect("there");
        let cookie = sign_in(&lab, &ada).await;
        let fresh = new_token();
        let digest = TokenDigest::from_token(fresh.expose()).expect("a token");
        lab.studio.records().replace_token(&user.id, &digest).await.expect("written");
        assert!(lab.studio.records().sessions(&user.id).await.expect("read").is_empty());
        let form = [("content-type", "application/x-www-form-urlencoded")];
        lab.raw("POST /login", &form, &format!("token={}", ada.token)).await.is(401);
        // An authenticated credential is cached for 2 s.
        let mut refused = false;
        for _ in 0..60 {
            refused = lab.raw("GET /api/me", &[("cookie", cookie.as_str())], "").await.status == 401;
            if refused {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(refused, "the session outlives its token");
        sign_in(&lab, &Person { token: fresh.expose().to_owned() }).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_session_ends_at_the_limit() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let ada = lab.person("ada", 5).await;
    let user = lab.studio.records().user_by_name("ada").await.expect("read").expect("there");
    let first = sign_in(&lab, &ada).await;
    for _ in 0..100 {
        sign_in(&lab, &ada).await;
    }
    assert_eq!(lab.studio.records().sessions(&user.id).await.expect("read").len(), 100);
    lab.raw("GET /api/me", &[("cookie", first.as_str())], "").await.is(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_session_cookies_are_removed() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let (ada, eve) = (lab.person("ada", 5).await, lab.person("eve", 5).await);
    let (mine, planted) = (sign_in(&lab, &ada).await, sign_in(&lab, &eve).await);
    let both = format!("{planted}; {mine}");
    let host = ("host", "dash.sandbox.test");
    let refused = lab.raw("GET /api/me", &[("cookie", both.as_str()), host], "").await;
    let removed: Vec<&str> = refused.headers.get_all("set-cookie").iter().filter_map(|it| it.to_str().ok()).collect();
    for wanted in ["sandbar_session=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0", "Domain=sandbox.test; Path=/api;"]
    {
        assert!(removed.iter().any(|cookie| cookie.contains(wanted)), "{wanted} in {removed:#?}");
    }
    assert_eq!(refused.is(401)["error_type"], "ambiguous_session");
    assert_eq!(lab.raw("GET /api/me", &[("cookie", mine.as_str())], "").await.is(200)["name"], "ada");
    // Over https the cookie with the prefix is ours, despite cookies of other hosts.
    let prefixed = format!("{planted}; __Host-{mine}; {planted}");
    let https = ("x-forwarded-proto", "https");
    assert_eq!(lab.raw("GET /api/me", &[("cookie", prefixed.as_str()), https], "").await.is(200)["name"], "ada");
    lab.raw("GET /api/me", &[("cookie", planted.as_str()), https], "").await.is(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_served_under_the_configured_host_only() {
    let face = RestOptions { host: Some("Dash.example".to_owned()), ..RestOptions::default() };
    let lab = Lab::open(Database::Sqlite, face).await;
    let ada = lab.person("ada", 5).await;
    let own = ("host", "dash.example:4980");
    assert_eq!(lab.raw("GET /login", &[own], "").await.status, 200);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let token = format!("token={}", ada.token);
    let signed_in = lab.raw("POST /login", &[own, form], &token).await;
    let cookie = signed_in.header("set-cookie").split(';').next().expect("a pair").to_owned();
    let session = ("cookie", cookie.as_str());
    lab.raw("GET /api/me", &[own, session], "").await.is(200);
    for other in ["sandbox.example", "3000-iabc.dash.example", "xdash.example", "127.0.0.1"] {
        let other = ("host", other);
        lab.raw("GET /", &[other], "").await.is(404);
        lab.raw("POST /login", &[other, form], &token).await.is(404);
        lab.raw("GET /api/me", &[other, session], "").await.is(404);
    }
    // A call with a bearer token is served under any host name.
    lab.get(&ada, "/api/me").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_token_cannot_sign_in() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
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
    // Behind a proxy that terminates TLS the cookie must be `Secure`.
    let host = format!("https://{}", lab.address);
    let secure = lab.raw("POST /login", &[form, ("origin", host.as_str())], &right).await;
    let cookie = secure.header("set-cookie");
    assert!(cookie.starts_with("__Host-sandbar_session=sbs_") && cookie.ends_with("; Secure"), "{cookie}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_apply_per_user() {
    let few = Rate { burst: 3.0, per_second: 0.01 };
    let limits = Limits { reads: few, writes: few, wrong_tokens: few, streams: 1 };
    let lab = Lab::open(Database::Sqlite, RestOptions { limits, ..RestOptions::default() }).await;
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
    // A valid token passes, although its address is over the limit.
    lab.get(&bob, "/api/me").await.is(200);
}
