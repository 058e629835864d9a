//! What the pictures show and what is said about them.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Sse};
use axum::routing::get;
use futures::stream;
use sandbar_browser::{CaptureError, Shot};

use crate::support::{Site, rig, rig_with};

/// Container, size and name are those of a WebP picture of a viewport.
#[track_caller]
fn check_webp(shot: &Shot, name: &str, width: u32, height: u32) {
    assert_eq!((shot.name.as_str(), shot.width, shot.height), (name, width, height));
    assert!(shot.webp.starts_with(b"RIFF") && &shot.webp[8..12] == b"WEBP", "{:?}", &shot.webp[..16]);
    // The extended header, which Chromium writes, has both sides less one, in 24 bits each.
    assert_eq!(&shot.webp[12..16], b"VP8X");
    let side = |at: usize| u32::from_le_bytes([shot.webp[at], shot.webp[at + 1], shot.webp[at + 2], 0]) + 1;
    assert_eq!((side(24), side(27)), (width, height));
}

const PAGE: &str = r#"<!doctype html><title>Hello</title><meta name=viewport content="width=device-width">
<style>body { font: 20px sans-serif; background: #def } @media (max-width: 500px) { body { background: #fed } }</style>
<h1>Sandbar</h1><p id=p></p><script>p.textContent = innerWidth + " " + navigator.userAgent</script>"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_page_gives_two_pictures_and_the_browser_stays_warm() {
    let (rig, site) = (rig(), Site::page("static", PAGE).await);
    for _ in 0..2 {
        let capture = rig.browser.capture(site.both("/")).await.expect("a capture");
        let [desktop, mobile] = &capture.shots[..] else { panic!("{capture:?}") };
        check_webp(desktop, "desktop", 1280, 800);
        check_webp(mobile, "mobile", 390, 844);
        for shot in [desktop, mobile] {
            assert!(!shot.blank && shot.idle && !shot.is_cut, "{shot:?}");
            assert_eq!((shot.http_status, shot.title.as_str()), (Some(200), "Hello"));
            assert_eq!(shot.final_url, "http://3000-static.localhost/");
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
async fn the_page_sees_its_viewport_and_its_server_our_headers() {
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
    let mut request = site.both("/");
    request.upstream.headers.insert("e2b-sandbox-id", "ours".parse().expect("a value"));
    let capture = rig().browser.capture(request).await.expect("a capture");
    let titles: Vec<_> = capture.shots.iter().map(|shot| shot.title.as_str()).collect();
    let told = r#"3000-seen.localhost|ours|"ours""kept""#;
    assert_eq!(titles, [format!("{told}|1280|false|false|true"), format!("{told}|390|true|true|true")]);
}

/// Whatever makes a browser ask the person in front of it.
const DIALOGS: &str = "<script>alert('x'); confirm('y'); prompt('z'); onbeforeunload = () => 'stay'; print();
    Notification.requestPermission(); navigator.geolocation.getCurrentPosition(() => {}); open('/late')</script>after";

#[tokio::test(flavor = "multi_thread")]
async fn blank_pages_errors_and_long_pages_are_told_apart() {
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
    assert!(blank.shots.iter().all(|shot| shot.blank), "{blank:?}");
    let late = rig.capture(&site, "/late").await.expect("a capture");
    assert!(late.shots.iter().all(|shot| !shot.blank), "a second look sees it: {late:?}");

    let mut request = site.request("/long");
    request.full_page = true;
    let long = rig.browser.capture(request).await.expect("a capture");
    assert_eq!((long.shots[0].height, long.shots[0].is_cut), (1568, false));
    assert!((655..675).contains(&long.shots[0].width), "{long:?}");
    let mut request = site.request("/endless");
    request.full_page = true;
    let endless = rig.browser.capture(request).await.expect("a capture");
    assert_eq!((endless.shots[0].width, endless.shots[0].height, endless.shots[0].is_cut), (320, 1568, true));

    let broken = rig.capture(&site, "/broken").await.expect("an error page is a page");
    assert_eq!(broken.shots[0].http_status, Some(500));
    assert!(broken.shots[0].error_text.is_some(), "what it says is told: {broken:?}");
    assert_eq!(long.shots[0].error_text, None);
    assert!(broken.console_errors.iter().any(|line| line.contains("nothing is not defined")), "{broken:?}");
    let dialog = rig.capture(&site, "/dialog").await.expect("nobody waits for an answer");
    assert!(dialog.shots.iter().all(|shot| !shot.blank), "{dialog:?}");

    let login = rig.capture(&site, "/login").await.expect("nobody logs in");
    assert_eq!((login.shots[0].http_status, login.shots[0].blank), (Some(401), false), "{login:?}");
    let endless = rig.capture(&site, "/loop").await;
    assert!(
        matches!(&endless, Err(CaptureError::TimedOut { what, .. }) if what.contains("script")),
        "a page that never draws: {endless:?}"
    );
    let file = rig.capture(&site, "/file").await;
    assert!(matches!(&file, Err(CaptureError::NotShown { reason, .. }) if reason.contains("download")), "{file:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_never_rests_is_shown_when_the_time_is_over() {
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
    assert!(capture.shots.iter().all(|shot| !shot.idle && !shot.blank), "{capture:?}");
    assert!(started.elapsed() > Duration::from_secs(2), "it was given its time");

    let hung = rig.capture(&site, "/hang").await;
    assert!(
        matches!(&hung, Err(CaptureError::TimedOut { what, .. }) if what.contains("/hang")),
        "a server that does not answer: {hung:?}"
    );
}
