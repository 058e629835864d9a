//! Contract of `grep` and `glob`.

use sandbar_tools::ErrorCode;
use serde_json::json;

use crate::fixture::Fixture;

crate::contract!(in [memory, server, plain, without_ripgrep, without_engines]: [
    matches_come_newest_file_first,
    empty_result_reports_what_was_skipped,
    context_lines_are_included,
    long_results_are_paged,
    globs_and_types_narrow_the_search,
    output_modes_and_flags_work,
    named_file_is_searched_despite_ignore_rules,
    invalid_patterns_are_explained,
    missing_search_roots_are_named,
    patterns_are_never_interpreted_by_a_shell,
    files_are_found_by_name,
    ignored_files_are_shown_only_when_alone,
    equal_times_are_sorted_by_name,
    session_files_are_never_searched,
    file_names_may_contain_line_breaks,
    non_utf8_names_are_reported,
]);

async fn tree(fixture: &Fixture) {
    for (at, (path, content)) in [
        ("src/main.rs", "fn main() {\n    greet();\n}\n"),
        ("src/lib.rs", "pub fn greet() {\n    println!(\"hello\");\n}\n"),
        (".hidden/notes.md", "greet everybody\n"),
        ("target/debug/out.rs", "greet();\n"),
        ("data.bin", "greet\0binary\n"),
        (".git/config", "greet\n"),
        (".gitignore", "/target\n*.log\n"),
        ("build.log", "greet\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/home/user/p/{path}");
        fixture.put(&path, content).await;
        fixture.set_time(&path, 1_700_000_000 + u32::try_from(at).expect("few")).await;
    }
}

async fn matches_come_newest_file_first(fixture: &Fixture) {
    tree(fixture).await;
    let found = fixture.call("grep", json!({ "pattern": "greet", "path": "/home/user/p" })).await;
    let expected = "Found 3 matches in 3 files.\n\
                    /home/user/p/.hidden/notes.md:1:greet everybody\n\
                    /home/user/p/src/lib.rs:1:pub fn greet() {\n\
                    /home/user/p/src/main.rs:2:    greet();";
    assert!(found.text().starts_with(expected), "{}", found.text());
    assert_eq!(found.structured.to_value()["total_matches"], 3);
    assert_eq!(found.structured.to_value()["matches"][2]["line"], 2);
    assert_eq!(found.structured.to_value()["matches"][2]["col"], 5);
    // From the current directory.
    fixture.ok("bash", json!({ "command": "cd p/src" })).await;
    let found = fixture.ok("grep", json!({ "pattern": "greet" })).await;
    assert!(found.starts_with("Found 2 matches in 2 files.\n/home/user/p/src/lib.rs:1:"), "{found}");
}

async fn empty_result_reports_what_was_skipped(fixture: &Fixture) {
    fixture.put("/home/user/p/.gitignore", "secret/\n").await;
    fixture.put("/home/user/p/a.txt", "nothing here\n").await;
    fixture.put("/home/user/p/secret/b.txt", "treasure\n").await;
    let found = fixture.call("grep", json!({ "pattern": "treasure", "path": "/home/user/p" })).await;
    assert!(!found.is_error);
    let text = found.text();
    assert!(
        text.starts_with("[grep: no matches found]\nNo matches for /treasure/ in 2 files under /home/user/p."),
        "{text}"
    );
    assert!(
        text.contains("[Not searched: 1 file ignored by .gitignore. Set include_ignored to search ignored ones.]"),
        "{text}"
    );
    let found =
        fixture.ok("grep", json!({ "pattern": "treasure", "path": "/home/user/p", "include_ignored": true })).await;
    assert!(found.contains("/home/user/p/secret/b.txt:1:treasure"), "{found}");
    fixture.put("/home/user/q/c.bin", "trea\0\ntreasure\n").await;
    let found = fixture.ok("grep", json!({ "pattern": "treasure", "path": "/home/user/q" })).await;
    assert!(found.contains("[Not searched: 1 binary that match."), "{found}");
}

async fn context_lines_are_included(fixture: &Fixture) {
    let text: String = (1..=20).map(|number| format!("line {number}\n")).collect();
    fixture.put("/home/user/a.txt", text).await;
    let input = json!({ "pattern": "line (5|15)$", "path": "/home/user/a.txt", "-B": 1, "-A": 1 });
    let expected = "Found 2 matches in 1 file.\n\
                    /home/user/a.txt-4-line 4\n/home/user/a.txt:5:line 5\n/home/user/a.txt-6-line 6\n--\n\
                    /home/user/a.txt-14-line 14\n/home/user/a.txt:15:line 15\n/home/user/a.txt-16-line 16";
    let found = fixture.call("grep", input).await;
    assert!(found.text().starts_with(expected), "{}", found.text());
    assert_eq!(found.structured.to_value()["matches"][0]["before"], json!(["line 4"]));
    let found = fixture.ok("grep", json!({ "pattern": "line 5", "path": "/home/user/a.txt", "-n": false })).await;
    assert!(found.contains("\n/home/user/a.txt:line 5"), "{found}");
}

async fn long_results_are_paged(fixture: &Fixture) {
    for file in ["a", "b", "c"] {
        let text: String = (1..=100).map(|number| format!("{file}{number}\n")).collect();
        fixture.put(&format!("/home/user/p/{file}.txt"), text).await;
        fixture.set_time(&format!("/home/user/p/{file}.txt"), 1_700_000_000).await;
    }
    let input = json!({ "pattern": ".", "path": "/home/user/p", "head_limit": 120, "offset": 90 });
    let found = fixture.call("grep", input).await;
    let text = found.text();
    assert!(text.starts_with("Found 300 matches in 3 files; showing 91–210 (offset=210 for more).\n"), "{text}");
    assert_eq!(found.structured.to_value()["next_offset"], 210);
    assert_eq!(found.structured.to_value()["matches"].as_array().expect("rows").len(), 120);
    // The second page begins where the first ended, in the same order.
    let all = fixture.call("grep", json!({ "pattern": ".", "path": "/home/user/p", "head_limit": 300 })).await;
    assert_eq!(all.structured.to_value()["matches"][90], found.structured.to_value()["matches"][0]);
    let past = fixture.ok("grep", json!({ "pattern": ".", "path": "/home/user/p", "offset": 999 })).await;
    assert!(past.starts_with("Found 300 matches in 3 files; offset 999 is past the end."), "{past}");
}

async fn globs_and_types_narrow_the_search(fixture: &Fixture) {
    for path in ["a.ts", "src/b.ts", "src/c.js", "src/test/d.ts", "e.py"] {
        fixture.put(&format!("/home/user/p/{path}"), "needle\n").await;
    }
    let files = async |input: serde_json::Value| {
        let mut input = input;
        input["pattern"] = json!("needle");
        input["path"] = json!("/home/user/p");
        input["output_mode"] = json!("files_with_matches");
        let found = fixture.call("grep", input).await;
        let files = found.structured.to_value()["files"].as_array().cloned().unwrap_or_default();
        let mut files: Vec<String> = files
            .iter()
            .map(|path| path.as_str().expect("a path").trim_start_matches("/home/user/p/").to_owned())
            .collect();
        files.sort();
        files
    };
    assert_eq!(files(json!({ "glob": "*.ts" })).await, ["a.ts", "src/b.ts", "src/test/d.ts"]);
    assert_eq!(files(json!({ "glob": "src/**/*.{ts,js}" })).await, ["src/b.ts", "src/c.js", "src/test/d.ts"]);
    assert_eq!(files(json!({ "glob": "!**/test/**" })).await, ["a.ts", "e.py", "src/b.ts", "src/c.js"]);
    assert_eq!(files(json!({ "glob": ["*.ts", "!src/test"] })).await, ["a.ts", "src/b.ts"]);
    assert_eq!(files(json!({ "type": "py" })).await, ["e.py"]);
    let text = fixture.fails("grep", json!({ "pattern": "x", "type": "pyth" }), ErrorCode::InvalidGlob).await;
    assert!(text.contains("not a known file type"), "{text}");
}

async fn output_modes_and_flags_work(fixture: &Fixture) {
    fixture.put("/home/user/p/a.txt", "One\none one\ninterface{}\n").await;
    let call = async |input: serde_json::Value| {
        let mut input = input;
        input["path"] = json!("/home/user/p");
        fixture.call("grep", input).await
    };
    let counted = call(json!({ "pattern": "one", "-i": true, "output_mode": "count" })).await;
    assert_eq!(counted.structured.to_value()["counts"], json!({ "/home/user/p/a.txt": 2 }));
    assert!(counted.text().contains("\n/home/user/p/a.txt:2"), "{}", counted.text());
    assert_eq!(call(json!({ "pattern": "one" })).await.structured.to_value()["total_matches"], 1);
    assert_eq!(
        call(json!({ "pattern": "interface{}", "literal": true })).await.structured.to_value()["total_matches"],
        1
    );
    let long = format!("{}needle{}\n", "a".repeat(3000), "b".repeat(3000));
    fixture.put("/home/user/p/long.txt", long).await;
    let text = call(json!({ "pattern": "needle" })).await.text();
    assert!(text.contains("needle") && text.len() < 900, "{text}");
}

async fn named_file_is_searched_despite_ignore_rules(fixture: &Fixture) {
    tree(fixture).await;
    let found = fixture.ok("grep", json!({ "pattern": "greet", "path": "/home/user/p/build.log" })).await;
    assert!(found.starts_with("Found 1 match in 1 file.\n/home/user/p/build.log:1:greet"), "{found}");
    // A directory that is named is searched, and rules above it do not apply.
    let found = fixture.ok("grep", json!({ "pattern": "greet", "path": "/home/user/p/target" })).await;
    assert!(found.contains("/home/user/p/target/debug/out.rs:1:greet();"), "{found}");
    let found = fixture.ok("grep", json!({ "pattern": "greet", "path": "/home/user/p/.git" })).await;
    assert!(found.contains("/home/user/p/.git/config:1:greet"), "{found}");
}

async fn invalid_patterns_are_explained(fixture: &Fixture) {
    let text = fixture.fails("grep", json!({ "pattern": "a(b" }), ErrorCode::InvalidRegex).await;
    assert!(text.contains("not a valid regular expression") && text.contains('^'), "{text}");
    let text = fixture.fails("grep", json!({ "pattern": "(?<=x)y" }), ErrorCode::InvalidRegex).await;
    assert!(text.contains("Look-ahead and look-behind"), "{text}");
    let text = fixture.fails("grep", json!({ "pattern": "interface{}" }), ErrorCode::InvalidRegex).await;
    assert!(text.contains("literal: true"), "{text}");
    let text = fixture.fails("glob", json!({ "pattern": "src/[a" }), ErrorCode::InvalidGlob).await;
    assert!(text.contains("at position 5"), "{text}");
    fixture.fails("grep", json!({ "pattern": "x", "glob": "{a" }), ErrorCode::InvalidGlob).await;
    fixture.fails("grep", json!({ "pattern": "" }), ErrorCode::InvalidInput).await;
}

async fn missing_search_roots_are_named(fixture: &Fixture) {
    fixture.put("/home/user/src/a.txt", "x\n").await;
    let text = fixture.fails("grep", json!({ "pattern": "x", "path": "/home/user/scr" }), ErrorCode::NotFound).await;
    assert_eq!(text, "/home/user/scr does not exist. Did you mean /home/user/src?");
    fixture.fails("glob", json!({ "pattern": "*", "path": "/home/user/scr" }), ErrorCode::NotFound).await;
    let text =
        fixture.fails("glob", json!({ "pattern": "*", "path": "/home/user/src/a.txt" }), ErrorCode::NotAFile).await;
    assert!(text.contains("is not a directory"), "{text}");
    // An empty path equals absence.
    fixture.ok("glob", json!({ "pattern": "**/*.txt", "path": "" })).await;
}

async fn patterns_are_never_interpreted_by_a_shell(fixture: &Fixture) {
    let texts = [
        "$(touch broken)",
        "`touch broken`",
        "'; touch broken; '",
        "-e",
        "--help",
        "a\"b",
        "\\d+",
        "ä→😀",
        "a b  c",
        "*",
    ];
    for (at, text) in texts.iter().enumerate() {
        let path = format!("/home/user/p/f{at} '$x.txt");
        fixture.put(&path, format!("before\n{text}\n")).await;
    }
    for (at, text) in texts.iter().enumerate() {
        let input = json!({ "pattern": text, "literal": true, "path": "/home/user/p", "output_mode": "content" });
        let found = fixture.call("grep", input).await;
        let facts = found.structured.to_value();
        let rows = facts["matches"].as_array().expect("rows");
        assert!(rows.iter().any(|row| row["text"] == *text), "{text}: {found:?}");
        let name = format!("f{at} '$x.txt");
        let found = fixture.call("glob", json!({ "pattern": name, "path": "/home/user/p" })).await;
        assert_eq!(found.structured.to_value()["files"], json!([format!("/home/user/p/{name}")]));
    }
    assert!(
        fixture
            .ok("glob", json!({ "pattern": "**/broken", "path": "/home/user" }))
            .await
            .starts_with("[glob: no files matched]")
    );
}

async fn files_are_found_by_name(fixture: &Fixture) {
    tree(fixture).await;
    let found = fixture.call("glob", json!({ "pattern": "**/*.rs", "path": "/home/user/p" })).await;
    let expected =
        "/home/user/p/src/lib.rs\n/home/user/p/src/main.rs\n[1 more is ignored by .gitignore; include_ignored:true]";
    assert!(found.text().starts_with(expected), "{}", found.text());
    assert_eq!(
        (&found.structured.to_value()["total"], &found.structured.to_value()["ignored"]),
        (&json!(2), &json!(1))
    );
    // Only this directory, with a hint.
    let found = fixture.ok("glob", json!({ "pattern": "*.rs", "path": "/home/user/p" })).await;
    assert!(
        found.starts_with("[glob: no files matched]\n") && found.contains("[\"**/*.rs\" would match 2 at any depth.]"),
        "{found}"
    );
    // Absolute, braces, hidden, directories.
    let found = fixture.ok("glob", json!({ "pattern": "/home/user/p/src/{main,lib}.rs" })).await;
    assert!(found.starts_with("/home/user/p/src/lib.rs\n/home/user/p/src/main.rs"), "{found}");
    let found = fixture.ok("glob", json!({ "pattern": "**/*.md", "path": "/home/user/p" })).await;
    assert!(found.starts_with("/home/user/p/.hidden/notes.md"), "{found}");
    let found = fixture.ok("glob", json!({ "pattern": "*/", "path": "/home/user/p" })).await;
    assert!(found.contains("/home/user/p/src") && !found.contains("/home/user/p/.gitignore"), "{found}");
    let found = fixture.ok("glob", json!({ "pattern": "**/*", "path": "/home/user/p", "limit": 2 })).await;
    assert!(found.contains("[Showing 2 of "), "{found}");
}

async fn ignored_files_are_shown_only_when_alone(fixture: &Fixture) {
    tree(fixture).await;
    let found = fixture.ok("glob", json!({ "pattern": "**/*.log", "path": "/home/user/p" })).await;
    assert!(
        found.starts_with("/home/user/p/build.log\n[Only files ignored by .gitignore match; it is shown.]"),
        "{found}"
    );
    let found =
        fixture.call("glob", json!({ "pattern": "**/*.rs", "path": "/home/user/p", "include_ignored": true })).await;
    assert_eq!(found.structured.to_value()["total"], 3);
}

async fn equal_times_are_sorted_by_name(fixture: &Fixture) {
    for name in ["c", "a", "b"] {
        let path = format!("/home/user/p/{name}.txt");
        fixture.put(&path, "x\n").await;
        fixture.set_time(&path, 1_700_000_000).await;
    }
    let found = fixture.call("glob", json!({ "pattern": "*.txt", "path": "/home/user/p" })).await;
    // In memory every change is later than the previous, so the newest comes first.
    let order = if fixture.is_memory() { ["b", "a", "c"] } else { ["a", "b", "c"] };
    assert_eq!(found.structured.to_value()["files"], json!(order.map(|name| format!("/home/user/p/{name}.txt"))));
}

async fn session_files_are_never_searched(fixture: &Fixture) {
    fixture.put("/tmp/mine.txt", "needle in a haystack\n").await;
    fixture.ok("read_file", json!({ "path": "/tmp/mine.txt" })).await;
    fixture.ok("bash", json!({ "command": "seq 1 30000; echo needle in a haystack" })).await;
    let found = fixture.call("grep", json!({ "pattern": "needle in a haystack", "path": "/tmp" })).await;
    assert_eq!(found.structured.to_value()["total_files"], 1, "{found:?}");
}

mod with_an_engine_for_lines {
    use super::*;

    crate::contract!(in [memory, server, plain]: [patterns_may_span_lines]);
}

async fn patterns_may_span_lines(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "fn a(\n    x: u32,\n)\nfn b()\n").await;
    let input = json!({ "pattern": "fn a\\(.*?\\)", "path": "/home/user/a.txt", "multiline": true });
    let found = fixture.ok("grep", input).await;
    assert!(
        found.contains("/home/user/a.txt:1:fn a(\n/home/user/a.txt:2:    x: u32,\n/home/user/a.txt:3:)"),
        "{found}"
    );
}

mod without_the_usual_engine {
    use super::*;

    crate::contract!(in [without_engines]: [fallback_engine_is_reported]);
    crate::contract!(in [without_ripgrep]: [helper_results_equal_ripgrep]);
}

async fn fallback_engine_is_reported(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "x\n").await;
    let found = fixture.ok("grep", json!({ "pattern": "x", "path": "/home/user" })).await;
    assert!(
        found.ends_with("[Searched with grep -P and find, since ripgrep is not installed in this sandbox]"),
        "{found}"
    );
    let found = fixture.ok("glob", json!({ "pattern": "*.txt" })).await;
    assert!(found.ends_with("[Searched with find, since ripgrep is not installed in this sandbox]"), "{found}");
}

async fn helper_results_equal_ripgrep(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "x\ny\n").await;
    let found = fixture.ok("grep", json!({ "pattern": "x.y", "path": "/home/user", "multiline": true })).await;
    assert!(found.contains("/home/user/a.txt:1:x"), "{found}");
    assert!(!found.contains("not installed"), "{found}");
}

async fn file_names_may_contain_line_breaks(fixture: &Fixture) {
    let names = ["a\nb.txt", "c\n./d.txt", "9 files searched", "--\ne.txt"];
    for name in names {
        fixture.put(&format!("/home/user/p/{name}"), "before\nneedle here\nafter\n").await;
        fixture.set_time(&format!("/home/user/p/{name}"), 1_700_000_000).await;
    }
    let path = "/home/user/p";
    let found = fixture.call("grep", json!({ "pattern": "needle", "path": path, "-A": 1 })).await;
    let text = found.text();
    assert!(text.starts_with("Found 4 matches in 4 files.\n"), "{text}");
    for name in names {
        let shown = serde_json::Value::from(format!("{path}/{name}"));
        let shown = if name.contains('\n') { shown.to_string() } else { format!("{path}/{name}") };
        assert!(text.contains(&format!("\n{shown}:2:needle here\n{shown}-3-after")), "{text}");
        let facts = found.structured.to_value();
        let matches = facts["matches"].as_array().expect("rows");
        assert!(matches.iter().any(|row| row["path"] == format!("{path}/{name}")), "{found:?}");
        // The file itself as the search root.
        let file = format!("{path}/{name}");
        let alone = fixture.ok("grep", json!({ "pattern": "needle", "path": file })).await;
        assert!(alone.starts_with(&format!("Found 1 match in 1 file.\n{shown}:2:needle here")), "{alone}");
    }
    let page = fixture.ok("grep", json!({ "pattern": "needle", "path": path, "head_limit": 2, "offset": 2 })).await;
    assert!(page.starts_with("Found 4 matches in 4 files; showing 3–4.\n"), "{page}");
    assert_eq!(page.matches("needle here").count(), 2, "{page}");
    for (mode, field) in [("files_with_matches", "files"), ("count", "counts")] {
        let found = fixture.call("grep", json!({ "pattern": "needle", "path": path, "output_mode": mode })).await;
        for name in names {
            let whole = format!("{path}/{name}");
            let known = match &found.structured.to_value()[field] {
                serde_json::Value::Array(files) => files.iter().any(|file| *file == whole),
                counts => counts[&whole] == 1,
            };
            assert!(known, "{name:?}: {found:?}");
        }
    }
    let found = fixture.call("glob", json!({ "pattern": "*.txt", "path": path })).await;
    assert_eq!(found.structured.to_value()["total"], 2, "{found:?}");
    assert!(found.text().lines().any(|line| line == r#""/home/user/p/a\nb.txt""#), "{}", found.text());
}

async fn non_utf8_names_are_reported(fixture: &Fixture) {
    if fixture.is_memory() {
        return;
    }
    fixture
        .ok("bash", json!({ "command": "mkdir q; printf 'needle\n' > $'q/a\\xff.txt'; printf 'needle\n' > q/b.txt" }))
        .await;
    let found = fixture.ok("grep", json!({ "pattern": "needle", "path": "/home/user/q" })).await;
    assert!(found.starts_with("Found 1 match in 1 file.\n/home/user/q/b.txt:1:needle"), "{found}");
    assert!(found.contains("[Left out: 1 file whose name is not UTF-8; use bash for it.]"), "{found}");
    let found = fixture.ok("glob", json!({ "pattern": "**/*.txt", "path": "/home/user/q" })).await;
    assert_eq!(found.lines().next(), Some("/home/user/q/b.txt"), "{found}");
    assert!(found.contains("[Left out: 1 file whose name is not UTF-8; use bash for it.]"), "{found}");
}
