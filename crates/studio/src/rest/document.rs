//! The OpenAPI 3.1 document, generated from the table of calls and the schemas of the wire types.

use http::{Method, StatusCode};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::cookie::SESSION;
use super::failure::ErrorBody;
use super::operation::{Content, Operation, ResponseSpec};
use crate::{JobId, ProjectId, ScreenshotId};

const SCHEMAS: &str = "/components/schemas";

pub(super) struct Document {
    /// Requests and responses differ in which fields are optional.
    sent: SchemaGenerator,
    answered: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Document {
    pub(super) fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = SCHEMAS.into();
                settings.meta_schema = None;
            })
        };
        Self {
            sent: settings().for_deserialize().into_generator(),
            answered: settings().for_serialize().into_generator(),
            paths: Map::new(),
        }
    }

    pub(super) fn add(&mut self, operation: &Operation) {
        let described = self.describe(operation);
        let methods = self.paths.entry(operation.path).or_insert_with(|| json!({}));
        methods[operation.method.as_str().to_ascii_lowercase()] = described;
    }

    fn describe(&mut self, operation: &Operation) -> Value {
        let mut described = json!({
            "operationId": operation.id,
            "summary": operation.summary,
            "responses": self.responses(operation),
        });
        let parameters = self.parameters(operation);
        if !parameters.is_empty() {
            described["parameters"] = parameters.into();
        }
        if let Some(body) = &operation.body {
            let schema = (body.describe)(&mut self.sent);
            described["requestBody"] =
                json!({ "required": body.required, "content": { "application/json": { "schema": schema } } });
        }
        if operation.open {
            described["security"] = json!([]);
        }
        described
    }

    fn parameters(&mut self, operation: &Operation) -> Vec<Value> {
        let path = names_in(operation.path)
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": self.path_schema(name) }));
        let mut parameters: Vec<Value> = path.collect();
        if let Some(query) = operation.query {
            // Inlined, so that its fields are not listed among the wire types.
            let alone = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
            let schema = query(&mut alone.for_deserialize().into_generator()).to_value();
            let required: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                let mut parameter = json!({
                    "name": name,
                    "in": "query",
                    "required": required.contains(&name.as_str()),
                    "schema": without_null(field.clone()),
                });
                if let Some(text) = parameter["schema"].as_object_mut().and_then(|schema| schema.remove("description"))
                {
                    parameter["description"] = text;
                }
                parameters.push(parameter);
            }
        }
        let headers = operation.headers.iter().map(
            |(name, text)| json!({ "name": name, "in": "header", "description": text, "schema": { "type": "string" } }),
        );
        parameters.extend(headers);
        parameters
    }

    fn path_schema(&mut self, name: &str) -> Value {
        match name {
            "job_id" => JobId::json_schema(&mut self.sent).to_value(),
            "project_id" => ProjectId::json_schema(&mut self.sent).to_value(),
            "screenshot_id" => ScreenshotId::json_schema(&mut self.sent).to_value(),
            _ => json!({ "type": "string", "minLength": 1, "maxLength": 200 }),
        }
    }

    fn responses(&mut self, operation: &Operation) -> Value {
        let mut responses = Map::new();
        for ResponseSpec { status, text, content } in &operation.answers {
            let mut response = json!({ "description": text });
            match content {
                Content::Nothing => {}
                Content::Json(describe) => {
                    response["content"] = json!({ "application/json": { "schema": describe(&mut self.answered) } });
                }
                Content::Events(describe) => {
                    // OpenAPI 3.1 has no word for the schema of one event.
                    let item = describe(&mut self.answered);
                    response["content"] = json!({ "text/event-stream": { "x-item-schema": item } });
                }
                Content::Other(kinds) => {
                    response["content"] = kinds.iter().map(|kind| ((*kind).to_owned(), json!({}))).collect();
                }
            }
            responses.insert(status.as_str().to_owned(), response);
        }
        for status in refusals(operation) {
            let schema = self.answered.subschema_for::<ErrorBody>();
            let mut response =
                json!({ "description": why(status), "content": { "application/json": { "schema": schema } } });
            if status == StatusCode::TOO_MANY_REQUESTS {
                response["headers"] = json!({
                    "Retry-After": { "description": "Seconds.", "required": true, "schema": { "type": "integer" } }
                });
            }
            responses.insert(status.as_str().to_owned(), response);
        }
        responses.into()
    }

    /// The finished document.
    pub(super) fn finish(mut self) -> Value {
        let mut schemas = self.sent.take_definitions(true);
        schemas.extend(self.answered.take_definitions(true));
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Sandbar studio",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Builds of applications by an agent, and their previews, which sleep and wake. \
                    Reading anything never wakes, resumes or extends a sandbox.",
            },
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "bearer": { "type": "http", "scheme": "bearer", "description": "A token of a user." },
                    "session": {
                        "type": "apiKey", "in": "cookie", "name": SESSION,
                        "description": "Set by `POST /login`. Whatever changes something also needs `X-Sandbar-Csrf: 1`.",
                    },
                },
            },
            "security": [{ "bearer": [] }, { "session": [] }],
        })
    }
}

fn names_in(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
}

/// Removes null: an optional query parameter is absent instead.
fn without_null(mut schema: Value) -> Value {
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [only] = &kinds[..] {
            schema["type"] = only.clone();
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
    }
    schema
}

/// The error statuses of a call: those that follow from its shape, and its own.
fn refusals(operation: &Operation) -> Vec<StatusCode> {
    let mut statuses = operation.refusals.clone();
    if !operation.open {
        statuses.extend([StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE]);
        if operation.method != Method::GET {
            statuses.extend([StatusCode::FORBIDDEN, StatusCode::INSUFFICIENT_STORAGE]);
        }
    }
    if operation.path.contains('{') {
        statuses.push(StatusCode::NOT_FOUND);
    }
    if operation.query.is_some() || operation.body.is_some() {
        statuses.push(StatusCode::BAD_REQUEST);
    }
    if operation.body.is_some() {
        statuses.extend([
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            StatusCode::UNPROCESSABLE_ENTITY,
        ]);
    }
    statuses
}

fn why(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "The query or the body cannot be read.",
        StatusCode::UNAUTHORIZED => "No token, or one that is not known.",
        StatusCode::PAYMENT_REQUIRED => "No build credit is left.",
        StatusCode::FORBIDDEN => "With the session's cookie: without `X-Sandbar-Csrf: 1`, or from another origin.",
        StatusCode::NOT_FOUND => "There is no such thing, or it belongs to another user.",
        StatusCode::REQUEST_TIMEOUT => "The body did not come in time.",
        StatusCode::CONFLICT => "Something must be agreed to first, or something else happened first.",
        StatusCode::PAYLOAD_TOO_LARGE => "The body is too long.",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "The body is no `application/json`.",
        StatusCode::UNPROCESSABLE_ENTITY => "A value is not allowed, or the build is not ready for that.",
        StatusCode::UPGRADE_REQUIRED => "Only a WebSocket is served here.",
        StatusCode::TOO_MANY_REQUESTS => "Too often; `Retry-After` says when.",
        StatusCode::SERVICE_UNAVAILABLE => "Not now; `error_type` says why.",
        StatusCode::INSUFFICIENT_STORAGE => "The server's disk refuses changes; nothing was recorded.",
        _ => "Refused.",
    }
}
