//! The studio's own events, as JSON objects with a `type`; the agent's have theirs.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use workspace::snapshot::Stamp;

use crate::id::JobId;
use crate::job::Status;
use crate::view::Screenshot;

pub(crate) type Body = Map<String, Value>;

fn body(kind: &str, fields: Value) -> Body {
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
) -> Body {
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

pub(crate) fn credit(change: i64, balance: i64, reason: &str) -> Body {
    body("credit", json!({ "change": change, "balance": balance, "reason": reason }))
}

pub(crate) fn notice(text: impl Into<String>) -> Body {
    body("notice", json!({ "text": text.into() }))
}

pub(crate) fn cost(total_usd: f64) -> Body {
    body("cost", json!({ "total_usd": total_usd }))
}

pub(crate) fn snapshot_saved(key: &str, files: u64, bytes: u64) -> Body {
    body("snapshot_saved", json!({ "key": key, "files": files, "bytes": bytes }))
}

pub(crate) fn rotated(from: Option<&str>, to: &str, reason: &str) -> Body {
    body("rotated", json!({ "from": from, "to": to, "reason": reason }))
}

pub(crate) fn moved(from: &str, to: &str, reason: &str) -> Body {
    body("moved", json!({ "from_provider": from, "to_provider": to, "reason": reason }))
}

/// `automatic`: the studio paused it when its build ended, and a page that shows the preview goes
/// on showing it.
pub(crate) fn paused(automatic: bool) -> Body {
    body("paused", json!({ "automatic": automatic }))
}

pub(crate) fn resumed(preview_url: Option<&str>) -> Body {
    body("resumed", json!({ "preview_url": preview_url }))
}

pub(crate) fn extended(until: Timestamp) -> Body {
    body("extended", json!({ "until": until }))
}

pub(crate) fn restored(stamp: Stamp) -> Body {
    body("restored", json!({ "stamp": stamp, "saved_at": stamp.time() }))
}

pub(crate) fn deleted() -> Body {
    body("deleted", json!({}))
}

pub(crate) fn phase_committed(message: Option<&str>, commit: &str) -> Body {
    body("phase_committed", json!({ "message": message, "commit": commit }))
}

pub(crate) fn limit_warning(what: &str, percent: u8) -> Body {
    body("limit_warning", json!({ "what": what, "percent": percent }))
}

pub(crate) fn screenshots(job: &JobId, pictures: &[Screenshot], reason: &str) -> Body {
    let images: Vec<Value> = pictures
        .iter()
        .map(|picture| {
            let Screenshot { id, device, width, height, .. } = picture;
            json!({ "url": id.url(job), "device": device, "width": width, "height": height })
        })
        .collect();
    body("screenshots", json!({ "images": images, "reason": reason }))
}
