//! The dashboard's pages, and the security headers of every response.

use sandbar_studio::rest::RestOptions;

use super::lab::{Database, Lab};

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_a_strict_policy() {
    let face = RestOptions { preview_sources: vec!["http://*.localhost:4980".to_owned()], ..RestOptions::default() };
    let lab = Lab::open(Database::Sqlite, face).await;
    for path in ["/", "/login", "/jobs/job_0123456789abcdef0123"] {
        let page = lab.raw(&format!("GET {path}"), &[], "").await;
        assert_eq!(page.status, 200, "{path}");
        assert!(page.header("content-type").starts_with("text/html"), "{path}");
        assert!(page.text.to_ascii_lowercase().starts_with("<!doctype html>"), "{path}: {}", page.text);
        let policy = page.header("content-security-policy");
        for rule in [
            "default-src 'none'",
            "script-src 'self';",
            "frame-src http://*.localhost:4980;",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(rule), "{path}: {rule} is missing in {policy}");
        }
    }
    for path in ["/nothing", "/assets/nothing.js", "/api/nothing", "/index.html", "/..%2f..%2fetc/passwd"] {
        lab.raw(&format!("GET {path}"), &[], "").await.is(404);
    }
    let head = lab.raw("HEAD /", &[], "").await;
    assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
    let wrong = lab.raw("DELETE /", &[], "").await;
    assert!(wrong.header("allow").contains("GET"));
    wrong.is(405);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_has_security_headers() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let ada = lab.person("ada", 1).await;
    let answers = [
        lab.raw("GET /", &[], "").await,
        lab.raw("GET /nothing", &[], "").await,
        lab.raw("GET /api/me", &[], "").await,
        lab.get(&ada, "/api/me").await,
        lab.raw("GET /api/openapi.json", &[], "").await,
    ];
    for answer in answers {
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("referrer-policy"), "same-origin");
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin");
        assert!(answer.header("content-security-policy").contains("frame-ancestors 'none'"));
        assert!(["no-store", "no-cache"].contains(&answer.header("cache-control")), "{}", answer.text);
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
}
