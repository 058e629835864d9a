//! Contract of `edit_file`.

use sandbar_tools::ErrorCode;
use serde_json::json;

use crate::fixture::Fixture;

crate::contract!(in [memory, server, plain]: [
    text_is_replaced,
    missing_text_is_explained,
    ambiguous_text_lists_its_lines,
    replace_all_replaces_every_occurrence,
    other_bytes_stay_unchanged,
    mixed_line_ends_are_kept,
    copied_line_numbers_are_removed,
    foreign_change_elsewhere_is_noted,
    concurrent_edits_all_apply,
    empty_old_string_creates_a_file,
    edit_keeps_the_mode,
    repeated_edit_is_recognised,
    identical_replacement_is_refused,
]);

async fn text_is_replaced(fixture: &Fixture) {
    fixture.put("/home/user/a.rs", "fn a() {}\nfn b() {}\nfn c() {}\n").await;
    let input = json!({ "path": "/home/user/a.rs", "old_str": "fn b() {}", "new_str": "fn b() {\n    c();\n}" });
    let edited = fixture.call("edit_file", input).await;
    let expected =
        "Edited /home/user/a.rs: 1 replacement at line 2.\n1\tfn a() {}\n2\tfn b() {\n3\t    c();\n4\t}\n5\tfn c() {}";
    assert_eq!(edited.text(), expected);
    assert_eq!(edited.structured.to_value()["tier"], "exact");
    assert_eq!(edited.structured.to_value()["lines"], json!([2]));
    assert_eq!(fixture.get("/home/user/a.rs").await, "fn a() {}\nfn b() {\n    c();\n}\nfn c() {}\n");
}

async fn missing_text_is_explained(fixture: &Fixture) {
    fixture.put("/home/user/a.rs", "fn a() {\n\tlet x = 1;\n}\n").await;
    let input = json!({ "path": "/home/user/a.rs", "old_string": "    let x = 1;", "new_string": "" });
    let text = fixture.fails("edit_file", input, ErrorCode::NoMatch).await;
    assert!(text.starts_with("Error: old_string not found in /home/user/a.rs."), "{text}");
    assert!(text.contains("at line 2, which differs in indentation (the file has tabs)"), "{text}");
    // A similar text is never replaced.
    assert_eq!(fixture.get("/home/user/a.rs").await, "fn a() {\n\tlet x = 1;\n}\n");
    // A short text occurs by chance; a longer one shows that the edit was made before.
    let input = json!({ "path": "/home/user/a.rs", "old_string": "entirely different", "new_string": "x" });
    let text = fixture.fails("edit_file", input, ErrorCode::NoMatch).await;
    assert!(!text.contains("already there"), "{text}");
    let input =
        json!({ "path": "/home/user/a.rs", "old_string": "entirely different", "new_string": "\tlet x = 1;\n}" });
    let text = fixture.fails("edit_file", input, ErrorCode::NoMatch).await;
    assert!(text.contains("new_string is already there, at line 2."), "{text}");
    let input = json!({ "path": "/home/user/none.rs", "old_string": "a", "new_string": "b" });
    fixture.fails("edit_file", input, ErrorCode::NotFound).await;
}

async fn ambiguous_text_lists_its_lines(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "x = 1\ny = 2\nx = 1\n").await;
    let input = json!({ "path": "/home/user/a.txt", "old_string": "x = 1", "new_string": "x = 3" });
    let text = fixture.fails("edit_file", input, ErrorCode::NotUnique).await;
    assert!(text.starts_with("old_string occurs 2 times in /home/user/a.txt, at lines 1 and 3."), "{text}");
    fixture.put("/home/user/b.txt", "aaa").await;
    let input = json!({ "path": "/home/user/b.txt", "old_string": "aa", "new_string": "b" });
    let text = fixture.fails("edit_file", input, ErrorCode::NotUnique).await;
    assert!(text.contains("occurs 2 times"), "{text}");
}

async fn replace_all_replaces_every_occurrence(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one two one\r\none\r\n").await;
    let input = json!({ "path": "/home/user/a.txt", "oldString": "one", "newString": "1", "replaceAll": "true" });
    let edited = fixture.call("edit_file", input).await;
    assert_eq!(edited.structured.to_value()["replacements"], 3);
    assert_eq!(fixture.get("/home/user/a.txt").await, "1 two 1\r\n1\r\n");
    // `replace_all` requires that the session has seen the file.
    fixture.put("/home/user/a.txt", "1 two 1\r\n1 and 1\r\n").await;
    let input = json!({ "path": "/home/user/a.txt", "old_string": "1", "new_string": "2", "replace_all": true });
    fixture.fails("edit_file", input, ErrorCode::Stale).await;
}

async fn other_bytes_stay_unchanged(fixture: &Fixture) {
    fixture.put("/home/user/l1.txt", &b"caf\xe9 \x81 one\r\nol\xe9"[..]).await;
    let input = json!({ "path": "/home/user/l1.txt", "old_string": "olé", "new_string": "thé\nglacé" });
    fixture.ok("edit_file", input).await;
    assert_eq!(fixture.get("/home/user/l1.txt").await, &b"caf\xe9 \x81 one\r\nth\xe9\r\nglac\xe9"[..]);
    let input = json!({ "path": "/home/user/l1.txt", "old_string": "one", "new_string": "→" });
    let text = fixture.fails("edit_file", input, ErrorCode::InvalidInput).await;
    assert!(text.contains("windows-1252") && text.contains("'→' (U+2192)"), "{text}");
}

async fn mixed_line_ends_are_kept(fixture: &Fixture) {
    fixture.put("/home/user/m.txt", "a\r\nb\nc\r\nd\n").await;
    let input = json!({ "path": "/home/user/m.txt", "old_string": "b\nc\n", "new_string": "x\ny\n" });
    let edited = fixture.call("edit_file", input).await;
    assert_eq!(edited.structured.to_value()["tier"], "eol");
    assert_eq!(fixture.get("/home/user/m.txt").await, "a\r\nx\ny\nd\n");
}

async fn copied_line_numbers_are_removed(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\ntwo\nthree\n").await;
    let input = json!({ "path": "/home/user/a.txt", "old_string": "1\tone\n2\ttwo", "new_string": "1\teins\n2\tzwei" });
    let edited = fixture.call("edit_file", input).await;
    assert_eq!(edited.structured.to_value()["tier"], "line_prefix");
    assert_eq!(fixture.get("/home/user/a.txt").await, "eins\nzwei\nthree\n");
}

async fn foreign_change_elsewhere_is_noted(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\ntwo\nthree\n").await;
    fixture.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    fixture.ok("bash", json!({ "command": "printf 'zero\\none\\ntwo\\nthree\\n' > a.txt" })).await;
    let input = json!({ "path": "/home/user/a.txt", "old_string": "three", "new_string": "drei" });
    let edited = fixture.call("edit_file", input).await;
    assert!(edited.text().contains("the file changed since you last read it (lines 1–1)"), "{}", edited.text());
    assert_eq!(edited.structured.to_value()["stale"], true);
    // The session's own writes are not foreign changes.
    let input = json!({ "path": "/home/user/a.txt", "old_string": "two", "new_string": "zwei" });
    assert_eq!(fixture.call("edit_file", input).await.structured.to_value()["stale"], false);
}

async fn concurrent_edits_all_apply(fixture: &Fixture) {
    let lines: String = (0..10).map(|number| format!("<{number}>\n")).collect();
    fixture.put("/home/user/a.txt", lines).await;
    let edit = async |number: usize| {
        let (old, new) = (format!("<{number}>"), format!("[{number}]"));
        fixture.ok("edit_file", json!({ "path": "/home/user/a.txt", "old_string": old, "new_string": new })).await
    };
    futures::future::join_all((0..10).map(edit)).await;
    let expected: String = (0..10).map(|number| format!("[{number}]\n")).collect();
    assert_eq!(fixture.get("/home/user/a.txt").await, expected);
}

async fn empty_old_string_creates_a_file(fixture: &Fixture) {
    let input = json!({ "path": "/home/user/new.txt", "old_string": "", "new_string": "hello\n" });
    fixture.ok("edit_file", input.clone()).await;
    assert_eq!(fixture.get("/home/user/new.txt").await, "hello\n");
    let text = fixture.fails("edit_file", input, ErrorCode::InvalidInput).await;
    assert!(text.contains("write_file"), "{text}");
}

async fn edit_keeps_the_mode(fixture: &Fixture) {
    fixture.put("/home/user/run.sh", "#!/bin/sh\necho a\n").await;
    fixture.set_mode("/home/user/run.sh", 0o750).await;
    fixture
        .ok("edit_file", json!({ "path": "/home/user/run.sh", "old_string": "echo a", "new_string": "echo b" }))
        .await;
    assert_eq!(fixture.mode("/home/user/run.sh").await, 0o750);
    assert_eq!(fixture.get("/home/user/run.sh").await, "#!/bin/sh\necho b\n");
}

async fn repeated_edit_is_recognised(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\ntwo\n").await;
    let input = json!({ "path": "/home/user/a.txt", "old_string": "two", "new_string": "zwei" });
    fixture.ok("edit_file", input.clone()).await;
    let text = fixture.fails("edit_file", input, ErrorCode::NoMatch).await;
    assert!(text.contains("This text was already replaced by your edit at line 2."), "{text}");
}

async fn identical_replacement_is_refused(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\n").await;
    let input = json!({ "path": "/home/user/a.txt", "old_string": "one", "new_string": "one" });
    fixture.fails("edit_file", input, ErrorCode::NoChange).await;
}
