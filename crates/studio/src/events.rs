//! The events of a job's timeline: the studio's own and those of its run. The records have them as
//! JSON, and watchers receive that JSON.

use checkpoint::Stamp;
use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::job::Status;
use crate::view::ScreenshotView;

/// An event on a job's timeline: one JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TimelineEvent {
    /// The event's number, from 1, without gaps. Deltas are not recorded and have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    pub seq: Option<u64>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub ts: Timestamp,
    #[serde(flatten)]
    pub body: EventBody,
}

/// What the records have of an event, besides its number and time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventBody {
    /// The model's turn. Events of the studio have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    pub turn: Option<u64>,
    #[serde(flatten)]
    pub event: TimelineEventKind,
}

/// `type` and the fields of that type. Parsing tries the variants in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TimelineEventKind {
    Studio(StudioEvent),
    Agent(agent::Event),
    /// An event of another version, which is sent as it was recorded.
    Other(Map<String, Value>),
}

/// An event of the studio. Fields of another version make it a [`TimelineEventKind::Other`], so
/// that none is lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum StudioEvent {
    #[serde(rename = "job_status")]
    Status {
        status: Status,
        stage_label: String,
        sandbox_paused: bool,
        preview_url: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "String")]
        message: Option<String>,
    },
    Credit {
        change: i64,
        balance: i64,
        reason: String,
    },
    Notice {
        text: String,
    },
    Cost {
        total_usd: f64,
    },
    SnapshotSaved {
        key: String,
        files: u64,
        bytes: u64,
    },
    Rotated {
        from: Option<String>,
        to: String,
        reason: String,
    },
    Moved {
        from_provider: String,
        to_provider: String,
        reason: String,
    },
    /// The sandbox is paused. The run's event of this name has a `problem` instead.
    Paused {
        /// True when the worker paused the sandbox at the end of the build. A page that shows the
        /// preview then keeps its frame.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "bool")]
        automatic: Option<bool>,
    },
    Resumed {
        preview_url: Option<String>,
    },
    Extended {
        #[schemars(with = "String", extend("format" = "date-time"))]
        until: Timestamp,
    },
    Restored {
        #[schemars(with = "String")]
        stamp: Stamp,
        #[schemars(with = "String", extend("format" = "date-time"))]
        saved_at: Timestamp,
    },
    /// The last event: nothing of the job is left.
    Deleted {},
    PhaseCommitted {
        message: Option<String>,
        commit: String,
    },
    LimitWarning {
        what: String,
        percent: u8,
    },
    Screenshots {
        images: Vec<EventImage>,
        reason: String,
    },
    /// The agent's event of this name, with URLs instead of images.
    ToolCallFinished {
        id: String,
        tool: String,
        is_error: bool,
        code: Option<String>,
        duration_ms: u64,
        truncated: bool,
        /// One line of the result, for display.
        summary: String,
        /// The text of the result; the middle of a long one is cut.
        output: String,
        /// URLs of the images of the result, in order.
        images: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventImage {
    pub url: String,
    /// `desktop` or `mobile`.
    pub device: String,
    pub width: u32,
    pub height: u32,
}

impl From<&ScreenshotView> for EventImage {
    fn from(ScreenshotView { url, device, width, height, .. }: &ScreenshotView) -> Self {
        Self { url: url.clone(), device: device.clone(), width: *width, height: *height }
    }
}

impl From<StudioEvent> for EventBody {
    fn from(event: StudioEvent) -> Self {
        Self { turn: None, event: TimelineEventKind::Studio(event) }
    }
}

/// One list of all types. The studio's `tool_call_finished` replaces the agent's.
impl JsonSchema for TimelineEventKind {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TimelineEventKind".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let variants = |schema: Schema| schema.get("oneOf").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut all = variants(agent::Event::json_schema(generator));
        all.retain(|variant| variant["properties"]["type"]["const"] != "tool_call_finished");
        all.extend(variants(StudioEvent::json_schema(generator)));
        for variant in all.iter_mut().filter_map(Value::as_object_mut) {
            // The fields that all events have are not among those of the variant.
            variant.remove("additionalProperties");
        }
        json_schema!({ "oneOf": all })
    }
}

pub(crate) fn status(
    status: Status,
    stage_label: &str,
    sandbox_paused: bool,
    preview_url: Option<&str>,
    message: Option<&str>,
) -> EventBody {
    let event = StudioEvent::Status {
        status,
        stage_label: stage_label.to_owned(),
        sandbox_paused,
        preview_url: preview_url.filter(|_| !sandbox_paused).map(str::to_owned),
        message: message.map(str::to_owned),
    };
    event.into()
}

pub(crate) fn credit(change: i64, balance: i64, reason: &str) -> EventBody {
    StudioEvent::Credit { change, balance, reason: reason.to_owned() }.into()
}

pub(crate) fn notice(text: impl Into<String>) -> EventBody {
    StudioEvent::Notice { text: text.into() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of event as it is recorded and sent, one in a line. The last are of other
    /// versions.
    const GOLDEN: &str = include_str!("../tests/studio/golden/events.jsonl");

    fn lines() -> Vec<Value> {
        GOLDEN.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }

    #[test]
    fn recorded_events_are_parsed_and_sent_unchanged() {
        let mut types = std::collections::BTreeSet::new();
        for line in lines() {
            let body: EventBody = serde_json::from_str(&line.to_string()).expect("an event");
            let event = TimelineEvent { seq: Some(7), ts: Timestamp::UNIX_EPOCH, body: body.clone() };
            let mut sent = serde_json::to_value(event).expect("JSON");
            let fields = sent.as_object_mut().expect("an object");
            assert_eq!(fields.remove("seq"), Some(7.into()), "{line}");
            assert_eq!(fields.remove("ts"), Some("1970-01-01T00:00:00Z".into()), "{line}");
            assert_eq!(sent, line);
            if let TimelineEventKind::Studio(_) | TimelineEventKind::Agent(_) = body.event {
                types.insert(line["type"].to_string());
            }
        }
        // Every type of the schema has a line.
        let schema = TimelineEventKind::json_schema(&mut SchemaGenerator::default());
        let variants = schema.get("oneOf").and_then(Value::as_array).expect("variants");
        let described: std::collections::BTreeSet<String> =
            variants.iter().map(|variant| variant["properties"]["type"]["const"].to_string()).collect();
        assert_eq!(types, described);
        // `paused` is a type of both.
        assert_eq!(variants.len(), described.len() + 1);
    }

    #[test]
    fn unknown_events_are_sent_unchanged() {
        for (line, kept) in [
            (r#"{"type":"from_afar","turn":2,"more":{"a":[1]}}"#, true),
            (r#"{"type":"notice","text":"t","more":1}"#, true),
            (r#"{"type":"tool_call_finished","id":"c","turn":1}"#, true),
            (r#"{"type":"paused"}"#, false),
        ] {
            let body: EventBody = serde_json::from_str(line).expect("an event");
            assert_eq!(matches!(body.event, TimelineEventKind::Other(_)), kept, "{line}");
            let line: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(serde_json::to_value(body).expect("JSON"), line);
        }
    }

    #[test]
    fn the_url_of_a_paused_preview_is_hidden() {
        let lines = lines();
        for event in [
            status(Status::Queued, "Waiting for a builder", false, Some("http://x"), None),
            status(Status::Ready, "Ready", true, Some("http://x"), Some("It failed")),
            credit(-1, 4, "a build"),
            notice("text"),
        ] {
            let event = serde_json::to_value(event).expect("JSON");
            assert!(lines.contains(&event), "no line has {event}");
        }
    }
}
