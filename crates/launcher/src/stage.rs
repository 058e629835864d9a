//! What is made for a sandbox before its boot is known: namespaces with their ids, `/dev` and
//! `/sys`, and the overlays or the process that will mount them.
//!
//! ```text
//! launcher ──clone──▶ furnisher (new namespaces): becomes root, makes /dev and /sys, ends
//!    └──────clone──▶ mounter (the host's root): waits for the layers, mounts them, ends
//! ```
//! The launcher keeps the namespaces open, so that they outlive the furnisher. It enters them at
//! the boot, to clone process 1 there; the mounter stays outside, where layers can be mounted. If
//! the preparation names the layers, the launcher mounts them itself, and a mounter is needed only
//! for volumes. Process 1 is not cloned ahead, because it must begin in the sandbox's cgroup.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::exit;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::failure::{At, Failure};
use crate::inside::{become_root, receive_from};
use crate::launch::{limit_processes, report_failure};
use crate::overlay;
use crate::pseudo::Devices;
use crate::spec::{Channel, Files, Preparation, Report};
use crate::stopwatch::Stopwatch;
use crate::sys::loopback::bring_up_loopback;
use crate::sys::namespace::{SandboxNamespaces, Side, clone_into_namespaces, clone_sibling};
use crate::sys::process::place_descriptor;

pub(crate) struct PreparedParts {
    pub(crate) namespaces: SandboxNamespaces,
    pub(crate) devices: Devices,
    pub(crate) overlays: Overlays,
}

pub(crate) enum Overlays {
    /// To the mounter, which takes [`Files`] and answers with the mounts of [`overlay::build`].
    Awaited(Channel),
    Mounted(Vec<OwnedFd>),
}

impl Overlays {
    /// Orders what is not mounted yet of `files`. Returns the mounts, which are the first ones, and
    /// the mounter of the others.
    pub(crate) fn complete(
        self,
        server: &Channel,
        files: &Files,
        namespaces: &SandboxNamespaces,
    ) -> Result<(Vec<OwnedFd>, Option<Channel>), Failure> {
        let step = "order the file tree";
        match self {
            Self::Awaited(mounter) => {
                mounter.send(files, &[]).at(step)?;
                Ok((Vec::new(), Some(mounter)))
            }
            Self::Mounted(mounts) if files.volumes.is_empty() => Ok((mounts, None)),
            Self::Mounted(mounts) => {
                let mounter = start_mounter(server, namespaces)?;
                mounter.send(&Files { overlays: Vec::new(), ..files.clone() }, &[]).at(step)?;
                Ok((mounts, Some(mounter)))
            }
        }
    }
}

impl PreparedParts {
    pub(crate) fn make(server: &Channel, preparation: &Preparation, watch: &mut Stopwatch) -> Result<Self, Failure> {
        let (outer, inner) = Channel::pair().at("make a channel to the furnisher")?;
        if preparation.owner != 0 {
            limit_processes(preparation).at("limit the processes")?;
        }
        let furnisher = match clone_into_namespaces(preparation.owner).at("make the namespaces")? {
            Side::Child => {
                drop(outer);
                let furnished = furnish(&inner, preparation.id_count);
                let failed = furnished.is_err();
                furnished.unwrap_or_else(|failure| report_failure(server, failure));
                exit(i32::from(failed))
            }
            Side::Parent(pid) => pid,
        };
        drop(inner);
        watch.mark("launcher: namespaces made");
        let namespaces = SandboxNamespaces::of(furnisher).at("open the namespaces")?;
        map_ids(furnisher, preparation).at("map the ids")?;
        outer.send(&(), &[]).at("wake the furnisher")?;
        watch.mark("launcher: ids mapped");
        let overlays = match &preparation.files {
            Some(files) => Overlays::Mounted(overlay::build(files, namespaces.user.as_fd())?),
            None => Overlays::Awaited(start_mounter(server, &namespaces)?),
        };
        watch.mark("launcher: overlays prepared");
        let devices = receive_from(&outer, "wait for the devices")?;
        let devices = Devices::from_descriptors(devices).at("wait for the devices")?;
        waitpid(Some(furnisher), WaitOptions::empty()).at("wait for the furnisher")?;
        watch.mark("launcher: devices made");
        Ok(Self { namespaces, devices, overlays })
    }
}

/// Gives the user namespace its ids, which only a process outside can.
fn map_ids(process: Pid, Preparation { id_base, id_count, .. }: &Preparation) -> io::Result<()> {
    let map = format!("0 {id_base} {id_count}\n");
    for file in ["gid_map", "uid_map"] {
        // A single write: the kernel refuses a second one.
        let path = format!("/proc/{}/{file}", process.as_raw_nonzero());
        File::options().write(true).open(path)?.write_all(map.as_bytes())?;
    }
    Ok(())
}

/// The work of the furnisher.
fn furnish(launcher: &Channel, id_count: u32) -> Result<(), Failure> {
    receive_from(launcher, "wait for the ids")?;
    become_root(id_count).at("become root of the sandbox")?;
    let devices = Devices::make(id_count)?;
    bring_up_loopback().at("bring up the loopback interface")?;
    launcher.send(&(), &devices.descriptors()).at("hand over the devices")
}

/// Forks the mounter, a child of the server. It ends when the launcher does, unless it has work.
fn start_mounter(server: &Channel, namespaces: &SandboxNamespaces) -> Result<Channel, Failure> {
    let (ours, theirs) = Channel::pair().at("make a channel to the mounter")?;
    match clone_sibling().at("start the mounter")? {
        Side::Parent(_) => Ok(ours),
        Side::Child => {
            drop(ours);
            let mounted = mount(server, &theirs, namespaces);
            let failed = mounted.is_err();
            mounted.unwrap_or_else(|failure| report_failure(server, failure));
            // Closes the channel to the server, which waits for that: the end of a process releases
            // its mounts first, which takes milliseconds.
            let _ = place_descriptor(theirs.as_fd(), server.as_fd().as_raw_fd());
            exit(i32::from(failed))
        }
    }
}

/// The work of the mounter.
fn mount(server: &Channel, first: &Channel, namespaces: &SandboxNamespaces) -> Result<(), Failure> {
    let Some((files, _)) = first.receive::<Files>().at("wait for the layers")? else { return Ok(()) };
    let mut watch = Stopwatch::start();
    let mounts = overlay::build(&files, namespaces.user.as_fd())?;
    let mounts: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
    first.send(&(), &mounts).at("hand over the file tree")?;
    watch.mark("mounter: overlays mounted");
    server.send(&Report::Timings(watch.marks), &[]).at("report to the server")
}
