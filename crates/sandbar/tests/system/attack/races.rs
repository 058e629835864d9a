//! Race conditions: code in a sandbox keeps swapping files and directories for symbolic links while
//! the server, the guest and the program resolve their paths. Every link leads to a directory of
//! the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use testing::User;

use crate::support::sandbox::Running;
use crate::support::{Program, Sandbox, Server, eventually, http, repeats};

const SECRET: &str = "host-secret-5a1f";
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one interface is attacked.
fn race_duration() -> Duration {
    Duration::from_millis(repeats(1_500, 60_000) as u64)
}

/// Exchanges two names of each pair in an endless loop: a file or a directory with content, and a
/// link to the host's, of every form. Creates again what an attempt removed. Prints a line once it
/// swaps.
const SWAPPER: &str = r#"
import ctypes, itertools, os, shutil, sys
libc = ctypes.CDLL(None)
place, outside = sys.argv[1:3]
climb = '../' * 24 + outside.lstrip('/')
os.makedirs(place, exist_ok=True)
os.chdir(place)
def write(path, text='inside'):
    with open(path, 'w') as file: file.write(text)
def make(link):
    for name in 'file', 'file.link', 'dir', 'dir.link':
        shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.path.lexists(name) and os.unlink(name)
    write('file')
    os.symlink(link + '/marker', 'file.link')
    os.makedirs('dir')
    write('dir/marker')
    os.symlink(link, 'dir.link')
links = itertools.cycle([outside, climb, '/proc/1/root' + outside, '/proc/self/root' + outside, 'dir/' + climb])
announced = False
for link in links:
    try:
        make(link)
        for _ in range(2000):
            for name in 'file', 'dir':
                if libc.renameat2(-100, name.encode(), -100, (name + '.link').encode(), 2): raise OSError
        if not announced: print('.', flush=True)
        announced = True
    except OSError: pass
"#;

/// A directory of the host with a file, which must not be read or changed through a link.
struct Outside {
    directory: TempDir,
}

impl Outside {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // Every user may read and write it, so that permissions do not hide a resolved link.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        let outside = Self { directory };
        fs::write(outside.marker(), SECRET).expect("a file");
        fs::set_permissions(outside.marker(), fs::Permissions::from_mode(0o666)).expect("ours");
        outside
    }

    fn path(&self) -> &str {
        self.directory.path().to_str().expect("a text path")
    }

    fn marker(&self) -> PathBuf {
        self.directory.path().join("marker")
    }

    #[track_caller]
    fn assert_intact(&self, what: &str) {
        assert_eq!(fs::read_to_string(self.marker()).expect("the marker"), SECRET, "{what}");
        let (marker, directory) = (fs::metadata(self.marker()), fs::metadata(self.directory.path()));
        assert_eq!(marker.expect("it is there").mode() & 0o7777, 0o666, "{what}");
        assert_eq!(directory.expect("it is there").mode() & 0o7777, 0o777, "{what}");
        let names: Vec<_> = fs::read_dir(self.directory.path()).expect("ours").flatten().collect();
        assert_eq!(names.len(), 1, "{what}: {names:?}");
    }
}

/// Starts the swapper in `place` and waits until it swaps.
fn start_swapping(sandbox: &Sandbox, user: &str, place: &str, outside: &Outside) -> Running {
    assert_eq!(sandbox.write("/tmp/swapper.py", SWAPPER.as_bytes()).status, 200);
    let line = format!("exec /usr/bin/python3 /tmp/swapper.py {place} {}", outside.path());
    let mut running = sandbox.start_as(user, &line);
    running.pid();
    running.next_event().expect("the stream is open").expect("it swaps");
    running
}

/// Number of responses by attempt and status.
type Seen = BTreeMap<(String, u16), usize>;

/// Makes all attempts in turn for [`race_duration`], and at least 20 times.
fn race(attempts: &[(&str, String, &[u8])], send: impl Fn(&str, &str, &[u8]) -> http::Reply) -> Seen {
    const FEWEST_ROUNDS: usize = 20;
    let (begun, mut seen, mut rounds) = (Instant::now(), Seen::new(), 0);
    while begun.elapsed() < race_duration() || rounds < FEWEST_ROUNDS {
        for (method, target, body) in attempts {
            let reply = send(method, target, body);
            assert!(!reply.text().contains(SECRET), "{method} {target} gave the host's file");
            *seen
                .entry((format!("{method} {}", target.split('?').next().unwrap_or_default()), reply.status))
                .or_default() += 1;
        }
        rounds += 1;
    }
    eprintln!("{} attempts: {seen:?}", seen.values().sum::<usize>());
    seen
}

/// Asserts that both outcomes of the race occurred: an attempt reached the content, and an attempt
/// on a link was refused.
#[track_caller]
fn assert_raced(seen: &Seen, call: &str) {
    let statuses: BTreeSet<u16> = seen.keys().filter(|(name, _)| name == call).map(|(_, status)| *status).collect();
    let reached = statuses.iter().any(|status| (200..300).contains(status));
    let refused = statuses.iter().any(|status| (400..500).contains(status));
    assert!(reached && refused, "{call}: {statuses:?}");
    assert!(!seen.keys().any(|(_, status)| *status >= 500), "the server failed: {seen:?}");
}

/// Attacks the content of a volume, whose paths the server resolves on the host.
pub(super) fn race_on_a_volume(server: &Server) {
    let outside = Outside::new();
    let made = server.call("POST", "/volumes", Some(json!({ "name": "raced" })));
    assert_eq!(made.status, 201, "{}", made.text());
    let volume = made.json();
    let text = |key: &str| volume[key].as_str().expect("a text").to_owned();
    let mounts = json!([{ "name": "raced", "path": "/data" }]);
    let sandbox = server.create_with(json!({ "templateID": "base", "volumeMounts": mounts }));
    let _swapping = start_swapping(&sandbox, "user", "/data", &outside);
    let (bearer, route) = (format!("Bearer {}", text("token")), format!("/volumecontent/{}", text("volumeID")));
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let target = |kind: &str, query: &str| format!("{route}/{kind}?{query}");
    let attempts: [(&str, String, &[u8]); 12] = [
        ("GET", target("file", "path=/file"), b""),
        ("GET", target("file", "path=/dir/marker"), b""),
        ("PUT", target("file", "path=/file&force=true"), b"planted"),
        ("PUT", target("file", "path=/dir/marker&force=true&mode=511"), b"planted"),
        ("PUT", target("file", "path=/dir/deep/planted&force=true"), b"planted"),
        ("GET", target("path", "path=/dir/marker"), b""),
        ("PATCH", target("path", "path=/dir/marker"), br#"{"mode": 511, "uid": 1000, "gid": 1000}"#),
        ("PATCH", target("path", "path=/file"), br#"{"mode": 511}"#),
        ("GET", target("dir", "path=/dir&depth=3"), b""),
        ("POST", target("dir", "path=/dir/made/deep&force=true"), b""),
        ("DELETE", target("path", "path=/dir/marker"), b""),
        ("DELETE", target("path", "path=/dir"), b""),
    ];
    let seen = race(&attempts, |method, target, body| {
        http::request(&server.address, method, target, &headers, body).expect("an answer")
    });
    outside.assert_intact("a volume");
    assert_raced(&seen, &format!("GET {route}/file"));
    assert_raced(&seen, &format!("PUT {route}/file"));
    assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
}

#[test]
fn volumes_keep_their_content_while_links_are_swapped() {
    race_on_a_volume(&Server::with(&["--no-studio"]));
}

#[test]
fn rootless_volumes_keep_their_content_while_links_are_swapped() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        race_on_a_volume(&Server::for_user(user, &["--no-studio"]));
    }
}

/// All files below a directory with their content, and all links with their targets.
fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut left, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let kind = entry.file_type().expect("it is there");
            match () {
                () if kind.is_dir() => left.push(entry.path()),
                () if kind.is_symlink() => {
                    let leads_to = fs::read_link(entry.path()).expect("a link");
                    found.push((entry.path(), leads_to.into_os_string().into_encoded_bytes()));
                }
                () => found.push((entry.path(), fs::read(entry.path()).expect("a file"))),
            }
        }
    }
    found
}

/// Asserts that nothing below `root` has the host's content or leads out of `root`.
#[track_caller]
fn assert_contained(root: &Path) {
    for (path, content) in tree(root) {
        assert!(!String::from_utf8_lossy(&content).contains(SECRET), "{} has the host's content", path.display());
        if let Ok(leads_to) = fs::canonicalize(&path) {
            assert!(leads_to.starts_with(root.canonicalize().expect("ours")), "{} leads out", path.display());
        }
    }
}

#[test]
fn files_and_copies_stay_inside_while_links_are_swapped() {
    let (server, outside) = (Server::with(&["--no-studio"]), Outside::new());
    let sandbox = server.create();
    let swapping = start_swapping(&sandbox, "user", "/home/user/race", &outside);
    let files = |query: &str| format!("/files?path=/home/user/race/{query}");
    let attempts: [(&str, String, &[u8]); 6] = [
        ("GET", files("file"), b""),
        ("GET", files("dir/marker"), b""),
        ("POST", files("file"), b"planted"),
        ("POST", files("dir/marker"), b"planted"),
        ("POST", files("dir/deep/planted"), b"planted"),
        ("PUT", files("dir/marker"), b"planted"),
    ];
    // The precondition of PUT is the digest of the content inside. Other methods ignore it.
    let digest: String = Sha256::digest("inside").iter().map(|byte| format!("{byte:02x}")).collect();
    let digest = format!("\"{digest}\"");
    let octets = [("Content-Type", "application/octet-stream"), ("If-Match", digest.as_str())];
    let seen = race(&attempts, |method, target, body| sandbox.request(49983, method, target, &octets, body));
    outside.assert_intact("the files API");
    assert!(seen.contains_key(&("GET /files".to_owned(), 200)), "the control: what is inside can be read: {seen:?}");

    // Copies to the host, each over the result of the one before; and copies from the host.
    let cp = Program::new("sandbox").at(&server);
    let here = tempfile::tempdir().expect("a directory");
    let (down, up) = (here.path().join("down"), here.path().join("up"));
    fs::create_dir_all(up.join("deep")).expect("a directory");
    fs::write(up.join("deep/marker"), "from here").expect("a file");
    let (from, to) = (format!("{}:race", sandbox.id), format!("{}:race/dir", sandbox.id));
    let text = |path: &Path| path.to_str().expect("a text path").to_owned();
    let (begun, mut copies, mut copied) = (Instant::now(), 0, 0);
    while begun.elapsed() < race_duration() || copies < 8 {
        copied += usize::from(cp.run(&["cp", &format!("{from}/."), &text(&down)]).status.success());
        cp.run(&["cp", &text(&up), &to]);
        copies += 1;
        if down.exists() {
            assert_contained(&down);
        }
        outside.assert_intact("sandbox cp");
    }
    eprintln!("{copies} copies each way, {copied} of them whole");
    assert_eq!(tree(&up), [(up.join("deep/marker"), b"from here".to_vec())], "the source is as it was");
    drop(swapping);
    sandbox.must(
        "root",
        "while pkill -f '[s]wapper.py'; do sleep 0.1; done; cd /home/user && rm -rf race && \
         mkdir -p race/dir && echo -n inside >race/dir/marker",
    );
    let calm = here.path().join("calm");
    cp.must(&["cp", &from, &text(&calm)]);
    assert_eq!(tree(&calm), [(calm.join("dir/marker"), b"inside".to_vec())], "the control");
}

#[test]
fn checkpoints_have_only_the_workspace_while_links_are_swapped() {
    let (server, outside) = (Server::with(&["--no-studio"]), Outside::new());
    let home = tempfile::tempdir().expect("a directory");
    let workspace = Program::new("workspace").at(&server).variable("XDG_DATA_HOME", home.path().join("data"));
    let workspace = workspace.variable("XDG_CONFIG_HOME", home.path().join("config"));
    let id = workspace.json(&["create", "raced"])["sandboxID"].as_str().expect("a sandbox").to_owned();
    let connect = |id: &str| {
        let reply = server.call("POST", &format!("/v2/sandboxes/{id}/connect"), Some(json!({})));
        let token = reply.json()["envdAccessToken"].as_str().expect("a token").to_owned();
        Sandbox::new(&server.address, id.to_owned(), token)
    };
    let sandbox = connect(&id);
    sandbox.must("user", "echo -n kept >/home/user/project/kept");
    workspace.must(&["snapshot", "raced"]);
    let swapping = start_swapping(&sandbox, "user", "/home/user/project/race", &outside);
    let (begun, mut rounds, mut saved, mut restored) = (Instant::now(), 0, 0, 0);
    while begun.elapsed() < race_duration() || rounds < 3 {
        saved += usize::from(workspace.run(&["snapshot", "raced"]).status.success());
        restored += usize::from(workspace.run(&["restore", "raced", "--yes"]).status.success());
        outside.assert_intact("a checkpoint");
        rounds += 1;
    }
    eprintln!("{rounds} rounds: {saved} saved, {restored} restored");
    drop(swapping);
    // The control: without the swapper a checkpoint succeeds, and a restore brings the files back.
    let shown: Value = workspace.json(&["show", "raced"]);
    let sandbox = connect(shown["sandboxID"].as_str().expect("a sandbox"));
    sandbox.must("root", "while pkill -f '[s]wapper.py'; do sleep 0.1; done; rm -rf /home/user/project/race");
    workspace.must(&["snapshot", "raced"]);
    sandbox.must("user", "rm /home/user/project/kept");
    workspace.must(&["restore", "raced", "--yes"]);
    let shown: Value = workspace.json(&["show", "raced"]);
    let sandbox = connect(shown["sandboxID"].as_str().expect("a sandbox"));
    assert_eq!(sandbox.must("user", "cat /home/user/project/kept; ls -A /home/user/project"), "keptkept\n");
    for (path, _) in tree(home.path()) {
        let found = Command::new("zgrep").args(["--quiet", "--text", SECRET]).arg(&path).status();
        assert_eq!(found.expect("zgrep runs").code(), Some(1), "{} has the host's file", path.display());
    }
    outside.assert_intact("a checkpoint");
}

#[test]
fn copies_of_a_build_stay_in_it_while_links_are_swapped() {
    let (server, outside) = (Server::with(&["--no-studio"]), Outside::new());
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("swapper.py"), SWAPPER).expect("a file");
    fs::create_dir(place.path().join("files")).expect("a directory");
    for number in 0..repeats(3, 40) {
        fs::write(place.path().join(format!("files/{number}")), "copied").expect("a file");
    }
    // One swapper works in the target of the copies, one where the server puts archives to unpack.
    let swaps = format!(
        "RUN mkdir /swaps; for place in /race /tmp; do setsid python3 /swapper.py $place {} >/swaps$place 2>&1 & done; \
         until grep -q . /swaps/race && grep -q . /swaps/tmp; do sleep 0.05; done\n\
         RUN setsid sh -c 'while :; do mv -T /tmp/.sandbar-build /tmp/moved; ln -s {} /tmp/.sandbar-build; \
         rm -f /tmp/.sandbar-build; done' >/dev/null 2>&1 &\n",
        outside.path(),
        outside.path()
    );
    let copies: String =
        (0..repeats(3, 40)).map(|n| format!("COPY files/{n} /race/dir/{n}\nCOPY files /race/dir/\n")).collect();
    let build = |name: &str, swaps: &str| {
        let text = format!("FROM e2bdev/base\nCOPY swapper.py /swapper.py\n{swaps}{copies}");
        fs::write(place.path().join("Dockerfile"), text).expect("a file");
        let context = place.path().to_str().expect("a text path");
        Program::new("template").at(&server).run(&["build", "--name", name, context])
    };
    let raced = build("raced", &swaps);
    let message = String::from_utf8_lossy(&raced.stderr).into_owned();
    eprintln!("the build ended with {:?}", raced.status.code());
    assert!(!message.contains(SECRET), "{message}");
    outside.assert_intact("a build");
    if raced.status.success() {
        let sandbox = server.create_with(json!({ "templateID": "raced" }));
        assert!(!sandbox.run_as("root", "grep -rs . /race /tmp").stdout.contains(SECRET));
    }
    // The control: the same build without the swappers.
    let calm = build("calm", "");
    assert!(calm.status.success(), "{calm:?}");
    let sandbox =
        eventually("a sandbox of it", START_TIMEOUT, || Some(server.create_with(json!({ "templateID": "calm" }))));
    assert_eq!(sandbox.must("root", "cat /race/dir/0"), "copied");
    outside.assert_intact("a build");
}
