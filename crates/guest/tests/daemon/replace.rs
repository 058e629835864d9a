//! `PUT /files`: atomic, and only over the content the client saw.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use sha2::{Digest, Sha256};

use crate::common::TestGuest;
use testing::http::Reply;

fn tag(content: &[u8]) -> String {
    let digest: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digest}\"")
}

fn put(guest: &TestGuest, path: &str, condition: (&str, &str), content: &[u8]) -> Reply {
    let headers = [("content-type", "application/octet-stream"), condition];
    guest.request("PUT", &format!("/files?path={path}"), &headers, content)
}

#[track_caller]
fn names(guest: &TestGuest) -> Vec<String> {
    let listed = fs::read_dir(guest.home()).expect("a home");
    let mut names: Vec<String> =
        listed.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_only_if_its_content_matches() {
    let guest = TestGuest::start();
    let home = guest.home();
    let made = put(&guest, "a.txt", ("if-none-match", "*"), b"one");
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!(made.json()[0]["path"], home.join("a.txt").display().to_string());
    let meta = fs::metadata(home.join("a.txt")).expect("made");
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1000, 1000, 0o644));
    assert_eq!(put(&guest, "a.txt", ("if-none-match", "*"), b"two").status, 412);
    assert_eq!(put(&guest, "a.txt", ("if-match", &tag(b"other")), b"two").status, 412);
    assert_eq!(put(&guest, "missing", ("if-match", &tag(b"")), b"two").status, 412);
    assert_eq!(fs::read(home.join("a.txt")).expect("untouched"), b"one");

    std::os::unix::fs::chown(home.join("a.txt"), Some(0), Some(4)).expect("chown");
    fs::set_permissions(home.join("a.txt"), fs::Permissions::from_mode(0o4751)).expect("chmod");
    symlink("a.txt", home.join("link")).expect("a link");
    let replaced = put(&guest, "link", ("if-match", &tag(b"one")), b"two");
    assert_eq!(replaced.status, 200, "{}", replaced.text());
    assert_eq!(replaced.json()[0]["path"], home.join("a.txt").display().to_string());
    let meta = fs::metadata(home.join("a.txt")).expect("replaced");
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (0, 4, 0o4751));
    assert!(home.join("link").symlink_metadata().expect("a link").is_symlink());
    assert_eq!(fs::read(home.join("a.txt")).expect("replaced"), b"two");
    let emptied = put(&guest, "a.txt", ("if-match", &tag(b"two").to_uppercase()), b"");
    assert_eq!((emptied.status, fs::read(home.join("a.txt")).expect("emptied")), (200, Vec::new()));
    assert!(!names(&guest).iter().any(|name| name.contains("agtmp")), "{:?}", names(&guest));
}

#[test]
fn refused_replacements_leave_no_draft() {
    let guest = TestGuest::start();
    guest.upload("a.txt", b"one");
    fs::create_dir(guest.home().join("directory")).expect("a directory");
    let before = names(&guest);
    let refusals = [
        put(&guest, "directory", ("if-none-match", "*"), b"x"),
        put(&guest, "a.txt", ("if-match", "\"short\""), b"x"),
        put(&guest, "a.txt", ("if-match", "*"), b"x"),
        put(&guest, "a.txt", ("x-nothing", ""), b"x"),
    ];
    for refusal in refusals {
        assert_eq!(refusal.status, 400, "{}", refusal.text());
    }
    assert_eq!(names(&guest), before);
    assert_eq!(fs::read(guest.home().join("a.txt")).expect("untouched"), b"one");
}

/// Concurrent writers each append a line by compare-and-swap and retry on conflict: no line is
/// lost.
#[test]
fn concurrent_replacements_lose_no_update() {
    let guest = TestGuest::start();
    guest.upload("lines", b"");
    std::thread::scope(|scope| {
        for number in 0..4 {
            let guest = &guest;
            scope.spawn(move || {
                for turn in 0..5 {
                    loop {
                        let seen = guest.get("/files?path=lines").body;
                        let longer = [seen.as_slice(), format!("{number} {turn}\n").as_bytes()].concat();
                        match put(guest, "lines", ("if-match", &tag(&seen)), &longer).status {
                            200 => break,
                            412 => {}
                            other => panic!("answered {other}"),
                        }
                    }
                }
            });
        }
    });
    let lines = fs::read_to_string(guest.home().join("lines")).expect("lines");
    assert_eq!(lines.lines().count(), 20, "{lines}");
}
