//! Tries the steps of a launch for the engine's probe, with the code of a launch. They run in
//! separate processes, because they change the process that makes them.
//!
//! ```text
//! probe ──runs──▶ outside (root, or made root) ──runs──▶ inside (in new namespaces, waits for ids)
//!                    │ ids, overlay of id-mapped layers     │ TUN device, system-call filter
//!                    ◀──────────── refusals ────────────────┘
//! ```
//! Both run this program again with [`TRY`], exchange JSON lines, and end when their standard input
//! closes.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio, exit};

use rustix::mount::{MountFlags, mount};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{At, Failure};
use crate::spec::{Files, OnDisk, Overlay};
use crate::sys::namespace::unshare_mounts;
use crate::sys::trial::enter_new_namespaces;
use crate::sys::tun;
use crate::users::{FIRST_SUBORDINATE, Ids, Rights, SANDBOX_IDS, enter_new, hold_by_itself};
use crate::{TRY, landlock, overlay, seccomp};

const INSIDE: &str = "inside";

/// The ids that the steps use.
#[derive(Clone, Copy)]
struct Range {
    first: u32,
    count: u32,
    on_disk: OnDisk,
}

impl Range {
    fn for_rights(rights: Rights) -> Self {
        match rights {
            // Any range will do: no file of it outlives the trial.
            Rights::All => Self { first: 1_000_000_000, count: SANDBOX_IDS, on_disk: OnDisk::ZeroBased },
            Rights::Range => Self { first: FIRST_SUBORDINATE, count: SANDBOX_IDS, on_disk: OnDisk::OfSandbox },
            Rights::Own => Self { first: 0, count: 1, on_disk: OnDisk::OfSandbox },
        }
    }
}

/// A step that the kernel refused, with its error number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub step: String,
    pub errno: i32,
}

impl From<Failure> for Refusal {
    fn from(Failure { step, errno }: Failure) -> Self {
        Self { step, errno }
    }
}

pub type Outcome = Result<(), Refusal>;

/// The results of the steps. A step that was skipped because of an earlier refusal has that
/// refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The ids for sandboxes; `None` where the process is root, of the machine or of a container.
    pub ids: Option<Ids>,
    pub namespaces: Outcome,
    pub overlay: Outcome,
    pub network: Outcome,
    pub filter: Outcome,
    /// The version of Landlock that sandboxes get; `None` where the kernel has no usable one.
    pub landlock: Result<Option<u32>, Refusal>,
}

#[derive(Serialize, Deserialize)]
struct InsideReport {
    network: Outcome,
    filter: Outcome,
    landlock: Result<Option<u32>, Refusal>,
}

/// Tries the steps and prints the results, a [`Trial`] as JSON.
pub fn child_main() -> ! {
    let done = if std::env::args().nth(2).as_deref() == Some(INSIDE) { inside() } else { outside() };
    exit(i32::from(done.is_err()))
}

/// Runs this program again; returns the child with its input and output.
fn spawn_inside() -> io::Result<(Child, ChildStdin, ChildStdout)> {
    let mut child = Command::new("/proc/self/exe")
        .args([TRY, INSIDE])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let input = child.stdin.take().expect("standard input is piped");
    let output = child.stdout.take().expect("standard output is piped");
    Ok((child, input, output))
}

fn outside() -> io::Result<()> {
    let ids = (!rustix::process::geteuid().is_root()).then(Ids::of_this_user);
    let entered = ids.as_ref().map_or(Ok(()), |ids| enter_new(hold_by_itself(), ids));
    match entered.at("make a user namespace") {
        Ok(()) => try_all(ids, Range::for_rights(Rights::of_this_process())),
        Err(failure) => send(&mut stdout(), &Trial::refused(ids, failure.into())),
    }
}

impl Trial {
    fn refused(ids: Option<Ids>, refusal: Refusal) -> Self {
        Self {
            ids,
            namespaces: Err(refusal.clone()),
            overlay: Err(refusal.clone()),
            network: Err(refusal.clone()),
            filter: Err(refusal.clone()),
            landlock: Err(refusal),
        }
    }
}

fn try_all(ids: Option<Ids>, range: Range) -> io::Result<()> {
    let (mut child, mut input, output) = spawn_inside()?;
    let mut output = BufReader::new(output);
    let trial = match receive::<Outcome>(&mut output)? {
        Err(refusal) => Trial::refused(ids, refusal),
        Ok(()) => {
            let namespaces = map_ids(child.id(), range).map_err(Refusal::from);
            let overlay = namespaces.clone().and_then(|()| join_layers(child.id(), range).map_err(Refusal::from));
            send(&mut input, &())?;
            let InsideReport { network, filter, landlock } = receive(&mut output)?;
            Trial { ids, namespaces, overlay, network, filter, landlock }
        }
    };
    drop(input);
    child.wait()?;
    send(&mut stdout(), &trial)
}

fn map_ids(pid: u32, range: Range) -> Result<(), Failure> {
    let map = format!("0 {} {}\n", range.first, range.count);
    for file in ["gid_map", "uid_map"] {
        let path = format!("/proc/{pid}/{file}");
        let written = File::options().write(true).open(path).and_then(|mut file| file.write_all(map.as_bytes()));
        written.at("give the namespace its ids")?;
    }
    Ok(())
}

/// Mounts as a launch does: the host's /usr as a layer below a writable directory, both id-mapped
/// where that is needed.
fn join_layers(pid: u32, range: Range) -> Result<(), Failure> {
    let user_namespace = File::open(format!("/proc/{pid}/ns/user")).at("open the user namespace")?;
    unshare_mounts().at("leave the host's mounts")?;
    let scratch = ["/tmp", "/run", "/mnt"].map(Path::new).into_iter().find(|path| path.is_dir());
    let scratch = scratch.ok_or(io::Error::from_raw_os_error(libc::ENOENT)).at("find a directory to mount on")?;
    // In memory, in a mount namespace that only this process has.
    mount("tmpfs", scratch, "tmpfs", MountFlags::empty(), c"size=1m").at("mount a tmpfs")?;
    let writable = scratch.join("writable");
    fs::create_dir(&writable).at("make a directory")?;
    let layer =
        Overlay { at: PathBuf::from("/usr"), lowers: vec!["/usr".into()], directory: "usr".into(), of_host: true };
    let Range { first, on_disk, .. } = range;
    let files = Files { id_base: first, on_disk, writable, overlays: vec![layer], volumes: Vec::new() };
    overlay::build(&files, user_namespace.as_fd()).map(drop)
}

fn inside() -> io::Result<()> {
    let entered = enter_new_namespaces().at("make the namespaces").map_err(Refusal::from);
    send(&mut stdout(), &entered)?;
    if entered.is_err() {
        return Ok(());
    }
    receive::<()>(&mut BufReader::new(stdin()))?;
    let network = tun::open("tun0").at("make a TUN device").map(drop).map_err(Refusal::from);
    let landlock = landlock::restrict_to_root("/").at("apply Landlock").map_err(Refusal::from);
    let filter = install_filter().map_err(Refusal::from);
    send(&mut stdout(), &InsideReport { network, filter, landlock })
}

fn install_filter() -> Result<(), Failure> {
    seccomp::filter().install().at("install the system-call filter")
}

fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    writeln!(to, "{}", serde_json::to_string(message)?)?;
    to.flush()
}

fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<T> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
