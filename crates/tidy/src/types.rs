//! Type names that two crates define: a name means one thing in the whole workspace.

use std::collections::BTreeMap;

use crate::Finding;

/// Where each type name is defined: crate to the first file and line.
pub type Definitions = BTreeMap<String, BTreeMap<String, (String, usize)>>;

/// Adds the types of one file of `crates/NAME/src` that other modules can see.
pub fn collect(definitions: &mut Definitions, file: &str, text: &str) {
    let Some((name, rest)) = file.strip_prefix("crates/").and_then(|path| path.split_once('/')) else { return };
    if !rest.starts_with("src/") {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        if let Some(type_name) = visible_type(line) {
            let crates = definitions.entry(type_name.to_owned()).or_default();
            crates.entry(name.to_owned()).or_insert_with(|| (file.to_owned(), index + 1));
        }
    }
}

/// The name that a line defines with `pub` or `pub(crate)`, if it defines a type.
fn visible_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub "))?;
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let line = ["struct ", "enum ", "trait ", "union ", "type "].iter().find_map(|kind| line.strip_prefix(kind))?;
    let end = line.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(line.len());
    // A macro that defines types has `$name` here.
    (end > 0).then(|| &line[..end])
}

/// Names that two crates define and no list allows.
pub fn check_types(definitions: &Definitions, allowed: impl Fn(&str) -> bool) -> Vec<Finding> {
    duplicates(definitions)
        .filter(|(name, _)| !allowed(name))
        .map(|(name, crates)| {
            let places: Vec<String> = crates.values().map(|(file, line)| format!("{file}:{line}")).collect();
            let (file, line) = crates.values().next().expect("a duplicate has places");
            let message = format!(
                "`{name}` is defined in several crates; name each for what it is, or add it to ALLOWED_TYPES of \
                 crates/tidy/src/lists.rs with the reason: {}",
                places.join(", ")
            );
            Finding::new(file, *line, message)
        })
        .collect()
}

/// Names that more than one crate defines.
pub fn duplicates(definitions: &Definitions) -> impl Iterator<Item = (&String, &BTreeMap<String, (String, usize)>)> {
    definitions.iter().filter(|(_, crates)| crates.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_two_crates_is_found_unless_allowed() {
        let mut definitions = Definitions::new();
        collect(
            &mut definitions,
            "crates/a/src/x.rs",
            "\npub struct Entry<T>(T);\npub(crate) enum Own {}\nstruct Gate;",
        );
        collect(
            &mut definitions,
            "crates/b/src/y.rs",
            "pub(crate) trait Entry {}\npub(super) enum Own {}\npub type Gate = ();",
        );
        collect(&mut definitions, "crates/c/tests/z.rs", "pub struct Gate;");
        collect(&mut definitions, "crates/c/src/m.rs", "pub struct $name;");
        collect(&mut definitions, "crates/d/src/m.rs", "pub struct $name;");
        let found = check_types(&definitions, |_| false);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("crates/a/src/x.rs", 2));
        assert!(found[0].message.contains("crates/b/src/y.rs:1"), "{}", found[0]);
        assert_eq!(check_types(&definitions, |name| name == "Entry"), []);
    }
}
