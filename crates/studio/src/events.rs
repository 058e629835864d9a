//! Constructors of the studio's own timeline events, each named after the `type` it sets. The
//! agent's events have constructors of their own.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use workspace::checkpoint::Stamp;

use crate::job::Status;
use crate::view::Screenshot;

pub(crate) type EventBody = Map<String, Value>;

fn body(kind: &str, fields: Value) -> EventBody {
    let mut body = Map::new();
    body.insert("type".to_owned(), kind.into());
    if let Value::Object(fields) = fields {
        body.extend(fields);
    }
    body
}

pub(crate) fn status(
    status: Status,
    stage_label: &str,
    sandbox_paused: bool,
    preview_url: Option<&str>,
    message: Option<&str>,
) -> EventBody {
    let mut fields = json!({
        "status": status,
        "stage_label": stage_label,
        "sandbox_paused": sandbox_paused,
        "preview_url": preview_url.filter(|_| !sandbox_paused),
    });
    if let Some(message) = message {
        fields["message"] = message.into();
    }
    body("job_status", fields)
}

pub(crate) fn credit(change: i64, balance: i64, reason: &str) -> EventBody {
    body("credit", json!({ "change": change, "balance": balance, "reason": reason }))
}

pub(crate) fn notice(text: impl Into<String>) -> EventBody {
    body("notice", json!({ "text": text.into() }))
}

pub(crate) fn cost(total_usd: f64) -> EventBody {
    body("cost", json!({ "total_usd": total_usd }))
}

pub(crate) fn snapshot_saved(key: &str, files: u64, bytes: u64) -> EventBody {
    body("snapshot_saved", json!({ "key": key, "files": files, "bytes": bytes }))
}

pub(crate) fn rotated(from: Option<&str>, to: &str, reason: &str) -> EventBody {
    body("rotated", json!({ "from": from, "to": to, "reason": reason }))
}

pub(crate) fn moved(from: &str, to: &str, reason: &str) -> EventBody {
    body("moved", json!({ "from_provider": from, "to_provider": to, "reason": reason }))
}

/// `automatic` is true when the worker paused the sandbox at the end of the build. A page that
/// shows the preview then keeps its frame.
pub(crate) fn paused(automatic: bool) -> EventBody {
    body("paused", json!({ "automatic": automatic }))
}

pub(crate) fn resumed(preview_url: Option<&str>) -> EventBody {
    body("resumed", json!({ "preview_url": preview_url }))
}

pub(crate) fn extended(until: Timestamp) -> EventBody {
    body("extended", json!({ "until": until }))
}

pub(crate) fn restored(stamp: Stamp) -> EventBody {
    body("restored", json!({ "stamp": stamp, "saved_at": stamp.time() }))
}

pub(crate) fn deleted() -> EventBody {
    body("deleted", json!({}))
}

pub(crate) fn phase_committed(message: Option<&str>, commit: &str) -> EventBody {
    body("phase_committed", json!({ "message": message, "commit": commit }))
}

pub(crate) fn limit_warning(what: &str, percent: u8) -> EventBody {
    body("limit_warning", json!({ "what": what, "percent": percent }))
}

pub(crate) fn screenshots(screenshots: &[Screenshot], reason: &str) -> EventBody {
    let images: Vec<Value> = screenshots
        .iter()
        .map(|screenshot| {
            let Screenshot { url, device, width, height, .. } = screenshot;
            json!({ "url": url, "device": device, "width": width, "height": height })
        })
        .collect();
    body("screenshots", json!({ "images": images, "reason": reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of event as it is recorded and sent, one in a line.
    const GOLDEN: &str = include_str!("../tests/studio/golden/events.jsonl");

    fn screenshot() -> Screenshot {
        Screenshot {
            id: "pic_0123456789abcdef0123".parse().expect("an id"),
            device: "desktop".to_owned(),
            width: 1280,
            height: 800,
            taken_at: Timestamp::UNIX_EPOCH,
            reason: "ready".to_owned(),
            url: "/api/jobs/job_0123456789abcdef0123/screenshots/pic_0123456789abcdef0123".to_owned(),
        }
    }

    #[test]
    fn events_of_the_studio_keep_their_form() {
        let events = [
            status(Status::Queued, "Waiting for a builder", false, Some("http://x"), None),
            status(Status::Ready, "Ready", true, Some("http://x"), Some("It failed")),
            credit(-1, 4, "a build"),
            notice("text"),
            cost(0.25),
            snapshot_saved("projects/x", 3, 2048),
            rotated(None, "inew", "its time was over"),
            rotated(Some("iold"), "inew", "its time was over"),
            moved("local", "e2b", "the work goes on with another provider"),
            paused(true),
            paused(false),
            resumed(None),
            resumed(Some("http://x")),
            extended(Timestamp::UNIX_EPOCH),
            restored("20261116T000937Z".parse().expect("a stamp")),
            deleted(),
            phase_committed(None, "abc"),
            phase_committed(Some("done"), "abc"),
            limit_warning("budget", 80),
            screenshots(&[screenshot()], "ready"),
        ];
        let lines: Vec<Value> = GOLDEN.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
        for event in events {
            let event = Value::Object(event);
            assert!(lines.contains(&event), "no line has {event}");
        }
    }
    #[test]
    fn events_of_the_agent_keep_their_form() {
        let lines = GOLDEN.lines().map(|line| serde_json::from_str::<EventBody>(line).expect("an object"));
        let mut kinds = std::collections::BTreeSet::new();
        for line in lines.filter(|line| line.contains_key("turn")) {
            let mut own = line.clone();
            let turn = own.remove("turn").expect("a turn");
            // The timeline has the URLs of the images.
            let images = if own["type"] == "tool_call_finished" { own.remove("images") } else { None };
            let event: agent::Event = serde_json::from_value(own.into()).expect("an event of an agent");
            let Ok(Value::Object(mut body)) = serde_json::to_value(&event) else { panic!("{event:?} is no object") };
            body.insert("turn".to_owned(), turn);
            body.extend(images.map(|images| ("images".to_owned(), images)));
            assert_eq!(body, line);
            kinds.insert(body["type"].to_string());
        }
        assert_eq!(kinds.len(), 22, "{kinds:?}");
    }
}
