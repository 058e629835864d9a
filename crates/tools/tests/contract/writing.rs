//! `write_file`.

use sandbar_tools::ErrorCode;
use serde_json::json;

use crate::world::World;

crate::contract!(in [memory, server, plain]: [
    a_new_file_gets_its_directories,
    a_file_that_was_not_read_is_not_overwritten,
    a_file_that_changed_is_shown_with_the_change,
    a_touched_file_has_not_changed,
    the_same_content_changes_nothing,
    line_ends_and_byte_order_mark_stay,
    mode_and_link_stay,
    placeholders_are_warned_of,
    a_directory_is_not_a_file,
    a_read_only_place_is_permission_denied,
    a_huge_file_is_not_fetched_to_be_replaced,
]);

async fn a_new_file_gets_its_directories(world: &World) {
    let made = world.call("write_file", json!({ "path": "/home/user/a/b/c.txt", "content": "one\ntwo" })).await;
    assert_eq!(made.text(), "Created /home/user/a/b/c.txt (2 lines, 7 bytes).");
    assert_eq!(made.structured["created"], true);
    assert_eq!(world.get("/home/user/a/b/c.txt").await, "one\ntwo");
    // What the session wrote itself it has seen.
    let text = world.ok("write_file", json!({ "path": "/home/user/a/b/c.txt", "content": "x\n" })).await;
    assert_eq!(text, "Overwrote /home/user/a/b/c.txt (2 → 1 line).");
    // Names are only names.
    let strange = "/home/user/it's $HOME; `x` \"q\"\n.txt";
    world.ok("write_file", json!({ "path": strange, "content": "kept" })).await;
    assert_eq!(world.get(strange).await, "kept");
}

async fn a_file_that_was_not_read_is_not_overwritten(world: &World) {
    world.put("/home/user/a.txt", "precious\nwork\n").await;
    let text =
        world.fails("write_file", json!({ "path": "/home/user/a.txt", "content": "gone" }), ErrorCode::NotRead).await;
    assert!(text.starts_with("/home/user/a.txt exists (2 lines) and has not been read in this session."), "{text}");
    assert_eq!(world.get("/home/user/a.txt").await, "precious\nwork\n");
    world.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    world.ok("write_file", json!({ "path": "/home/user/a.txt", "content": "new" })).await;
    assert_eq!(world.get("/home/user/a.txt").await, "new");
    // An empty one has nothing to lose.
    world.put("/home/user/empty", "").await;
    world.ok("write_file", json!({ "path": "/home/user/empty", "content": "x" })).await;
}

async fn a_file_that_changed_is_shown_with_the_change(world: &World) {
    world.put("/home/user/a.txt", "one\ntwo\nthree\n").await;
    world.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    world.ok("bash", json!({ "command": "echo four >> a.txt" })).await;
    let text = world.fails("write_file", json!({ "path": "/home/user/a.txt", "content": "x" }), ErrorCode::Stale).await;
    assert!(text.contains("changed after you last read it (1 line differs):"), "{text}");
    assert!(text.contains("\n+four\n"), "{text}");
    assert_eq!(world.get("/home/user/a.txt").await, "one\ntwo\nthree\nfour\n");
}

async fn a_touched_file_has_not_changed(world: &World) {
    world.put("/home/user/a.txt", "one\n").await;
    world.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    world.ok("bash", json!({ "command": "touch a.txt" })).await;
    world.ok("write_file", json!({ "path": "/home/user/a.txt", "content": "two\n" })).await;
}

async fn the_same_content_changes_nothing(world: &World) {
    world.put("/home/user/a.txt", "one\n").await;
    world.ok("read_file", json!({ "path": "/home/user/a.txt" })).await;
    let same = world.call("write_file", json!({ "path": "/home/user/a.txt", "content": "one\n" })).await;
    assert_eq!(same.text(), "[unchanged] /home/user/a.txt already has exactly this content (1 line).");
    assert_eq!(same.structured["unchanged"], true);
}

async fn line_ends_and_byte_order_mark_stay(world: &World) {
    world.put("/home/user/w.txt", &b"\xef\xbb\xbfone\r\ntwo\r\n"[..]).await;
    world.ok("read_file", json!({ "path": "/home/user/w.txt" })).await;
    let text = world.ok("write_file", json!({ "path": "/home/user/w.txt", "content": "three\nfour\n" })).await;
    assert!(text.contains("CRLF"), "{text}");
    assert_eq!(world.get("/home/user/w.txt").await, &b"\xef\xbb\xbfthree\r\nfour\r\n"[..]);
}

async fn mode_and_link_stay(world: &World) {
    world.put("/home/user/run.sh", "#!/bin/sh\n").await;
    world.set_mode("/home/user/run.sh", 0o755).await;
    world.link("/home/user/link.sh", "run.sh").await;
    world.ok("read_file", json!({ "path": "/home/user/link.sh" })).await;
    world.ok("write_file", json!({ "path": "/home/user/link.sh", "content": "#!/bin/sh\ntrue\n" })).await;
    assert_eq!(world.get("/home/user/run.sh").await, "#!/bin/sh\ntrue\n");
    assert_eq!(world.mode("/home/user/run.sh").await, 0o755);
    world.ok("bash", json!({ "command": "rm run.sh" })).await;
    // The link was not replaced by a file.
    world.fails("read_file", json!({ "path": "/home/user/link.sh" }), ErrorCode::NotFound).await;
}

async fn placeholders_are_warned_of(world: &World) {
    let content = "fn a() {}\n// ... rest of the code unchanged ...\n";
    let text = world.ok("write_file", json!({ "path": "/home/user/a.rs", "content": content })).await;
    assert!(text.contains("line 2 looks like a placeholder"), "{text}");
}

async fn a_directory_is_not_a_file(world: &World) {
    world.put("/home/user/d/x", "").await;
    world.fails("write_file", json!({ "path": "/home/user/d", "content": "" }), ErrorCode::IsDirectory).await;
    world.fails("write_file", json!({ "path": "/home/user/d/x/y", "content": "" }), ErrorCode::NotAFile).await;
}

async fn a_read_only_place_is_permission_denied(world: &World) {
    if world.is_memory() {
        return;
    }
    for path in ["/sys/sandbar-test", "/sys/kernel/new/file", "/proc/sandbar-test"] {
        let input = json!({ "path": path, "content": "x" });
        let text = world.fails("write_file", input, ErrorCode::PermissionDenied).await;
        assert!(text.contains(path), "{text}");
        let input = json!({ "path": path, "old_string": "", "new_string": "x" });
        world.fails("edit_file", input, ErrorCode::PermissionDenied).await;
    }
}

async fn a_huge_file_is_not_fetched_to_be_replaced(world: &World) {
    if world.is_memory() {
        return;
    }
    // Sparse: the sandbox needs no disk for it, but its reader would need memory.
    world.ok("bash", json!({ "command": "truncate -s 200G huge" })).await;
    let input = json!({ "path": "/home/user/huge", "content": "x" });
    let text = world.fails("write_file", input, ErrorCode::TooLarge).await;
    assert!(text.contains("has 214748364800 bytes"), "{text}");
    // Nor is what stands in the place of the session's own notes.
    world.ok("bash", json!({ "command": "echo one > seen.txt" })).await;
    world.ok("read_file", json!({ "path": "/home/user/seen.txt" })).await;
    let notes = "for f in /tmp/.sandbar/*/seen/* ~/.sandbar/*/seen/*; do [ -e $f ] && truncate -s 200G $f; done; true";
    world.ok("bash", json!({ "command": notes })).await;
    let result = world.call("write_file", json!({ "path": "/home/user/seen.txt", "content": "two" })).await;
    assert!(result.text().contains("seen.txt"), "{result:?}");
}
