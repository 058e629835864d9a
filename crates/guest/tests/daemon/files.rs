//! `/files` over real HTTP: all upload formats, whole and range downloads, metadata, signatures,
//! refusals.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use protocol::signature::{Claim, Operation};
use serde_json::json;
use testing::http::Reply;
use testing::{SOON, eventually};

use crate::common::{TestGuest, encode, head, write_chunk};

const PLAIN: (&str, &str) = ("content-type", "application/octet-stream");

fn form(parts: &[(&str, &str, &[u8])]) -> (String, Vec<u8>) {
    let boundary = "3f1c0f4e8d";
    let mut body = Vec::new();
    for (name, filename, content) in parts {
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\n\
             Content-Type: text/plain\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}

fn post(guest: &TestGuest, target: &str, headers: &[(&str, &str)], parts: &[(&str, &str, &[u8])]) -> Reply {
    let (kind, body) = form(parts);
    let headers = [&[("content-type", kind.as_str())], headers].concat();
    guest.request("POST", target, &headers, &body)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// Bytes that differ at every position.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

#[track_caller]
fn refused(response: &Reply, status: u16, message: &str) {
    assert_eq!(response.header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(response.json(), json!({"code": status, "message": message}));
    assert_eq!(response.status, status);
}

#[test]
fn a_form_writes_every_file_part_to_its_path() {
    let guest = TestGuest::start();
    let home = guest.home().display().to_string();
    let parts: [(&str, &str, &[u8]); 4] =
        [("file", "a/b c.txt", b"one"), ("other", "ignored", b"x"), ("file", "~/empty", b""), ("file", "", b"")];
    let written = post(&guest, "/files", &[], &parts[..3]);
    assert_eq!(written.status, 200, "{}", written.text());
    assert_eq!(
        written.json(),
        json!([
            {"path": format!("{home}/a/b c.txt"), "name": "b c.txt", "type": "file"},
            {"path": format!("{home}/empty"), "name": "empty", "type": "file"},
        ])
    );
    assert_eq!(fs::read(guest.home().join("a/b c.txt")).expect("written"), b"one");
    assert!(!guest.home().join("ignored").exists());
    for made in ["a", "a/b c.txt"] {
        let meta = fs::metadata(guest.home().join(made)).expect("it exists");
        let mode = if meta.is_dir() { 0o755 } else { 0o644 };
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1000, 1000, mode), "{made}");
    }
    // The query's path overrides the part's name, and permits one part only.
    let one = post(&guest, "/files?path=x%2Fq.txt&username=root", &[], &parts[..1]);
    assert_eq!(one.json()[0]["path"], "/root/x/q.txt");
    let meta = guest.run_with("stat -c %U /root/x", &json!({}), &[("authorization", "Basic cm9vdDo=")]).out();
    assert_eq!(meta, "root\n");
    fs::remove_dir_all("/root/x").expect("cleaned up");
    let twice = post(&guest, "/files?path=twice", &[], &[("file", "a", b"1"), ("file", "b", b"2")]);
    assert_eq!(twice.status, 400);
    assert_eq!(post(&guest, "/files", &[], &[("file", "same", b"1"), ("file", "./same", b"2")]).status, 400);
    assert_eq!(post(&guest, "/files", &[], &parts[3..]).status, 400);
}

#[test]
fn large_files_upload_and_download_in_all_formats() {
    let guest = TestGuest::start();
    let content = pattern(5_000_011);
    // Compression is slow in debug builds.
    let short = &content[..600_011];
    let path = guest.home().join("large");
    let file = path.display().to_string();

    assert_eq!(guest.upload(&file, &content).status, 200);
    assert!(fs::read(&path).expect("written") == content);

    // Chunked, as JavaScript clients send it.
    let (kind, body) = form(&[("file", &file, &content)]);
    let mut stream = guest.connect();
    stream.write_all(&head("POST", "/files", &[("content-type", &kind)], None)).expect("written");
    fs::write(&path, b"old").expect("written");
    for chunk in body.chunks(70_001) {
        write_chunk(&mut stream, chunk);
    }
    stream.write_all(b"0\r\n\r\n").expect("written");
    let answer = Reply::read(&mut std::io::BufReader::new(stream));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(fs::read(&path).expect("written") == content);
    let target = format!("/files?path={}", encode(&file));
    let whole = guest.get(&target);
    assert_eq!((whole.status, whole.header("content-length")), (200, Some("5000011")));
    assert!(whole.body == content);

    // Compressed, raw and as a form.
    let packed = gzip(short);
    fs::write(&path, b"old").expect("written");
    let answer = guest.request("POST", &target, &[PLAIN, ("content-encoding", "gzip")], &packed);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(fs::read(&path).expect("written") == short);
    fs::write(&path, b"old").expect("written");
    let (kind, body) = form(&[("file", &file, short)]);
    let headers = [("content-type", kind.as_str()), ("content-encoding", "gzip")];
    assert_eq!(guest.request("POST", "/files", &headers, &gzip(&body)).status, 200);
    assert!(fs::read(&path).expect("written") == short);
    let packed = guest.request("GET", &target, &[("accept-encoding", "gzip")], b"");
    assert_eq!((packed.header("content-encoding"), packed.header("vary")), (Some("gzip"), Some("Accept-Encoding")));
    let mut unpacked = Vec::new();
    GzDecoder::new(&packed.body[..]).read_to_end(&mut unpacked).expect("gzip");
    assert!(unpacked == short);
}

#[test]
fn ranges_and_conditions_are_honoured() {
    let guest = TestGuest::start();
    guest.upload("n.txt", b"0123456789");
    let get = |headers: &[(&str, &str)]| guest.request("GET", "/files?path=n.txt", headers, b"");
    let whole = get(&[]);
    assert_eq!(whole.header("content-disposition"), Some("inline; filename=\"n.txt\""));
    assert_eq!(whole.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let modified = whole.header("last-modified").expect("a date").to_owned();

    let part = get(&[("range", "bytes=2-4"), ("accept-encoding", "gzip")]);
    assert_eq!((part.status, part.text().as_str()), (206, "234"));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    assert_eq!(part.header("content-encoding"), None);
    assert_eq!(get(&[("range", "bytes=-3")]).text(), "789");
    let outside = get(&[("range", "bytes=10-")]);
    assert_eq!((outside.status, outside.header("content-range")), (416, Some("bytes */10")));
    assert_eq!(get(&[("range", "bytes=2-4"), ("if-range", &modified)]).status, 206);
    assert_eq!(get(&[("range", "bytes=2-4"), ("if-range", "Mon, 01 Jan 2001 00:00:00 GMT")]).status, 200);
    let same = get(&[("if-modified-since", &modified)]);
    assert_eq!((same.status, same.body.len()), (304, 0));
    assert_eq!(get(&[("if-modified-since", "Mon, 01 Jan 2001 00:00:00 GMT")]).status, 200);
    assert_eq!(get(&[("if-unmodified-since", "Mon, 01 Jan 2001 00:00:00 GMT")]).status, 412);
    assert_eq!(get(&[("accept-encoding", "identity;q=0")]).status, 406);
    assert_eq!(get(&[("accept-encoding", "gzip")]).header("content-encoding"), Some("gzip"));
}

#[test]
fn procfs_files_are_read_completely() {
    let guest = TestGuest::start();
    let boot_id = guest.get("/files?path=/proc/sys/kernel/random/boot_id");
    assert_eq!(boot_id.body.len(), 37, "{}", boot_id.text());
    assert!(guest.get("/files?path=/proc/self/status").text().contains("sandbar-guest"));
    guest.upload("empty", b"");
    let empty = guest.get("/files?path=empty");
    assert_eq!((empty.status, empty.body.len()), (200, 0));
}

#[test]
fn hostile_paths_are_refused() {
    let guest = TestGuest::start();
    let base = guest.base().display().to_string();
    let setup = "mkfifo ~/fifo; ln -s loop ~/loop; ln -s fifo ~/to-fifo; mkdir ~/dir; echo x > ~/file";
    assert_eq!(guest.run(setup).end()["status"], "exit status 0");
    let name = "n".repeat(300);
    let cases = [
        ("fifo", 400, 400),
        ("to-fifo", 400, 400),
        ("loop", 400, 400),
        ("dir", 400, 400),
        ("/dev/zero", 400, 400),
        ("~root/x", 400, 400),
        ("a\0b", 400, 400),
        (name.as_str(), 400, 400),
        ("absent", 404, 200),
        ("file/below", 404, 500),
        ("/proc/sys/kernel/nothing", 404, 500),
    ];
    for (path, read, write) in cases {
        let answer = guest.get(&format!("/files?path={}", encode(path)));
        assert_eq!((answer.status, answer.json()["code"].as_u64()), (read, Some(read.into())), "GET {path:?}");
        let answer = guest.upload(path, b"content");
        assert_eq!(answer.status, write, "POST {path:?}: {}", answer.text());
    }
    refused(&guest.get("/files?path=absent2"), 404, &format!("path '{base}/home/absent2' does not exist"));
    refused(&guest.get("/files?username=ghost"), 401, "error looking up user 'ghost': unknown user ghost");
    let answer = guest.request("POST", "/files?path=x&username=ghost", &[PLAIN], b"x");
    refused(&answer, 401, "error looking up user 'ghost': unknown user ghost");
    assert_eq!(guest.request("POST", "/files", &[PLAIN], b"x").status, 400);
    assert_eq!(guest.request("POST", "/files?path=x", &[("content-type", "text/plain")], b"x").status, 400);
    assert_eq!(guest.request("POST", "/files?path=x", &[PLAIN, ("content-encoding", "br")], b"x").status, 400);
    let broken = guest.request("POST", "/files?path=x", &[PLAIN, ("content-encoding", "gzip")], b"no gzip at all");
    assert_eq!(broken.status, 400);
    assert_eq!(guest.request("DELETE", "/files?path=x", &[], b"").status, 405);
}

/// Sends a part of an upload and closes the connection.
fn break_off(guest: &TestGuest, path: &str, content: &[u8]) {
    let mut stream = guest.connect();
    let target = format!("/files?path={}", encode(path));
    stream.write_all(&head("POST", &target, &[PLAIN], Some(content.len() * 2))).expect("written");
    stream.write_all(content).expect("written");
}

#[test]
fn an_aborted_upload_keeps_the_existing_file() {
    let guest = TestGuest::start();
    let home = guest.home();
    let hidden = || {
        let names = fs::read_dir(&home).expect("a home").map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().contains("agtmp")).count()
    };
    for size in [1000, 3_000_000] {
        assert_eq!(guest.upload("file", b"before").status, 200);
        break_off(&guest, "file", &pattern(size));
        break_off(&guest, "new", &pattern(size));
        // No leftovers means that the guest has noticed the disconnects.
        eventually("drafts are removed", SOON, || (hidden() == 0).then_some(()));
        assert_eq!(guest.upload("other", b"x").status, 200);
        assert_eq!(fs::read(home.join("file")).expect("it is there"), b"before");
        eventually("the part of a new file is removed", SOON, || (!home.join("new").exists()).then_some(()));
    }
}

#[test]
fn overwriting_preserves_mode_symlinks_and_hard_links() {
    let guest = TestGuest::start();
    let home = guest.home();
    for size in [1000, 3_000_000] {
        let content = pattern(size);
        fs::write(home.join("script"), b"before").expect("written");
        fs::set_permissions(home.join("script"), fs::Permissions::from_mode(0o751)).expect("chmod");
        let _ = fs::remove_file(home.join("link"));
        symlink("script", home.join("link")).expect("a link");
        assert_eq!(guest.upload("link", &content).status, 200);
        assert!(home.join("link").symlink_metadata().expect("a link").is_symlink());
        let meta = fs::metadata(home.join("script")).expect("written");
        assert_eq!((meta.uid(), meta.mode() & 0o7777, meta.len() as usize), (1000, 0o751, size));

        fs::write(home.join("one"), b"before").expect("written");
        let _ = fs::remove_file(home.join("two"));
        fs::hard_link(home.join("one"), home.join("two")).expect("a name");
        assert_eq!(guest.upload("one", &content).status, 200);
        assert!(fs::read(home.join("two")).expect("written") == content, "both names mean one file");

        let _ = fs::remove_file(home.join("made"));
        let _ = fs::remove_file(home.join("dangling"));
        symlink("made", home.join("dangling")).expect("a link");
        assert_eq!(guest.upload("dangling", &content).status, 200);
        assert!(fs::read(home.join("made")).expect("written through the link") == content);
    }
}

#[test]
fn a_full_disk_is_507_after_the_whole_upload() {
    let guest = TestGuest::start();
    let small = guest.base().join("small").display().to_string();
    // Larger than the disk and all buffers on the path: the client must be able to read the
    // response.
    let content = pattern(8 << 20);
    refused(&guest.upload(&format!("{small}/big"), &content), 507, "not enough disk space available");
    let (kind, body) = form(&[("file", &format!("{small}/other"), &content)]);
    let answer = guest.request("POST", "/files", &[("content-type", &kind)], &body);
    refused(&answer, 507, "not enough disk space available");
    assert_eq!(guest.upload("elsewhere", b"fine").status, 200);
}

#[test]
fn a_full_disk_keeps_the_existing_file() {
    let guest = TestGuest::start();
    // A file system that only the guest sees.
    let small = guest.base().join("small").display().to_string();
    let run = |line: &str| {
        let root = [("authorization", "Basic cm9vdDo=")];
        guest.run_with(&format!("cd {small} && {{ {line}; }}"), &json!({}), &root).out()
    };
    let path = format!("{small}/kept");
    let read = || guest.get(&format!("/files?path={}", encode(&path))).body;
    let (old, new) = (pattern(50_000), pattern(200_000));
    assert_eq!(guest.upload(&path, &old).status, 200);
    run("cat /dev/zero >filler 2>/dev/null");
    // Frees space step by step, so that the disk fills before, within and after the content.
    let mut refusals = 0;
    loop {
        let answer = guest.upload(&path, &new);
        if answer.status == 200 {
            break;
        }
        refused(&answer, 507, "not enough disk space available");
        refusals += 1;
        assert!(read() == old, "at refusal {refusals}");
        assert_eq!(run("ls -A"), "filler\nkept\n", "no draft stays");
        assert!(refusals < 100, "there is room by then");
        run("truncate -s -16384 filler");
    }
    assert!(refusals > 1, "{refusals} refusals");
    assert!(read() == new);
}

#[test]
fn metadata_is_stored_replaced_and_reported() {
    let guest = TestGuest::start();
    let target = "/files?path=noted";
    let set = guest.request("POST", target, &[PLAIN, ("X-Metadata-Author", "ann"), ("x-metadata-b", "2")], b"x");
    assert_eq!(set.json()[0]["metadata"], json!({"author": "ann", "b": "2"}));
    let stat = || guest.call("filesystem.Filesystem/Stat", &json!({"path": "noted"})).expect("a stat");
    assert_eq!(stat()["entry"]["metadata"], json!({"author": "ann", "b": "2"}));
    let moved = json!({"source": "noted", "destination": "moved"});
    let moved = guest.call("filesystem.Filesystem/Move", &moved).expect("moved");
    assert_eq!(moved["entry"]["metadata"]["author"], "ann");
    let back = json!({"source": "moved", "destination": "noted"});
    guest.call("filesystem.Filesystem/Move", &back).expect("moved");

    let replaced = post(&guest, target, &[("x-metadata-c", "3")], &[("file", "x", b"y")]);
    assert_eq!(replaced.json()[0]["metadata"], json!({"c": "3"}));
    assert_eq!(stat()["entry"]["metadata"], json!({"c": "3"}));
    let cleared = guest.request("POST", target, &[PLAIN], b"z");
    assert_eq!(cleared.json()[0].get("metadata"), None);
    assert_eq!(stat()["entry"].get("metadata"), None);
    let inside = "python3 -c \"import os; os.setxattr('noted', 'user.e2b.from', b'inside'); \
        os.setxattr('noted', 'user.e2b.raw', b'\\xff'); os.setxattr('noted', 'user.other', b'x')\"";
    assert_eq!(guest.run(inside).end()["status"], "exit status 0");
    assert_eq!(stat()["entry"]["metadata"], json!({"from": "inside"}));
    let long = "v".repeat(4090);
    assert_eq!(guest.request("POST", target, &[PLAIN, ("x-metadata-a", &long)], b"z").status, 400);
}

#[test]
fn signatures_authorize_files_and_reject_exactly() {
    let token = "envdtok";
    let guest = TestGuest::start_with(|config| config.access_token = Some(token.into()));
    let with_token = [("x-access-token", token), PLAIN];
    assert_eq!(guest.request("POST", "/files?path=s.txt", &with_token, b"secret").status, 200);

    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let sign = |operation, username: &str, expiration: Option<i64>| {
        let signature = Claim { path: "s.txt", operation, username, expiration }.sign(token);
        let mut query = format!("/files?path=s.txt&signature={}", encode(&signature));
        if !username.is_empty() {
            query.push_str(&format!("&username={username}"));
        }
        if let Some(expiration) = expiration {
            query.push_str(&format!("&signature_expiration={expiration}"));
        }
        query
    };
    for expiration in [None, Some(now + 60)] {
        assert_eq!(guest.get(&sign(Operation::Read, "", expiration)).text(), "secret");
        assert_eq!(guest.get(&sign(Operation::Read, "user", expiration)).text(), "secret");
        let write = guest.request("POST", &sign(Operation::Write, "user", expiration), &[PLAIN], b"secret");
        assert_eq!(write.status, 200);
    }
    refused(&guest.get("/files?path=s.txt"), 401, "missing signature query parameter");
    refused(&guest.get(&sign(Operation::Write, "", None)), 401, "invalid signature");
    refused(&guest.get(&format!("{}&username=root", sign(Operation::Read, "", None))), 401, "invalid signature");
    let forged = sign(Operation::Read, "", Some(now - 60)).replace(&format!("{}", now - 60), &format!("{}", now + 60));
    refused(&guest.get(&forged), 401, "invalid signature");
    refused(&guest.get(&sign(Operation::Read, "", Some(now - 60))), 401, "signature is already expired");
    let wrong = guest.request("GET", &sign(Operation::Read, "", None), &[("x-access-token", "wrong")], b"");
    refused(&wrong, 401, "access token present in header but does not match");
    let expired = guest.request("POST", &sign(Operation::Write, "", Some(1)), &[PLAIN], &pattern(3 << 20));
    refused(&expired, 401, "signature is already expired");
}

#[test]
fn compose_concatenates_and_removes_sources() {
    let guest = TestGuest::start();
    guest.upload("p1", b"one ");
    guest.upload("p2", b"two");
    let order = |sources: &[&str], destination: &str| {
        let body = json!({"source_paths": sources, "destination": destination}).to_string();
        guest.request("POST", "/files/compose", &[("content-type", "application/json")], body.as_bytes())
    };
    assert_eq!(order(&["p1", "absent"], "out").status, 404);
    assert_eq!(order(&[], "out").status, 400);
    assert_eq!(order(&["p1", "p2"], "p1").status, 400);
    let done = order(&["p1", "p2"], "new/out");
    assert_eq!((done.status, &done.json()["name"]), (200, &json!("out")));
    assert_eq!(guest.get("/files?path=new/out").text(), "one two");
    assert_eq!(guest.get("/files?path=p1").status, 404);
    assert_eq!(fs::metadata(guest.home().join("new/out")).expect("it exists").uid(), 1000);
}

#[test]
fn transfers_use_constant_memory() {
    let guest = TestGuest::start();
    let peak = || {
        let status = guest.get("/files?path=/proc/1/status").text();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("a peak").to_owned();
        line.split_whitespace().nth(1).and_then(|size| size.parse::<u64>().ok()).expect("a size")
    };
    let content = pattern(1 << 20);
    guest.upload("warm", &content);
    guest.get("/files?path=warm");
    let before = peak();
    let mut stream = guest.connect();
    let size = 96 * content.len();
    stream.write_all(&head("POST", "/files?path=huge", &[PLAIN], Some(size))).expect("written");
    for _ in 0..96 {
        stream.write_all(&content).expect("written");
    }
    assert_eq!(Reply::read(&mut std::io::BufReader::new(stream)).status, 200);
    // The guest must not read ahead for a slow reader.
    let mut stream = guest.connect();
    stream.write_all(&head("GET", "/files?path=huge", &[], Some(0))).expect("written");
    let mut first = [0; 1000];
    stream.read_exact(&mut first).expect("a beginning");
    let after = peak();
    assert!(after < before + 4096, "grew from {before} to {after} kB");
    drop(stream);
}
