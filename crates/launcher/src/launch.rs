//! Boots a sandbox: prepares its namespaces, then waits for the specification.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, setrlimit, umask};

use crate::failure::{At, Failure};
use crate::handover::{GuestDescriptors, lift};
use crate::inside::{self, FirstProcess};
use crate::seccomp::{self, Program};
use crate::spec::{BootSpec, Channel, Preparation, Report};
use crate::stage::PreparedParts;
use crate::stopwatch::Stopwatch;
use crate::sys::namespace::{Side, clone_first, unshare_mounts};

/// Above zero, so that the kernel kills sandboxes before the server when the host runs out of
/// memory. Only a little: the guest sets 100 for the processes it starts, so that a sandbox out of
/// memory loses one of those and not process 1, which would end the sandbox.
const OOM_SCORE_ADJUSTMENT: &str = "10";

/// Runs as the launcher: reads the preparation and the specification from standard input, boots the
/// sandbox, exits.
pub fn launch() -> ! {
    // The server may have inherited a strict umask; files in the roots of sandboxes get exactly the
    // modes that are requested.
    umask(Mode::empty());
    let channel = match lift(rustix::stdio::stdin()) {
        Ok(descriptor) => Channel::from(descriptor),
        Err(_) => exit(2),
    };
    match boot(&channel) {
        Ok(()) => {
            // The server waits for that. The end of the process releases its mounts first.
            drop(channel);
            exit(0)
        }
        Err(failure) => {
            report_failure(&channel, failure);
            exit(1)
        }
    }
}

/// What a launcher has when the specification arrives. A spare one has it before it is used.
struct Prepared {
    preparation: Preparation,
    stage: PreparedParts,
    filter: Program,
}

fn prepare(channel: &Channel) -> Result<Prepared, Failure> {
    offer_to_out_of_memory_killer().at("offer the sandbox to the out-of-memory killer")?;
    unshare_mounts().at("leave the server's mounts")?;
    let filter = seccomp::filter();
    let (preparation, _): (Preparation, _) =
        channel.receive().at("read the preparation")?.ok_or(Failure::closed("read the preparation"))?;
    let mut watch = Stopwatch::start();
    let stage = PreparedParts::make(channel, &preparation, &mut watch)?;
    channel.send(&Report::Timings(watch.marks), &[]).at("report to the server")?;
    channel.send(&Report::Prepared, &[stage.namespaces.network.as_fd()]).at("report to the server")?;
    Ok(Prepared { preparation, stage, filter })
}

pub(crate) fn report_failure(channel: &Channel, Failure { step, errno }: Failure) {
    // Sending fails only when the server is gone.
    let _ = channel.send(&Report::Failed { step, errno }, &[]);
}

fn boot(channel: &Channel) -> Result<(), Failure> {
    let Prepared { preparation, stage, filter } = match prepare(channel) {
        Ok(prepared) => prepared,
        Err(failure) => {
            report_failure(channel, failure);
            // The server reads reports after it has sent the specification, which must not fail.
            let _ = channel.receive::<BootSpec>();
            exit(1)
        }
    };
    let (spec, descriptors): (BootSpec, _) =
        channel.receive().at("read the specification")?.ok_or(Failure::closed("read the specification"))?;
    let mut watch = Stopwatch::start();
    let PreparedParts { namespaces, devices, overlays } = stage;
    let (mounted, mounter) = overlays.complete(channel, &spec.files, &namespaces)?;
    let handover = GuestDescriptors::from_descriptors(&descriptors).at("read the specification")?;
    let (launcher, known) = Channel::pair().at("make a channel to the first process")?;
    let unified = join_cgroups(&spec).at("join the cgroup")?;
    watch.mark("launcher: in the cgroup");
    namespaces.enter().at("enter the namespaces")?;
    match clone_first(unified.as_ref().map(AsFd::as_fd)).at("make the first process")? {
        Side::Child => {
            drop(launcher);
            let failure = inside::become_guest(FirstProcess {
                server: channel,
                known,
                mounted,
                mounter,
                namespaces: &namespaces,
                devices,
                preparation: &preparation,
                spec: &spec,
                handover: &handover,
                filter: &filter,
                watch,
            });
            report_failure(channel, failure);
            exit(1)
        }
        Side::Parent(pid) => {
            channel.send(&Report::Made { pid: pid.as_raw_nonzero().get() }, &[]).at("report to the server")?;
            launcher.send(&(), &[]).at("wake the first process")
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
fn join_cgroups(spec: &BootSpec) -> io::Result<Option<OwnedFd>> {
    for tasks in &spec.cgroup_tasks {
        File::options().write(true).open(tasks)?.write_all(b"0")?;
    }
    spec.cgroup_unified.as_ref().map(|directory| Ok(File::open(directory)?.into())).transpose()
}

/// Limits processes where no cgroup counts them. The kernel counts the processes of each user, and
/// for all users of a user namespace together those of its owner, up to the limit that was set when
/// the namespace was created.
pub(crate) fn limit_processes(preparation: &Preparation) -> io::Result<()> {
    let Some(most) = preparation.processes.map(u64::from) else { return Ok(()) };
    Ok(setrlimit(Resource::Nproc, Rlimit { current: Some(most), maximum: Some(most) })?)
}
