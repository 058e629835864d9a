//! `filesystem.Filesystem` over real HTTP: entries, trees, errors, and watches event by event.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use testing::{SOON, eventually};

use crate::common::{EventStream, TestGuest};

fn call(guest: &TestGuest, method: &str, request: &Value) -> Result<Value, String> {
    guest.call(&format!("filesystem.Filesystem/{method}"), request).map_err(|error| {
        assert_eq!(error.status, status(&error.code), "{method}: {}", error.message);
        error.code
    })
}

fn status(code: &str) -> u16 {
    match code {
        "invalid_argument" | "failed_precondition" => 400,
        "unauthenticated" => 401,
        "permission_denied" => 403,
        "not_found" => 404,
        "already_exists" => 409,
        other => panic!("unexpected code {other}"),
    }
}

#[test]
fn stat_reports_all_metadata() {
    let guest = TestGuest::start();
    let home = guest.home().display().to_string();
    guest.upload("f.txt", b"12345");
    let entry = call(&guest, "Stat", &json!({"path": "f.txt"})).expect("a stat")["entry"].clone();
    let time = entry["modifiedTime"].as_str().expect("a time");
    assert!(time.ends_with('Z') && time.starts_with("20"), "{time}");
    let mut rest = entry.clone();
    rest.as_object_mut().expect("an object").remove("modifiedTime");
    assert_eq!(
        rest,
        json!({
            "name": "f.txt", "type": "FILE_TYPE_FILE", "path": format!("{home}/f.txt"), "size": "5", "mode": 0o644,
            "permissions": "-rw-r--r--", "owner": "user", "group": "user"
        })
    );
    let directory = call(&guest, "MakeDir", &json!({"path": "d/e"})).expect("made")["entry"].clone();
    assert_eq!(directory["type"], "FILE_TYPE_DIRECTORY");
    assert_eq!((&directory["mode"], &directory["permissions"]), (&json!(0o755), &json!("drwxr-xr-x")));
    assert_eq!((&directory["owner"], &directory["group"]), (&json!("user"), &json!("user")));
    assert!(directory["size"].as_str().and_then(|size| size.parse::<u64>().ok()).is_some_and(|size| size > 0));
    let root = call(&guest, "Stat", &json!({"path": "/"})).expect("a stat");
    assert_eq!((&root["entry"]["path"], &root["entry"]["name"]), (&json!("/"), &json!("/")));
}

#[test]
fn stat_describes_symlinks_and_their_targets() {
    let guest = TestGuest::start();
    let home = guest.home().display().to_string();
    let made = "mkdir d; echo x > d/t; chmod 600 d/t; ln -s d/t l; ln -s l l2; ln -s nowhere dangling; ln -s self self";
    assert_eq!(guest.run(made).end()["status"], "exit status 0");
    let stat = |path: &str| call(&guest, "Stat", &json!({"path": path})).expect("a stat")["entry"].clone();
    let link = stat("l2");
    assert_eq!((&link["type"], &link["mode"]), (&json!("FILE_TYPE_FILE"), &json!(0o600)));
    assert_eq!(link["permissions"], "Lrwxrwxrwx");
    assert_eq!((&link["symlinkTarget"], &link["isSymlink"]), (&json!(format!("{home}/d/t")), &json!(true)));
    assert_eq!(link["path"], format!("{home}/l2"));
    for name in ["dangling", "self"] {
        let lost = stat(name);
        assert_eq!((lost.get("type"), &lost["symlinkTarget"]), (None, &json!(format!("{home}/{name}"))));
    }
}

#[test]
fn listings_are_sorted_and_limited_in_depth() {
    let guest = TestGuest::start();
    let home = guest.home().display().to_string();
    let made = "mkdir -p b/c/d a; touch b/z b/c/y b/c/d/x top; ln -s b link; ln -s loop loop";
    assert_eq!(guest.run(made).end()["status"], "exit status 0");
    let list = |path: &str, depth: Option<u32>| {
        let mut request = json!({"path": path});
        if let Some(depth) = depth {
            request["depth"] = depth.into();
        }
        let entries = call(&guest, "ListDir", &request)?["entries"].clone();
        let paths = entries.as_array().cloned().unwrap_or_default();
        Ok::<_, String>(
            paths
                .iter()
                .map(|entry| entry["path"].as_str().expect("a path").replace(&home, ""))
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    for depth in [None, Some(0), Some(1)] {
        assert_eq!(list("~", depth).as_deref(), Ok("/a /b /link /loop /top"));
    }
    assert_eq!(list("", Some(3)).as_deref(), Ok("/a /b /b/c /b/c/d /b/c/y /b/z /link /loop /top"));
    assert_eq!(list("link", Some(9)).as_deref(), Ok("/link/c /link/c/d /link/c/d/x /link/c/y /link/z"));
    assert_eq!(list("a", None).as_deref(), Ok(""));
    for (path, code) in [("top", "invalid_argument"), ("none", "not_found"), ("loop", "failed_precondition")] {
        assert_eq!(list(path, None), Err(code.to_owned()), "{path}");
    }
}

#[test]
fn tree_operations_return_their_error_codes() {
    let guest = TestGuest::start();
    guest.upload("file", b"x");
    let code = |method: &str, request: Value| call(&guest, method, &request).map(drop);
    let fails = |with: &str| Err(with.to_owned());
    assert_eq!(code("MakeDir", json!({"path": "d/e"})), Ok(()));
    assert_eq!(code("MakeDir", json!({"path": "d/e"})), fails("already_exists"));
    assert_eq!(code("MakeDir", json!({"path": "file"})), fails("invalid_argument"));
    assert_eq!(code("MakeDir", json!({"path": "file/below"})), fails("invalid_argument"));
    assert_eq!(code("MakeDir", json!({"path": "~root/x"})), fails("invalid_argument"));
    assert_eq!(code("MakeDir", json!({"path": "n".repeat(300)})), fails("invalid_argument"));
    assert_eq!(code("Stat", json!({"path": "none"})), fails("not_found"));
    assert_eq!(code("Stat", json!({"path": "file/below"})), fails("not_found"));

    let moved = call(&guest, "Move", &json!({"source": "file", "destination": "new/place"})).expect("moved");
    assert_eq!(moved["entry"]["name"], "place");
    assert_eq!(code("Move", json!({"source": "file", "destination": "x"})), fails("not_found"));
    assert_eq!(code("Move", json!({"source": "new", "destination": "new/below"})), fails("invalid_argument"));
    // To another file system, where the kernel cannot rename.
    let small = guest.base().join("small/there").display().to_string();
    assert_eq!(code("Move", json!({"source": "new", "destination": small})), Ok(()));
    assert_eq!(guest.get(&format!("/files?path={small}/place")).text(), "x");
    assert_eq!(code("Stat", json!({"path": "new"})), fails("not_found"));

    assert_eq!(code("Remove", json!({"path": "d"})), Ok(()));
    assert_eq!(code("Remove", json!({"path": "d"})), Ok(()), "absent is removed");
    assert_eq!(code("Remove", json!({"path": "/"})), fails("invalid_argument"));
    guest.run("mkdir kept; touch kept/file; ln -s kept link");
    assert_eq!(code("Remove", json!({"path": "link"})), Ok(()));
    assert!(guest.home().join("kept/file").exists(), "a link is removed, not what it leads to");
    let ghost =
        guest.call_with("filesystem.Filesystem/Stat", &json!({"path": "kept"}), &[("authorization", "Basic Z2hvc3Q6")]);
    assert_eq!(ghost.expect_err("unknown").code, "unauthenticated");
}

/// Reads events until `last`, as `(kind, name)`.
fn watch_until(stream: &mut EventStream, last: (&str, &str)) -> Vec<(String, String)> {
    let mut seen = Vec::new();
    loop {
        let (flags, payload) = stream.frame();
        assert_eq!(flags, 0, "{}", String::from_utf8_lossy(&payload));
        let message: Value = serde_json::from_slice(&payload).expect("JSON");
        let event = &message["filesystem"];
        let kind = event["type"].as_str().expect("a kind").trim_start_matches("EVENT_TYPE_").to_owned();
        let name = event["name"].as_str().expect("a name").to_owned();
        let done = (kind.as_str(), name.as_str()) == last;
        seen.push((kind, name));
        if done {
            return seen;
        }
    }
}

fn watch(guest: &TestGuest, request: &Value) -> EventStream {
    let mut stream = guest.stream("filesystem.Filesystem/WatchDir", request, &[]);
    assert_eq!(stream.frame(), (0, br#"{"start":{}}"#.to_vec()));
    stream
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

#[test]
fn an_upload_emits_exactly_create_chmod_write() {
    let guest = TestGuest::start();
    guest.run("mkdir w");
    let mut stream = watch(&guest, &json!({"path": "w"}));
    let home = guest.home().display().to_string();
    let boundary = "----b";
    let form = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{home}/w/form\"\r\n\r\nhi\r\n--{boundary}--\r\n"
    );
    let kind = format!("multipart/form-data; boundary={boundary}");
    assert_eq!(guest.request("POST", "/files", &[("content-type", &kind)], form.as_bytes()).status, 200);
    let exact = |name| pairs(&[("CREATE", name), ("CHMOD", name), ("WRITE", name)]);
    assert_eq!(watch_until(&mut stream, ("WRITE", "form")), exact("form"));
    assert_eq!(guest.upload("w/plain", b"content").status, 200);
    assert_eq!(watch_until(&mut stream, ("WRITE", "plain")), exact("plain"));
    // No further event: the next one belongs to the next action.
    guest.call("filesystem.Filesystem/Move", &json!({"source": "w/plain", "destination": "w/other"})).expect("moved");
    assert_eq!(watch_until(&mut stream, ("CREATE", "other")), pairs(&[("RENAME", "plain"), ("CREATE", "other")]));
    guest.call("filesystem.Filesystem/Remove", &json!({"path": "w/other"})).expect("removed");
    assert_eq!(watch_until(&mut stream, ("REMOVE", "other")), pairs(&[("REMOVE", "other")]));
    fs::set_permissions(guest.home().join("w/form"), fs::Permissions::from_mode(0o600)).expect("permissions");
    assert_eq!(watch_until(&mut stream, ("CHMOD", "form")), pairs(&[("CHMOD", "form")]));
}

#[test]
fn a_recursive_watch_follows_new_directories() {
    let guest = TestGuest::start();
    guest.run("mkdir -p w/old");
    let mut deep = watch(&guest, &json!({"path": "w", "recursive": true}));
    let mut flat = watch(&guest, &json!({"path": "w"}));
    guest.run("touch w/old/a; mkdir -p w/n1/n2/n3; touch w/n1/n2/n3/b; touch w/last");
    let seen = watch_until(&mut deep, ("CREATE", "last"));
    for name in ["old/a", "n1", "n1/n2", "n1/n2/n3", "n1/n2/n3/b"] {
        let count = seen.iter().filter(|(kind, seen)| kind == "CREATE" && seen == name).count();
        assert_eq!(count, 1, "{name} in {seen:?}");
    }
    let seen = watch_until(&mut flat, ("CREATE", "last"));
    assert!(seen.iter().all(|(_, name)| !name.contains('/')), "{seen:?}");
    // A moved directory is followed under its new name.
    guest.run("mv w/n1 w/m1; touch w/m1/n2/c; touch w/last2");
    let seen = watch_until(&mut deep, ("CREATE", "last2"));
    assert!(seen.contains(&("RENAME".into(), "n1".into())), "{seen:?}");
    assert!(seen.contains(&("CREATE".into(), "m1/n2/c".into())), "{seen:?}");
    assert!(seen.iter().all(|(_, name)| !name.starts_with("n1/")), "{seen:?}");
}

#[test]
fn a_watch_reports_entries_and_sends_keepalives() {
    let guest = TestGuest::start();
    guest.run("mkdir w");
    let headers = [("keepalive-ping-interval", "1"), ("connect-timeout-ms", "2600")];
    let request = json!({"path": "w", "includeEntry": true});
    let mut stream = guest.stream("filesystem.Filesystem/WatchDir", &request, &headers);
    assert_eq!(stream.frame(), (0, br#"{"start":{}}"#.to_vec()));
    guest.upload("w/e", b"123");
    let (_, payload) = stream.frame();
    let event: Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!(event["filesystem"]["entry"]["path"], guest.home().join("w/e").display().to_string());
    let mut keepalives = 0;
    let last = loop {
        let (flags, payload) = stream.frame();
        if flags == 2 {
            break payload;
        }
        keepalives += usize::from(payload == br#"{"keepalive":{}}"#);
    };
    assert_eq!(keepalives, 2);
    let last: Value = serde_json::from_slice(&last).expect("JSON");
    assert_eq!(last["error"]["code"], "deadline_exceeded");
    for (path, code) in [("none", "not_found"), ("w/e", "invalid_argument")] {
        let run = guest.stream("filesystem.Filesystem/WatchDir", &json!({"path": path}), &[]).finish();
        assert_eq!(run.error_code(), code);
    }
}

#[test]
fn polled_watchers_collect_and_drain() {
    let guest = TestGuest::start();
    guest.run("mkdir w");
    let id = call(&guest, "CreateWatcher", &json!({"path": "w", "recursive": true})).expect("created");
    let id = id["watcherId"].as_str().expect("an id").to_owned();
    let drain = || call(&guest, "GetWatcherEvents", &json!({"watcherId": id}));
    assert_eq!(drain(), Ok(json!({})));
    guest.upload("w/f", b"x");
    let mut seen = Vec::new();
    eventually("three events", SOON, || {
        seen.extend(drain().expect("events")["events"].as_array().cloned().unwrap_or_default());
        (seen.len() >= 3).then_some(())
    });
    let kinds: Vec<&str> = seen.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds, ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"]);
    assert_eq!(drain(), Ok(json!({})));
    assert_eq!(call(&guest, "RemoveWatcher", &json!({"watcherId": id})), Ok(json!({})));
    assert_eq!(drain(), Err("not_found".into()));
    assert_eq!(call(&guest, "RemoveWatcher", &json!({"watcherId": id})), Err("not_found".into()));
    assert_eq!(call(&guest, "CreateWatcher", &json!({"path": "none"})), Err("not_found".into()));
}
