//! `grep` and `glob`.

use sandbar_tools::ErrorCode;
use serde_json::json;

use crate::world::World;

crate::contract!(in [memory, server, plain, without_ripgrep, without_engines]: [
    lines_are_found_newest_file_first,
    nothing_found_says_what_was_not_searched,
    lines_around_a_match_come_along,
    long_answers_come_in_pages,
    globs_and_types_narrow,
    modes_and_flags,
    a_file_is_searched_whatever_the_rules_say,
    mistakes_in_patterns_are_explained,
    places_that_do_not_exist_are_named,
    patterns_are_only_patterns,
    files_are_found_by_name,
    ignored_files_are_counted_and_given_when_alone,
    equal_times_have_an_order,
    our_own_files_stay_out,
    names_with_line_breaks_are_names,
    a_name_that_is_not_utf8_is_told,
]);

async fn tree(world: &World) {
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
        world.put(&path, content).await;
        world.set_time(&path, 1_700_000_000 + u32::try_from(at).expect("few")).await;
    }
}

async fn lines_are_found_newest_file_first(world: &World) {
    tree(world).await;
    let found = world.call("grep", json!({ "pattern": "greet", "path": "/home/user/p" })).await;
    let expected = "Found 3 matches in 3 files.\n\
                    /home/user/p/.hidden/notes.md:1:greet everybody\n\
                    /home/user/p/src/lib.rs:1:pub fn greet() {\n\
                    /home/user/p/src/main.rs:2:    greet();";
    assert!(found.text().starts_with(expected), "{}", found.text());
    assert_eq!(found.structured["total_matches"], 3);
    assert_eq!(found.structured["matches"][2]["line"], 2);
    assert_eq!(found.structured["matches"][2]["col"], 5);
    // From the current directory.
    world.ok("bash", json!({ "command": "cd p/src" })).await;
    let found = world.ok("grep", json!({ "pattern": "greet" })).await;
    assert!(found.starts_with("Found 2 matches in 2 files.\n/home/user/p/src/lib.rs:1:"), "{found}");
}

async fn nothing_found_says_what_was_not_searched(world: &World) {
    world.put("/home/user/p/.gitignore", "secret/\n").await;
    world.put("/home/user/p/a.txt", "nothing here\n").await;
    world.put("/home/user/p/secret/b.txt", "treasure\n").await;
    let found = world.call("grep", json!({ "pattern": "treasure", "path": "/home/user/p" })).await;
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
        world.ok("grep", json!({ "pattern": "treasure", "path": "/home/user/p", "include_ignored": true })).await;
    assert!(found.contains("/home/user/p/secret/b.txt:1:treasure"), "{found}");
    world.put("/home/user/q/c.bin", "trea\0\ntreasure\n").await;
    let found = world.ok("grep", json!({ "pattern": "treasure", "path": "/home/user/q" })).await;
    assert!(found.contains("[Not searched: 1 binary that match."), "{found}");
}

async fn lines_around_a_match_come_along(world: &World) {
    let text: String = (1..=20).map(|number| format!("line {number}\n")).collect();
    world.put("/home/user/a.txt", text).await;
    let input = json!({ "pattern": "line (5|15)$", "path": "/home/user/a.txt", "-B": 1, "-A": 1 });
    let expected = "Found 2 matches in 1 file.\n\
                    /home/user/a.txt-4-line 4\n/home/user/a.txt:5:line 5\n/home/user/a.txt-6-line 6\n--\n\
                    /home/user/a.txt-14-line 14\n/home/user/a.txt:15:line 15\n/home/user/a.txt-16-line 16";
    let found = world.call("grep", input).await;
    assert!(found.text().starts_with(expected), "{}", found.text());
    assert_eq!(found.structured["matches"][0]["before"], json!(["line 4"]));
    let found = world.ok("grep", json!({ "pattern": "line 5", "path": "/home/user/a.txt", "-n": false })).await;
    assert!(found.contains("\n/home/user/a.txt:line 5"), "{found}");
}

async fn long_answers_come_in_pages(world: &World) {
    for file in ["a", "b", "c"] {
        let text: String = (1..=100).map(|number| format!("{file}{number}\n")).collect();
        world.put(&format!("/home/user/p/{file}.txt"), text).await;
        world.set_time(&format!("/home/user/p/{file}.txt"), 1_700_000_000).await;
    }
    let input = json!({ "pattern": ".", "path": "/home/user/p", "head_limit": 120, "offset": 90 });
    let found = world.call("grep", input).await;
    let text = found.text();
    assert!(text.starts_with("Found 300 matches in 3 files; showing 91–210 (offset=210 for more).\n"), "{text}");
    assert_eq!(found.structured["next_offset"], 210);
    assert_eq!(found.structured["matches"].as_array().expect("rows").len(), 120);
    // The second page begins where the first has ended, in the same order.
    let all = world.call("grep", json!({ "pattern": ".", "path": "/home/user/p", "head_limit": 300 })).await;
    assert_eq!(all.structured["matches"][90], found.structured["matches"][0]);
    let past = world.ok("grep", json!({ "pattern": ".", "path": "/home/user/p", "offset": 999 })).await;
    assert!(past.starts_with("Found 300 matches in 3 files; offset 999 is past the end."), "{past}");
}

async fn globs_and_types_narrow(world: &World) {
    for path in ["a.ts", "src/b.ts", "src/c.js", "src/test/d.ts", "e.py"] {
        world.put(&format!("/home/user/p/{path}"), "needle\n").await;
    }
    let files = async |input: serde_json::Value| {
        let mut input = input;
        input["pattern"] = json!("needle");
        input["path"] = json!("/home/user/p");
        input["output_mode"] = json!("files_with_matches");
        let found = world.call("grep", input).await;
        let files = found.structured["files"].as_array().cloned().unwrap_or_default();
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
    let text = world.fails("grep", json!({ "pattern": "x", "type": "pyth" }), ErrorCode::InvalidGlob).await;
    assert!(text.contains("not a known file type"), "{text}");
}

async fn modes_and_flags(world: &World) {
    world.put("/home/user/p/a.txt", "One\none one\ninterface{}\n").await;
    let call = async |input: serde_json::Value| {
        let mut input = input;
        input["path"] = json!("/home/user/p");
        world.call("grep", input).await
    };
    let counted = call(json!({ "pattern": "one", "-i": true, "output_mode": "count" })).await;
    assert_eq!(counted.structured["counts"], json!({ "/home/user/p/a.txt": 2 }));
    assert!(counted.text().contains("\n/home/user/p/a.txt:2"), "{}", counted.text());
    assert_eq!(call(json!({ "pattern": "one" })).await.structured["total_matches"], 1);
    assert_eq!(call(json!({ "pattern": "interface{}", "literal": true })).await.structured["total_matches"], 1);
    let long = format!("{}needle{}\n", "a".repeat(3000), "b".repeat(3000));
    world.put("/home/user/p/long.txt", long).await;
    let text = call(json!({ "pattern": "needle" })).await.text();
    assert!(text.contains("needle") && text.len() < 900, "{text}");
}

async fn a_file_is_searched_whatever_the_rules_say(world: &World) {
    tree(world).await;
    let found = world.ok("grep", json!({ "pattern": "greet", "path": "/home/user/p/build.log" })).await;
    assert!(found.starts_with("Found 1 match in 1 file.\n/home/user/p/build.log:1:greet"), "{found}");
    // A directory that is named is searched, and rules above it are none.
    let found = world.ok("grep", json!({ "pattern": "greet", "path": "/home/user/p/target" })).await;
    assert!(found.contains("/home/user/p/target/debug/out.rs:1:greet();"), "{found}");
    let found = world.ok("grep", json!({ "pattern": "greet", "path": "/home/user/p/.git" })).await;
    assert!(found.contains("/home/user/p/.git/config:1:greet"), "{found}");
}

async fn mistakes_in_patterns_are_explained(world: &World) {
    let text = world.fails("grep", json!({ "pattern": "a(b" }), ErrorCode::InvalidRegex).await;
    assert!(text.contains("not a valid regular expression") && text.contains('^'), "{text}");
    let text = world.fails("grep", json!({ "pattern": "(?<=x)y" }), ErrorCode::InvalidRegex).await;
    assert!(text.contains("Look-ahead and look-behind"), "{text}");
    let text = world.fails("grep", json!({ "pattern": "interface{}" }), ErrorCode::InvalidRegex).await;
    assert!(text.contains("literal: true"), "{text}");
    let text = world.fails("glob", json!({ "pattern": "src/[a" }), ErrorCode::InvalidGlob).await;
    assert!(text.contains("at position 5"), "{text}");
    world.fails("grep", json!({ "pattern": "x", "glob": "{a" }), ErrorCode::InvalidGlob).await;
    world.fails("grep", json!({ "pattern": "" }), ErrorCode::InvalidInput).await;
}

async fn places_that_do_not_exist_are_named(world: &World) {
    world.put("/home/user/src/a.txt", "x\n").await;
    let text = world.fails("grep", json!({ "pattern": "x", "path": "/home/user/scr" }), ErrorCode::NotFound).await;
    assert_eq!(text, "/home/user/scr does not exist. Did you mean /home/user/src?");
    world.fails("glob", json!({ "pattern": "*", "path": "/home/user/scr" }), ErrorCode::NotFound).await;
    let text =
        world.fails("glob", json!({ "pattern": "*", "path": "/home/user/src/a.txt" }), ErrorCode::NotAFile).await;
    assert!(text.contains("is not a directory"), "{text}");
    // An empty path is no path.
    world.ok("glob", json!({ "pattern": "**/*.txt", "path": "" })).await;
}

async fn patterns_are_only_patterns(world: &World) {
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
        world.put(&path, format!("before\n{text}\n")).await;
    }
    for (at, text) in texts.iter().enumerate() {
        let input = json!({ "pattern": text, "literal": true, "path": "/home/user/p", "output_mode": "content" });
        let found = world.call("grep", input).await;
        let rows = found.structured["matches"].as_array().expect("rows");
        assert!(rows.iter().any(|row| row["text"] == *text), "{text}: {found:?}");
        let name = format!("f{at} '$x.txt");
        let found = world.call("glob", json!({ "pattern": name, "path": "/home/user/p" })).await;
        assert_eq!(found.structured["files"], json!([format!("/home/user/p/{name}")]));
    }
    assert!(
        world
            .ok("glob", json!({ "pattern": "**/broken", "path": "/home/user" }))
            .await
            .starts_with("[glob: no files matched]")
    );
}

async fn files_are_found_by_name(world: &World) {
    tree(world).await;
    let found = world.call("glob", json!({ "pattern": "**/*.rs", "path": "/home/user/p" })).await;
    let expected =
        "/home/user/p/src/lib.rs\n/home/user/p/src/main.rs\n[1 more is ignored by .gitignore; include_ignored:true]";
    assert!(found.text().starts_with(expected), "{}", found.text());
    assert_eq!((&found.structured["total"], &found.structured["ignored"]), (&json!(2), &json!(1)));
    // Only this directory, and a hint.
    let found = world.ok("glob", json!({ "pattern": "*.rs", "path": "/home/user/p" })).await;
    assert!(
        found.starts_with("[glob: no files matched]\n") && found.contains("[\"**/*.rs\" would match 2 at any depth.]"),
        "{found}"
    );
    // Absolute, braces, hidden, directories.
    let found = world.ok("glob", json!({ "pattern": "/home/user/p/src/{main,lib}.rs" })).await;
    assert!(found.starts_with("/home/user/p/src/lib.rs\n/home/user/p/src/main.rs"), "{found}");
    let found = world.ok("glob", json!({ "pattern": "**/*.md", "path": "/home/user/p" })).await;
    assert!(found.starts_with("/home/user/p/.hidden/notes.md"), "{found}");
    let found = world.ok("glob", json!({ "pattern": "*/", "path": "/home/user/p" })).await;
    assert!(found.contains("/home/user/p/src") && !found.contains("/home/user/p/.gitignore"), "{found}");
    let found = world.ok("glob", json!({ "pattern": "**/*", "path": "/home/user/p", "limit": 2 })).await;
    assert!(found.contains("[Showing 2 of "), "{found}");
}

async fn ignored_files_are_counted_and_given_when_alone(world: &World) {
    tree(world).await;
    let found = world.ok("glob", json!({ "pattern": "**/*.log", "path": "/home/user/p" })).await;
    assert!(
        found.starts_with("/home/user/p/build.log\n[Only files ignored by .gitignore match; it is shown.]"),
        "{found}"
    );
    let found =
        world.call("glob", json!({ "pattern": "**/*.rs", "path": "/home/user/p", "include_ignored": true })).await;
    assert_eq!(found.structured["total"], 3);
}

async fn equal_times_have_an_order(world: &World) {
    for name in ["c", "a", "b"] {
        let path = format!("/home/user/p/{name}.txt");
        world.put(&path, "x\n").await;
        world.set_time(&path, 1_700_000_000).await;
    }
    let found = world.call("glob", json!({ "pattern": "*.txt", "path": "/home/user/p" })).await;
    // In memory every change is later than the one before, so the newest comes first.
    let order = if world.is_memory() { ["b", "a", "c"] } else { ["a", "b", "c"] };
    assert_eq!(found.structured["files"], json!(order.map(|name| format!("/home/user/p/{name}.txt"))));
}

async fn our_own_files_stay_out(world: &World) {
    world.put("/tmp/mine.txt", "needle in a haystack\n").await;
    world.ok("read_file", json!({ "path": "/tmp/mine.txt" })).await;
    world.ok("bash", json!({ "command": "seq 1 30000; echo needle in a haystack" })).await;
    let found = world.call("grep", json!({ "pattern": "needle in a haystack", "path": "/tmp" })).await;
    assert_eq!(found.structured["total_files"], 1, "{found:?}");
}

mod with_an_engine_for_lines {
    use super::*;

    crate::contract!(in [memory, server, plain]: [patterns_may_span_lines]);
}

async fn patterns_may_span_lines(world: &World) {
    world.put("/home/user/a.txt", "fn a(\n    x: u32,\n)\nfn b()\n").await;
    let input = json!({ "pattern": "fn a\\(.*?\\)", "path": "/home/user/a.txt", "multiline": true });
    let found = world.ok("grep", input).await;
    assert!(
        found.contains("/home/user/a.txt:1:fn a(\n/home/user/a.txt:2:    x: u32,\n/home/user/a.txt:3:)"),
        "{found}"
    );
}

mod without_the_usual_engine {
    use super::*;

    crate::contract!(in [without_engines]: [the_difference_is_said]);
    crate::contract!(in [without_ripgrep]: [the_helper_is_no_different]);
}

async fn the_difference_is_said(world: &World) {
    world.put("/home/user/a.txt", "x\n").await;
    let found = world.ok("grep", json!({ "pattern": "x", "path": "/home/user" })).await;
    assert!(
        found.ends_with("[Searched with grep -P and find, since ripgrep is not installed in this sandbox]"),
        "{found}"
    );
    let found = world.ok("glob", json!({ "pattern": "*.txt" })).await;
    assert!(found.ends_with("[Searched with find, since ripgrep is not installed in this sandbox]"), "{found}");
}

async fn the_helper_is_no_different(world: &World) {
    world.put("/home/user/a.txt", "x\ny\n").await;
    let found = world.ok("grep", json!({ "pattern": "x.y", "path": "/home/user", "multiline": true })).await;
    assert!(found.contains("/home/user/a.txt:1:x"), "{found}");
    assert!(!found.contains("not installed"), "{found}");
}

async fn names_with_line_breaks_are_names(world: &World) {
    let names = ["a\nb.txt", "c\n./d.txt", "9 files searched", "--\ne.txt"];
    for name in names {
        world.put(&format!("/home/user/p/{name}"), "before\nneedle here\nafter\n").await;
        world.set_time(&format!("/home/user/p/{name}"), 1_700_000_000).await;
    }
    let path = "/home/user/p";
    let found = world.call("grep", json!({ "pattern": "needle", "path": path, "-A": 1 })).await;
    let text = found.text();
    assert!(text.starts_with("Found 4 matches in 4 files.\n"), "{text}");
    for name in names {
        let shown = serde_json::Value::from(format!("{path}/{name}"));
        let shown = if name.contains('\n') { shown.to_string() } else { format!("{path}/{name}") };
        assert!(text.contains(&format!("\n{shown}:2:needle here\n{shown}-3-after")), "{text}");
        let matches = found.structured["matches"].as_array().expect("rows");
        assert!(matches.iter().any(|row| row["path"] == format!("{path}/{name}")), "{found:?}");
        // The file itself as the place to search.
        let file = format!("{path}/{name}");
        let alone = world.ok("grep", json!({ "pattern": "needle", "path": file })).await;
        assert!(alone.starts_with(&format!("Found 1 match in 1 file.\n{shown}:2:needle here")), "{alone}");
    }
    let page = world.ok("grep", json!({ "pattern": "needle", "path": path, "head_limit": 2, "offset": 2 })).await;
    assert!(page.starts_with("Found 4 matches in 4 files; showing 3–4.\n"), "{page}");
    assert_eq!(page.matches("needle here").count(), 2, "{page}");
    for (mode, field) in [("files_with_matches", "files"), ("count", "counts")] {
        let found = world.call("grep", json!({ "pattern": "needle", "path": path, "output_mode": mode })).await;
        for name in names {
            let whole = format!("{path}/{name}");
            let known = match &found.structured[field] {
                serde_json::Value::Array(files) => files.iter().any(|file| *file == whole),
                counts => counts[&whole] == 1,
            };
            assert!(known, "{name:?}: {found:?}");
        }
    }
    let found = world.call("glob", json!({ "pattern": "*.txt", "path": path })).await;
    assert_eq!(found.structured["total"], 2, "{found:?}");
    assert!(found.text().lines().any(|line| line == r#""/home/user/p/a\nb.txt""#), "{}", found.text());
}

async fn a_name_that_is_not_utf8_is_told(world: &World) {
    if world.is_memory() {
        return;
    }
    world
        .ok("bash", json!({ "command": "mkdir q; printf 'needle\n' > $'q/a\\xff.txt'; printf 'needle\n' > q/b.txt" }))
        .await;
    let found = world.ok("grep", json!({ "pattern": "needle", "path": "/home/user/q" })).await;
    assert!(found.starts_with("Found 1 match in 1 file.\n/home/user/q/b.txt:1:needle"), "{found}");
    assert!(found.contains("[Left out: 1 file whose name is not UTF-8; use bash for it.]"), "{found}");
    let found = world.ok("glob", json!({ "pattern": "**/*.txt", "path": "/home/user/q" })).await;
    assert_eq!(found.lines().next(), Some("/home/user/q/b.txt"), "{found}");
    assert!(found.contains("[Left out: 1 file whose name is not UTF-8; use bash for it.]"), "{found}");
}
