//! Contents of screenshots and the facts reported about them.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Sse};
use axum::routing::get;
use futures::stream;
use sandbar_browser::{CaptureError, PageScreenshot};

use crate::support::{Site, rig, rig_with};

/// Asserts container, size and name of a WebP image.
#[track_caller]
fn check_webp(screenshot: &PageScreenshot, name: &str, width: u32, height: u32) {
    assert_eq!((screenshot.name.as_str(), screenshot.width, screenshot.height), (name, width, height));
    assert!(screenshot.webp.starts_with(b"RIFF") && &screenshot.webp[8..12] == b"WEBP", "{:?}", &screenshot.webp[..16]);
    // The extended header, which Chromium writes, holds both sides minus one, in 24 bits each.
    assert_eq!(&screenshot.webp[12..16], b"VP8X");
    let side =
        |at: usize| u32::from_le_bytes([screenshot.webp[at], screenshot.webp[at + 1], screenshot.webp[at + 2], 0]) + 1;
    assert_eq!((side(24), side(27)), (width, height));
}

const PAGE: &str = r#"<!doctype html><title>Hello</title><meta name=viewport content="width=device-width">
<style>body { font: 20px sans-serif; background: #def } @media (max-width: 500px) { body { background: #fed } }</style>
<h1>Sandbar</h1><p id=p></p><script>p.textContent = innerWidth + " " + navigator.userAgent</script>"#;

#[tokio::test(flavor = "multi_thread")]
async fn one_browser_serves_consecutive_captures() {
    let (rig, site) = (rig(), Site::page("static", PAGE).await);
    for _ in 0..2 {
        let capture = rig.browser.capture(site.request_all_viewports("/")).await.expect("a capture");
        let [desktop, mobile] = &capture.screenshots[..] else { panic!("{capture:?}") };
        check_webp(desktop, "desktop", 1280, 800);
        check_webp(mobile, "mobile", 390, 844);
        for screenshot in [desktop, mobile] {
            assert!(!screenshot.blank && screenshot.idle && !screenshot.is_cut, "{screenshot:?}");
            assert_eq!((screenshot.http_status, screenshot.title.as_str()), (Some(200), "Hello"));
            assert_eq!(screenshot.final_url, "http://3000-static.localhost/");
        }
        assert_eq!(capture.blocked, []);
    }
    assert_eq!(crate::support::browser_processes(rig.directory.path()).iter().filter(|p| p.is_main()).count(), 1);
    rig.browser.close().await;
    assert_eq!(crate::support::browser_processes(rig.directory.path()).len(), 0, "nothing is left of it");
    assert_eq!(rig.directory.path().read_dir().expect("the directory").count(), 0, "nor of its files");
    let refused = rig.capture(&site, "/").await;
    assert!(matches!(refused, Err(CaptureError::Closed)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_sees_its_viewport_and_server_sees_headers() {
    let seen = |headers: HeaderMap| async move {
        let show = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
        Html(format!(
            "<meta name=viewport content='width=device-width'><script>
             fetch('/echo', {{headers: {{'e2b-sandbox-id': 'another', 'x-mine': 'kept'}}}}).then(r => r.text()).then(t =>
             document.title = [{:?}, {:?}, t, innerWidth, navigator.maxTouchPoints > 0, /Mobile/.test(navigator.userAgent),
             isSecureContext].join('|'))</script>text",
            show("host"),
            show("e2b-sandbox-id"),
        ))
    };
    let echo = |headers: HeaderMap| async move { format!("{:?}{:?}", headers["e2b-sandbox-id"], headers["x-mine"]) };
    let site = Site::serve("seen", Router::new().route("/", get(seen)).route("/echo", get(echo))).await;
    let mut request = site.request_all_viewports("/");
    request.upstream.headers.insert("e2b-sandbox-id", "ours".parse().expect("a value"));
    let capture = rig().browser.capture(request).await.expect("a capture");
    let titles: Vec<_> = capture.screenshots.iter().map(|screenshot| screenshot.title.as_str()).collect();
    let expected = r#"3000-seen.localhost|ours|"ours""kept""#;
    assert_eq!(titles, [format!("{expected}|1280|false|false|true"), format!("{expected}|390|true|true|true")]);
}

/// Everything that makes a browser prompt its user.
const DIALOGS: &str = "<script>alert('x'); confirm('y'); prompt('z'); onbeforeunload = () => 'stay'; print();
    Notification.requestPermission(); navigator.geolocation.getCurrentPosition(() => {}); open('/late')</script>after";

#[tokio::test(flavor = "multi_thread")]
async fn blank_error_and_long_pages_are_reported() {
    let router = Router::new()
        .route("/blank", get(|| async { Html("<body style='background: #123'>") }))
        .route("/late", get(|| async { Html("<script>setTimeout(() => document.write('late'), 900)</script>") }))
        .route("/long", get(|| async { Html("<div style='height: 3000px; border: 9px solid'>") }))
        .route("/endless", get(|| async { Html("<div style='height: 900000px; border: 9px solid'>") }))
        .route("/broken", get(|| async { (StatusCode::INTERNAL_SERVER_ERROR, Html("<script>nothing()</script>oops")) }))
        .route("/dialog", get(|| async { Html(DIALOGS) }))
        .route("/login", get(|| async { (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic")], "who?") }))
        .route("/loop", get(|| async { Html("text<script>while (true) {}</script>") }))
        .route("/file", get(|| async { ([(header::CONTENT_DISPOSITION, "attachment")], "x").into_response() }));
    let rig = rig_with(|config| {
        config.deadlines.idle = Duration::from_secs(3);
        config.deadlines.command = Duration::from_secs(5);
    });
    let site = Site::serve("kinds", router).await;

    let blank = rig.capture(&site, "/blank").await.expect("a capture");
    assert!(blank.screenshots.iter().all(|screenshot| screenshot.blank), "{blank:?}");
    let late = rig.capture(&site, "/late").await.expect("a capture");
    assert!(late.screenshots.iter().all(|screenshot| !screenshot.blank), "a second look sees it: {late:?}");

    let mut request = site.request("/long");
    request.full_page = true;
    let long = rig.browser.capture(request).await.expect("a capture");
    assert_eq!((long.screenshots[0].height, long.screenshots[0].is_cut), (1568, false));
    assert!((655..675).contains(&long.screenshots[0].width), "{long:?}");
    let mut request = site.request("/endless");
    request.full_page = true;
    let endless = rig.browser.capture(request).await.expect("a capture");
    assert_eq!(
        (endless.screenshots[0].width, endless.screenshots[0].height, endless.screenshots[0].is_cut),
        (320, 1568, true)
    );

    let broken = rig.capture(&site, "/broken").await.expect("an error page is a page");
    assert_eq!(broken.screenshots[0].http_status, Some(500));
    assert!(broken.screenshots[0].error_text.is_some(), "its text is reported: {broken:?}");
    assert_eq!(long.screenshots[0].error_text, None);
    assert!(broken.console_errors.iter().any(|line| line.contains("nothing is not defined")), "{broken:?}");
    let dialog = rig.capture(&site, "/dialog").await.expect("dialogs do not block");
    assert!(dialog.screenshots.iter().all(|screenshot| !screenshot.blank), "{dialog:?}");

    let login = rig.capture(&site, "/login").await.expect("a login prompt does not block");
    assert_eq!((login.screenshots[0].http_status, login.screenshots[0].blank), (Some(401), false), "{login:?}");
    let endless = rig.capture(&site, "/loop").await;
    assert!(
        matches!(&endless, Err(CaptureError::TimedOut { what, .. }) if what.contains("script")),
        "a page that never draws: {endless:?}"
    );
    let file = rig.capture(&site, "/file").await;
    assert!(matches!(&file, Err(CaptureError::NotShown { reason, .. }) if reason.contains("download")), "{file:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_page_is_captured_at_the_idle_deadline() {
    let events = || async { Sse::new(stream::pending::<Result<axum::response::sse::Event, Infallible>>()) };
    let hang = || async { std::future::pending::<Html<String>>().await };
    let page = || async { Html("busy<script>new EventSource('/events')</script>") };
    let router = Router::new().route("/", get(page)).route("/events", get(events)).route("/hang", get(hang));
    let rig = rig_with(|config| {
        config.deadlines.idle = Duration::from_secs(2);
        config.deadlines.navigation = Duration::from_secs(3);
    });
    let site = Site::serve("busy", router).await;
    let started = Instant::now();
    let capture = rig.capture(&site, "/").await.expect("a capture");
    assert!(capture.screenshots.iter().all(|screenshot| !screenshot.idle && !screenshot.blank), "{capture:?}");
    assert!(started.elapsed() > Duration::from_secs(2), "it was given its time");

    let hung = rig.capture(&site, "/hang").await;
    assert!(
        matches!(&hung, Err(CaptureError::TimedOut { what, .. }) if what.contains("/hang")),
        "a server that does not answer: {hung:?}"
    );
}
