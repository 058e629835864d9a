//! Attempts that only a process of its own can make, because they change the process that makes them: a probe's way to learn
//! what a launch would meet, with the very code that a launch uses.
//!
//! ```text
//! probe ──runs──▶ outside (root of the host) ──runs──▶ inside (enters new namespaces, waits for its ids)
//!                    │ ids, overlay of id-mapped layers     │ TUN device, system-call filter
//!                    ◀──────────── refusals ────────────────┘
//! ```
//! Both run this program again with [`TRY`], speak JSON lines, and end when their standard input closes.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio, exit};

use rustix::mount::{MountFlags, mount};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{At, Failure};
use crate::spec::{Files, Overlay};
use crate::sys::namespace::unshare_mounts;
use crate::sys::trial::enter_new_namespaces;
use crate::sys::tun;
use crate::{TRY, overlay, seccomp};

const INSIDE: &str = "inside";
/// Any range will do: nothing that belongs to it outlives the attempt.
const FIRST_ID: u32 = 1_000_000_000;
const ID_COUNT: u32 = 65_536;

/// What the kernel said no to.
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

/// How the attempts went. What could not be tried because of an earlier refusal has that one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    pub namespaces: Outcome,
    pub overlay: Outcome,
    pub network: Outcome,
    pub filter: Outcome,
}

#[derive(Serialize, Deserialize)]
struct InsideReport {
    network: Outcome,
    filter: Outcome,
}

/// Makes the attempts and prints how they went, a [`Trial`] as JSON.
pub fn child_main() -> ! {
    let done = if std::env::args().nth(2).as_deref() == Some(INSIDE) { inside() } else { outside() };
    exit(i32::from(done.is_err()))
}

/// Runs this program again, with its input and output.
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
    let (mut child, mut input, output) = spawn_inside()?;
    let mut output = BufReader::new(output);
    let trial = match receive::<Outcome>(&mut output)? {
        Err(refusal) => Trial {
            namespaces: Err(refusal.clone()),
            overlay: Err(refusal.clone()),
            network: Err(refusal.clone()),
            filter: Err(refusal),
        },
        Ok(()) => {
            let namespaces = map_ids(child.id()).map_err(Refusal::from);
            let overlay = namespaces.clone().and_then(|()| join_layers(child.id()).map_err(Refusal::from));
            send(&mut input, &())?;
            let InsideReport { network, filter } = receive(&mut output)?;
            Trial { namespaces, overlay, network, filter }
        }
    };
    drop(input);
    child.wait()?;
    send(&mut stdout(), &trial)
}

fn map_ids(pid: u32) -> Result<(), Failure> {
    let map = format!("0 {FIRST_ID} {ID_COUNT}\n");
    for file in ["gid_map", "uid_map"] {
        let path = format!("/proc/{pid}/{file}");
        let written = File::options().write(true).open(path).and_then(|mut file| file.write_all(map.as_bytes()));
        written.at("give the namespace its ids")?;
    }
    Ok(())
}

/// What a launch does: the host's /usr as a layer below a writable directory, both with mapped ids.
fn join_layers(pid: u32) -> Result<(), Failure> {
    let user_namespace = File::open(format!("/proc/{pid}/ns/user")).at("open the user namespace")?;
    unshare_mounts().at("leave the host's mounts")?;
    let scratch = ["/tmp", "/run", "/mnt"].map(Path::new).into_iter().find(|path| path.is_dir());
    let scratch = scratch.ok_or(io::Error::from_raw_os_error(libc::ENOENT)).at("find a directory to mount on")?;
    // In memory, and only this process sees it.
    mount("tmpfs", scratch, "tmpfs", MountFlags::empty(), c"size=1m").at("mount a tmpfs")?;
    let writable = scratch.join("writable");
    fs::create_dir(&writable).at("make a directory")?;
    let layer = Overlay { at: PathBuf::from("/usr"), lowers: vec!["/usr".into()], directory: "usr".into() };
    let files = Files { id_base: FIRST_ID, writable, overlays: vec![layer], volumes: Vec::new() };
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
    let filter = install_filter().map_err(Refusal::from);
    send(&mut stdout(), &InsideReport { network, filter })
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
