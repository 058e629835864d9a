//! The timeline over server-sent events, and terminals.

use std::time::Duration;

use futures::StreamExt;
use sandbar_studio::StudioEvent;
use sandbar_studio::rest::RestOptions;
use sandbar_studio::token::{TokenDigest, new_token};
use serde_json::Value;

use super::access::sign_in;
use super::lab::{Database, Lab, Person, TIMEOUT, on_both};

/// An open event stream.
struct Watch {
    stream: futures::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    rest: String,
}

impl Watch {
    async fn open(lab: &Lab, who: &Person, path: &str, last: Option<&str>) -> Self {
        let bearer = format!("Bearer {}", who.token);
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(last.map(|last| ("last-event-id", last)));
        Self::open_with(lab, path, &headers).await
    }

    async fn open_with(lab: &Lab, path: &str, headers: &[(&str, &str)]) -> Self {
        let response = lab.open_raw(&format!("GET {path}"), headers, String::new()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { stream: response.bytes_stream().boxed(), rest: String::new() }
    }

    /// The next block of lines, or none when the stream has ended.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.rest.split_once("\n\n") {
                let block = block.to_owned();
                self.rest = rest.to_owned();
                return Some(block);
            }
            let piece = tokio::time::timeout(TIMEOUT, self.stream.next()).await.expect("something in time")?;
            self.rest.push_str(std::str::from_utf8(&piece.expect("a whole stream")).expect("text"));
        }
    }

    /// The next event, with its id.
    async fn event(&mut self) -> (Option<u64>, Value) {
        loop {
            let block = self.block().await.expect("an event");
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let Some(data) = field("data:") else { continue };
            assert!(field("event:").is_none(), "{block}");
            return (field("id:").map(|id| id.parse().expect("a number")), serde_json::from_str(data).expect("JSON"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_receives_every_event_once() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let job = lab.start(&ada, "page").await;
        let path = format!("/api/jobs/{job}/events");
        let mut watch = Watch::open(&lab, &ada, &path, None).await;
        let (id, first) = watch.event().await;
        assert_eq!((id, &first["seq"]), (Some(1), &1.into()), "{first}");
        assert!(first["type"].is_string() && first["ts"].is_string(), "{first}");
        // Events during the stream.
        lab.call(&ada, &format!("POST /api/jobs/{job}/cancel"), None).await.is(200);
        let mut seen = vec![first];
        while seen.last().expect("one").get("status").is_none_or(|status| status != "cancelled") {
            let (id, event) = watch.event().await;
            assert_eq!(id, Some(seen.len() as u64 + 1), "{event}");
            assert_eq!(event["seq"], seen.len() as u64 + 1);
            seen.push(event);
        }
        // The same from the records, after every event.
        for after in 0..seen.len() {
            let last = after.to_string();
            let by_query = format!("{path}?after={after}");
            // The header takes precedence over the query: a reconnecting browser keeps its URL.
            let old = format!("{path}?after=0");
            for (path, last) in [(&path, Some(last.as_str())), (&by_query, None), (&old, Some(last.as_str()))] {
                let mut again = Watch::open(&lab, &ada, path, last).await;
                for expected in &seen[after..] {
                    assert_eq!(&again.event().await.1, expected, "after {after}");
                }
            }
        }
        let bearer = format!("Bearer {}", ada.token);
        let authorized = ("authorization", bearer.as_str());
        lab.raw(&format!("GET {path}"), &[authorized, ("last-event-id", "x")], "").await.is(400);
        lab.raw(&format!("GET {path}?after=-1"), &[authorized], "").await.is(400);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_ahead_takes_no_events_from_others() {
    on_both(RestOptions::default(), async |lab| {
        let ada = lab.person("ada", 5).await;
        let job = lab.start(&ada, "page").await;
        let path = format!("/api/jobs/{job}/events");
        let mut early = Watch::open(&lab, &ada, &path, None).await;
        let mut seen = early.event().await.0;
        while seen < Some(lab.events(&job).await) {
            seen = early.event().await.0;
        }
        // Written by another process, so that no watcher is notified.
        lab.write(&job, StudioEvent::Notice { text: "from afar".to_owned() }.into()).await;
        let mut late = Watch::open(&lab, &ada, &path, seen.map(|seq| seq.to_string()).as_deref()).await;
        assert_eq!(late.event().await.1["text"], "from afar");
        assert_eq!(early.event().await.1["text"], "from afar");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_send_heartbeats_until_shutdown() {
    let face = RestOptions { heartbeat: Duration::from_millis(50), ..RestOptions::default() };
    let lab = Lab::open(Database::Sqlite, face).await;
    let ada = lab.person("ada", 5).await;
    let job = lab.start(&ada, "page").await;
    let mut watch = Watch::open(&lab, &ada, &format!("/api/jobs/{job}/events"), Some("1000")).await;
    for _ in 0..3 {
        assert_eq!(watch.block().await.expect("a sign of life"), ": heartbeat");
    }
    lab.stop();
    while let Some(block) = watch.block().await {
        assert_eq!(block, ": heartbeat");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_credential_ends_its_streams_only() {
    on_both(RestOptions { heartbeat: Duration::from_millis(200), ..RestOptions::default() }, async |lab| {
        let (ada, bob) = (lab.person("ada", 5).await, lab.person("bob", 5).await);
        let (job, other) = (lab.start(&ada, "page").await, lab.start(&bob, "page").await);
        let path = format!("/api/jobs/{job}/events");
        let (left, stays) = (sign_in(&lab, &ada).await, sign_in(&lab, &ada).await);
        let mut signed_out = Watch::open_with(&lab, &path, &[("cookie", left.as_str())]).await;
        let mut session = Watch::open_with(&lab, &path, &[("cookie", stays.as_str())]).await;
        let mut token = Watch::open(&lab, &ada, &path, None).await;
        let mut bobs = Watch::open(&lab, &bob, &format!("/api/jobs/{other}/events"), None).await;

        lab.raw("POST /logout", &[("cookie", left.as_str())], "").await;
        while signed_out.block().await.is_some() {}
        for watch in [&mut session, &mut token] {
            while watch.block().await.expect("it goes on") != ": heartbeat" {}
        }

        // Another process revokes it, in the records only.
        let user = lab.studio.records().user_by_name("ada").await.expect("read").expect("there");
        let digest = TokenDigest::from_token(new_token().expose()).expect("a token");
        lab.studio.records().replace_token(&user.id, &digest).await.expect("written");
        for mut watch in [session, token] {
            while watch.block().await.is_some() {}
        }
        while bobs.block().await.expect("it goes on") != ": heartbeat" {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_accept_own_origin_websockets_only() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let ada = lab.person("ada", 5).await;
    let job = lab.start(&ada, "page").await;
    let line = format!("GET /api/jobs/{job}/terminal");
    let plain = lab.get(&ada, &format!("/api/jobs/{job}/terminal")).await;
    assert_eq!(plain.header("upgrade"), "websocket");
    plain.is(426);
    lab.get(&ada, &format!("/api/jobs/{job}/terminal?cols=0")).await.is(400);
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let (bearer, cookie) = (format!("Bearer {}", ada.token), sign_in(&lab, &ada).await);
    let own = format!("http://{}", lab.address);
    // The job has no sandbox yet.
    for proof in [vec![("authorization", bearer.as_str())], vec![("cookie", cookie.as_str()), ("origin", own.as_str())]]
    {
        lab.raw(&line, &[&upgrade[..], &proof[..]].concat(), "").await.is(404);
    }
    for origin in [None, Some(("origin", "http://evil.test")), Some(("origin", "null"))] {
        let headers: Vec<_> = upgrade.into_iter().chain([("cookie", cookie.as_str())]).chain(origin).collect();
        assert_eq!(lab.raw(&line, &headers, "").await.is(403)["error_type"], "csrf", "{origin:?}");
    }
}
