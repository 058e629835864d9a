//! Messages between the server, the launcher and the process that becomes process 1: the
//! preparation and the specification with its descriptors in one direction, reports in the other.
//! One `SOCK_SEQPACKET` pair, one JSON value per message.

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

/// Limit of descriptors in one message: the overlays of a template and the volumes of a sandbox,
/// the descriptors for the guest, or the layers of an image. The kernel's own limit is 253.
pub const MAX_DESCRIPTORS: usize = 253;
/// Limit of a message in bytes. A template of 500 layers with long paths stays below; the kernel's
/// own limit is a little higher.
const MAX_MESSAGE: usize = 160 * 1024;

/// What the launcher needs to make the namespaces of a sandbox, which may be long before it gets
/// the [`BootSpec`] of the boot that uses them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparation {
    /// The first host id of the sandbox's id range, which is id 0 in the sandbox.
    pub id_base: u32,
    pub id_count: u32,
    /// The user, as numbered in the launcher's user namespace, who owns the sandbox's user
    /// namespace; 0: the launcher's own.
    pub owner: u32,
    /// Limit of processes and threads, where no cgroup counts them.
    pub processes: Option<u32>,
    /// The file tree of the boot, without volumes, if it is known already: it is then mounted.
    pub files: Option<Files>,
}

/// What the launcher needs for one boot. Three descriptors are sent with it, in this order: the
/// unix listener that becomes the guest's descriptor 3, the guest's executable, and the
/// configuration that becomes its descriptor 4.
#[derive(Debug, Serialize, Deserialize)]
pub struct BootSpec {
    /// An argument of process 1 by which the server identifies it, where no cgroup does.
    #[serde(default)]
    pub mark: Option<String>,
    /// The `tasks` files of the cgroups of version 1.
    pub cgroup_tasks: Vec<PathBuf>,
    /// The directory of the cgroup of version 2.
    pub cgroup_unified: Option<PathBuf>,
    /// If the [`Preparation`] had a file tree, this is the same but for the volumes and the path of
    /// the writable directory, which may have been renamed.
    pub files: Files,
    pub hostname: String,
    pub boot_id: String,
    /// The name server in `/etc/resolv.conf`.
    pub nameserver: Ipv4Addr,
    /// Limit of `/dev/shm`.
    pub shared_memory_bytes: u64,
}

/// A sandbox's file tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The first host id of the sandbox's id range, which is id 0 in the sandbox.
    pub id_base: u32,
    pub on_disk: OnDisk,
    /// Contains the writable directories of the overlays.
    pub writable: PathBuf,
    /// The first is the root.
    pub overlays: Vec<Overlay>,
    /// Mounted after the overlays.
    #[serde(default)]
    pub volumes: Vec<Shared>,
}

/// The ids by which the files of layers, volumes and writable directories are owned on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDisk {
    /// 0-based, so that sandboxes with different ranges share them: each is an id-mapped mount,
    /// which requires root.
    ZeroBased,
    /// The host ids to which the sandbox's user namespace maps.
    OfSandbox,
}

/// A directory of the host that several sandboxes may mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    pub at: PathBuf,
    pub source: PathBuf,
}

/// One mount of the sandbox's file tree: read-only layers, newest first, under a writable one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    pub at: PathBuf,
    pub lowers: Vec<PathBuf>,
    /// Inside [`Files::writable`]; holds `upper`, `work` and `empty`.
    pub directory: String,
    /// Some of the layers are the host's own files, of which the sandbox reads those that every
    /// user of the host may read.
    #[serde(default)]
    pub of_host: bool,
}

/// Messages from the processes of a launch to the server.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The namespaces of a [`Preparation`] exist, and its file tree is mounted. One descriptor
    /// comes with it: the network namespace.
    Prepared,
    /// The sandbox's first process exists, with this pid in the server's pid namespace.
    Made { pid: i32 },
    /// The next call is the exec of the guest. When the channel then closes, the guest runs.
    Executing,
    /// The step that failed, with the kernel's error number.
    Failed { step: String, errno: i32 },
    /// The marks of a [`Stopwatch`](crate::Stopwatch).
    Timings(Vec<(String, u64)>),
}

/// One end of a socket pair.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// Returns the descriptor, to pass it to a child.
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
        // NOSIGNAL: a closed peer is an error to handle, and must not kill the process by SIGPIPE.
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message. Returns `None` when the other end is closed.
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
