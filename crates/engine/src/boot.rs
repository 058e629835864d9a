//! The server's side of a boot: creates everything a sandbox needs, and removes it again if the
//! boot fails.
//!
//! All of it blocks, for some milliseconds, on one thread of the blocking pool.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use egress::{Device, Egress, EgressConfig, Policy};
use launcher::spec::{BootSpec, Channel, Files, Overlay, Report, Shared};
use launcher::{Stopwatch, sealed_file};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::EngineConfig;
use crate::error::NamespacesError;
use crate::group::{Group, Groups};
use crate::ids::{Range, Ranges};
use crate::launchers::{Launcher, Launchers, NetworkLink};
use crate::machine::{names_path, remove, remove_socket};
use crate::pool::{Pool, Volume};
use crate::port::{Boot, BootFiles, Instance, Mount, Resources};
use crate::privilege::Privilege;
use crate::processes::MARK;
use crate::rootfs::Template;
use crate::rootless::Identity;
use crate::volume::volume_files;

/// Deadline for each report of the launcher. A boot takes milliseconds; on a machine that is
/// overloaded by hundreds of them, seconds.
pub(crate) const BOOT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that a mount needs beyond the limit: work directories of overlays, and the files that name
/// the sandbox.
pub(crate) const MOUNT_RESERVE_BYTES: u64 = 16 << 20;
/// In a volume: the record of its last boot.
const RECORD: &str = "boot.json";
const RECORD_DRAFT: &str = "boot.json.new";
/// In a volume: the directory with the files that the sandbox wrote.
pub(crate) const WRITABLE: &str = "up";

/// What all boots of an engine share.
#[derive(Debug)]
pub(crate) struct SandboxBuilder {
    /// The first field, which is dropped first: spare launchers use the pool.
    pub(crate) launchers: Launchers,
    pub(crate) runtime: PathBuf,
    pub(crate) pool: Pool,
    pub(crate) groups: Groups,
    pub(crate) privilege: Privilege,
    identity: Identity,
    pub(crate) ranges: Ranges,
    guest: OwnedFd,
}

impl Drop for SandboxBuilder {
    fn drop(&mut self) {
        // Removes what all sandboxes share, unless one of them still runs: the next server then
        // finds it.
        if self.groups.remove_root_if_empty() {
            crate::delegation::forget(&self.runtime);
            // A directory that is not empty holds files that the engine did not make, so it stays.
            let _ = fs::remove_dir(&self.runtime);
        }
    }
}

/// What a later server must know about a volume, written at each boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BootRecord {
    /// The layers of the last boot.
    pub(crate) layers: BTreeSet<PathBuf>,
    pub(crate) limit_bytes: u64,
    /// Bytes that were charged to the volume at its last copy, and that may stay charged whatever
    /// the sandbox deletes.
    #[serde(default)]
    pub(crate) shared_bytes: u64,
    /// Limit of the sandbox's processes; `None` if the volume was never booted, or by an older
    /// version.
    #[serde(default)]
    pub(crate) pids: Option<u32>,
}

impl BootRecord {
    /// `None` for a volume that was never booted, or whose record cannot be read.
    pub(crate) fn read(volume: &Path) -> Option<Self> {
        Self::try_read(volume).ok().flatten()
    }

    /// `None` for a volume that was never booted.
    pub(crate) fn try_read(volume: &Path) -> io::Result<Option<Self>> {
        match fs::read(volume.join(RECORD)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            bytes => Ok(Some(serde_json::from_slice(&bytes?)?)),
        }
    }

    /// Replaces the record by an atomic rename. Writes nothing when the record is unchanged,
    /// because a full volume must boot.
    ///
    /// Not synced, since that would cost every boot a flush: after a power cut the previous record
    /// may be back, whose allowance is too large at most. Before a copy is made the kernel writes
    /// the source out, its record included.
    pub(crate) fn write(&self, volume: &Path) -> io::Result<()> {
        if Self::read(volume).as_ref() == Some(self) {
            return Ok(());
        }
        let draft = volume.join(RECORD_DRAFT);
        fs::write(&draft, serde_json::to_vec(self)?)?;
        fs::rename(draft, volume.join(RECORD))
    }
}

/// A sandbox whose process 1 has been executed. Dropping it, as when the caller of the boot is
/// cancelled, ends the sandbox.
pub(crate) struct StartedSandbox {
    pub(crate) instance: Instance,
    pub(crate) network: Network,
    pub(crate) volume: Volume,
    pub(crate) resources: BootResources,
    /// The launcher, which ends by itself. Waiting for it, as its drop does, needs no hurry.
    pub(crate) launcher: Option<Launcher>,
}

/// The network namespace of a sandbox, and the egress that serves it.
pub(crate) struct Network {
    pub(crate) namespace: OwnedFd,
    pub(crate) egress: Egress,
}

impl Network {
    /// Opens the network namespace of the sandbox whose process 1 is `pid` and connects it. Blocks;
    /// must be called inside a runtime.
    pub(crate) fn connect(pid: u32, config: &Arc<EgressConfig>, policy: Policy, socket: &Path) -> io::Result<Self> {
        let namespace = OwnedFd::from(File::open(format!("/proc/{pid}/ns/net"))?);
        let device = Device::set_up(namespace.as_fd())?;
        Self::serve(NetworkLink { namespace, device }, config, policy, socket)
    }

    /// Starts the egress of a sandbox, which keeps the names that the sandbox resolves beside
    /// `socket`. Must be called inside a runtime.
    fn serve(link: NetworkLink, config: &Arc<EgressConfig>, policy: Policy, socket: &Path) -> io::Result<Self> {
        let NetworkLink { namespace, device } = link;
        let egress = Egress::serve(device, Arc::clone(config), policy, Some(&names_path(socket)))?;
        Ok(Self { namespace, egress })
    }
}

/// What a boot creates outside the volume; removed on drop unless [`BootResources::keep`] was
/// called.
pub(crate) struct BootResources {
    pub(crate) name: String,
    pub(crate) group: Group,
    pub(crate) socket: PathBuf,
    pub(crate) ids: Option<Range>,
    /// Process 1; `None` until the launcher has made it.
    pub(crate) process: Option<OwnedFd>,
    kept: bool,
}

impl BootResources {
    /// Of a sandbox that runs already: drop removes nothing.
    pub(crate) fn for_adopted(
        name: String,
        group: Group,
        socket: PathBuf,
        ids: Option<Range>,
        process: OwnedFd,
    ) -> Self {
        Self { name, group, socket, ids, process: Some(process), kept: true }
    }

    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl BootResources {
    /// Waits for process 1, a child of the server that has been killed.
    fn reap(&self) {
        if let Some(process) = &self.process {
            let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

impl Drop for BootResources {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let ended = self.group.kill_all();
        if ended.is_ok() {
            self.reap();
        }
        let ended = ended.and_then(|()| self.group.remove());
        if let Err(error) = ended.and_then(|()| remove_socket(&self.socket)) {
            // The next sweep removes it.
            warn!(
                sandbox = self.name,
                error = &error as &dyn std::error::Error,
                "remains of a failed boot stay for now"
            );
        }
    }
}

impl SandboxBuilder {
    pub(crate) fn open(
        config: &EngineConfig,
        pool: Pool,
        groups: Groups,
        privilege: Privilege,
        identity: Identity,
    ) -> Result<Self, NamespacesError> {
        let runtime = config.runtime.clone();
        fs::create_dir_all(&runtime)
            .and_then(|()| fs::set_permissions(&runtime, Permissions::from_mode(0o700)))
            .map_err(NamespacesError::io(format!("make {}", runtime.display())))?;
        let guest = sealed_file("sandbar-guest", config.guest).map_err(NamespacesError::io("make a memory file"))?;
        let mark = (!privilege.is_root()).then(|| format!("{identity}/"));
        let ranges = Ranges::survey(privilege, identity.0);
        let launchers = Launchers::new(mark, ranges.clone(), privilege.id_count(), privilege.on_disk());
        let launchers = launchers.map_err(NamespacesError::io("make a memory file"))?;
        Ok(Self { launchers, runtime, pool, groups, privilege, identity, ranges, guest })
    }

    pub(crate) fn socket_of(&self, name: &str) -> PathBuf {
        self.runtime.join(format!("{name}.sock"))
    }

    pub(crate) fn start(
        &self,
        boot: Boot,
        template: Template,
        config: &Arc<EgressConfig>,
    ) -> Result<StartedSandbox, NamespacesError> {
        let Boot { id, files, resources: limits, egress, volumes, boot_id, hostname, guest_config } = boot;
        let name = id.to_string();
        if !template.is_sound() {
            return Err(NamespacesError::Invalid("the template names no root, or one place twice".to_owned()));
        }
        let volumes = volumes
            .into_iter()
            .map(|Mount { files, at }| self.open_shared(files.as_str(), at))
            .collect::<Result<_, _>>()?;
        let mut watch = Stopwatch::start();
        let overlays = overlays_of(template);
        // One that is not a spare prepares while the server does.
        let mut launcher = self.launchers.take(&name, (!self.groups.has_limits()).then_some(limits.pids), &overlays)?;
        watch.mark("launcher there");
        let limit = u64::from(limits.disk_mb) << 20;
        let existed = self.pool.path_of(&name).is_dir();
        // A full volume must boot: the mount needs a few bytes, else the overlay turns read-only.
        let volume = match files {
            BootFiles::Create => self.pool.create_volume(&name, limit + MOUNT_RESERVE_BYTES)?,
            BootFiles::Open => self.open_files(&name, limit + MOUNT_RESERVE_BYTES)?,
        };
        let writable = prepare_volume(&volume, &overlays, limit, limits.pids)
            .map_err(NamespacesError::io(format!("prepare volume {name}")))?;
        watch.mark("volume ready");
        let group = self.groups.create(&name, &limits)?;
        watch.mark("cgroup made");
        let socket = self.socket_of(&name);
        let spec = BootSpec {
            mark: (!self.privilege.is_root()).then(|| format!("{MARK}={}/{name}", self.identity)),
            cgroup_tasks: group.tasks_files(),
            cgroup_unified: group.unified().map(Path::to_owned),
            files: Files {
                id_base: launcher.preparation.id_base,
                on_disk: self.privilege.on_disk(),
                writable,
                overlays,
                volumes,
            },
            hostname,
            boot_id,
            nameserver: egress::NAMESERVER,
            shared_memory_bytes: shared_memory(&limits),
        };
        let ids = launcher.ids.take();
        let mut resources = BootResources { name, group, socket, ids, process: None, kept: false };
        let guest_config = sealed_file("config", &guest_config).map_err(NamespacesError::io("make a memory file"))?;
        remove(&names_path(&resources.socket))?;
        let socket = resources.socket.clone();
        let connect = |link| Network::serve(link, config, egress, &socket);
        // A flush of the disk takes about as long as a launch, so both run concurrently.
        let record = volume.path().join(RECORD);
        let (launched, synced) = thread::scope(|scope| {
            let syncing = (!existed).then(|| scope.spawn(|| self.pool.sync_new(&volume, &[&record])));
            let launched = self.launch(launcher, &mut resources, &spec, &guest_config, connect, &mut watch);
            (launched, syncing.map_or(Ok(()), |syncing| syncing.join().expect("a sync does not panic")))
        });
        let (instance, network, launcher) = launched?;
        synced.map_err(NamespacesError::io(format!("write volume {} to the disk", resources.name)))?;
        watch.mark("volume synced");
        debug!(sandbox = resources.name, marks = ?watch.marks, "boot, seen by the server");
        volume.set_limit(limit).map_err(NamespacesError::io(format!("limit volume {}", resources.name)))?;
        Ok(StartedSandbox { instance, network, volume, resources, launcher: Some(launcher) })
    }

    /// Opens the volume of an earlier boot. One without [`WRITABLE`], as a power cut may leave it,
    /// counts as missing.
    fn open_files(&self, name: &str, limit_bytes: u64) -> Result<Volume, NamespacesError> {
        let volume = self.pool.open_volume(name, limit_bytes)?;
        let path = volume.path().join(WRITABLE);
        if path.is_dir() { Ok(volume) } else { Err(NamespacesError::FilesMissing { name: name.to_owned(), path }) }
    }

    fn open_shared(&self, volume: &str, at: PathBuf) -> Result<Shared, NamespacesError> {
        let source = volume_files(&self.pool.path_of(volume));
        if source.is_dir() {
            self.count_nested(volume);
            Ok(Shared { at, source })
        } else {
            Err(NamespacesError::FilesMissing { name: volume.to_owned(), path: source })
        }
    }

    fn launch(
        &self,
        mut launcher: Launcher,
        resources: &mut BootResources,
        spec: &BootSpec,
        config: &OwnedFd,
        connect: impl FnOnce(NetworkLink) -> io::Result<Network>,
        watch: &mut Stopwatch,
    ) -> Result<(Instance, Network, Launcher), NamespacesError> {
        let name = resources.name.clone();
        let failed = |step: &str| {
            let (name, step) = (name.clone(), step.to_owned());
            move |source| NamespacesError::Launch { name, step, source }
        };
        let listener = listen(&resources.socket).map_err(failed("listen for the guest"))?;
        let descriptors = [listener.as_fd(), self.guest.as_fd(), config.as_fd()];
        launcher.channel.send(spec, &descriptors).map_err(failed("instruct the launcher"))?;
        let (mut network, mut connect) = (None, Some(connect));
        // Runs while the launcher continues. If both fail, the error of the launcher is the one
        // that names the cause.
        let mut attach = |link: io::Result<NetworkLink>| {
            if let Some(connect) = connect.take() {
                network = Some(link.and_then(connect));
            }
        };
        if let Some(link) = launcher.link.take() {
            attach(Ok(link));
        }
        let pid = follow(&launcher.channel, resources, |descriptors| attach(NetworkLink::set_up(descriptors)))?;
        let network = network.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
        let network = network.map_err(failed("connect the sandbox to the network"))?;
        watch.mark("guest executed");
        let ended = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        if !matches!(ended, Ok(None)) {
            return Err(failed("keep process 1 running")(io::ErrorKind::BrokenPipe.into()));
        }
        let pid = pid.as_raw_nonzero().get().cast_unsigned();
        let start_time = start_time_of(pid).map_err(failed("identify process 1"))?;
        Ok((Instance { pid, start_time }, network, launcher))
    }
}

/// Reads the launcher's reports until the channel closes, which happens at the exec of the guest;
/// returns process 1.
///
/// Calls `prepared` with the descriptors of [`Report::Prepared`], unless a spare launcher has sent
/// that before.
fn follow(
    channel: &Channel,
    resources: &mut BootResources,
    mut prepared: impl FnMut(Vec<OwnedFd>),
) -> Result<Pid, NamespacesError> {
    let name = resources.name.clone();
    let failed = |step: &str, source| NamespacesError::Launch { name: name.clone(), step: step.to_owned(), source };
    set_socket_timeout(channel, Timeout::Recv, Some(BOOT_TIMEOUT))
        .map_err(|error| failed("set a deadline", error.into()))?;
    let (mut process, mut executing, mut failure) = (None, false, None);
    loop {
        let message = channel.receive().map_err(|error| match error.raw_os_error() {
            Some(libc::EAGAIN) => failed("finish in time", io::ErrorKind::TimedOut.into()),
            _ => failed("hear from the launcher", error),
        });
        // An earlier failure is the cause of this one.
        let message = match (message, failure.take()) {
            (Err(_), Some(failure)) => return Err(failure),
            (message, earlier) => {
                failure = earlier;
                message?
            }
        };
        match message {
            Some((Report::Prepared, descriptors)) => prepared(descriptors),
            Some((Report::Made { pid }, _)) => {
                process = Pid::from_raw(pid);
                // A child of the server that is not reaped yet: the pid cannot be reused.
                let opened = process.map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose();
                resources.process = opened.map_err(|error| failed("open process 1", error.into()))?;
                resources.group.record_started(pid.cast_unsigned())?;
            }
            Some((Report::Executing, _)) => executing = true,
            Some((Report::Timings(marks), _)) => debug!(sandbox = resources.name, ?marks, "boot"),
            // The other processes end, too. One of them may be a process 1 that is not known yet.
            Some((Report::Failed { step, errno }, _)) => {
                failure.get_or_insert_with(|| failed(&step, io::Error::from_raw_os_error(errno)));
            }
            None => break,
        }
    }
    match (process, failure) {
        (_, Some(failure)) => Err(failure),
        (Some(process), None) if executing => Ok(process),
        _ => Err(failed("finish: the launcher died", io::ErrorKind::BrokenPipe.into())),
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn prepare_volume(volume: &Volume, overlays: &[Overlay], limit_bytes: u64, pids: u32) -> io::Result<PathBuf> {
    let shared_bytes = BootRecord::read(volume.path()).map_or(0, |record| record.shared_bytes);
    if shared_bytes > 0 {
        volume.set_allowance(shared_bytes)?;
    }
    let writable = volume.path().join(WRITABLE);
    if let Err(error) = fs::create_dir(&writable)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let layers = overlays.iter().flat_map(|overlay| &overlay.lowers).cloned().collect();
    BootRecord { layers, limit_bytes, shared_bytes, pids: Some(pids) }.write(volume.path())?;
    Ok(writable)
}

pub(crate) fn overlays_of(template: Template) -> Vec<Overlay> {
    let overlay = |plan: crate::rootfs::MountPlan| {
        let directory = plan.directory();
        Overlay { at: plan.at, lowers: plan.lowers, directory, of_host: plan.of_host }
    };
    template.mounts.into_iter().map(overlay).collect()
}

/// Half of the memory, as the kernel's default for a tmpfs is.
fn shared_memory(limits: &Resources) -> u64 {
    u64::from(limits.memory_mb) << 19
}

/// Start time of a process in clock ticks since the machine started.
pub(crate) fn start_time_of(pid: u32) -> io::Result<u64> {
    let mut stat = String::new();
    File::open(format!("/proc/{pid}/stat"))?.read_to_string(&mut stat)?;
    // The name in parentheses may contain anything, parentheses too; field 3 follows its last one.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    fields
        .split_ascii_whitespace()
        .nth(22 - 3)
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/PID/stat"))
}
