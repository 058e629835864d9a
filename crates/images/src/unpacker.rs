//! Starts the unpacker: a confined process per archive that is read and per image that is unpacked.
//!
//! It gets the open files and the directory, and nothing else of this machine. Its answer is
//! limited and checked, since an image may have taken it over: it then answers and writes what the
//! image's author wants, in that one tree.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use launcher::confined::{Bounds, ConfinedError, Confinement, Ending, Ids, call};
use launcher::sealed_file;
use unpack::{
    Answer, Completed, Contents, EXHAUSTED, ImageError, Layer, Limits, MOST_ANSWER, Owners, PANICKED, Request, Unpacked,
};

/// The unpacker's executable, built by the build script.
static IMAGE: &[u8] = include_bytes!(env!("SANDBAR_UNPACK_IMAGE"));

/// Limit of its address space. An honest image needs less than 100 MiB: the window of zstd, and the
/// paths of one layer's files.
const MEMORY_BYTES: u64 = 1 << 30;
/// Processor time for what has no size: the headers of an archive, and a tree that a later layer
/// removes.
const CPU_SECONDS: u64 = 60;
/// Additional processor time per this many bytes to unpack; a slow processor inflates ten times as
/// many.
const BYTES_PER_CPU_SECOND: u64 = 4 << 20;
/// Seconds of wall-clock time per second of processor time, for waiting on the disk.
const WAIT_FACTOR: u64 = 2;
const SIGSYS: i32 = 31;
const SIGKILL: i32 = 9;

/// Where an image is unpacked to.
pub struct Target<'a> {
    /// An empty directory.
    pub root: &'a Path,
    pub owners: Owners,
    pub limits: Limits,
    /// Cancels the unpacking when its [`Alive`] is dropped.
    pub cancelled: Option<&'a PipeReader>,
    /// The `cgroup.procs` files of the cgroup that the process joins.
    pub cgroup: &'a [PathBuf],
}

/// Keeps an unpacking running: dropping it ends the process, and the call fails.
pub struct Alive(#[expect(dead_code, reason = "its end is what counts")] PipeWriter);

/// A pair for [`Target::cancelled`] and its cancellation.
///
/// # Errors
/// [`ImageError::Io`] if this process has no descriptor left.
pub fn cancellation() -> Result<(PipeReader, Alive), ImageError> {
    let (reader, writer) = io::pipe().map_err(ImageError::io("make a pipe"))?;
    Ok((reader, Alive(writer)))
}

/// Reads the manifest and the configuration of an archive, and checks them as far as this process
/// uses them.
pub(crate) fn read_contents(archive: File) -> Result<Contents, ImageError> {
    let confinement = confinement(Ids::without_tree(), false, 0);
    match ask(&confinement, &Request::Contents, vec![archive.into()], None, &[])? {
        Completed::Contents(contents) => {
            contents.config.check()?;
            contents.config.check_layers(contents.layers.len())?;
            Ok(contents)
        }
        Completed::Unpacked(_) => Err(nonsense()),
    }
}

/// Unpacks layers of these files. The unpacker closes each file that is one layer when it has read
/// it.
pub(crate) fn unpack(layers: Vec<Layer>, files: Vec<File>, target: &Target<'_>) -> Result<Unpacked, ImageError> {
    unpack_within(MEMORY_BYTES, layers, files, target)
}

pub(crate) fn unpack_within(
    memory_bytes: u64,
    layers: Vec<Layer>,
    files: Vec<File>,
    target: &Target<'_>,
) -> Result<Unpacked, ImageError> {
    let root = File::open(target.root).map_err(ImageError::io("open the tree"))?;
    let (ids, owners) = match target.owners {
        Owners::From(first) => (Ids::from(first), Owners::From(0)),
        Owners::Ours => (Ids::of_caller(), Owners::Ours),
    };
    let confinement = Confinement { memory_bytes, ..confinement(ids, true, target.limits.bytes) };
    let request = Request::Unpack { layers, owners, limits: target.limits };
    let descriptors: Vec<OwnedFd> = [root].into_iter().chain(files).map(OwnedFd::from).collect();
    match ask(&confinement, &request, descriptors, target.cancelled.map(AsFd::as_fd), target.cgroup)? {
        Completed::Unpacked(unpacked) => Ok(unpacked),
        Completed::Contents(_) => Err(nonsense()),
    }
}

/// Checks whether images can be read on this machine, by an unpacker that reads an empty archive.
///
/// # Errors
/// [`ImageError::Confinement`] names the step that the kernel refuses, [`ImageError::Process`] what
/// else went wrong.
pub fn try_unpacker() -> Result<(), ImageError> {
    let empty = sealed_file("empty", &[]).map(File::from).map_err(ImageError::io("make a memory file"))?;
    match read_contents(empty) {
        Err(ImageError::Malformed(_)) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(nonsense()),
    }
}

fn confinement(ids: Ids, has_tree: bool, bytes: u64) -> Confinement {
    let cpu_seconds = CPU_SECONDS + bytes / BYTES_PER_CPU_SECOND;
    Confinement { ids, has_tree, memory_bytes: MEMORY_BYTES, cpu_seconds }
}

fn nonsense() -> ImageError {
    ImageError::Process("answered something else than it was asked".to_owned())
}

fn ask(
    confinement: &Confinement,
    request: &Request,
    descriptors: Vec<OwnedFd>,
    alive: Option<BorrowedFd<'_>>,
    cgroup: &[PathBuf],
) -> Result<Completed, ImageError> {
    let executable = sealed_file("sandbar-unpack", IMAGE).map_err(ImageError::io("make a memory file"))?;
    // Spawned while the descriptor is open: `/proc/self` is then the child.
    let mut command = Command::new(format!("/proc/self/fd/{}", executable.as_raw_fd()));
    command.arg0("sandbar-unpack").env_clear();
    let timeout = Duration::from_secs(confinement.cpu_seconds * WAIT_FACTOR);
    let bounds = Bounds { timeout, answer_bytes: MOST_ANSWER, alive, cgroup };
    let answer =
        call(command, confinement, request, descriptors, bounds).map_err(|error| failed(error, confinement))?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|_| nonsense())?;
    answer.map_err(ImageError::from)
}

fn failed(error: ConfinedError, confinement: &Confinement) -> ImageError {
    let seconds = confinement.cpu_seconds;
    ImageError::Process(match error {
        ConfinedError::Confine { step, source } => return ImageError::Confinement { step, source },
        ConfinedError::Start(source) => {
            return ImageError::Io { what: "start the process that reads images".to_owned(), source };
        }
        ConfinedError::Ended(Ending::Exit(EXHAUSTED)) => {
            format!("was ended: it took more than {} MiB of memory", confinement.memory_bytes >> 20)
        }
        ConfinedError::Ended(Ending::Exit(PANICKED)) => "failed a check of its own".to_owned(),
        ConfinedError::Ended(Ending::Exit(code)) => format!("ended with code {code}"),
        ConfinedError::Ended(Ending::Signal(SIGSYS)) => {
            "was ended: it made a system call that it may not make".to_owned()
        }
        ConfinedError::Ended(Ending::Signal(SIGKILL)) => {
            format!("was killed, by this machine, or because it took more than {seconds} s of processor time")
        }
        ConfinedError::Ended(Ending::Signal(signal)) => format!("was ended by signal {signal}"),
        ConfinedError::Lost => "was killed".to_owned(),
        ConfinedError::TimedOut(timeout) => format!("was ended: it took more than {} s", timeout.as_secs()),
        ConfinedError::AnswerTooLong => format!("was ended: it answered more than {MOST_ANSWER} bytes"),
        ConfinedError::Cancelled => "was ended: the build was cancelled".to_owned(),
    })
}
