//! `sandbar up` by an ordinary user, from the first sandbox to the removal of all its resources:
//! with subordinate ids and without. The tests run as root and start the server as such a user,
//! whom `./dev setup` has created.

use crate::support::delegated::Delegated;
use crate::support::internet::{HOST_SIDE, Internet, PUBLIC};
use crate::support::{Sandbox, Server, eventually};
use serde_json::json;
use std::fs;
use std::time::Duration;
use testing::User;

/// A web server on port 8000 of the remote machine.
const WEB: &str = "
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'far')
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(('0.0.0.0', 8000), Page)
print('.')
server.serve_forever()
";

#[test]
fn a_user_with_subordinate_ids_has_all_ids_inside() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    let user = User::with_subordinate_ids();
    let server = Server::for_user(user, &["--no-studio"]);
    let sandbox = server.create();
    assert_eq!(sandbox.must("user", "id -u; id -un; pwd"), "1000\nuser\n/home/user\n");
    assert_eq!(
        sandbox.must("user", "sudo -n id -u; stat -c %U /usr /usr/bin/sudo /etc/passwd"),
        "0\nroot\nroot\nroot\n"
    );
    // On the host a process of the sandbox has a subordinate id, not that of the user.
    let process = first_process(&server, &sandbox);
    let owner = fs::metadata(format!("/proc/{process}")).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
    assert!(owner.is_ok_and(|uid| uid != user.uid && uid >= 65_536));
    check_life_cycle(server, &sandbox);
}

#[test]
fn a_user_without_subordinate_ids_has_one_id_inside() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    let server = Server::for_user(User::with_a_single_id(), &["--no-studio"]);
    let sandbox = server.create();
    assert_eq!(sandbox.must("user", "id -u; id -un; pwd"), "0\nuser\n/home/user\n");
    assert_eq!(sandbox.must("user", "sudo -n -E -- id -u; sudo sh -c 'echo $HOME'; sudo -i pwd"), "0\n/root\n/root\n");
    let other = "nobody";
    assert!(!sandbox.run(&format!("sudo -u {other} true")).ok());
    check_life_cycle(server, &sandbox);
}

#[test]
fn a_delegated_cgroup_has_limits_and_freezes() {
    testing::needs_root!("it delegates a cgroup to a user");
    let user = User::with_subordinate_ids();
    let delegated = Delegated::for_user(user);
    let mut server = Server::for_user_in(&delegated.0, user, &["--no-studio"]);
    let sandbox = server.create_with(json!({ "templateID": "base", "memoryMB": 256 }));
    let path = |rest: &str| format!("/sandboxes/{}{rest}", sandbox.id);
    let log = server.call("GET", &path("/logs"), None).text();
    assert!(log.contains("this server is not root") && !log.contains("memory are not limited"), "{log}");
    let bomb = "/usr/bin/python3 -c \"x = [bytearray(1 << 20) for _ in range(4096)]\"; echo ended $?";
    assert_eq!(sandbox.run(bomb).stdout.trim(), "ended 137");
    let pid = sandbox.start_as("user", "exec sleep 3600").pid();
    assert_eq!(server.call("POST", &path("/pause"), Some(json!({ "memory": true }))).status, 204);
    server.kill_9();
    server.start_again();
    let sandbox = sandbox.at(&server.address);
    let connect = format!("/v2/sandboxes/{}/connect", sandbox.id);
    assert!(server.call("POST", &connect, Some(json!({}))).status < 300);
    sandbox.must("user", &format!("kill -0 {pid}"));
    let holds = || delegated.inside().iter().any(|group| group.join(&sandbox.id).exists());
    assert!(holds(), "the control: {:?}", delegated.inside());
    assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
    assert!(!holds(), "{:?}", delegated.inside());
}

/// Checks for both kinds of user: files, network, pause, copies, a crash of the server, and that
/// nothing is left at the end.
fn check_life_cycle(mut server: Server, sandbox: &Sandbox) {
    let path = |rest: &str| format!("/sandboxes/{}{rest}", sandbox.id);
    assert_eq!(sandbox.write("/home/user/kept", b"kept").status, 200);
    assert_eq!(sandbox.read("/home/user/kept").body, b"kept");
    sandbox.must("user", "sudo -n sh -c 'echo x >/usr/local/new && mkdir /usr/share/doc/new && ! unshare -U true'");
    {
        let mut internet = Internet::new();
        internet.serve(WEB);
        assert_eq!(sandbox.must("user", &format!("curl -sS -m 20 http://{PUBLIC}:8000")), "far");
        let refused = sandbox.run(&format!("curl -sS -m 20 http://{HOST_SIDE}:8000"));
        assert!(!refused.ok(), "the host itself is out of reach: {refused:?}");
    }
    let log = server.call("GET", &path("/logs"), None).text();
    assert!(log.contains("this server is not root") && log.contains("memory are not limited"), "{log}");

    sandbox.must("user", "(while :; do date +%s%N >~/tick; sleep 0.02; done) >/dev/null 2>&1 & echo $! >~/pid");
    assert_eq!(server.call("POST", &path("/pause"), Some(json!({ "memory": true }))).status, 204);
    let connect = format!("/v2/sandboxes/{}/connect", sandbox.id);
    assert!(server.call("POST", &connect, Some(json!({}))).status < 300);
    let ticks = "read before <~/tick; for i in $(seq 100); do read after <~/tick; [ \"$before\" != \"$after\" ] && break; sleep 0.1; done";
    sandbox.must("user", &format!("{ticks}; [ \"$before\" != \"$after\" ] && kill -0 $(cat ~/pid)"));

    let snapshot = server.call("POST", &path("/snapshots"), Some(json!({})));
    assert_eq!(snapshot.status, 201, "{}", snapshot.text());
    let snapshot = snapshot.json()["snapshotID"].as_str().expect("an id").to_owned();
    let copy = server.create_with(json!({ "templateID": snapshot }));
    assert_eq!(copy.must("user", "cat ~/kept; stat -c %U ~/kept; sudo -n cat /usr/local/new"), "keptuser\nx\n");
    let forked = server.call("POST", &path("/fork"), Some(json!({ "count": 1 })));
    assert_eq!(forked.status, 201, "{}", forked.text());
    assert_eq!(forked.json()[0]["error"], json!(null), "{}", forked.text());

    server.kill_9();
    server.start_again();
    let sandbox = sandbox.at(&server.address);
    sandbox.must("user", &format!("{ticks}; [ \"$before\" != \"$after\" ] && kill -0 $(cat ~/pid)"));
    assert!(server.call("POST", &connect, Some(json!({}))).status < 300);
    assert_eq!(sandbox.must("user", "cat ~/kept"), "kept");

    let listed = server.call("GET", "/v2/sandboxes", None).json();
    let ids: Vec<_> = listed.as_array().expect("a list").iter().map(|one| one["sandboxID"].clone()).collect();
    assert_eq!(ids.len(), 3, "the first, the copy and the fork: {listed}");
    for id in ids {
        let id = id.as_str().expect("an id");
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{id}"), None).status, 204);
    }
    assert_eq!(server.call("DELETE", &format!("/templates/{snapshot}"), None).status, 204);
    let is_volume = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    let volumes = || fs::read_dir(server.file("volumes")).map_or(0, |all| all.flatten().filter(is_volume).count());
    eventually("all files of sandboxes are gone", Duration::from_secs(60), || (volumes() == 0).then_some(()));
    let left = || processes_of(&server);
    eventually("all processes of sandboxes are gone", Duration::from_secs(30), || left().is_empty().then_some(()));
    let sockets: Vec<_> = fs::read_dir(server.file("run")).expect("the runtime directory").flatten().collect();
    assert!(sockets.is_empty(), "{sockets:?}");
}

/// Pids of process 1 of the server's sandboxes, by the notes in its runtime directory.
fn processes_of(server: &Server) -> Vec<u32> {
    let notes = fs::read_dir(server.file("run")).into_iter().flatten().flatten().map(|entry| entry.path());
    let notes = notes.filter(|path| path.extension().is_some_and(|extension| extension == "run"));
    let note = |path: std::path::PathBuf| -> Option<u32> {
        let note: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        u32::try_from(note["process"]["pid"].as_u64()?).ok()
    };
    notes.filter_map(note).filter(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(false)).collect()
}

fn first_process(server: &Server, sandbox: &Sandbox) -> u32 {
    let note = fs::read(server.file(&format!("run/{}.run", sandbox.id))).expect("a note of the sandbox");
    let note: serde_json::Value = serde_json::from_slice(&note).expect("JSON");
    note["process"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process")
}
