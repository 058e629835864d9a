//! Variables in scope at a position of the file.

use std::collections::BTreeMap;

use crate::expand::Value;
use crate::plan::Options;
use crate::words::shell_quote;

/// Variables of one stage.
#[derive(Debug, Clone, Default)]
pub(crate) struct StageScope {
    /// Declared arguments; [`None`] without a value.
    args: BTreeMap<String, Option<String>>,
    /// Environment variables; [`None`] where the value depends on the image.
    env: BTreeMap<String, Option<String>>,
}

impl StageScope {
    pub(crate) fn lookup(&self, name: &str) -> Value<'_> {
        match (self.env.get(name), self.args.get(name)) {
            (Some(Some(value)), _) | (None, Some(Some(value))) => Value::Set(value),
            (Some(None), _) | (None, None) => Value::Unknown,
            (None, Some(None)) => Value::Unset,
        }
    }

    /// `value` in the form sent to the server.
    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        let depends = value.replace("\\$", "").contains('$');
        self.env.insert(name.to_owned(), (!depends).then(|| value.replace("\\$", "$")));
    }

    pub(crate) fn set_arg(&mut self, name: &str, value: Option<String>) {
        self.args.insert(name.to_owned(), value);
    }

    pub(crate) fn arg(&self, name: &str) -> Option<&String> {
        self.args.get(name)?.as_ref()
    }

    /// The scope of a stage based on this one: inherits the environment, not the arguments.
    pub(crate) fn child_scope(&self) -> Self {
        Self { args: BTreeMap::new(), env: self.env.clone() }
    }

    /// The bytes of the environment, which every stage based on this one has a copy of.
    pub(crate) fn env_bytes(&self) -> usize {
        self.env.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, String::len)).sum()
    }

    /// Shell prefix that exports the arguments to one command only.
    pub(crate) fn exports(&self) -> String {
        let given = self.args.iter().filter(|(name, _)| !self.env.contains_key(*name));
        let pairs: Vec<String> =
            given.filter_map(|(name, value)| Some(format!("{name}={}", shell_quote(value.as_ref()?)))).collect();
        if pairs.is_empty() { String::new() } else { format!("export {}; ", pairs.join(" ")) }
    }
}

/// Arguments that every file can declare with `ARG`, or use in `FROM`.
pub(crate) fn predefined(options: &Options) -> BTreeMap<String, String> {
    let (system, architecture) = options.platform.split_once('/').unwrap_or(("linux", &options.platform));
    let mut known = BTreeMap::new();
    for prefix in ["BUILD", "TARGET"] {
        for (name, value) in [("PLATFORM", options.platform.as_str()), ("OS", system), ("ARCH", architecture)] {
            known.insert(format!("{prefix}{name}"), value.to_owned());
        }
    }
    known
}
