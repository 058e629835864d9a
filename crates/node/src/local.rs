//! Adapter of the node's engine port to the engine of this machine.

use std::collections::HashSet;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{io, iter};

use async_trait::async_trait;
use egress::{Policy, Rules};
use engine::FilesId;
use engine::pool::{PoolError, PoolFault};
use engine::volume::VolumeDirectory;
use jiff::Timestamp;
use protocol::SandboxId;
use rustix::io::Errno;
use tokio::net::TcpStream;

use crate::description::Description;
use crate::health::Unwritable;
use crate::ports::{Boot, Engine, EngineError, Fill, Instance, Machine, RootError, Trash, Trashed, Usage};
use crate::volume::VolumeMount;

/// Boots sandboxes with the kernel of this machine.
pub struct LocalEngine {
    engine: engine::Engine,
}

impl LocalEngine {
    pub fn new(engine: engine::Engine) -> Self {
        Self { engine }
    }

    /// Converts an error. While the pool is read-only, that is the reason of every failure; a disk
    /// that refused a change is named with what to do.
    fn failed(&self, what: &'static str) -> impl FnOnce(engine::NamespacesError) -> EngineError + '_ {
        move |error| match self.fault() {
            Some(fault) => EngineError::ReadOnly(fault),
            None => find_disk_refusal(&error, self.engine.directories()).unwrap_or_else(|| failed(what)(error)),
        }
    }
}

fn failed(what: &'static str) -> impl FnOnce(engine::NamespacesError) -> EngineError {
    move |error| match error {
        engine::NamespacesError::NoSpace(PoolError::NoSpace { path, free, reserve }) => {
            EngineError::NoSpace(durable::explain_reserve(&path, free, reserve))
        }
        engine::NamespacesError::NoSpace(other) => EngineError::NoSpace(other.to_string()),
        engine::NamespacesError::FilesMissing { name, path } => match name.parse() {
            Ok(files) => EngineError::FilesMissing { files, path },
            Err(_) => EngineError::failed(what, format!("nothing is at {}", path.display())),
        },
        engine::NamespacesError::ReadOnly(fault) => EngineError::ReadOnly(unwritable(fault)),
        other => EngineError::failed(what, other),
    }
}

/// The refusal of a disk in the causes of `error`, explained by the state of the engine's
/// directories.
fn find_disk_refusal(error: &engine::NamespacesError, directories: [&Path; 2]) -> Option<EngineError> {
    let mut causes = iter::successors(Some(error as &(dyn Error + 'static)), |cause| (*cause).source());
    let refused = |cause: &(dyn Error + 'static)| {
        let error = cause.downcast_ref::<io::Error>()?;
        let errno = Errno::from_io_error(error)?;
        matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS).then_some((errno, io::Error::from(errno)))
    };
    let (errno, refusal) = causes.find_map(refused)?;
    let exhausted = directories.into_iter().find(|path| durable::is_exhausted(path));
    // Limits of the kernel on namespaces, mounts and cgroups have the same error number. The pool
    // itself fails for its disk.
    let is_of_pool = matches!(error, engine::NamespacesError::Pool(_));
    let path = exhausted.or(is_of_pool.then_some(directories[0]))?;
    let cause = durable::explain(path, &refusal);
    Some(match errno {
        Errno::ROFS => EngineError::ReadOnly(Unwritable { path: path.to_owned(), cause, since: Timestamp::now() }),
        _ => EngineError::NoSpace(cause),
    })
}

fn unwritable(fault: PoolFault) -> Unwritable {
    let PoolFault { path, cause, since } = fault;
    Unwritable { path, cause, since: Timestamp::try_from(since).unwrap_or(Timestamp::UNIX_EPOCH) }
}

fn names<T: ToString>(ids: &HashSet<T>) -> HashSet<String> {
    ids.iter().map(T::to_string).collect()
}

#[async_trait]
impl Trash for LocalEngine {
    async fn files(&self) -> Result<HashSet<FilesId>, EngineError> {
        let names = self.engine.files().await.map_err(failed("cannot list files"))?;
        // Directories whose names are no ids do not belong to the server.
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    async fn describe(&self, files: &FilesId, description: &Description) -> Result<(), EngineError> {
        let note = serde_json::to_value(description)
            .map_err(|error| EngineError::failed("cannot write the description of files", error))?;
        self.engine.write_note(files.as_str(), note).await.map_err(self.failed("cannot describe files"))
    }

    async fn description(&self, files: &FilesId) -> Result<Option<Description>, EngineError> {
        let note = self.engine.note(files.as_str()).await.map_err(failed("cannot read the description of files"))?;
        Ok(note.and_then(|note| serde_json::from_value(note).ok()))
    }

    async fn is_volume(&self, files: &FilesId) -> Result<bool, EngineError> {
        Ok(self.engine.is_volume(files.as_str()))
    }

    async fn trash(&self) -> Result<Vec<Trashed>, EngineError> {
        let trashed = self.engine.trash().await.map_err(failed("cannot list the trash"))?;
        let ours = trashed.into_iter().filter_map(|engine::pool::Trashed { name, since, watched, bytes, note }| {
            let description = note.and_then(|note| serde_json::from_value(note).ok());
            let since = Timestamp::try_from(since).unwrap_or(Timestamp::MAX);
            Some(Trashed { files: name.parse().ok()?, since, watched, bytes, description })
        });
        Ok(ours.collect())
    }

    async fn take_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        self.engine.take_from_trash(files.as_str()).await.map_err(self.failed("cannot take files from the trash"))
    }

    async fn record_watched(&self, files: &FilesId, watched: Duration) -> Result<(), EngineError> {
        let recorded = self.engine.record_watched(files.as_str(), watched).await;
        recorded.map_err(self.failed("cannot record how long files have been in the trash"))
    }

    async fn delete_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        self.engine.delete_from_trash(files.as_str()).await.map_err(failed("cannot delete files from the trash"))
    }
}

#[async_trait]
impl Engine for LocalEngine {
    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>, EngineError> {
        let Boot { id, files, resources, egress, mut volumes, boot_id, mut guest } = boot;
        let template =
            self.engine.template_of(id.as_str()).await.map_err(self.failed("cannot prepare the template"))?;
        for (name, value) in &template.env {
            guest.env_vars.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let guest_config = serde_json::to_vec(&guest)
            .map_err(|error| EngineError::failed("cannot write the guest's config", error))?;
        // A mount inside of another one is mounted after it.
        volumes.sort_by(|one, other| one.path.cmp(&other.path));
        let mount = |mount: VolumeMount| engine::Mount { volume: mount.files.to_string(), at: mount.path.into() };
        let boot = engine::Boot {
            name: id.to_string(),
            files,
            hostname: id.to_string(),
            template,
            limits: engine::Resources {
                cpu_count: resources.cpu_count,
                memory_mb: resources.memory_mb,
                disk_mb: resources.disk_mb,
                pids: resources.pids,
            },
            egress,
            volumes: volumes.into_iter().map(mount).collect(),
            boot_id,
            guest_config,
        };
        let machine = self.engine.boot(boot).await.map_err(self.failed("cannot boot the sandbox"))?;
        Ok(Arc::new(LocalMachine(machine)))
    }

    async fn adopt(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<Arc<dyn Machine>>, EngineError> {
        let Instance { pid, start_time } = instance;
        let found = self.engine.adopt(id.as_str(), engine::Instance { pid, start_time }, egress).await;
        let machine = found.map_err(self.failed("cannot adopt the sandbox"))?;
        Ok(machine.map(|machine| Arc::new(LocalMachine(machine)) as Arc<dyn Machine>))
    }

    async fn sweep(&self, running: &HashSet<SandboxId>, files: &HashSet<FilesId>) -> Result<Vec<String>, EngineError> {
        self.engine.sweep(&names(running), &names(files)).await.map_err(self.failed("cannot clean up after sandboxes"))
    }

    async fn remove_files(&self, files: &FilesId) -> Result<(), EngineError> {
        self.engine.remove_files(files.as_str()).await.map_err(self.failed("cannot remove files"))
    }

    async fn copy_files(&self, from: &FilesId, to: &FilesId) -> Result<(), EngineError> {
        self.engine.copy_files(from.as_str(), to.as_str()).await.map_err(self.failed("cannot copy files"))
    }

    async fn make_spares(&self, ids: &[SandboxId], from: Option<&FilesId>) -> Result<(), EngineError> {
        let names = ids.iter().map(ToString::to_string).collect();
        let made = self.engine.make_spares(names, from.map(ToString::to_string)).await;
        made.map_err(self.failed("cannot make files ahead"))
    }

    fn copies_are_instant(&self) -> bool {
        self.engine.copies_are_instant()
    }

    async fn take_spare(&self, id: &SandboxId) -> Result<bool, EngineError> {
        self.engine.take_spare(id.as_str()).await.map_err(self.failed("cannot take files made ahead"))
    }

    async fn remove_spare(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.engine.remove_spare(id.as_str()).await.map_err(self.failed("cannot remove files made ahead"))
    }

    async fn settle_spares(&self, keep: &HashSet<FilesId>) -> Result<(), EngineError> {
        self.engine.settle_spares(&names(keep)).await.map_err(self.failed("cannot sort out files made ahead"))
    }

    async fn make_root(&self, files: &FilesId, limit_bytes: u64, fill: Fill) -> Result<Vec<String>, RootError> {
        let made = self.engine.make_root(files.as_str(), limit_bytes, fill).await;
        Ok(made.map_err(self.failed("cannot make a root"))??)
    }

    fn rootless_limitations(&self) -> Vec<&'static str> {
        self.engine.differences()
    }

    async fn create_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        self.engine.create_volume(files.as_str(), limit_bytes).await.map_err(self.failed("cannot make a volume"))
    }

    async fn open_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        self.engine.open_volume(files.as_str(), limit_bytes).await.map_err(self.failed("cannot open a volume"))
    }

    async fn egress_certificate(&self) -> Result<String, EngineError> {
        self.engine.egress_certificate().await.map_err(self.failed("cannot open the egress's authority"))
    }

    async fn sync_files(&self) -> Result<(), EngineError> {
        self.engine.sync_files().await.map_err(self.failed("cannot write files out"))
    }

    fn fault(&self) -> Option<Unwritable> {
        self.engine.fault().map(unwritable)
    }
}

struct LocalMachine(engine::Machine);

#[async_trait]
impl Machine for LocalMachine {
    fn instance(&self) -> Instance {
        let engine::Instance { pid, start_time } = self.0.instance();
        Instance { pid, start_time }
    }

    fn guest_socket(&self) -> &Path {
        self.0.guest_socket()
    }

    fn record_call(&self) {
        self.0.record_call();
    }

    async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        self.0.dial(port).await
    }

    fn set_egress_rules(&self, rules: Rules) {
        self.0.set_egress_rules(rules);
    }

    async fn freeze(&self) -> Result<(), EngineError> {
        self.0.freeze().await.map_err(failed("cannot freeze the sandbox"))
    }

    async fn thaw(&self) -> Result<(), EngineError> {
        self.0.thaw().await.map_err(failed("cannot thaw the sandbox"))
    }

    async fn kill(&self) -> Result<(), EngineError> {
        self.0.kill().await.map_err(failed("cannot end the sandbox's processes"))
    }

    async fn usage(&self) -> Result<Usage, EngineError> {
        let usage = self.0.usage().await.map_err(failed("cannot read what the sandbox uses"))?;
        Ok(Usage {
            cpu_usec: usage.cpu_usec,
            memory_used: usage.memory_used,
            memory_cache: usage.memory_cache,
            memory_limit: usage.memory_limit,
            disk_used: usage.disk_used,
            disk_limit: usage.disk_limit,
            oom_kills: usage.oom_kills,
        })
    }

    async fn exited(&self) {
        self.0.exited().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::owner::chain;

    /// What callers read of a failure, and whether they can tell it from others.
    #[test]
    fn failures_are_told_apart_with_what_to_do() {
        let no_space = || PoolError::NoSpace { path: "/".into(), free: 1 << 30, reserve: 2 << 30 };
        let denied = || io::Error::from_raw_os_error(13);
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_323_346_789);
        let missing =
            |name: &str| engine::NamespacesError::FilesMissing { name: name.to_owned(), path: "/pool/x".into() };
        let told = [
            engine::NamespacesError::NoSpace(no_space()),
            engine::NamespacesError::NoSpace(PoolError::InvalidName("x".to_owned())),
            engine::NamespacesError::ReadOnly(PoolFault { path: "/pool".into(), cause: "aborted".to_owned(), since }),
            missing("iabc"),
            engine::NamespacesError::Unsupported { what: "cgroups".to_owned(), fix: "mount them".to_owned() },
            engine::NamespacesError::Invalid("the template names no root".to_owned()),
            engine::NamespacesError::TooMany(7),
            engine::NamespacesError::Running("iabc".to_owned()),
            engine::NamespacesError::Launch { name: "iabc".to_owned(), step: "mount".to_owned(), source: denied() },
            engine::NamespacesError::Pool(no_space()),
            engine::NamespacesError::Io { what: "make a memory file".to_owned(), source: denied() },
        ]
        .map(|error| {
            let error = failed("cannot boot the sandbox")(error);
            let kind = match error {
                EngineError::NoSpace(_) => "NoSpace",
                EngineError::FilesMissing { .. } => "FilesMissing",
                EngineError::ReadOnly(_) => "ReadOnly",
                EngineError::Failed { .. } => "Failed",
            };
            format!("{kind} {}", chain(&error))
        });
        let reserve = "the file system at / has 1024 MiB free, and 2048 MiB are kept free for the sandboxes that exist; \
                       free space there (`df -h /`)";
        let expected = [
            &format!("NoSpace no space left for sandboxes on this machine: {reserve}"),
            "NoSpace no space left for sandboxes on this machine: \"x\" cannot be the name of a volume",
            "ReadOnly /pool accepts no changes since 2026-01-02T03:09:06.789Z: aborted",
            "FilesMissing files iabc are missing from the pool at /pool/x",
            "Failed cannot boot the sandbox: this machine lacks cgroups; mount them",
            "Failed cannot boot the sandbox: invalid request: the template names no root",
            "Failed cannot boot the sandbox: 7 sandboxes run already, and there are no more ids",
            "Failed cannot boot the sandbox: sandbox iabc runs already",
            "Failed cannot boot the sandbox: sandbox iabc could not be started: cannot mount: Permission denied (os error 13)",
            "Failed cannot boot the sandbox: the volume pool failed: the file system of / has 1073741824 bytes left, and \
             2147483648 are kept free for the sandboxes that exist",
            "Failed cannot boot the sandbox: cannot make a memory file: Permission denied (os error 13)",
        ];
        assert_eq!(told, expected);
    }
}
