//! What travels between the server, the launcher and the process that becomes process 1: the specification with its
//! descriptors one way, reports the other. One `SOCK_SEQPACKET` pair, one JSON value a message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most descriptors in one message: the overlays of a template and the volumes of a sandbox, or what the server hands over.
const MAX_DESCRIPTORS: usize = 32;
/// Longest message. A template of 500 layers with long paths stays below; the kernel's own bound is a little higher.
const MAX_MESSAGE: usize = 160 * 1024;

/// One boot, as the launcher needs it. Three descriptors travel with it, in this order: the unix listener that becomes the
/// guest's descriptor 3, the guest's executable, and what becomes its descriptor 4.
#[derive(Debug, Serialize, Deserialize)]
pub struct Spec {
    pub id_count: u32,
    /// The user, as the launcher knows ids, to whom the sandbox's user namespace belongs; 0: the launcher's own.
    pub owner: u32,
    /// Most processes and threads, where no cgroup counts them.
    #[serde(default)]
    pub processes: Option<u32>,
    /// An argument of process 1 by which it is known from outside, where no cgroup tells whose it is.
    #[serde(default)]
    pub mark: Option<String>,
    /// The `tasks` files of the cgroups of the first version.
    pub cgroup_tasks: Vec<PathBuf>,
    /// The directory of the cgroup of the second version.
    pub cgroup_unified: Option<PathBuf>,
    pub files: Files,
    pub hostname: String,
    pub boot_id: String,
    /// What `/etc/resolv.conf` names.
    pub nameserver: Ipv4Addr,
    /// What `/dev/shm` may hold at most.
    pub shared_memory_bytes: u64,
}

/// A sandbox's file tree.
#[derive(Debug, Serialize, Deserialize)]
pub struct Files {
    /// First id of the sandbox's own range on the host; its id 0.
    pub id_base: u32,
    pub on_disk: OnDisk,
    /// Holds the writable directories.
    pub writable: PathBuf,
    /// The first is the root.
    pub overlays: Vec<Overlay>,
    /// Mounted after them.
    #[serde(default)]
    pub volumes: Vec<Shared>,
}

/// What ids the files of layers, volumes and writable directories have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDisk {
    /// 0-based, so that sandboxes with different ranges share them: each is mounted with its ids mapped, which takes root.
    ZeroBased,
    /// Those that the sandbox's user namespace gives them.
    OfSandbox,
}

/// A directory of the host that several sandboxes may have.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shared {
    pub at: PathBuf,
    pub source: PathBuf,
}

/// One mount of the sandbox's file tree: read-only layers, newest first, below a writable directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct Overlay {
    pub at: PathBuf,
    pub lowers: Vec<PathBuf>,
    /// Inside [`Files::writable`]; holds `upper`, `work` and `empty`.
    pub directory: String,
    /// Some of the layers are the host's own files: the sandbox reads of them what every user of the host may read.
    #[serde(default)]
    pub of_host: bool,
}

/// What the server is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The sandbox's first process exists; its pid as the server numbers it.
    Made { pid: i32 },
    /// The very next thing is the exec of the guest. The channel then closes: the guest runs.
    Executing,
    /// The step that failed, with the kernel's error number.
    Failed { step: String, errno: i32 },
    /// What a [`Stopwatch`](crate::Stopwatch) has seen.
    Timings(Vec<(String, u64)>),
}

/// One end of the pair.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// For handing the end to a child.
    pub fn into_descriptor(self) -> OwnedFd {
        self.0
    }

    pub fn send<T: Serialize>(&self, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too long for the launcher's channel"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        // NOSIGNAL: the other end may be gone, which is an error to handle and not a reason to die of SIGPIPE.
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message, or `None` when the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let received = retry_on_intr(|| recvmsg(&self.0, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC))?.bytes;
        if received == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        Ok(Some((serde_json::from_slice(&bytes[..received])?, descriptors)))
    }
}

impl From<OwnedFd> for Channel {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
