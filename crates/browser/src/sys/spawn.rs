//! Starts a program in a network namespace of its own, with listeners in it that this process holds.
//!
//! The child makes the namespace, switches its loopback on, binds the listeners and sends them back over a socket before it gives
//! its privileges up and becomes the program. So nobody else ever enters the namespace, no thread of this process has to, and it
//! works for root and for a user without any rights alike (the latter gets a user namespace around it). The namespace has no other
//! device: what the program sends reaches a listener of ours or nobody.
//!
//! With a [`Root`] the program also is the first process of a PID namespace, in a mount namespace with nothing but that root. A
//! process of ours stays outside as its parent, which ends with it, and with which it ends.

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

/// Most listeners one program gets; they travel in one message.
pub(crate) const MOST_LISTENERS: usize = 32;
/// Where Chromium looks for its orders and writes its answers with `--remote-debugging-pipe`.
const ORDERS: RawFd = 3;
const ANSWERS: RawFd = 4;
/// When memory runs out, the browser goes before the server does: the next capture starts another.
const OOM_SCORE: &[u8] = b"300";

/// What to start. Everything the child needs is here, since it must not allocate.
pub(crate) struct Plan<'a> {
    /// Program, arguments, environment, working directory; the descriptors are set by [`spawn`].
    pub(crate) command: Command,
    pub(crate) run_as: RunAs,
    pub(crate) listeners: usize,
    /// Where a process enters the control group that bounds the program's memory.
    pub(crate) entrance: Option<BorrowedFd<'a>>,
    /// The program's own root; none: the host's, and the host's processes.
    pub(crate) root: Option<Root>,
}

/// A started program and our ends of everything that leads to it.
pub(crate) struct Spawned {
    pub(crate) child: Child,
    pub(crate) orders: PipeWriter,
    pub(crate) answers: PipeReader,
    /// On 127.0.0.1 of the program's namespace, non-blocking.
    pub(crate) listeners: Vec<TcpListener>,
}

/// What the child was doing when it failed.
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
    /// All of the above worked.
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
pub(crate) struct SpawnError {
    pub(crate) step: Step,
    pub(crate) source: io::Error,
}

/// Starts the program. The kernel kills it when the calling **thread** ends: call it from one that stays.
pub(crate) fn spawn(plan: Plan<'_>) -> Result<Spawned, SpawnError> {
    let before = |source| SpawnError { step: Step::Session, source };
    let Plan { mut command, run_as, listeners, entrance, root } = plan;
    let (their_orders, orders) = io::pipe().map_err(before)?;
    let (answers, their_answers) = io::pipe().map_err(before)?;
    let (report, their_report) = UnixStream::pair().map_err(before)?;
    report.set_nonblocking(true).map_err(before)?;
    let child_side = ChildSide {
        orders: their_orders.into(),
        answers: their_answers.into(),
        report: their_report.into(),
        run_as,
        listeners: listeners.min(MOST_LISTENERS),
        entrance: entrance.map(|entrance| entrance.try_clone_to_owned()).transpose().map_err(before)?,
        maps: Maps::of_this_process(),
        root,
        parent: rustix::process::getpid(),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: the closure makes system calls and copies between arrays on its stack; it neither allocates nor takes a lock, which
    // is what a child of a process with threads must keep to.
    unsafe {
        command.pre_exec(move || {
            child_side.prepare().map_err(|(step, error)| {
                // If even this fails the parent still gets the error, without the step.
                let _ = rustix::io::write(&child_side.report, &[step as u8]);
                error
            })
        });
    }
    let spawned = command.spawn();
    // Ours of the child's ends go with the closure.
    drop(command);
    match spawned {
        Ok(mut child) => match receive(&report) {
            Ok(listeners) => Ok(Spawned { child, orders, answers, listeners }),
            Err(source) => {
                let _ = child.kill(); // It may have ended already.
                let _ = child.wait();
                Err(SpawnError { step: Step::HandOver, source })
            }
        },
        Err(source) => Err(SpawnError { step: failed_step(report), source }),
    }
}

fn failed_step(mut report: UnixStream) -> Step {
    let mut last = None;
    let mut byte = [0];
    // Where only exec failed there is the message with the listeners, whose byte says `Execute`.
    while let Ok(1) = report.read(&mut byte) {
        last = Step::ALL.into_iter().find(|step| *step as u8 == byte[0]);
    }
    last.unwrap_or(Step::Execute)
}

fn receive(report: &UnixStream) -> io::Result<Vec<TcpListener>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_LISTENERS))];
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

/// The texts that map a user into a namespace of its own.
struct Maps {
    users: String,
    groups: String,
}

impl Maps {
    fn of_this_process() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { users: format!("{uid} {uid} 1"), groups: format!("{gid} {gid} 1") }
    }
}

struct ChildSide {
    orders: OwnedFd,
    answers: OwnedFd,
    report: OwnedFd,
    run_as: RunAs,
    listeners: usize,
    entrance: Option<OwnedFd>,
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
        // A session of its own: an interrupt typed at our terminal is for us, and the group is what is ended at the end.
        at(Step::Session, rustix::process::setsid())?;
        // Only raises the value, so no right is needed; a kernel without it is no reason to fail.
        let _ = overwrite(c"/proc/self/oom_score_adj", OOM_SCORE);
        if let Some(entrance) = &self.entrance {
            // Before privileges are given up, and before anything is there that could grow.
            at(Step::Group, rustix::io::write(entrance, b"0"))?;
        }
        self.enter_namespaces()?;
        raise_loopback().map_err(|error| (Step::Loopback, error))?;
        self.hand_listeners_over()?;
        match &self.root {
            Some(root) => {
                self.fork()?;
                at(Step::Root, root.enter())?;
                self.give_up_privileges()?;
                // Its parent is outside of its namespace, without a number here. Should that have ended before this call, the
                // program finds its pipes closed and ends by itself.
                at(Step::ParentWatch, rustix::process::set_parent_process_death_signal(Some(Signal::KILL)))?;
            }
            None => {
                self.give_up_privileges()?;
                self.watch_parent()?;
            }
        }
        place_descriptors(self.orders.as_fd(), self.answers.as_fd()).map_err(|error| (Step::Descriptors, error))
    }

    fn give_up_privileges(&self) -> Stepped<()> {
        if let RunAs::Ids { uid, gid } = self.run_as {
            at(Step::Privileges, rustix::thread::set_thread_groups(&[]))?;
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            at(Step::Privileges, rustix::thread::set_thread_res_gid(gid, gid, gid))?;
            at(Step::Privileges, rustix::thread::set_thread_res_uid(uid, uid, uid))?;
        }
        Ok(())
    }

    /// After the change of ids, which would undo it.
    fn watch_parent(&self) -> Stepped<()> {
        at(Step::ParentWatch, rustix::process::set_parent_process_death_signal(Some(Signal::KILL)))?;
        if rustix::process::getppid() != Some(self.parent) {
            return Err((Step::ParentWatch, io::ErrorKind::BrokenPipe.into()));
        }
        Ok(())
    }

    /// Returns in the first process of the new PID namespace. This one ends with it, and holds nothing open meanwhile.
    fn fork(&self) -> Stepped<()> {
        // SAFETY: this process has one thread, and both sides only make system calls from here on.
        match unsafe { libc::fork() } {
            -1 => Err((Step::Fork, io::Error::last_os_error())),
            0 => Ok(()),
            child => {
                let ready = self.give_up_privileges().and_then(|()| self.watch_parent());
                // SAFETY: no pointers; what owned the descriptors is not used again in this process, which ends below.
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
        // SAFETY: none of the namespaces is anything Rust code relies on, and this process has one thread.
        at(Step::Namespace, unsafe { rustix::thread::unshare_unsafe(flags) })?;
        if self.run_as == RunAs::Itself {
            // Without this the kernel takes no group map from a user without rights.
            at(Step::UserMap, overwrite(c"/proc/self/setgroups", b"deny"))?;
            at(Step::UserMap, overwrite(c"/proc/self/uid_map", self.maps.users.as_bytes()))?;
            at(Step::UserMap, overwrite(c"/proc/self/gid_map", self.maps.groups.as_bytes()))?;
        }
        Ok(())
    }

    fn hand_listeners_over(&self) -> Stepped<()> {
        let mut listeners = [const { None::<OwnedFd> }; MOST_LISTENERS];
        for slot in listeners.iter_mut().take(self.listeners) {
            *slot = Some(at(Step::Listen, listen())?);
        }
        // The array holds its descriptors in front, so the borrows do, too; the rest repeats one that is not looked at.
        let mut borrowed = [self.report.as_fd(); MOST_LISTENERS];
        for (to, from) in borrowed.iter_mut().zip(listeners.iter().flatten()) {
            *to = from.as_fd();
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_LISTENERS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&borrowed[..self.listeners]));
        let byte = [Step::Execute as u8];
        let sent = rustix::net::sendmsg(&self.report, &[io::IoSlice::new(&byte)], &mut ancillary, SendFlags::NOSIGNAL);
        at(Step::HandOver, sent)?;
        Ok(())
    }
}

/// Ends this process as its child ends.
fn wait_and_exit(child: libc::pid_t) -> ! {
    let mut status = 0;
    // SAFETY: the integer outlives each call, and _exit runs nothing of this process.
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
    // SAFETY: a structure of integers and a union of such, for which zeros are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq with a name that ends in a zero; the borrow outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes the pipes descriptors 3 and 4, and lets no other above the standard ones through exec.
fn place_descriptors(orders: BorrowedFd<'_>, answers: BorrowedFd<'_>) -> io::Result<()> {
    // Copies above both numbers first: either pipe may sit on the other's place.
    let orders = rustix::io::fcntl_dupfd_cloexec(orders, 10)?;
    let answers = rustix::io::fcntl_dupfd_cloexec(answers, 10)?;
    // SAFETY: no pointers, and whatever owned the two numbers is not used again before exec. Should one of them be the pipe on which
    // the standard library reports a failed exec, the failure shows as a browser that never answers instead.
    unsafe {
        if libc::syscall(libc::SYS_close_range, ORDERS, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) < 0
            || libc::dup2(orders.as_raw_fd(), ORDERS) < 0
            || libc::dup2(answers.as_raw_fd(), ANSWERS) < 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
