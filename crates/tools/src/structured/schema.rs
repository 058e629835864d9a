//! Derives the output schemas of the tools.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::{CallFacts, FailureFacts, ShellRestarted};

/// The output schema of a tool: its own facts, those of any call, and `others`, the facts that
/// only its failures or a restart of the shell have. No field is required: a failure may have none.
pub(crate) fn schema<Output: JsonSchema>(others: &[&str]) -> Value {
    let mut all = properties::<CallFacts>(Nullable::No);
    let known = properties::<FailureFacts>(Nullable::No).into_iter().chain(properties::<ShellRestarted>(Nullable::No));
    all.extend(known.filter(|(name, _)| others.contains(&name.as_str())));
    all.extend(properties::<Output>(Nullable::Yes));
    json!({ "type": "object", "properties": all })
}

/// Whether an absent fact is null on the wire or left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nullable {
    Yes,
    No,
}

/// The properties of a struct, those of its flattened enum included. Formats, bounds and texts are
/// dropped: clients send the schemas of all tools to models.
fn properties<Facts: JsonSchema>(nullable: Nullable) -> Map<String, Value> {
    let generator = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true).into_generator();
    let mut schema = generator.into_root_schema_for::<Facts>();
    let mut strip = RecursiveTransform(|schema: &mut Schema| {
        for keyword in ["title", "description", "format", "minimum", "maximum"] {
            schema.remove(keyword);
        }
    });
    strip.transform(&mut schema);
    let mut properties = take_properties(schema.as_value().clone());
    if nullable == Nullable::No {
        properties.values_mut().for_each(remove_null);
    }
    properties
}

fn take_properties(mut schema: Value) -> Map<String, Value> {
    let mut properties = match schema["properties"].take() {
        Value::Object(properties) => properties,
        _ => Map::new(),
    };
    let Value::Array(variants) = schema["oneOf"].take() else { return properties };
    for (name, value) in variants.into_iter().flat_map(take_properties) {
        let Some(tag) = value.get("const").cloned() else {
            properties.insert(name, value);
            continue;
        };
        // The tag: each variant adds its name.
        let known = properties.entry(name).or_insert_with(|| json!({ "type": "string", "enum": [] }));
        if let Some(tags) = known["enum"].as_array_mut() {
            tags.push(tag);
        }
    }
    properties
}

/// `["string", "null"]` becomes `"string"`.
fn remove_null(schema: &mut Value) {
    if let Some([kind, _null]) = schema["type"].as_array().map(Vec::as_slice) {
        schema["type"] = kind.clone();
    }
}
