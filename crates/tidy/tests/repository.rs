//! Applies every check to the repository itself.

use std::process::Command;

use sandbar_tidy::lists::{ALLOWED_TYPES, BASE_COMMIT, MAX_DEPTHS, PENDING_TYPES, UNSAFE_EXCEPTIONS, WORD_EXCEPTIONS};
use sandbar_tidy::types::{Definitions, check_types, collect, duplicates};
use sandbar_tidy::{Finding, check_file, commits, crates, files, glossary, layout, links, words};

fn expect_none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn words_and_comments_follow_the_rules() {
    let findings: Vec<Finding> =
        files::read_all(&files::root()).iter().flat_map(|(file, text)| check_file(file, text)).collect();
    expect_none(&findings);
}

#[test]
fn word_exceptions_are_needed() {
    let files = files::read_all(&files::root());
    let unused: Vec<String> = WORD_EXCEPTIONS
        .iter()
        .filter(|exception| {
            let mut below = files.iter().filter(|(file, _)| file.starts_with(exception.path));
            let quoted = format!("\"{}\" in ", exception.word);
            !below.any(|(file, text)| words::check_with(file, text, &[]).iter().any(|f| f.message.starts_with(&quoted)))
        })
        .map(|exception| format!("{} in {}", exception.word, exception.path))
        .collect();
    assert!(unused.is_empty(), "not needed, so remove them from WORD_EXCEPTIONS: {unused:?}");
    assert!(WORD_EXCEPTIONS.iter().all(|exception| !exception.reason.is_empty()));
}

#[test]
fn unsafe_code_stands_in_sys_modules_with_its_reason() {
    let findings: Vec<Finding> = files::read_all(&files::root())
        .iter()
        .filter(|(file, _)| file.ends_with(".rs") && !UNSAFE_EXCEPTIONS.iter().any(|(path, _)| file == path))
        .flat_map(|(file, text)| layout::check_unsafe(file, text))
        .collect();
    expect_none(&findings);
}

fn crate_graph() -> crates::Graph {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(files::root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    crates::read_metadata(&serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON"))
}

#[test]
fn the_crate_table_is_what_cargo_knows() {
    let document = std::fs::read_to_string(files::root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    expect_none(&crates::check_table("ARCHITECTURE.md", &document, &crate_graph()));
}

#[test]
fn chains_of_dependencies_stay_short() {
    let graph = crate_graph();
    for (from, most) in MAX_DEPTHS {
        let chain = crates::longest_chain(&graph, from);
        assert!(chain.len() <= *most, "{} crates deep, at most {most}: {}", chain.len(), chain.join(" > "));
    }
}

#[test]
fn type_names_mean_one_thing() {
    let mut definitions = Definitions::new();
    for (file, text) in files::read_all(&files::root()) {
        collect(&mut definitions, &file, &text);
    }
    let allowed = |name: &str| ALLOWED_TYPES.iter().any(|(names, _)| names.contains(&name));
    expect_none(&check_types(&definitions, |name| allowed(name) || PENDING_TYPES.contains(&name)));
    let listed = ALLOWED_TYPES.iter().flat_map(|(names, _)| names.iter()).chain(PENDING_TYPES);
    let unused: Vec<&&str> =
        listed.filter(|name| !duplicates(&definitions).any(|(duplicate, _)| duplicate == **name)).collect();
    assert!(unused.is_empty(), "no longer defined twice, so remove them from crates/tidy/src/lists.rs: {unused:?}");
    assert!(ALLOWED_TYPES.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn the_glossary_names_types_of_the_code() {
    let files = files::read_all(&files::root());
    let file = "docs/glossary.md";
    let document = files.iter().find(|(path, _)| path == file).map_or("", |(_, text)| text);
    assert!(glossary::references(document).len() > 50, "the glossary names no types");
    expect_none(&glossary::check_glossary(file, document, &files));
}

#[test]
fn links_of_documents_lead_somewhere() {
    let files = files::read_all(&files::root());
    let documents = || files.iter().filter(|(file, _)| file.ends_with(".md"));
    assert!(documents().map(|(_, text)| links::links(text).len()).sum::<usize>() > 50, "the documents have no links");
    let findings: Vec<Finding> = documents().flat_map(|(file, text)| links::check_links(file, text, &files)).collect();
    expect_none(&findings);
}

#[test]
fn every_page_is_a_chapter_of_the_book() {
    expect_none(&links::check_book("docs/SUMMARY.md", &files::read_all(&files::root())));
}

#[test]
fn commit_subjects_follow_the_rule() {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(files::root()).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let range = format!("{BASE_COMMIT}..HEAD");
    let Some(log) = git(&["log", "--no-merges", "--format=%h %s", &range]) else {
        println!("skipped: no git history with {BASE_COMMIT} here");
        return;
    };
    let findings: Vec<Finding> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(id, subject)| commits::check_subject(id, subject))
        .collect();
    expect_none(&findings);
}

#[test]
fn the_attacks_of_the_suite_stand_in_the_security_document() {
    let document = std::fs::read_to_string(files::root().join("docs/security.md")).expect("it can be read");
    let suite = std::fs::read_to_string(files::root().join("crates/sandbar/tests/system/attack/mod.rs"));
    let suite = suite.expect("it can be read");
    let modules = suite.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let missing: Vec<&str> = modules.filter(|name| !document.contains(&format!("`attack/{name}.rs`"))).collect();
    assert!(missing.is_empty(), "not in docs/security.md: {missing:?}");
}
