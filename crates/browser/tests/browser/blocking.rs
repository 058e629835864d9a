//! A page reaches nothing but its own origin, however it tries.

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, StatusCode};
use axum::response::Html;
use axum::routing::get;
use sandbar_browser::{BlockReason, BlockedRequest, CaptureError, CaptureRequest, Upstream};

use tokio_util::task::AbortOnDropHandle;

use crate::support::{Canary, Site, rig, rig_with};

/// Redirects to `?to=`.
async fn go(Query(query): Query<HashMap<String, String>>) -> (StatusCode, [(HeaderName, String); 1]) {
    (StatusCode::FOUND, [(LOCATION, query["to"].clone())])
}

fn encoded(url: &str) -> String {
    url::form_urlencoded::byte_serialize(url.as_bytes()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_subresources_are_blocked_and_listed() {
    let canary = Canary::listen().await;
    let port = canary.port;
    // URLs as a page writes them, the kind under which they are listed, and how the page requests
    // them.
    let image = |url: String| (format!("<img src='{url}'>"), url, "image");
    let script = |code: String, url: String, kind: &'static str| (format!("<script>{code}</script>"), url, kind);
    let local = |host: &str, path: &str| format!("http://{host}:{port}/{path}");
    let attempts = vec![
        image(local("127.0.0.1", "image")),
        image(local("localhost", "image")),
        image(local("[::1]", "image")),
        image(local("0.0.0.0", "image")),
        image(local("[::ffff:7f00:1]", "image")),
        // Names that resolve to this machine.
        image(local("localtest.me", "image")),
        image(local("127.0.0.1.nip.io", "image")),
        // Another port, another sandbox, another scheme.
        image(local("3000-attempts.localhost", "image")),
        image("http://3000-other.localhost/image".into()),
        image("https://3000-attempts.localhost/image".into()),
        image("http://169.254.169.254/latest/meta-data/".into()),
        image("http://example.com/image".into()),
        image("ftp://127.0.0.1/image".into()),
        (format!("<iframe src='{}'></iframe>", local("127.0.0.1", "frame")), local("127.0.0.1", "frame"), "document"),
        ("<iframe src='file:///etc/passwd'></iframe>".into(), "file:///etc/passwd".into(), "file"),
        (
            format!("<link rel=stylesheet href='{}'>", local("127.0.0.1", "css")),
            local("127.0.0.1", "css"),
            "stylesheet",
        ),
        (format!("<style>@import '{}'</style>", local("127.0.0.1", "css2")), local("127.0.0.1", "css2"), "stylesheet"),
        (format!("<script src='{}'></script>", local("127.0.0.1", "js")), local("127.0.0.1", "js"), "script"),
        (format!("<video src='{}'></video>", local("127.0.0.1", "video")), local("127.0.0.1", "video"), "media"),
        (format!("<object data='{}'></object>", local("127.0.0.1", "obj")), local("127.0.0.1", "obj"), "document"),
        script(
            format!("fetch('{}', {{mode: 'no-cors'}})", local("127.0.0.1", "fetch")),
            local("127.0.0.1", "fetch"),
            "fetch",
        ),
        script(
            format!("x = new XMLHttpRequest; x.open('POST', '{}'); x.send('x')", local("127.0.0.1", "xhr")),
            local("127.0.0.1", "xhr"),
            "xhr",
        ),
        script(
            format!("navigator.sendBeacon('{}', 'x')", local("127.0.0.1", "beacon")),
            local("127.0.0.1", "beacon"),
            "ping",
        ),
        script(
            format!("new EventSource('{}')", local("127.0.0.1", "events")),
            local("127.0.0.1", "events"),
            "eventsource",
        ),
        script(format!("new WebSocket('ws://127.0.0.1:{port}/ws')"), format!("ws://127.0.0.1:{port}/ws"), "websocket"),
        script(
            "new WebSocket('wss://3000-attempts.localhost/ws')".into(),
            "wss://3000-attempts.localhost/ws".into(),
            "websocket",
        ),
        // Only the proxy sees a worker's requests.
        script(
            format!("new Worker(URL.createObjectURL(new Blob([\"fetch('{}')\"])))", local("127.0.0.1", "worker")),
            local("127.0.0.1", "worker"),
            "request",
        ),
        // The origin's own server redirects to another origin.
        (
            format!("<img src='/go?to={}'>", encoded(&local("127.0.0.1", "redirected"))),
            local("127.0.0.1", "redirected"),
            "image",
        ),
        ("<img src='/go?to=file:///etc/shadow'>".into(), "file:///etc/shadow".into(), "redirect"),
        (
            "<iframe src='/go?to=http%3A%2F%2F169.254.169.254%2Fframe'></iframe>".into(),
            "http://169.254.169.254/frame".into(),
            "document",
        ),
        // Protocols that would bypass a proxy: nothing is listed, and nothing is reached.
        (
            format!(
                "<script>p = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{port}'}}]}});
                 p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o))</script>
                 <link rel=dns-prefetch href='//127.0.0.1:{port}'><link rel=preconnect href='http://127.0.0.1:{port}'>"
            ),
            String::new(),
            "",
        ),
    ];
    let tags: String = attempts.iter().map(|(tag, ..)| tag.as_str()).collect();
    let page = format!("<!doctype html><title>attempts</title>{tags}<p>done");
    let router = Router::new().route("/", get(|| async { Html(page) })).route("/go", get(go));
    let rig = rig_with(|config| config.deadlines.idle = Duration::from_secs(5));
    let capture = rig.capture(&Site::serve("attempts", router).await, "/").await.expect("a capture");

    let missing: Vec<_> = attempts
        .iter()
        .filter(|(_, url, _)| !url.is_empty())
        .filter(|(_, url, kind)| !capture.blocked.iter().any(|blocked| blocked.url == *url && blocked.kind == *kind))
        .map(|(_, url, kind)| (url, kind))
        .collect();
    assert!(missing.is_empty(), "not listed: {missing:#?}\nlisted: {:#?}", capture.blocked);
    let surplus: Vec<_> =
        capture.blocked.iter().filter(|blocked| !attempts.iter().any(|(_, url, _)| *url == blocked.url)).collect();
    assert!(surplus.is_empty(), "listed without having been asked for: {surplus:#?}");
    for BlockedRequest { url, reason, .. } in &capture.blocked {
        let web = url.starts_with("http") || url.starts_with("ws");
        assert_eq!(*reason == BlockReason::ForeignOrigin, web, "{url}: {reason:?}");
    }
    assert_eq!(capture.screenshots[0].title, "attempts");
    assert_eq!(canary.hits().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn navigation_to_another_origin_is_refused() {
    let canary = Canary::listen().await;
    let wrapped = |Query(query): Query<HashMap<String, String>>| async move {
        Html(format!("<p>on my way<script>location = {:?}</script>", query["to"]))
    };
    let refresh = |Query(query): Query<HashMap<String, String>>| async move {
        Html(format!("<meta http-equiv=refresh content='0; url={}'>on my way", query["to"]))
    };
    let here = || async { Html("<p>here") };
    let router = Router::new()
        .route("/here", get(here))
        .route("/go", get(go))
        .route("/script", get(wrapped))
        .route("/refresh", get(refresh));
    let (rig, site) = (rig(), Site::serve("leaving", router).await);
    let local = format!("http://127.0.0.1:{}/", canary.port);
    for (path, target) in [
        ("/go", local.as_str()),
        ("/go", &format!("http://localhost:{}/", canary.port)),
        ("/go", "http://169.254.169.254/latest/"),
        ("/go", "http://localtest.me/"),
        ("/go", "https://example.com/"),
        ("/go", "file:///etc/passwd"),
        ("/go", "http://3001-leaving.localhost/"),
        ("/script", local.as_str()),
        ("/script", "https://example.com/"),
        ("/refresh", local.as_str()),
    ] {
        let left = rig.capture(&site, &format!("{path}?to={}", encoded(target))).await;
        let Err(CaptureError::LeftOrigin { url, blocked }) = &left else { panic!("{path} {target}: {left:?}") };
        assert_eq!(url, target, "{path}");
        assert!(blocked.iter().any(|blocked| blocked.url == target), "{path} {target}: {blocked:?}");
    }
    // A redirect within the origin is followed; none of the above opened the circuit.
    let stays = rig.capture(&site, "/go?to=/here%23x").await.expect("a capture");
    assert_eq!(stays.screenshots[0].final_url, "http://3000-leaving.localhost/here#x");

    for path in ["//evil.test/", "file:///etc/passwd", "http://127.0.0.1/", "javascript:1", "/\\evil.test"] {
        let refused = rig.capture(&site, path).await;
        assert!(matches!(&refused, Err(CaptureError::InvalidPath { .. })), "{path}: {refused:?}");
    }
    assert_eq!(canary.hits().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_websocket_of_the_origin_work() {
    let socket = |upgrade: WebSocketUpgrade| async {
        upgrade.on_upgrade(|mut socket| async move {
            while let Some(Ok(Message::Text(text))) = socket.recv().await {
                let _ = socket.send(Message::text(format!("{text} heard"))).await;
            }
        })
    };
    let page = "<!doctype html><link rel=stylesheet href=style.css><p id=p>text<script>
        let results = {};
        const show = () => document.title = JSON.stringify(results, Object.keys(results).sort());
        fetch('/data', {method: 'POST', body: 'x'.repeat(100000)}).then(r => r.text()).then(t => { results.fetch = t; show() });
        const socket = new WebSocket('ws://' + location.host + '/ws');
        socket.onopen = () => socket.send('hello');
        socket.onmessage = event => { results.socket = event.data; show() };
        onload = () => { results.style = getComputedStyle(p).color; show() };
        </script>";
    let router = Router::new()
        .route("/", get(move || async move { Html(page) }))
        .route("/style.css", get(|| async { ([(CONTENT_TYPE, "text/css")], "p { color: rgb(1, 2, 3) }") }))
        .route("/data", axum::routing::post(|body: String| async move { body.len().to_string() }))
        .route("/ws", get(socket));
    let site = Site::serve("own", router).await;
    let capture = rig().browser.capture(site.request_all_viewports("/")).await.expect("a capture");
    assert_eq!(capture.blocked, []);
    for screenshot in &capture.screenshots {
        assert_eq!(screenshot.title, r#"{"fetch":"100000","socket":"hello heard","style":"rgb(1, 2, 3)"}"#);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_https_origin_gets_a_tunnel() {
    let canary = Canary::listen().await;
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = server.local_addr().expect("it is bound").to_string();
    let (greet, mut greetings) = tokio::sync::mpsc::unbounded_channel();
    let _server = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            let mut first = [0; 5];
            let read = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await;
            // The browser retries; the first attempt counts.
            let _ = greet.send(read.map(|_| first));
        }
    }));
    let rig = rig();
    let origin = "https://3000-i.tunnel.test:8443".parse().expect("an origin");
    let mut request = CaptureRequest::new(origin, Upstream::new(address));
    request.viewports.truncate(1);
    // The server hangs up, since it has no certificate that a browser accepts.
    let shown = rig.browser.capture(request).await;
    assert!(matches!(&shown, Err(CaptureError::NotShown { .. })), "{shown:?}");
    let greeting = greetings.recv().await.expect("the server runs").expect("it was greeted");
    assert_eq!(greeting[..2], [0x16, 3], "a TLS handshake, untouched");

    let neighbour = format!("https://3000-i.tunnel.test:{}/", canary.port);
    let page = format!("<p>text<img src='{neighbour}'>");
    let capture = rig.capture(&Site::page("plain", page).await, "/").await.expect("a capture");
    assert_eq!(capture.blocked.len(), 1, "{capture:?}");
    assert_eq!((capture.blocked[0].url.as_str(), capture.blocked[0].kind.as_str()), (neighbour.as_str(), "image"));
    assert_eq!(canary.hits().await, 0);
}
