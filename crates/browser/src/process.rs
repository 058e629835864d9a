//! One running Chromium: how it is started, what it listens to, how it ends.
//!
//! A thread of its own starts it and waits for it. The kernel ties the browser's life to the thread that started it, so the thread
//! must stay; and whoever kills this process kills the browser, too.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use crate::bound::Bound;
use crate::cdp::{Connection, OrderError};
use crate::config::{BrowserConfig, RunAs};
use crate::error::BrowserError;
use crate::profile::Profile;
use crate::sys::{self, Plan, Root, SpawnError, Spawned};

/// For the browser to end by itself when asked.
const GRACE: Duration = Duration::from_secs(3);
const LAST_WORDS: usize = 2048;

/// What `--host-resolver-rules` says: nothing has an address. Proxied names are never resolved here.
const NO_NAMES: &str = "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1";

const FLAGS: [&str; 27] = [
    "--headless",
    // A page is one renderer or a few, whose scripts need no gigabytes; what may be bounded from outside is.
    "--renderer-process-limit=8",
    "--js-flags=--max-old-space-size=512",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-startup-window",
    // A build that is not Google's tries all features that are on trial.
    "--disable-field-trial-config",
    "--no-default-browser-check",
    "--disable-gpu",
    "--hide-scrollbars",
    "--mute-audio",
    // Nothing of its own accord.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-breakpad",
    "--no-pings",
    // Nothing around the proxy.
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--enable-features=NetworkServiceSandbox",
    // The first two ask for https where a page says http. The others give every window pages of its own for an address bar that
    // nobody types into: 0.6 s of processor time for each picture.
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,\
     WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup",
    // Both viewports load at once, so one of the two windows is always behind the other.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--password-store=basic",
];

/// The kernel takes 107 bytes for a socket, and the browser appends `/org.chromium.Chromium.XXXXXX/SingletonSocket`.
const LONGEST_FOR_SOCKETS: usize = 62;

pub(crate) struct Process {
    pub(crate) connection: Connection,
    /// What the browser calls itself, without the word that tells pages that nobody looks at a screen.
    pub(crate) user_agent: String,
    handle: OwnedFd,
    exited: CancellationToken,
    lanes: Mutex<Vec<Lane>>,
    _stderr: AbortOnDropHandle<()>,
}

/// A listener inside the browser's namespace, for one capture at a time.
pub(crate) struct Lane {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Process {
    /// Starts the browser in a root of its own, and in the host's where namespaces do not nest: where the root cannot be made, or
    /// the browser's own sandbox cannot be made in it.
    pub(crate) async fn launch(config: &BrowserConfig, program: PathBuf) -> Result<Arc<Self>, BrowserError> {
        match Self::launch_in(config, program.clone(), Confinement::OwnRoot).await {
            Err(error @ (BrowserError::Spawn { .. } | BrowserError::NoSandbox)) => {
                let cause = error.source().map(ToString::to_string);
                warn!(%error, cause, "the browser does not start in a root of its own; trying without");
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
        let Keeper { spawned, handle, exited } = Keeper::start(config, program, confinement).await?;
        // From here on the browser runs, and every way out of this function ends it.
        let handle = KillOnDrop(Some(handle));
        let failed = |source| BrowserError::Spawn { step: "take over its pipes", source };
        let connection = Connection::new(spawned.orders.into(), spawned.answers.into()).map_err(failed)?;
        let (last_words, stderr) = drain(spawned.stderr).map_err(failed)?;
        let version = tokio::select! {
            version = connection.order(None, "Browser.getVersion", json!({}), config.deadlines.launch) => version,
            () = exited.cancelled() => Err(OrderError::Ended),
        };
        let version = match version {
            Ok(version) => version,
            Err(OrderError::TimedOut { within, .. }) => return Err(BrowserError::TimedOut { within }),
            Err(OrderError::Ended | OrderError::Refused { .. }) => {
                // They are complete when its end of the pipe is closed.
                let _ = tokio::time::timeout(GRACE, stderr).await;
                return Err(explain_exit(&last_words));
            }
        };
        let lanes = spawned
            .listeners
            .into_iter()
            .map(|listener| Ok(Lane { address: listener.local_addr()?, listener: TcpListener::from_std(listener)? }));
        let lanes = lanes.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        info!(took = ?started.elapsed(), version = version["product"].as_str(), "the browser is up");
        Ok(Arc::new(Self {
            connection,
            user_agent: version["userAgent"].as_str().unwrap_or_default().replace("HeadlessChrome", "Chrome"),
            handle: handle.keep(),
            exited,
            lanes: Mutex::new(lanes),
            _stderr: stderr,
        }))
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.exited.is_cancelled() && !self.connection.has_ended()
    }

    /// A lane that no other capture uses. There are as many as captures may run at once.
    pub(crate) fn take_lane(&self) -> Option<Lane> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// What still waits in the lane belongs to a page that is gone: it must not be taken for the next one's.
    pub(crate) fn return_lane(&self, lane: Lane) {
        while let Some(Ok(_)) = lane.listener.accept().now_or_never() {}
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }

    /// Ends the browser, politely first, and waits for its end.
    pub(crate) async fn close(&self) {
        let _ = self.connection.order(None, "Browser.close", json!({}), GRACE).await;
        if tokio::time::timeout(GRACE, self.exited.cancelled()).await.is_err() {
            self.kill();
            // The kernel ends a killed process, unless it hangs in the kernel; nothing is won by waiting for that.
            let _ = tokio::time::timeout(GRACE, self.exited.cancelled()).await;
        }
    }

    pub(crate) fn kill(&self) {
        kill(&self.handle);
    }
}

/// Nothing is left of a browser that was not closed; its keeper then removes the profile.
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

fn kill(handle: &OwnedFd) {
    // Fails when it has ended already.
    let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
}

/// Which files and processes the browser sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confinement {
    OwnRoot,
    HostRoot,
}

/// Whether a program can be started in a root of its own here, as the browser is: tried with `true`.
///
/// # Errors
/// [`BrowserError::Spawn`] with the step that the kernel refused.
pub fn try_own_root(config: &BrowserConfig) -> Result<(), BrowserError> {
    let failed = |source| BrowserError::Spawn { step: "make its root", source };
    let profile = Profile::create(&config.directory, config.run_as)?;
    let program = Path::new("/usr/bin/true");
    let root = Some(Root::new(program, profile.path()).map_err(failed)?);
    let command = Command::new(program);
    let plan = Plan { command, run_as: config.run_as, listeners: 1, entrance: None, root };
    let spawned =
        sys::spawn(plan).map_err(|SpawnError { step, source }| BrowserError::Spawn { step: step.describe(), source });
    let status = spawned?.child.wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(failed(io::Error::other(status.to_string()))) }
}

/// What the thread that started the browser hands over.
struct Keeper {
    spawned: Pipes,
    handle: OwnedFd,
    exited: CancellationToken,
}

struct Pipes {
    orders: PipeWriter,
    answers: PipeReader,
    stderr: ChildStderr,
    listeners: Vec<std::net::TcpListener>,
}

impl Keeper {
    async fn start(config: &BrowserConfig, program: PathBuf, confinement: Confinement) -> Result<Self, BrowserError> {
        let (parent, run_as, listeners) = (config.directory.clone(), config.run_as, config.most_at_once);
        let memory = config.memory;
        let (sender, started) = oneshot::channel();
        let keep = move || {
            let exited = CancellationToken::new();
            let bound = Bound::new(memory);
            let entrance = bound.as_ref().map(|bound| bound.entrance.as_fd());
            let plan = |command, root| Plan { command, run_as, listeners, entrance, root };
            let spawned = Self::spawn(&parent, run_as, &program, confinement, plan, exited.clone());
            let (child, profile, keeper) = match spawned {
                Ok(started) => started,
                Err(error) => return drop(sender.send(Err(error))),
            };
            // Nobody takes it if the start was given up; the handle in it then ends the browser.
            if let Err(Ok(unwanted)) = sender.send(Ok(keeper)) {
                kill(&unwanted.handle);
            }
            reap(child);
            drop(profile); // Nobody writes there any more.
            drop(bound);
            exited.cancel();
        };
        let failed = |source| BrowserError::Spawn { step: "start its thread", source };
        thread::Builder::new().name("browser-keeper".into()).spawn(keep).map_err(failed)?;
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
        let Spawned { mut child, orders, answers, listeners } =
            spawned.map_err(|SpawnError { step, source }| BrowserError::Spawn { step: step.describe(), source })?;
        let pid = Pid::from_child(&child);
        let lost = |source: io::Error| BrowserError::Spawn { step: "watch it", source };
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| lost(error.into()));
        let stderr = child.stderr.take().ok_or_else(|| lost(io::ErrorKind::BrokenPipe.into()));
        match (handle, stderr) {
            (Ok(handle), Ok(stderr)) => {
                let spawned = Pipes { orders, answers, stderr, listeners };
                Ok((child, profile, Self { spawned, handle, exited }))
            }
            (Err(error), _) | (_, Err(error)) => {
                let _ = child.kill(); // It may have ended already.
                reap(child);
                Err(error)
            }
        }
    }
}

fn command(program: &Path, profile: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(profile);
    command.env("HOME", profile).env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8").env("TZ", "UTC");
    // What a killed browser leaves is removed with its profile. Where that is too long for a socket's path, it stays in /tmp.
    if profile.as_os_str().len() <= LONGEST_FOR_SOCKETS {
        command.env("TMPDIR", profile);
    }
    command.args(FLAGS).arg(format!("--host-resolver-rules={NO_NAMES}"));
    let mut directory = OsString::from("--user-data-dir=");
    directory.push(profile);
    command.arg(directory);
    // Every context has a proxy of its own. What belongs to none, such as the browser's own wishes, finds nobody at this one.
    command.arg("--proxy-server=http://127.0.0.1:1").arg("--proxy-bypass-list=<-loopback>");
    command
}

/// Waits for the end of the browser and takes what it started along. Its group keeps its number until it is reaped.
fn reap(mut child: Child) {
    let pid = Pid::from_child(&child);
    while let Err(rustix::io::Errno::INTR) =
        rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
    {}
    let _ = rustix::process::kill_process_group(pid, Signal::KILL); // There may be nobody left in it.
    match child.wait() {
        Ok(status) => debug!(%status, "the browser ended"),
        Err(error) => debug!(%error, "the browser's end was not seen"),
    }
}

type LastWords = Arc<Mutex<Vec<u8>>>;

/// Reads what the browser complains about, so that its pipe never fills, and keeps the end of it.
fn drain(stderr: ChildStderr) -> io::Result<(LastWords, AbortOnDropHandle<()>)> {
    let mut stderr = pipe::Receiver::from_owned_fd(stderr.into())?;
    let words = LastWords::default();
    let kept = Arc::clone(&words);
    let task = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
            let mut words = kept.lock().unwrap_or_else(PoisonError::into_inner);
            words.extend_from_slice(&buffer[..length]);
            let surplus = words.len().saturating_sub(LAST_WORDS);
            words.drain(..surplus);
        }
    });
    Ok((words, AbortOnDropHandle::new(task)))
}

fn explain_exit(words: &LastWords) -> BrowserError {
    let words = words.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&words).trim().to_owned();
    match text.contains("No usable sandbox") {
        true => BrowserError::NoSandbox,
        false => BrowserError::Exited { last_words: text },
    }
}
