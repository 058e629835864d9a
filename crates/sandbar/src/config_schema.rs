//! The keys of the configuration file as a JSON Schema, generated from the types that read it.
//! `sandbar config schema` prints it, and `docs/configuration_reference.py` writes the reference
//! page from it.
//!
//! Two keywords say what a key is without a value: `default`, and `x-default` in words where the
//! value depends on the machine or on other keys.

use crate::config::Config;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// In words: what holds without a value.
const COMPUTED: &str = "x-default";

pub(crate) fn schema() -> anyhow::Result<Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.for_deserialize().into_generator().into_root_schema_for::<Config>().to_value();
    schema["title"] = "Configuration of Sandbar".into();
    let defaults = serde_json::to_value(Config::defaults()?)?;
    if let Value::Object(root) = &mut schema {
        // Every key may be absent from a file: the program supplies its default.
        root.remove("required");
        for (name, key) in root.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            let default = &defaults[name];
            if key.get(COMPUTED).is_none() && !default.is_null() && !default.is_object() {
                key["default"] = default.clone();
            }
        }
    }
    remove_null(&mut schema);
    Ok(schema)
}

/// Removes `null`, which TOML does not have: an optional key is absent instead.
fn remove_null(schema: &mut Value) {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(items) => return items.iter_mut().for_each(remove_null),
        _ => return,
    };
    fields.values_mut().for_each(remove_null);
    if fields.get("default").is_some_and(Value::is_null) {
        fields.remove("default");
    }
    if let Some(Value::Array(kinds)) = fields.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [only] = &kinds[..] {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [Value::Object(only)] = &choices[..] {
            let only: Map<String, Value> = only.clone();
            fields.remove("anyOf");
            for (name, value) in only {
                fields.entry(name).or_insert(value);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One key of the configuration file.
    #[derive(Debug)]
    pub(crate) struct Key {
        /// Dotted, without indices: `providers.plan.preset`, `models.NAME.input_usd`.
        pub path: String,
        /// [`None`]: it has none, or one that is computed.
        pub default: Option<Value>,
        /// Its values in the file, one for each table of a list.
        pub values: Vec<Value>,
    }

    impl Key {
        /// An empty list or table is a default that no example shows.
        pub(crate) fn has_default_in_file(&self) -> bool {
            let expected = match &self.default {
                Some(Value::Array(items)) if items.is_empty() => return true,
                Some(Value::Object(fields)) if fields.is_empty() => return true,
                None => return true,
                Some(expected) => expected,
            };
            self.values.iter().any(|value| match (value.as_f64(), expected.as_f64()) {
                (Some(value), Some(expected)) => value == expected,
                _ => value == expected,
            })
        }
    }

    /// Every key of the schema, with its values in `file`.
    pub(crate) fn keys(file: &Value) -> Vec<Key> {
        let mut keys = Vec::new();
        collect(&schema().expect("the defaults are known"), "", &[file], &mut keys);
        keys
    }

    fn collect(schema: &Value, path: &str, found: &[&Value], keys: &mut Vec<Key>) {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let in_tables = |name: &str| -> Vec<&Value> { found.iter().filter_map(|table| table.get(name)).collect() };
        if let Some(properties) = schema["properties"].as_object() {
            for (name, key) in properties {
                collect(key, &below(name), &in_tables(name), keys);
            }
        } else if let Some(variants) = schema["oneOf"].as_array().filter(|variants| is_table(&variants[0])) {
            variants.iter().for_each(|variant| collect(variant, path, found, keys));
        } else if is_table(&schema["items"]) {
            let items: Vec<&Value> = found.iter().filter_map(|list| list.as_array()).flatten().collect();
            collect(&schema["items"], path, &items, keys);
        } else if is_table(&schema["additionalProperties"]) {
            let entries: Vec<&Value> =
                found.iter().filter_map(|table| table.as_object()).flat_map(Map::values).collect();
            collect(&schema["additionalProperties"], &below("NAME"), &entries, keys);
        } else {
            let values = found.iter().map(|value| (*value).clone()).collect();
            keys.push(Key { path: path.to_owned(), default: schema.get("default").cloned(), values });
        }
    }

    fn is_table(schema: &Value) -> bool {
        schema.get("properties").is_some()
    }

    #[test]
    fn every_key_is_described_and_has_no_null() {
        fn check(schema: &Value, path: &str) {
            match schema {
                Value::Object(fields) => {
                    for (name, key) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
                        let is_variant = !fields.contains_key("description") && path.ends_with("oneOf");
                        assert!(is_variant || key.get("description").is_some(), "{path}: `{name}` has no doc comment");
                    }
                    fields.iter().for_each(|(name, value)| check(value, &format!("{path}.{name}")));
                }
                Value::Array(items) => items.iter().for_each(|value| check(value, path)),
                value => assert!(*value != "null" && !value.is_null(), "{path} may be null"),
            }
        }
        check(&schema().expect("the defaults are known"), "");
    }

    #[test]
    fn the_schema_has_the_keys_that_are_read() {
        let paths: Vec<String> = keys(&Value::Null).into_iter().map(|key| key.path).collect();
        for expected in [
            "listen",
            "sandboxes.registry_mirrors",
            "screenshots.place.s3.bucket",
            "screenshots.place.disk.served_at",
            "providers.plan.preset",
            "models.NAME.input_usd",
            "budgets.period",
            "scrub.interval_hours",
        ] {
            assert!(paths.iter().any(|path| path == expected), "{expected} is not in {paths:?}");
        }
        assert!(!paths.iter().any(|path| path.contains("credentials") || path.contains("own_server")), "{paths:?}");
    }
}
