//! One running Chromium process: start, command line and termination.
//!
//! A dedicated thread starts the browser and waits for it. The kernel kills the browser when that
//! thread ends (PR_SET_PDEATHSIG), so the thread stays; killing this process kills the browser too.

mod command;
mod stderr;

use std::error::Error as _;
use std::io::{self, PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cgroup::MemoryCgroup;
use futures::FutureExt;
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use crate::cdp::{CdpError, Connection};
use crate::config::{BrowserConfig, RunAs};
use crate::error::BrowserError;
use crate::profile::Profile;
use crate::sys::{self, Plan, Root, SpawnFailure, Spawned};
use command::command;
use stderr::{drain, explain_exit};

/// Time for the browser to exit when asked.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Prefix of the names of browsers' cgroups.
const CGROUP_PREFIX: &str = "sandbar-browser-";

pub(crate) struct Process {
    pub(crate) connection: Connection,
    /// The browser's user agent, without the word that reveals headless mode.
    pub(crate) user_agent: String,
    handle: OwnedFd,
    exited: CancellationToken,
    listeners: Mutex<Vec<ProxyListener>>,
    _stderr: AbortOnDropHandle<()>,
}

/// A listener inside the browser's network namespace, used by one capture at a time.
pub(crate) struct ProxyListener {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Process {
    /// Starts the browser in its own root. Falls back to the host's root where namespaces do not
    /// nest: where the kernel refuses the root, or Chromium's sandbox fails inside it.
    pub(crate) async fn launch(config: &BrowserConfig, program: PathBuf) -> Result<Arc<Self>, BrowserError> {
        match Self::launch_in(config, program.clone(), Confinement::OwnRoot).await {
            Err(error @ (BrowserError::Spawn { .. } | BrowserError::NoSandbox)) => {
                let cause = error.source().map(ToString::to_string);
                warn!(%error, cause, "browser does not start in its own root; retrying in the host root");
                Self::launch_in(config, program, Confinement::HostRoot).await
            }
            launched => launched,
        }
    }

    async fn launch_in(
        config: &BrowserConfig,
        program: PathBuf,
        confinement: Confinement,
    ) -> Result<Arc<Self>, BrowserError> {
        let started = Instant::now();
        let Launched { spawned, handle, exited } = Launched::start(config, program, confinement).await?;
        // The browser runs from here on; every early return must kill it.
        let handle = KillOnDrop(Some(handle));
        let failed = |source| BrowserError::Spawn { step: "take over its pipes", source };
        let connection = Connection::new(spawned.commands.into(), spawned.responses.into()).map_err(failed)?;
        let (last_words, stderr) = drain(spawned.stderr).map_err(failed)?;
        let version = tokio::select! {
            version = connection.call(None, "Browser.getVersion", json!({}), config.deadlines.launch) => version,
            () = exited.cancelled() => Err(CdpError::Ended),
        };
        let version = match version {
            Ok(version) => version,
            Err(CdpError::TimedOut { within, .. }) => return Err(BrowserError::TimedOut { within }),
            Err(CdpError::Ended | CdpError::Refused { .. }) => {
                // The tail is complete once the browser's end of the pipe is closed.
                let _ = tokio::time::timeout(EXIT_TIMEOUT, stderr).await;
                return Err(explain_exit(&last_words));
            }
        };
        let listeners = spawned.listeners.into_iter().map(|listener| {
            Ok(ProxyListener { address: listener.local_addr()?, listener: TcpListener::from_std(listener)? })
        });
        let listeners = listeners.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        info!(took = ?started.elapsed(), version = version["product"].as_str(), "browser started");
        Ok(Arc::new(Self {
            connection,
            user_agent: version["userAgent"].as_str().unwrap_or_default().replace("HeadlessChrome", "Chrome"),
            handle: handle.keep(),
            exited,
            listeners: Mutex::new(listeners),
            _stderr: stderr,
        }))
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.exited.is_cancelled() && !self.connection.has_ended()
    }

    /// A listener that no other capture uses. There are as many as concurrent captures.
    pub(crate) fn take_listener(&self) -> Option<ProxyListener> {
        self.listeners.lock().pop()
    }

    /// Drops pending connections first: they belong to a page that is gone, not to the next
    /// capture.
    pub(crate) fn return_listener(&self, listener: ProxyListener) {
        while let Some(Ok(_)) = listener.listener.accept().now_or_never() {}
        self.listeners.lock().push(listener);
    }

    /// Asks the browser to exit, kills it after a timeout, and waits for its end.
    pub(crate) async fn close(&self) {
        let _ = self.connection.call(None, "Browser.close", json!({}), EXIT_TIMEOUT).await;
        if tokio::time::timeout(EXIT_TIMEOUT, self.exited.cancelled()).await.is_err() {
            self.kill();
            // Bounded, because a process stuck in an uninterruptible system call does not end.
            let _ = tokio::time::timeout(EXIT_TIMEOUT, self.exited.cancelled()).await;
        }
    }

    pub(crate) fn kill(&self) {
        kill(&self.handle);
    }
}

/// Kills a browser that was not closed. Its supervisor thread then removes the profile.
impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

struct KillOnDrop(Option<OwnedFd>);

impl KillOnDrop {
    fn keep(mut self) -> OwnedFd {
        self.0.take().expect("it is only taken here, and this takes the whole")
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            kill(handle);
        }
    }
}

/// Limits the browser's memory with a cgroup, if this process may create one. The OOM killer then
/// ends a browser whose page takes too much memory, and the next capture starts another; other
/// processes are not affected.
///
/// Without that privilege (not root, or no memory controller) only the browser's own limits on
/// scripts and renderers apply, and its raised OOM score makes the kernel kill it first.
fn limit_memory(bytes: u64) -> Option<MemoryCgroup> {
    MemoryCgroup::new(CGROUP_PREFIX, bytes)
        .inspect_err(|error| {
            debug!(error = error as &dyn std::error::Error, "the browser's memory is not limited by a cgroup");
        })
        .ok()
}

fn kill(handle: &OwnedFd) {
    // Fails if the process has already ended.
    let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
}

/// Which files and processes the browser sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confinement {
    OwnRoot,
    HostRoot,
}

/// Checks whether this machine allows a program to start in its own root, by running `true` in one.
///
/// # Errors
/// [`BrowserError::Spawn`] with the step that the kernel refused.
pub fn check_own_root(config: &BrowserConfig) -> Result<(), BrowserError> {
    let failed = |source| BrowserError::Spawn { step: "make its root", source };
    let profile = Profile::create(&config.directory, config.run_as)?;
    let program = Path::new("/usr/bin/true");
    let root = Some(Root::new(program, profile.path()).map_err(failed)?);
    let command = Command::new(program);
    let plan = Plan { command, run_as: config.run_as, listeners: 1, cgroup_procs: None, root };
    let spawned =
        sys::spawn(plan).map_err(|SpawnFailure { step, source }| BrowserError::Spawn { step: step.describe(), source });
    let status = spawned?.child.wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(failed(io::Error::other(status.to_string()))) }
}

/// What the supervisor thread hands over after a start.
struct Launched {
    spawned: Pipes,
    handle: OwnedFd,
    exited: CancellationToken,
}

struct Pipes {
    commands: PipeWriter,
    responses: PipeReader,
    stderr: ChildStderr,
    listeners: Vec<std::net::TcpListener>,
}

impl Launched {
    async fn start(config: &BrowserConfig, program: PathBuf, confinement: Confinement) -> Result<Self, BrowserError> {
        let (parent, run_as, listeners) = (config.directory.clone(), config.run_as, config.max_concurrent);
        let memory = config.memory;
        let (sender, started) = oneshot::channel();
        let keep = move || {
            let exited = CancellationToken::new();
            let cgroup = limit_memory(memory);
            let cgroup_procs = cgroup.as_ref().map(|cgroup| cgroup.procs_file().as_fd());
            let plan = |command, root| Plan { command, run_as, listeners, cgroup_procs, root };
            let spawned = Self::spawn(&parent, run_as, &program, confinement, plan, exited.clone());
            let (child, profile, keeper) = match spawned {
                Ok(started) => started,
                Err(error) => return drop(sender.send(Err(error))),
            };
            // Sending fails if the start was cancelled; then the browser is killed.
            if let Err(Ok(unwanted)) = sender.send(Ok(keeper)) {
                kill(&unwanted.handle);
            }
            reap(child);
            drop(profile); // The browser has ended, so nothing writes there.
            drop(cgroup);
            exited.cancel();
        };
        let failed = |source| BrowserError::Spawn { step: "start its thread", source };
        thread::Builder::new().name("browser-reaper".into()).spawn(keep).map_err(failed)?;
        started.await.unwrap_or_else(|_| Err(failed(io::ErrorKind::BrokenPipe.into())))
    }

    fn spawn<'a>(
        parent: &Path,
        run_as: RunAs,
        program: &Path,
        confinement: Confinement,
        plan: impl FnOnce(Command, Option<Root>) -> Plan<'a>,
        exited: CancellationToken,
    ) -> Result<(Child, Profile, Self), BrowserError> {
        let profile = Profile::create(parent, run_as)?;
        let root = match confinement {
            Confinement::OwnRoot => {
                let failed = |source| BrowserError::Spawn { step: "find what its root needs", source };
                Some(Root::new(program, profile.path()).map_err(failed)?)
            }
            Confinement::HostRoot => None,
        };
        let spawned = sys::spawn(plan(command(program, profile.path()), root));
        let Spawned { mut child, commands, responses, listeners } =
            spawned.map_err(|SpawnFailure { step, source }| BrowserError::Spawn { step: step.describe(), source })?;
        let pid = Pid::from_child(&child);
        let lost = |source: io::Error| BrowserError::Spawn { step: "watch it", source };
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| lost(error.into()));
        let stderr = child.stderr.take().ok_or_else(|| lost(io::ErrorKind::BrokenPipe.into()));
        match (handle, stderr) {
            (Ok(handle), Ok(stderr)) => {
                let spawned = Pipes { commands, responses, stderr, listeners };
                Ok((child, profile, Self { spawned, handle, exited }))
            }
            (Err(error), _) | (_, Err(error)) => {
                let _ = child.kill(); // Fails if it has already ended.
                reap(child);
                Err(error)
            }
        }
    }
}

/// Waits for the browser and kills its process group, whose id stays valid until the browser is
/// reaped.
fn reap(mut child: Child) {
    let pid = Pid::from_child(&child);
    while let Err(rustix::io::Errno::INTR) =
        rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
    {}
    // Fails if the group is already empty.
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    match child.wait() {
        Ok(status) => debug!(%status, "the browser ended"),
        Err(error) => debug!(%error, "the browser's end was not seen"),
    }
}
