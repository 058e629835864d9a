//! The crate table of ARCHITECTURE.md against what cargo knows, and the depth of the dependencies.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Finding;

/// The crates of a workspace, each with the crates of the same workspace that it depends on.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// Names of crates as people write them: without the `sandbar-` of the package.
fn short(package: &str) -> String {
    package.strip_prefix("sandbar-").unwrap_or(package).to_owned()
}

/// Reads the output of `cargo metadata --no-deps`: packages below `crates/`, and their normal and
/// build dependencies on each other. Dev-dependencies may go in circles, so the map has none.
///
/// # Panics
/// When the JSON is not cargo's.
pub fn read_metadata(metadata: &Value) -> Graph {
    let packages: Vec<&Value> = metadata["packages"]
        .as_array()
        .expect("cargo metadata lists packages")
        .iter()
        .filter(|package| package["manifest_path"].as_str().is_some_and(|path| path.contains("/crates/")))
        .collect();
    let names: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let dependencies = |package: &Value| -> BTreeSet<String> {
        let all = package["dependencies"].as_array().expect("a package lists its dependencies");
        all.iter()
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .filter_map(|dependency| dependency["name"].as_str())
            .filter(|name| names.contains(name))
            .map(short)
            .collect()
    };
    packages.iter().filter_map(|package| Some((short(package["name"].as_str()?), dependencies(package)))).collect()
}

/// Rows of the crate table: line, crate, dependencies. A row starts with a name in backticks and
/// has four columns, the third of which lists crates, or `–` for none.
fn rows(document: &str) -> Vec<(usize, String, BTreeSet<String>)> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let [name, _, dependencies, _] = cells.as_slice() else { return None };
        let dependencies = dependencies.split(',').map(str::trim).filter(|name| !matches!(*name, "–" | ""));
        Some((name.trim_end_matches('`').to_owned(), dependencies.map(str::to_owned).collect()))
    };
    document
        .lines()
        .enumerate()
        .filter_map(|(index, line)| row(line).map(|(name, dependencies)| (index + 1, name, dependencies)))
        .collect()
}

/// The longest chain of crates that depend on each other, from `top` down.
pub fn longest_chain<'a>(graph: &'a Graph, top: &'a str) -> Vec<&'a str> {
    let dependencies = graph.get(top).into_iter().flatten();
    let longest = dependencies.map(|dependency| longest_chain(graph, dependency)).max_by_key(Vec::len);
    std::iter::once(top).chain(longest.into_iter().flatten()).collect()
}

/// Rows that name another crate or other dependencies than cargo does, and crates without a row.
pub fn check_table(file: &str, document: &str, graph: &Graph) -> Vec<Finding> {
    let rows = rows(document);
    let mut findings = Vec::new();
    for (line, name, stated) in &rows {
        let Some(actual) = graph.get(name) else {
            findings.push(Finding::new(file, *line, format!("no crate is called `{name}`; remove or rename the row")));
            continue;
        };
        if actual != stated {
            let list = actual.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("`{name}` depends on other crates than the row says; write: {list}");
            findings.push(Finding::new(file, *line, message));
        }
    }
    let missing = graph.keys().filter(|name| !rows.iter().any(|(_, row, _)| row == *name));
    findings.extend(missing.map(|name| Finding::new(file, 1, format!("the crate table has no row for `{name}`"))));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Graph {
        let dependency = |name: &str, kind: Option<&str>| serde_json::json!({"name": name, "kind": kind});
        read_metadata(&serde_json::json!({"packages": [
            {"name": "sandbar-a", "manifest_path": "/x/crates/a/Cargo.toml", "dependencies": [
                dependency("sandbar-b", None), dependency("sandbar-c", Some("dev")), dependency("serde", None)]},
            {"name": "sandbar-b", "manifest_path": "/x/crates/b/Cargo.toml", "dependencies": [
                dependency("sandbar-c", Some("build"))]},
            {"name": "sandbar-c", "manifest_path": "/x/crates/c/Cargo.toml", "dependencies": []},
            {"name": "sandbar-bench", "manifest_path": "/x/bench/Cargo.toml", "dependencies": []},
        ]}))
    }

    #[test]
    fn the_longest_chain_follows_normal_and_build_dependencies() {
        assert_eq!(longest_chain(&sample(), "a"), ["a", "b", "c"]);
        assert_eq!(longest_chain(&sample(), "c"), ["c"]);
    }

    #[test]
    fn a_true_table_passes() {
        let table = "| crate | is | depends on | not |\n|---|---|---|---|\n| `a` | x | b | y |\n| `b` | x | c | y |\n| `c` | x | – | y |";
        assert_eq!(check_table("A.md", table, &sample()), []);
    }

    #[test]
    fn wrong_and_missing_rows_are_found() {
        let table = "| `a` | x | b, c | y |\n| `b` | x | – | y |\n| `d` | x | – | y |";
        let found: Vec<String> = check_table("A.md", table, &sample()).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].starts_with("A.md:1: `a`") && found[0].ends_with("write: b"), "{}", found[0]);
        assert!(found[1].starts_with("A.md:2: `b`"), "{}", found[1]);
        assert!(found[2].contains("no crate is called `d`"), "{}", found[2]);
        assert!(found[3].contains("no row for `c`"), "{}", found[3]);
    }
}
