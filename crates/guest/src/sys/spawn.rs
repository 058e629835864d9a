//! Starts a process with vfork semantics: the child shares the guest's memory until exec, so no
//! page table is copied however large the guest is.
//!
//! Invariants while memory is shared: the kernel stops the parent thread (CLONE_VFORK), all signals
//! are blocked so that no handler of ours runs in the child, the child has its own stack, allocates
//! nothing, and only makes system calls. Identity changes use raw system calls, because glibc's
//! wrappers would signal the guest's other threads.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::process::Pid;

use super::signals::SignalsBlocked;

/// The program to execute.
pub(crate) struct Image<'a> {
    pub(crate) program: &'a CStr,
    pub(crate) arguments: &'a [CString],
    pub(crate) environment: &'a [CString],
    pub(crate) directory: &'a CStr,
}

/// User and groups of the process.
pub(crate) struct ProcessIdentity<'a> {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: &'a [u32],
}

/// The standard streams.
pub(crate) enum Stdio<'a> {
    Pipes {
        stdin: BorrowedFd<'a>,
        stdout: BorrowedFd<'a>,
        stderr: BorrowedFd<'a>,
        /// Become descriptors 3 and 4. Their own numbers must be higher.
        control: Option<[BorrowedFd<'a>; 2]>,
    },
    /// One descriptor for all three, which becomes the controlling terminal.
    Terminal(BorrowedFd<'a>),
}

/// The step of the child that failed.
#[derive(Debug)]
pub(crate) enum ProcessSpawnError {
    Clone(io::Error),
    Streams(io::Error),
    Identity(io::Error),
    Directory(io::Error),
    Execute(io::Error),
}

#[derive(Clone, Copy)]
#[repr(u8)]
enum Step {
    Streams,
    Identity,
    Directory,
    Execute,
}

/// Everything the child reads, and the one field it writes.
struct Child {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    directory: *const c_char,
    streams: [c_int; 5],
    stream_count: usize,
    terminal: bool,
    uid: u32,
    gid: u32,
    groups: *const u32,
    group_count: usize,
    failure: Option<(Step, c_int)>,
}

/// Sufficient for the child's few calls; only touched pages cost memory.
const STACK: usize = 32 * 1024;

/// Makes the kernel's OOM killer prefer these processes to the guest.
const OOM_SCORE: &[u8] = b"100";

/// Starts a process that leads its own session. Returns once it executes or has failed.
pub(crate) fn spawn(
    image: &Image<'_>,
    identity: &ProcessIdentity<'_>,
    stdio: &Stdio<'_>,
) -> Result<Pid, ProcessSpawnError> {
    let arguments = pointers(image.arguments);
    let environment = pointers(image.environment);
    let (streams, stream_count, terminal) = match stdio {
        Stdio::Pipes { stdin, stdout, stderr, control } => {
            let all =
                [Some(*stdin), Some(*stdout), Some(*stderr), control.map(|ends| ends[0]), control.map(|ends| ends[1])];
            (all.map(|end| end.map_or(-1, |end| end.as_raw_fd())), if control.is_some() { 5 } else { 3 }, false)
        }
        Stdio::Terminal(tty) => ([tty.as_raw_fd(); 5], 3, true),
    };
    let mut child = Child {
        program: image.program.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        directory: image.directory.as_ptr(),
        streams,
        stream_count,
        terminal,
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.as_ptr(),
        group_count: identity.groups.len(),
        failure: None,
    };
    let mut stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>());
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end.cast::<c_void>();

    let blocked = SignalsBlocked::now();
    // SAFETY: `top` ends an allocation of STACK bytes aligned to 16, used by the child alone.
    // `child` and everything it points to outlive the call, because CLONE_VFORK stops this thread
    // until the child has executed or exited.
    let pid = unsafe {
        libc::clone(
            run_child,
            top,
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            ptr::from_mut(&mut child).cast::<c_void>(),
        )
    };
    let clone_error = io::Error::last_os_error();
    drop(blocked);

    let Some(pid) = (if pid > 0 { Pid::from_raw(pid) } else { None }) else {
        return Err(ProcessSpawnError::Clone(clone_error));
    };
    match child.failure {
        None => Ok(pid),
        Some((step, errno)) => {
            let source = io::Error::from_raw_os_error(errno);
            Err(match step {
                Step::Streams => ProcessSpawnError::Streams(source),
                Step::Identity => ProcessSpawnError::Identity(source),
                Step::Directory => ProcessSpawnError::Directory(source),
                Step::Execute => ProcessSpawnError::Execute(source),
            })
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// The child, up to its exec. Never returns to the caller's stack: it executes or exits.
extern "C" fn run_child(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its own Child and is stopped meanwhile, so no other code accesses it.
    let child = unsafe { &mut *argument.cast::<Child>() };
    // SAFETY: the child's own requirements are the module's invariants.
    let failed = unsafe { become_image(child) };
    child.failure = Some((failed, io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)));
    // SAFETY: ends only this process, without running exit handlers that belong to the guest.
    unsafe { libc::_exit(127) }
}

/// Returns only when a step failed, leaving errno set.
///
/// # Safety
/// Runs in the child of `spawn`, with a `Child` whose pointers are valid.
unsafe fn become_image(child: &Child) -> Step {
    // SAFETY: every pointer in `child` is valid by contract; the other arguments are integers or
    // local memory that outlives its call. Handlers set here are the child's own, since
    // CLONE_SIGHAND is not given.
    unsafe {
        // Of our handlers only SIGCHLD's could fire before exec resets them; Rust's runtime ignores
        // SIGPIPE, and an ignored signal stays ignored after exec.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);

        libc::setsid();
        for (target, source) in child.streams.iter().enumerate().take(child.stream_count) {
            if libc::dup2(*source, target as c_int) == -1 {
                return Step::Streams;
            }
        }
        if child.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) == -1 {
            return Step::Streams;
        }
        // While still root: afterwards the file belongs to another user. Its absence is not fatal.
        let score = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if score != -1 {
            libc::write(score, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
        }
        libc::syscall(libc::SYS_close_range, child.stream_count, libc::c_uint::MAX, 0);

        // In a sandbox with a single id, setgroups is not permitted and only that id exists: keep
        // it.
        let may_stay = child.uid == libc::geteuid() && child.gid == libc::getegid();
        if (libc::syscall(libc::SYS_setgroups, child.group_count, child.groups) == -1 && !may_stay)
            || libc::syscall(libc::SYS_setresgid, child.gid, child.gid, child.gid) == -1
            || libc::syscall(libc::SYS_setresuid, child.uid, child.uid, child.uid) == -1
        {
            return Step::Identity;
        }
        if libc::chdir(child.directory) == -1 {
            return Step::Directory;
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::execve(child.program, child.arguments, child.environment);
        Step::Execute
    }
}
