//! Attacks on the pool: nested subvolumes, quotas, leftovers.

use crate::support::{Program, Sandbox, Server, eventually, http};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testing::User;

const MIB: u64 = 1 << 20;
const EPERM: i32 = 1;
const EXDEV: i32 = 18;
const EOPNOTSUPP: i32 = 95;

/// Starts a server whose sandboxes and volumes have these disk quotas.
fn server_with_limits(directory: &Path, disk_mb: u64, volume_mb: u64) -> Server {
    let config = directory.join("config.toml");
    fs::write(&config, format!("[sandboxes]\ndisk_mb = {disk_mb}\nvolume_mb = {volume_mb}\n")).expect("written");
    Server::with(&["--no-studio", "--config", config.to_str().expect("a plain path")])
}

fn create_volume(server: &Server, name: &str) -> Value {
    let reply = server.call("POST", "/volumes", Some(json!({ "name": name })));
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.json()
}

fn create_with_volume(server: &Server, name: &str) -> Sandbox {
    server.create_with(json!({ "templateID": "base", "volumeMounts": [{ "name": name, "path": "/data" }] }))
}

fn kill(server: &Server, sandbox: &Sandbox) {
    assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
}

/// The directory of the pool, as the host sees it: by `/proc/PID/root` if the server mounted it in
/// its own mount namespace.
fn pool_of(server: &Server) -> PathBuf {
    if !server.file("pool.img").exists() {
        return server.file("volumes");
    }
    let note: Value = serde_json::from_slice(&fs::read(server.file("server.json")).expect("a note")).expect("JSON");
    let root = Path::new("/proc").join(note["pid"].to_string()).join("root");
    root.join(server.file("pool").strip_prefix("/").expect("an absolute path"))
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The directory of the only volume in the pool.
fn volume_in(pool: &Path) -> PathBuf {
    let volumes = names_in(pool).into_iter().map(|name| pool.join(name)).filter(|path| path.join("files").is_dir());
    let volumes: Vec<PathBuf> = volumes.collect();
    assert_eq!(volumes.len(), 1, "{volumes:?}");
    volumes[0].clone()
}

#[track_caller]
fn run(program: &str, arguments: &[&str], path: &Path) {
    let done = Command::new(program).args(arguments).arg(path).output().expect("it runs");
    assert!(done.status.success(), "{program} {arguments:?} {}: {done:?}", path.display());
}

/// Makes the ioctl on the directory `$1`, or between two files in it, and prints the errno.
const IOCTL: &str = r#"
import ctypes, os, sys
libc, place, request = ctypes.CDLL(None, use_errno=True), sys.argv[1], int(sys.argv[2], 16)
if request == 0x40049409:
    open(place + '/from', 'w').write('content')
    source, target = os.open(place + '/from', os.O_RDONLY), os.open(place + '/to', os.O_RDWR | os.O_CREAT)
    argument = ctypes.c_long(source)
else:
    target = os.open(place, os.O_RDONLY)
    argument = ctypes.create_string_buffer(bytes(8) + b'nested', 4096)
print(0 if libc.ioctl(target, ctypes.c_ulong(request), argument) >= 0 else ctypes.get_errno())
"#;

#[test]
fn sandboxes_make_no_subvolumes() {
    assert_refuses_subvolumes(&Server::with(&["--no-studio"]));
}

#[test]
fn rootless_sandboxes_make_no_subvolumes() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        assert_refuses_subvolumes(&Server::for_user(user, &["--no-studio"]));
    }
}

fn assert_refuses_subvolumes(server: &Server) {
    create_volume(server, "data");
    let sandbox = create_with_volume(server, "data");
    assert_eq!(sandbox.write("/tmp/ioctl.py", IOCTL.as_bytes()).status, 200);
    let ioctl = |user: &str, place: &str, request: u32| -> i32 {
        let output = sandbox.must(user, &format!("/usr/bin/python3 /tmp/ioctl.py {place} {request:#x}"));
        output.trim().parse().expect("a number")
    };
    for user in ["user", "root"] {
        for place in ["/data", "/home/user"] {
            // SUBVOL_CREATE, SNAP_CREATE, SNAP_DESTROY, SUBVOL_CREATE_V2, SUBVOL_SETFLAGS.
            for request in [0x5000_940e, 0x5000_9401, 0x5000_940f, 0x5000_9418, 0x4008_941a] {
                assert_eq!(ioctl(user, place, request), EPERM, "{user} {place} {request:#x}");
            }
        }
    }
    assert_eq!(sandbox.must("user", "ls /data"), "");
    // The control: FICLONE has the same ioctl type, and only the file system may refuse it.
    let cloned = ioctl("user", "/data", 0x4004_9409);
    assert!(matches!(cloned, 0 | EOPNOTSUPP | EXDEV), "{cloned}");
    if server.file("pool.img").exists() {
        assert_eq!((cloned, sandbox.must("user", "cat /data/to").as_str()), (0, "content"));
    }
}

/// Sets the flag by ioctl: `btrfs property` fails on a path through another mount namespace.
const MAKE_READ_ONLY: &str = "import fcntl, os, struct, sys\n\
                              fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x4008941a, struct.pack('Q', 2))";

/// The test creates the subvolumes from the host: older versions let sandboxes create them.
#[test]
fn nested_subvolumes_count_against_a_volume_and_go_with_it() {
    testing::needs_root!("without a pool there is no limit of the disk");
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = server_with_limits(directory.path(), 512, 64);
    let volume = create_volume(&server, "data");
    let sandbox = create_with_volume(&server, "data");
    let files = volume_in(&pool_of(&server)).join("files");
    for nested in ["n", "n/deeper", "locked"] {
        run("btrfs", &["subvolume", "create"], &files.join(nested));
        run("chmod", &["0777"], &files.join(nested));
    }
    fs::create_dir(files.join("locked/directory")).expect("a directory");
    run("btrfs", &["subvolume", "create"], &files.join("locked/directory/deeper"));
    run("chattr", &["+a"], &files.join("locked/directory"));
    for nested in ["locked/directory/deeper", "locked"] {
        run("python3", &["-c", MAKE_READ_ONLY], &files.join(nested));
    }
    let refused = sandbox.run("head -c 200M /dev/zero >/data/n/deeper/big");
    assert!(refused.stderr.contains("Disk quota exceeded"), "{refused:?}");
    let written: u64 = sandbox.must("user", "stat -c %s /data/n/deeper/big").trim().parse().expect("a number");
    assert!(written <= 64 * MIB, "{written} bytes were written");
    // The control: the sandbox's own disk has free space.
    sandbox.must("user", "head -c 100M /dev/zero >big && rm big");

    kill(&server, &sandbox);
    let id = volume["volumeID"].as_str().expect("an id");
    assert_eq!(server.call("DELETE", &format!("/volumes/{id}"), None).status, 204);
    let left = names_in(&pool_of(&server)).into_iter().filter(|name| !name.starts_with('.')).collect::<Vec<_>>();
    assert_eq!(left, [""; 0]);
    server.kill_9();
    server.start_again();
    kill(&server, &server.create());
}

#[test]
fn a_volume_upload_without_space_leaves_the_old_file() {
    testing::needs_root!("without a pool there is no limit of the disk");
    let directory = tempfile::tempdir().expect("a directory");
    let server = server_with_limits(directory.path(), 512, 64);
    let volume = create_volume(&server, "data");
    let text = |key: &str| volume[key].as_str().expect("a text");
    let bearer = format!("Bearer {}", text("token"));
    let call = |method: &str, query: &str, body: &[u8]| {
        let target = format!("/volumecontent/{}/file?path=/note{query}", text("volumeID"));
        http::request(&server.address, method, &target, &[("Authorization", &bearer)], body).expect("an answer")
    };
    assert_eq!(call("PUT", "", b"kept").status, 201);
    let refused = call("PUT", "&force=true", &vec![7; 96 << 20]);
    assert_eq!(refused.status, 507, "{}", refused.text());
    assert_eq!(call("GET", "", b"").body, b"kept");
    // The control: content that fits replaces the file.
    assert_eq!(call("PUT", "&force=true", b"new").status, 201);
    assert_eq!(call("GET", "", b"").body, b"new");
}

/// Cgroups below the server's, which the kernel refuses to remove because they have a child.
struct StrayCgroups(Vec<PathBuf>);

impl StrayCgroups {
    /// Creates one beside each cgroup of `sandbox`; none on a machine without cgroups.
    fn beside(sandbox: &Sandbox) -> Self {
        let below = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let trees: Vec<PathBuf> = below(Path::new("/sys/fs/cgroup")).collect();
        let groups = trees.iter().flat_map(|tree| below(tree)).chain(trees.iter().cloned());
        let strays = groups.filter(|group| group.join(&sandbox.id).is_dir()).map(|group| group.join("stray"));
        let strays: Vec<PathBuf> = strays.collect();
        strays.iter().for_each(|stray| fs::create_dir_all(stray.join("child")).expect("a cgroup"));
        Self(strays)
    }
}

impl Drop for StrayCgroups {
    fn drop(&mut self) {
        for stray in &self.0 {
            let _ = fs::remove_dir(stray.join("child"));
            let _ = fs::remove_dir(stray);
        }
    }
}

/// The directory that has the sandbox's socket.
fn runtime_of(server: &Server, sandbox: &Sandbox) -> PathBuf {
    let noted = fs::read_to_string(server.file("runtime")).map(PathBuf::from).into_iter();
    let in_run = fs::read_dir("/run").into_iter().flatten().flatten().map(|entry| entry.path());
    let socket = format!("{}.sock", sandbox.id);
    noted.chain(in_run).find(|path| path.join(&socket).exists()).expect("a socket")
}

#[test]
fn leftovers_keep_no_server_from_starting_or_ending() {
    let mut server = Server::with(&["--no-studio"]);
    let (intact, damaged) = (server.create(), server.create());
    for sandbox in [&intact, &damaged] {
        assert_eq!(sandbox.write("/home/user/mine", sandbox.id.as_bytes()).status, 200);
    }
    let (pool, runtime) = (pool_of(&server), runtime_of(&server, &intact));
    fs::write(pool.join("file"), "").expect("written");
    symlink("/nowhere", pool.join("link")).expect("a link");
    run("mkfifo", &[], &pool.join("pipe"));
    // Directories where volumes are expected: one of unknown origin, one of an interrupted build.
    let scratch = "b".repeat(21);
    for name in ["directory", &scratch] {
        fs::create_dir_all(pool.join(name).join("up/deep")).expect("directories");
    }
    fs::write(pool.join(&damaged.id).join("boot.json"), "{").expect("written");
    fs::create_dir_all(runtime.join("stray.sock/inside")).expect("directories");
    fs::write(server.file("uploads").join("stray"), "").expect("written");
    fs::write(server.file("layers").join(".stray"), "").expect("written");
    let strays = StrayCgroups::beside(&intact);

    server.kill_9();
    server.start_again();
    assert_eq!(intact.at(&server.address).read("/home/user/mine").body, intact.id.as_bytes(), "it was adopted");
    let connected = server.call("POST", &format!("/v2/sandboxes/{}/connect", damaged.id), Some(json!({})));
    assert!(matches!(connected.status, 200 | 201), "{}", connected.text());
    assert_eq!(damaged.at(&server.address).read("/home/user/mine").body, damaged.id.as_bytes());
    assert!(!pool_of(&server).join(&scratch).exists() && !server.file("uploads/stray").exists());
    assert!(runtime.join("stray.sock/inside").is_dir(), "the control: it could not be removed");

    server.down();
    server.start_again();
    assert_eq!(server.call("GET", "/v2/sandboxes", None).json(), json!([]));
    server.kill_9();
    server.down();
    drop(strays);
    server.start_again();
    kill(&server, &server.create());
    fs::remove_dir_all(runtime.join("stray.sock")).expect("it is empty");
}

/// Bytes that a sandbox can still write.
fn free_space_in(sandbox: &Sandbox) -> u64 {
    let line = "head -c 1G /dev/zero >fill 2>/dev/null; sync fill; stat -c %s fill; rm fill; sync -f .";
    sandbox.must("user", line).trim().parse().expect("a number")
}

fn program_in(home: &Path, word: &'static str) -> Program {
    let program = Program::new(word).variable("XDG_DATA_HOME", home.join("data"));
    program.variable("XDG_CONFIG_HOME", home.join("config"))
}

#[test]
fn a_restored_sandbox_has_the_same_free_space() {
    testing::needs_root!("without a pool there is no limit of the disk");
    let directory = tempfile::tempdir().expect("a directory");
    let server = server_with_limits(directory.path(), 96, 64);
    let first = server.create();
    // Random bytes: an archive stores zeros as a hole.
    first.must("user", "head -c 48M /dev/urandom >shared; sync shared");
    let taken = server.call("POST", &format!("/sandboxes/{}/snapshots", first.id), Some(json!({})));
    assert_eq!(taken.status, 201, "{}", taken.text());
    let sandbox = server.create_with(json!({ "templateID": taken.json()["snapshotID"] }));
    sandbox.must("user", "head -c 8M /dev/urandom >own; sync own");
    let before = free_space_in(&sandbox);
    assert!(before > 60 * MIB, "the control: what the template has is not charged: {before} bytes of room");
    let target = directory.path().join("backup");
    let target = target.to_str().expect("a plain path");
    program_in(directory.path(), "backup").at(&server).must(&[target]);
    drop(server);

    let config = directory.path().join("config.toml");
    let arguments = ["--no-studio", "--config", config.to_str().expect("a plain path")];
    let restored = Server::on_new_directory(None, &arguments, |data| {
        program_in(directory.path(), "restore").must(&[target, "--data", data.to_str().expect("a plain path")]);
    });
    let connected = restored.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(connected.status, 200 | 201), "{}", connected.text());
    let sandbox = sandbox.at(&restored.address);
    assert_eq!(sandbox.must("user", "stat -c %s shared own"), format!("{}\n{}\n", 48 * MIB, 8 * MIB));
    let after = free_space_in(&sandbox);
    assert!(after + MIB / 2 >= before, "{before} bytes of room before, {after} after");
    // The quota still limits it.
    assert!(after < before + 16 * MIB, "{before} bytes of room before, {after} after");
}

/// A running `sandbar backup`, killed on drop.
struct Backup(Child);

impl Backup {
    fn start(server: &Server, home: &Path) -> Self {
        let mut command = program_in(home, "backup").at(server).command(&[home.join("backup").to_str().expect("text")]);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    fn signal(&self, name: &str) {
        testing::signal(self.0.id(), name);
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn leftovers_of_a_killed_backup_go_at_the_next_start() {
    testing::needs_root!("without a pool there is no limit of the disk");
    let home = tempfile::tempdir().expect("a directory");
    let mut server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    // Compressing this takes about a second, so that the backup can be stopped meanwhile.
    sandbox.must("user", "head -c 64M /dev/urandom >large; sync large");
    let copies = |server: &Server| {
        names_in(&pool_of(server)).into_iter().filter(|name| name.starts_with(".backup-")).collect::<Vec<_>>()
    };
    let backup = Backup::start(&server, home.path());
    let pool = pool_of(&server);
    eventually("the backup's copy of the sandbox", Duration::from_secs(30), || {
        pool.join(format!(".backup-{}/boot.json", sandbox.id)).exists().then_some(())
    });
    backup.signal("STOP");
    assert_eq!(copies(&server).len(), 1);

    // The backup process exists: a starting server keeps the copy that the backup reads.
    server.kill_9();
    server.start_again();
    assert_eq!(copies(&server).len(), 1);
    backup.kill();
    server.kill_9();
    server.start_again();
    assert_eq!(copies(&server), [""; 0]);
    assert!(!server.file("backup.drafts").exists());
    // The control: the sandbox's files exist, and another backup succeeds.
    assert_eq!(sandbox.at(&server.address).must("user", "stat -c %s large").trim(), (64 * MIB).to_string());
    program_in(home.path(), "backup").at(&server).must(&[home.path().join("backup").to_str().expect("text")]);
}

#[test]
fn a_small_upload_without_space_leaves_the_old_file() {
    testing::needs_root!("without a pool there is no limit of the disk");
    let directory = tempfile::tempdir().expect("a directory");
    let server = server_with_limits(directory.path(), 64, 64);
    let sandbox = server.create();
    let (old, new) = (vec![b'o'; 100 << 10], vec![b'n'; 200 << 10]);
    assert_eq!(sandbox.write("/home/user/file", &old).status, 200);
    // Fills the rest with small files, since the test frees space by removing one file at a time.
    sandbox.must(
        "user",
        "mkdir fill; head -c 60M /dev/zero >fill/large; sync -f .; \
         i=0; while head -c 32768 /dev/zero >fill/$i; do i=$((i+1)); done 2>/dev/null; sync -f .",
    );
    // From no free space to enough: first for the inode, then for part of the content, then for
    // all.
    let mut refusals = 0;
    loop {
        let written = sandbox.write("/home/user/file", &new);
        if written.status == 200 {
            break;
        }
        refusals += 1;
        assert_eq!(written.status, 507, "{}", written.text());
        assert!(sandbox.read("/home/user/file").body == old, "the old file stays at refusal {refusals}");
        assert_eq!(sandbox.must("user", "ls -A | grep agtmp || true"), "", "no draft stays");
        assert!(refusals < 100, "no room after {refusals} steps");
        sandbox.must("user", "rm fill/$(ls fill | head -n 1); sync -f .");
    }
    assert!(refusals > 0);
    assert!(sandbox.read("/home/user/file").body == new);
}
