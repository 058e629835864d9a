//! Starts a program in its own network namespace, with listeners in it that this process holds.
//!
//! The child creates the namespace, brings loopback up, binds the listeners and sends them back
//! over a socket before it drops its privileges and executes the program. No other process enters
//! the namespace, no thread of this process has to, and it works for root and for unprivileged
//! users alike (the latter get a user namespace around it). The namespace has no other device: the
//! program's traffic reaches one of these listeners or nothing.
//!
//! With a [`Root`] the program is also process 1 of a PID namespace, in a mount namespace with only
//! that root. Its parent process stays outside; each of the two ends with the other.

use std::ffi::CStr;
use std::io::{self, IoSliceMut, PipeReader, PipeWriter, Read};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal};
use rustix::thread::{Gid, Uid, UnshareFlags};

use super::root::Root;
use crate::config::RunAs;

/// Most listeners per program; they are sent in one message.
pub(crate) const MAX_LISTENERS: usize = 32;
/// Descriptors on which Chromium reads commands and writes responses with
/// `--remote-debugging-pipe`.
const COMMANDS_FD: RawFd = 3;
const RESPONSES_FD: RawFd = 4;
/// The OOM killer picks the browser before the server: the next capture starts another.
const OOM_SCORE: &[u8] = b"300";

/// What to start. Holds everything the child needs, since the child must not allocate.
pub(crate) struct Plan<'a> {
    /// Program, arguments, environment and working directory; [`spawn`] sets the descriptors.
    pub(crate) command: Command,
    pub(crate) run_as: RunAs,
    pub(crate) listeners: usize,
    /// `cgroup.procs` of the cgroup that limits the program's memory.
    pub(crate) cgroup_procs: Option<BorrowedFd<'a>>,
    /// The program's own root. `None` keeps the root and the processes of the host visible.
    pub(crate) root: Option<Root>,
}

/// A started program and this process's ends of its pipes and listeners.
pub(crate) struct Spawned {
    pub(crate) child: Child,
    pub(crate) commands: PipeWriter,
    pub(crate) responses: PipeReader,
    /// On 127.0.0.1 of the program's namespace, non-blocking.
    pub(crate) listeners: Vec<TcpListener>,
}

/// The step at which the child failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Session = 1,
    Group,
    Namespace,
    UserMap,
    Loopback,
    Listen,
    HandOver,
    Fork,
    Root,
    Privileges,
    ParentWatch,
    Descriptors,
    /// All steps above succeeded.
    Execute,
}

impl Step {
    const ALL: [Self; 13] = [
        Self::Session,
        Self::Group,
        Self::Namespace,
        Self::UserMap,
        Self::Loopback,
        Self::Listen,
        Self::HandOver,
        Self::Fork,
        Self::Root,
        Self::Privileges,
        Self::ParentWatch,
        Self::Descriptors,
        Self::Execute,
    ];

    /// Completes the sentence "could not …".
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Session => "start a session",
            Self::Group => "enter its control group",
            Self::Namespace => "make its namespaces",
            Self::UserMap => "map the user into its namespace",
            Self::Loopback => "switch loopback on",
            Self::Listen => "listen in the namespace",
            Self::HandOver => "hand the listeners over",
            Self::Fork => "start the first process of its namespace",
            Self::Root => "make its root",
            Self::Privileges => "give up privileges",
            Self::ParentWatch => "tie its life to this process",
            Self::Descriptors => "place the control pipes",
            Self::Execute => "execute the program",
        }
    }
}

#[derive(Debug)]
pub(crate) struct SpawnFailure {
    pub(crate) step: Step,
    pub(crate) source: io::Error,
}

/// Starts the program. The kernel kills it when the calling **thread** ends: call it from a thread
/// that stays.
///
/// # Errors
/// [`SpawnFailure`] with the failed step.
pub(crate) fn spawn(plan: Plan<'_>) -> Result<Spawned, SpawnFailure> {
    let before = |source| SpawnFailure { step: Step::Session, source };
    let Plan { mut command, run_as, listeners, cgroup_procs, root } = plan;
    let (their_orders, commands) = io::pipe().map_err(before)?;
    let (responses, their_answers) = io::pipe().map_err(before)?;
    let (report, their_report) = UnixStream::pair().map_err(before)?;
    report.set_nonblocking(true).map_err(before)?;
    let child_side = ChildSide {
        commands: their_orders.into(),
        responses: their_answers.into(),
        report: their_report.into(),
        run_as,
        listeners: listeners.min(MAX_LISTENERS),
        cgroup_procs: cgroup_procs.map(|cgroup_procs| cgroup_procs.try_clone_to_owned()).transpose().map_err(before)?,
        maps: Maps::for_current_user(),
        root,
        parent: rustix::process::getpid(),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: the closure only makes system calls and copies between arrays on its stack; it
    // neither allocates nor takes a lock, as the child of a multi-threaded process requires.
    unsafe {
        command.pre_exec(move || {
            child_side.prepare().map_err(|(step, error)| {
                // If this write fails too, the parent still gets the error, without the step.
                let _ = rustix::io::write(&child_side.report, &[step as u8]);
                error
            })
        });
    }
    let spawned = command.spawn();
    // Closes the parent's copies of the child's descriptors, which the closure owns.
    drop(command);
    match spawned {
        Ok(mut child) => match receive(&report) {
            Ok(listeners) => Ok(Spawned { child, commands, responses, listeners }),
            Err(source) => {
                let _ = child.kill(); // Fails if it has already ended.
                let _ = child.wait();
                Err(SpawnFailure { step: Step::HandOver, source })
            }
        },
        Err(source) => Err(SpawnFailure { step: failed_step(report), source }),
    }
}

fn failed_step(mut report: UnixStream) -> Step {
    let mut last = None;
    let mut byte = [0];
    // If only exec failed, the message with the listeners arrives first; its byte is `Execute`.
    while let Ok(1) = report.read(&mut byte) {
        last = Step::ALL.into_iter().find(|step| *step as u8 == byte[0]);
    }
    last.unwrap_or(Step::Execute)
}

fn receive(report: &UnixStream) -> io::Result<Vec<TcpListener>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(report, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut listeners = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                let listener = TcpListener::from(descriptor);
                listener.set_nonblocking(true)?;
                listeners.push(listener);
            }
        }
    }
    Ok(listeners)
}

/// The uid and gid maps of a user namespace.
struct Maps {
    users: String,
    groups: String,
}

impl Maps {
    fn for_current_user() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { users: format!("{uid} {uid} 1"), groups: format!("{gid} {gid} 1") }
    }
}

struct ChildSide {
    commands: OwnedFd,
    responses: OwnedFd,
    report: OwnedFd,
    run_as: RunAs,
    listeners: usize,
    cgroup_procs: Option<OwnedFd>,
    maps: Maps,
    root: Option<Root>,
    parent: Pid,
}

type Stepped<T> = Result<T, (Step, io::Error)>;

fn at<T>(step: Step, result: rustix::io::Result<T>) -> Stepped<T> {
    result.map_err(|error| (step, error.into()))
}

impl ChildSide {
    /// Everything between fork and exec.
    fn prepare(&self) -> Stepped<()> {
        // A new session: SIGINT from our terminal does not reach it, and its process group can be
        // killed as a whole.
        at(Step::Session, rustix::process::setsid())?;
        // Raising the score needs no privilege; a kernel without the file is no reason to fail.
        let _ = overwrite(c"/proc/self/oom_score_adj", OOM_SCORE);
        if let Some(cgroup_procs) = &self.cgroup_procs {
            // Before privileges are dropped, and before the program can use memory.
            at(Step::Group, rustix::io::write(cgroup_procs, b"0"))?;
        }
        self.enter_namespaces()?;
        raise_loopback().map_err(|error| (Step::Loopback, error))?;
        self.send_listeners()?;
        match &self.root {
            Some(root) => {
                self.fork()?;
                at(Step::Root, root.enter())?;
                self.drop_privileges()?;
                // The parent is outside the PID namespace and has no pid here. If it ended before
                // this call, the program finds its pipes closed and exits.
                at(Step::ParentWatch, rustix::process::set_parent_process_death_signal(Some(Signal::KILL)))?;
            }
            None => {
                self.drop_privileges()?;
                self.watch_parent()?;
            }
        }
        place_descriptors(self.commands.as_fd(), self.responses.as_fd()).map_err(|error| (Step::Descriptors, error))
    }

    fn drop_privileges(&self) -> Stepped<()> {
        if let RunAs::Ids { uid, gid } = self.run_as {
            at(Step::Privileges, rustix::thread::set_thread_groups(&[]))?;
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            at(Step::Privileges, rustix::thread::set_thread_res_gid(gid, gid, gid))?;
            at(Step::Privileges, rustix::thread::set_thread_res_uid(uid, uid, uid))?;
        }
        Ok(())
    }

    /// After the change of ids, which resets the signal.
    fn watch_parent(&self) -> Stepped<()> {
        at(Step::ParentWatch, rustix::process::set_parent_process_death_signal(Some(Signal::KILL)))?;
        if rustix::process::getppid() != Some(self.parent) {
            return Err((Step::ParentWatch, io::ErrorKind::BrokenPipe.into()));
        }
        Ok(())
    }

    /// Returns in process 1 of the new PID namespace. The calling process waits for it with all
    /// descriptors closed, and then exits.
    fn fork(&self) -> Stepped<()> {
        // SAFETY: this process has one thread, and both sides make only system calls from here on.
        match unsafe { libc::fork() } {
            -1 => Err((Step::Fork, io::Error::last_os_error())),
            0 => Ok(()),
            child => {
                let ready = self.drop_privileges().and_then(|()| self.watch_parent());
                // SAFETY: no pointers; the owners of the descriptors are not used again in this
                // process, which exits below.
                unsafe {
                    libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
                    if ready.is_err() {
                        libc::kill(child, libc::SIGKILL);
                    }
                }
                wait_and_exit(child)
            }
        }
    }

    fn enter_namespaces(&self) -> Stepped<()> {
        let mut flags = match self.run_as {
            RunAs::Ids { .. } => UnshareFlags::NEWNET,
            RunAs::Itself => UnshareFlags::NEWUSER | UnshareFlags::NEWNET,
        };
        if self.root.is_some() {
            flags |= UnshareFlags::NEWNS | UnshareFlags::NEWPID;
        }
        // SAFETY: Rust code relies on none of these namespaces, and this process has one thread.
        at(Step::Namespace, unsafe { rustix::thread::unshare_unsafe(flags) })?;
        if self.run_as == RunAs::Itself {
            // The kernel accepts no gid map from an unprivileged user without this.
            at(Step::UserMap, overwrite(c"/proc/self/setgroups", b"deny"))?;
            at(Step::UserMap, overwrite(c"/proc/self/uid_map", self.maps.users.as_bytes()))?;
            at(Step::UserMap, overwrite(c"/proc/self/gid_map", self.maps.groups.as_bytes()))?;
        }
        Ok(())
    }

    fn send_listeners(&self) -> Stepped<()> {
        let mut listeners = [const { None::<OwnedFd> }; MAX_LISTENERS];
        for slot in listeners.iter_mut().take(self.listeners) {
            *slot = Some(at(Step::Listen, listen())?);
        }
        // The array holds the listeners first, so the borrows do too; the rest repeats a descriptor
        // that is not sent.
        let mut borrowed = [self.report.as_fd(); MAX_LISTENERS];
        for (to, from) in borrowed.iter_mut().zip(listeners.iter().flatten()) {
            *to = from.as_fd();
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&borrowed[..self.listeners]));
        let byte = [Step::Execute as u8];
        let sent = rustix::net::sendmsg(&self.report, &[io::IoSlice::new(&byte)], &mut ancillary, SendFlags::NOSIGNAL);
        at(Step::HandOver, sent)?;
        Ok(())
    }
}

/// Waits for the child and exits with its status.
fn wait_and_exit(child: libc::pid_t) -> ! {
    let mut status = 0;
    // SAFETY: the integer outlives each call, and _exit runs no code of this process.
    unsafe {
        while libc::waitpid(child, &raw mut status, 0) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::_exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) })
    }
}

fn listen() -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    rustix::net::listen(&socket, 256)?;
    Ok(socket)
}

fn overwrite(path: &CStr, text: &[u8]) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

/// A new network namespace has a loopback device that is down.
fn raise_loopback() -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: a structure of integers and a union of integers, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq with a NUL-terminated name; the borrow outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Moves the pipes to descriptors 3 and 4, and sets close-on-exec on all others above stderr.
fn place_descriptors(commands: BorrowedFd<'_>, responses: BorrowedFd<'_>) -> io::Result<()> {
    // Copies above both numbers first, because either pipe may occupy the other's number.
    let commands = rustix::io::fcntl_dupfd_cloexec(commands, 10)?;
    let responses = rustix::io::fcntl_dupfd_cloexec(responses, 10)?;
    // SAFETY: no pointers, and the owners of the two numbers are not used again before exec. If one
    // of them is the pipe on which the standard library reports a failed exec, the failure shows as
    // a browser that never responds.
    unsafe {
        if libc::syscall(libc::SYS_close_range, COMMANDS_FD, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) < 0
            || libc::dup2(commands.as_raw_fd(), COMMANDS_FD) < 0
            || libc::dup2(responses.as_raw_fd(), RESPONSES_FD) < 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
