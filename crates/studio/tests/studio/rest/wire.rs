//! `web/src/wire.ts` has the types of the OpenAPI document.

use std::fmt::Write;

use sandbar_studio::rest::RestOptions;
use serde_json::{Map, Value};

use super::golden::check;
use super::lab::{Database, Lab};

const HEADER: &str = "\
// The types of /api, generated from the OpenAPI document. After a change of the document:
// GOLDEN=write cargo test -p sandbar-studio --test studio wire
";

#[tokio::test(flavor = "multi_thread")]
async fn the_types_of_the_dashboard_are_golden() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let document = lab.raw("GET /api/openapi.json", &[], "").await.is(200);
    check("../../../../../web/src/wire.ts", &typescript(&document));
}

/// The schemas of the document as TypeScript.
fn typescript(document: &Value) -> String {
    let mut text = HEADER.to_owned();
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        text.push('\n');
        comment(&mut text, "", schema);
        let fields = fields(schema).map(|fields| {
            let mut text = "{\n".to_owned();
            for (name, optional, schema) in fields {
                comment(&mut text, "  ", schema);
                let mark = if optional { "?" } else { "" };
                writeln!(text, "  {name}{mark}: {};", type_of(schema)).expect("a string grows");
            }
            text + "}"
        });
        match (fields, choices(schema)) {
            (Some(fields), None) => writeln!(text, "export interface {name} {fields}"),
            (Some(fields), Some(choices)) => {
                let choices: String = choices.iter().map(|choice| format!("  | {}\n", type_of(choice))).collect();
                writeln!(text, "export type {name} = {fields} & (\n{choices});")
            }
            (None, _) => writeln!(text, "export type {name} = {};", type_of(schema)),
        }
        .expect("a string grows");
    }
    text
}

fn comment(text: &mut String, indent: &str, schema: &Value) {
    if let Some(words) = schema["description"].as_str() {
        let words: Vec<&str> = words.split_whitespace().collect();
        writeln!(text, "{indent}/** {} */", words.join(" ")).expect("a string grows");
    }
}

/// The fields of an object: name, whether it may be absent, schema.
fn fields(schema: &Value) -> Option<Vec<(&str, bool, &Value)>> {
    let properties: &Map<String, Value> = schema["properties"].as_object()?;
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let field = |(name, schema)| -> (&str, bool, &Value) {
        let name: &String = name;
        (name, !required.contains(&name.as_str()), schema)
    };
    let mut fields: Vec<_> = properties.iter().map(field).collect();
    fields.sort_by_key(|(name, ..)| *name != "type");
    Some(fields)
}

/// The alternatives of a schema. Those without a type are conditions on fields.
fn choices(schema: &Value) -> Option<&Vec<Value>> {
    let choices = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array())?;
    let is_type = |choice: &Value| ["type", "$ref", "const", "enum"].iter().any(|word| choice.get(word).is_some());
    choices.iter().all(is_type).then_some(choices)
}

/// A type in one line.
fn type_of(schema: &Value) -> String {
    let union = |types: Vec<String>| types.join(" | ");
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().expect("a name").to_owned();
    }
    if let Some(only) = schema.get("const") {
        return only.to_string();
    }
    if let Some(values) = schema["enum"].as_array() {
        return union(values.iter().map(Value::to_string).collect());
    }
    if let Some(fields) = fields(schema) {
        let field = |(name, optional, schema): &(&str, bool, &Value)| {
            format!("{name}{}: {}", if *optional { "?" } else { "" }, type_of(schema))
        };
        return format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join("; "));
    }
    if let Some(choices) = choices(schema) {
        return union(choices.iter().map(type_of).collect());
    }
    let named = |name: &str| match name {
        "integer" => "number".to_owned(),
        "array" => format!("Array<{}>", type_of(&schema["items"])),
        "object" => "Record<string, unknown>".to_owned(),
        name => name.to_owned(),
    };
    match &schema["type"] {
        Value::String(name) => named(name),
        Value::Array(names) => union(names.iter().filter_map(Value::as_str).map(named).collect()),
        _ => "unknown".to_owned(),
    }
}
