//! Contract of `write_file`.

use sandbar_tools::ErrorCode;
use serde_json::json;

use crate::fixture::Fixture;

crate::contract!(in [memory, server, plain]: [
    new_file_gets_its_directories,
    unread_file_is_not_overwritten,
    changed_file_is_refused_with_a_diff,
    touched_file_counts_as_unchanged,
    identical_content_writes_nothing,
    line_ends_and_bom_are_kept,
    mode_and_link_are_kept,
    placeholders_are_warned_about,
    directory_is_not_overwritten,
    read_only_path_is_permission_denied,
    huge_file_is_not_fetched_for_replacement,
]);

async fn new_file_gets_its_directories(fixture: &Fixture) {
    let made = fixture.call("write_file", json!({ "path": "/home/user/a/b/c.txt", "content": "one\ntwo" })).await;
    assert_eq!(made.text(), "Created /home/user/a/b/c.txt (2 lines, 7 bytes).");
    assert_eq!(made.structured.to_value()["created"], true);
    assert_eq!(fixture.get("/home/user/a/b/c.txt").await, "one\ntwo");
    // The session has seen what it wrote itself.
    let text = fixture.ok("write_file", json!({ "path": "/home/user/a/b/c.txt", "content": "x\n" })).await;
    assert_eq!(text, "Overwrote /home/user/a/b/c.txt (2 → 1 line).");
    // File names are never interpreted.
    let strange = "/home/user/it's $HOME; `x` \"q\"\n.txt";
    fixture.ok("write_file", json!({ "path": strange, "content": "kept" })).await;
    assert_eq!(fixture.get(strange).await, "kept");
}

async fn unread_file_is_not_overwritten(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "precious\nwork\n").await;
    let text =
        fixture.fails("write_file", json!({ "path": "/home/user/a.txt", "content": "gone" }), ErrorCode::NotRead).await;
    assert!(text.starts_with("/home/user/a.txt exists (2 lines) and has not been read in this session."), "{text}");
    assert_eq!(fixture.get("/home/user/a.txt").await, "precious\nwork\n");
    fixture.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    fixture.ok("write_file", json!({ "path": "/home/user/a.txt", "content": "new" })).await;
    assert_eq!(fixture.get("/home/user/a.txt").await, "new");
    // An empty file has nothing to lose.
    fixture.put("/home/user/empty", "").await;
    fixture.ok("write_file", json!({ "path": "/home/user/empty", "content": "x" })).await;
}

async fn changed_file_is_refused_with_a_diff(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\ntwo\nthree\n").await;
    fixture.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    fixture.ok("bash", json!({ "command": "echo four >> a.txt" })).await;
    let text =
        fixture.fails("write_file", json!({ "path": "/home/user/a.txt", "content": "x" }), ErrorCode::Stale).await;
    assert!(text.contains("changed after you last read it (1 line differs):"), "{text}");
    assert!(text.contains("\n+four\n"), "{text}");
    assert_eq!(fixture.get("/home/user/a.txt").await, "one\ntwo\nthree\nfour\n");
}

async fn touched_file_counts_as_unchanged(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\n").await;
    fixture.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    fixture.ok("bash", json!({ "command": "touch a.txt" })).await;
    fixture.ok("write_file", json!({ "path": "/home/user/a.txt", "content": "two\n" })).await;
}

async fn identical_content_writes_nothing(fixture: &Fixture) {
    fixture.put("/home/user/a.txt", "one\n").await;
    fixture.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    let same = fixture.call("write_file", json!({ "path": "/home/user/a.txt", "content": "one\n" })).await;
    assert_eq!(same.text(), "[unchanged] /home/user/a.txt already has exactly this content (1 line).");
    assert_eq!(same.structured.to_value()["unchanged"], true);
}

async fn line_ends_and_bom_are_kept(fixture: &Fixture) {
    fixture.put("/home/user/w.txt", &b"\xef\xbb\xbfone\r\ntwo\r\n"[..]).await;
    fixture.ok("read_file", json!({ "path": "/home/user/w.txt" })).await;
    let text = fixture.ok("write_file", json!({ "path": "/home/user/w.txt", "content": "three\nfour\n" })).await;
    assert!(text.contains("CRLF"), "{text}");
    assert_eq!(fixture.get("/home/user/w.txt").await, &b"\xef\xbb\xbfthree\r\nfour\r\n"[..]);
}

async fn mode_and_link_are_kept(fixture: &Fixture) {
    fixture.put("/home/user/run.sh", "#!/bin/sh\n").await;
    fixture.set_mode("/home/user/run.sh", 0o755).await;
    fixture.link("/home/user/link.sh", "run.sh").await;
    fixture.ok("read_file", json!({ "path": "/home/user/link.sh" })).await;
    fixture.ok("write_file", json!({ "path": "/home/user/link.sh", "content": "#!/bin/sh\ntrue\n" })).await;
    assert_eq!(fixture.get("/home/user/run.sh").await, "#!/bin/sh\ntrue\n");
    assert_eq!(fixture.mode("/home/user/run.sh").await, 0o755);
    fixture.ok("bash", json!({ "command": "rm run.sh" })).await;
    // The link was not replaced by a file.
    fixture.fails("read_file", json!({ "path": "/home/user/link.sh" }), ErrorCode::NotFound).await;
}

async fn placeholders_are_warned_about(fixture: &Fixture) {
    let content = "fn a() {}\n// ... rest of the code unchanged ...\n";
    let text = fixture.ok("write_file", json!({ "path": "/home/user/a.rs", "content": content })).await;
    assert!(text.contains("line 2 looks like a placeholder"), "{text}");
}

async fn directory_is_not_overwritten(fixture: &Fixture) {
    fixture.put("/home/user/d/x", "").await;
    fixture.fails("write_file", json!({ "path": "/home/user/d", "content": "" }), ErrorCode::IsDirectory).await;
    fixture.fails("write_file", json!({ "path": "/home/user/d/x/y", "content": "" }), ErrorCode::NotAFile).await;
}

async fn read_only_path_is_permission_denied(fixture: &Fixture) {
    if fixture.is_memory() {
        return;
    }
    for path in ["/sys/sandbar-test", "/sys/kernel/new/file", "/proc/sandbar-test"] {
        let input = json!({ "path": path, "content": "x" });
        let text = fixture.fails("write_file", input, ErrorCode::PermissionDenied).await;
        assert!(text.contains(path), "{text}");
        let input = json!({ "path": path, "old_string": "", "new_string": "x" });
        fixture.fails("edit_file", input, ErrorCode::PermissionDenied).await;
    }
}

async fn huge_file_is_not_fetched_for_replacement(fixture: &Fixture) {
    if fixture.is_memory() {
        return;
    }
    // Sparse: the sandbox needs no disk for it, but a reader would need memory.
    fixture.ok("bash", json!({ "command": "truncate -s 200G huge" })).await;
    let input = json!({ "path": "/home/user/huge", "content": "x" });
    let text = fixture.fails("write_file", input, ErrorCode::TooLarge).await;
    assert!(text.contains("has 214748364800 bytes"), "{text}");
    // Nor is a file in place of the session's own state.
    fixture.ok("bash", json!({ "command": "echo one > seen.txt" })).await;
    fixture.ok("read_file", json!({ "path": "/home/user/seen.txt" })).await;
    let notes = "for f in /tmp/.sandbar/*/seen/* ~/.sandbar/*/seen/*; do [ -e $f ] && truncate -s 200G $f; done; true";
    fixture.ok("bash", json!({ "command": notes })).await;
    let result = fixture.call("write_file", json!({ "path": "/home/user/seen.txt", "content": "two" })).await;
    assert!(result.text().contains("seen.txt"), "{result:?}");
}
