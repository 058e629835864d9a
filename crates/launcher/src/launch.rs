//! Boots a sandbox from a specification.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;

use rustix::fs::Mode;
use rustix::process::{Pid, Resource, Rlimit, setrlimit, umask};

use crate::failure::{At, Failure};
use crate::handover::{Handover, lift};
use crate::seccomp::{self, Program};
use crate::spec::{Channel, Report, Spec};
use crate::stopwatch::Stopwatch;
use crate::sys::namespace::{Side, clone_into_namespaces, unshare_mounts};
use crate::{inside, overlay};

/// Above zero, so that the kernel kills sandboxes before the server when the host runs out of
/// memory. Only a little: the guest sets 100 for the processes it starts, so that a sandbox out of
/// memory loses one of those and not process 1, which would end the sandbox.
const OOM_SCORE_ADJUSTMENT: &str = "10";

/// Runs as the launcher: reads the specification from standard input, boots the sandbox, exits.
pub fn launch() -> ! {
    // The server may have inherited a strict umask; files in the roots of sandboxes get exactly the
    // modes that are requested.
    umask(Mode::empty());
    let channel = match lift(rustix::stdio::stdin()) {
        Ok(descriptor) => Channel::from(descriptor),
        Err(_) => exit(2),
    };
    match boot(&channel) {
        Ok(()) => exit(0),
        Err(failure) => {
            report_failure(&channel, failure);
            exit(1)
        }
    }
}

/// Does the work that needs no specification: a spare launcher has done it before it is used.
fn prepare() -> Result<Program, Failure> {
    offer_to_out_of_memory_killer().at("offer the sandbox to the out-of-memory killer")?;
    unshare_mounts().at("leave the server's mounts")?;
    Ok(seccomp::filter())
}

fn report_failure(channel: &Channel, Failure { step, errno }: Failure) {
    // Sending fails only when the server is gone.
    let _ = channel.send(&Report::Failed { step, errno }, &[]);
}

fn boot(channel: &Channel) -> Result<(), Failure> {
    let prepared = prepare();
    let (spec, descriptors): (Spec, _) =
        channel.receive().at("read the specification")?.ok_or(Failure::closed("read the specification"))?;
    let mut watch = Stopwatch::start();
    // Reported only now: the server reads reports after it has sent the specification.
    let filter = prepared?;
    let handover = Handover::from_descriptors(&descriptors).at("read the specification")?;
    let (outer, inner) = Channel::pair().at("make a channel to the first process")?;
    let unified = join_cgroups(&spec).at("join the cgroup")?;
    watch.mark("launcher: in the cgroup");
    if spec.owner != 0 {
        limit_processes(&spec).at("limit the processes")?;
    }
    match clone_into_namespaces(spec.owner, unified.as_ref().map(AsFd::as_fd)).at("make the namespaces")? {
        Side::Child => {
            drop(outer);
            let failure = inside::become_guest(channel, inner, &spec, &handover, &filter, watch);
            report_failure(channel, failure);
            exit(1)
        }
        Side::Parent(pid) => {
            drop(inner);
            watch.mark("launcher: namespaces made");
            channel.send(&Report::Made { pid: pid.as_raw_nonzero().get() }, &[]).at("report to the server")?;
            furnish(&outer, pid, &spec, &mut watch)?;
            channel.send(&Report::Timings(watch.marks), &[]).at("report to the server")
        }
    }
}

pub(crate) fn offer_to_out_of_memory_killer() -> io::Result<()> {
    match fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJUSTMENT) {
        // In a container the score may be higher already, and lowering it requires SYS_RESOURCE.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

/// Joins the cgroups of version 1, so that the first process is created in them; opens the
/// directory of the one of version 2.
fn join_cgroups(spec: &Spec) -> io::Result<Option<OwnedFd>> {
    for tasks in &spec.cgroup_tasks {
        File::options().write(true).open(tasks)?.write_all(b"0")?;
    }
    spec.cgroup_unified.as_ref().map(|directory| Ok(File::open(directory)?.into())).transpose()
}

/// Limits processes where no cgroup counts them. The kernel counts the processes of each user, and
/// for all users of a user namespace together those of its owner, up to the limit that was set when
/// the namespace was created.
pub(crate) fn limit_processes(spec: &Spec) -> io::Result<()> {
    let Some(most) = spec.processes.map(u64::from) else { return Ok(()) };
    Ok(setrlimit(Resource::Nproc, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Gives the first process what only the launcher, which is root outside, can: ids and a file tree.
fn furnish(outer: &Channel, pid: Pid, spec: &Spec, watch: &mut Stopwatch) -> Result<(), Failure> {
    let process = pid.as_raw_nonzero();
    let user_namespace: OwnedFd =
        File::open(format!("/proc/{process}/ns/user")).at("open the user namespace of the sandbox")?.into();
    let map = format!("0 {} {}\n", spec.files.id_base, spec.id_count);
    for file in ["gid_map", "uid_map"] {
        // A single write: the kernel refuses a second one.
        File::options()
            .write(true)
            .open(format!("/proc/{process}/{file}"))
            .and_then(|mut file| file.write_all(map.as_bytes()))
            .at(&format!("write {file}"))?;
    }
    outer.send(&(), &[]).at("wake the first process")?;
    watch.mark("launcher: ids mapped");
    let overlays = overlay::build(&spec.files, user_namespace.as_fd())?;
    watch.mark("launcher: overlays mounted");
    let overlays: Vec<_> = overlays.iter().map(AsFd::as_fd).collect();
    outer.send(&(), &overlays).at("hand over the file tree")
}
