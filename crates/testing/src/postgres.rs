//! A real Postgres for all tests of this run: a separate cluster of an unprivileged user, on a unix
//! socket only.
//!
//! A shell owns the cluster and waits on a pipe: when this program ends, also when it is killed,
//! the pipe closes, and the shell stops the server and removes the directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::eventually;

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const USER: &str = "sandbar";

struct Cluster {
    directory: PathBuf,
    /// Held, not read: its pipe closes when this program ends.
    _owner: Child,
}

/// The shell's script: $1 is the directory, $2 the directory of Postgres' programs, and the rest is
/// a command prefix that switches to an unprivileged user.
const OWNER_SCRIPT: &str = r#"
directory=$1 programs=$2; shift 2
trap '' INT TERM
"$@" "$programs/initdb" -D "$directory/data" -U sandbar -A trust -N -E UTF8 --locale=C >"$directory/log" 2>&1 &&
"$@" "$programs/postgres" -D "$directory/data" -k "$directory" -c listen_addresses= -c fsync=off \
  -c synchronous_commit=off -c full_page_writes=off -c max_connections=200 >>"$directory/log" 2>&1 </dev/null &
server=$!
cat >/dev/null
# The first of the group may be the wrapper of initdb still; INT is a quick and orderly end for the server.
[ -s "$directory/data/postmaster.pid" ] && kill -INT "$(head -1 "$directory/data/postmaster.pid")"
wait "$server"
rm -rf "$directory"
"#;

impl Cluster {
    fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("sandbar-pg-").tempdir().expect("a directory").keep();
        let unprivileged = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let root = rustix::process::geteuid().is_root();
        if root {
            std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).expect("root may give it away");
        }
        let owner = Command::new("/bin/sh")
            .args(["-c", OWNER_SCRIPT, "postgres"])
            .arg(&directory)
            .arg(programs())
            .args(unprivileged.iter().take(if root { unprivileged.len() } else { 0 }))
            .args((!root).then_some("env"))
            .current_dir("/")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell runs");
        let cluster = Self { directory, _owner: owner };
        let log = || std::fs::read_to_string(cluster.directory.join("log")).unwrap_or_default();
        let what = std::fmt::from_fn(|f| write!(f, "Postgres starts: {}", log()));
        eventually(what, READY_TIMEOUT, || cluster.answers().then_some(()));
        cluster
    }

    fn answers(&self) -> bool {
        let asked = Command::new(programs().join("pg_isready")).arg("-q").arg("-h").arg(&self.directory).status();
        asked.expect("pg_isready runs").success()
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@localhost/{database}?host={}", self.directory.display())
    }
}

/// The directory of programs of the newest Postgres that Debian has installed.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("Postgres is installed; ./dev setup does it");
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.filter_map(|entry| entry.ok().map(|entry| entry.path())).max_by_key(|path| version(path));
    newest.expect("a version of Postgres").join("bin")
}

/// Creates an empty database and returns its URL.
pub fn database() -> String {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let cluster = CLUSTER.get_or_init(Cluster::start);
    let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut create = Command::new(programs().join("createdb"));
    create.args(["-U", USER, "-h"]).arg(&cluster.directory).arg(&name);
    let made = create.output().expect("createdb runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    cluster.url(&name)
}
