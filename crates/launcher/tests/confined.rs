//! Tests what a confined process can do: this program runs itself again as the confined program,
//! with attempts in place of honest work. Every refusal has its control, the same attempt by a
//! process that is not confined.
//!
//! Needs root, and prints so. The system tests of templates cover the servers of ordinary users.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use launcher::confined::{self, Bounds, ConfinedError, Confinement, Ending, Ids};
use launcher::users::Rights;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, Signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};
use testing::{SOON, eventually};

const CONFINED: &str = "confined";
const TIMEOUT: Duration = Duration::from_secs(60);

/// What the confined process attempts.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Attempt {
    /// Answers with the content of the file.
    Read(String),
    /// Answers with the names in a directory.
    List(String),
    /// Writes this file, and sets an owner and the set-uid bit.
    Write(String),
    /// Opens a path from the directory behind the first descriptor.
    OpenFrom(String),
    /// Answers with the number of open descriptors.
    CountDescriptors,
    Socket,
    Execute,
    Unshare,
    Trace,
    Mount,
    Signal,
    WatchProcess,
    /// Allocates this many bytes of memory.
    Allocate(usize),
    Compute,
    /// Answers without end.
    Talk,
    Fail,
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(CONFINED) => confined::run(|asked, files, answer| attempt(&asked, &files, answer)),
        // Cargo requests the list of tests, or passes filters, which this program ignores.
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    if Rights::of_this_process() != Rights::All {
        println!("confined: needs root");
        return ExitCode::SUCCESS;
    }
    it_writes_its_tree_and_nothing_else();
    the_host_s_files_are_out_of_sight();
    other_system_calls_end_it();
    memory_time_and_answer_are_limited();
    it_ends_with_its_caller_and_its_supervisor();
    println!("confined: ok");
    ExitCode::SUCCESS
}

/// Runs in the confined process. Answers with the error number if the attempt fails.
fn attempt(asked: &Attempt, files: &[OwnedFd], mut answer: File) {
    let text = try_attempt(asked, files, &mut answer).unwrap_or_else(|error| match error.raw_os_error() {
        Some(errno) => format!("error {errno}"),
        None => error.to_string(),
    });
    let _ = answer.write_all(text.as_bytes());
}

fn try_attempt(asked: &Attempt, files: &[OwnedFd], answer: &mut File) -> io::Result<String> {
    match asked {
        Attempt::Read(path) => fs::read_to_string(path),
        Attempt::List(path) => {
            let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            Ok(names.collect::<io::Result<Vec<_>>>()?.join(" "))
        }
        Attempt::Write(path) => {
            let file = File::create(path)?;
            rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(33)), Some(rustix::fs::Gid::from_raw(44)))?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o4755))?;
            Ok("written".to_owned())
        }
        Attempt::OpenFrom(path) => {
            let directory = files.first().ok_or(Errno::BADF)?;
            rustix::fs::openat(directory, path.as_str(), OFlags::RDONLY, Mode::empty())?;
            Ok("opened".to_owned())
        }
        Attempt::CountDescriptors => Ok((0..1024).filter(|number| is_open(*number)).count().to_string()),
        Attempt::Socket => {
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
            Ok("made".to_owned())
        }
        Attempt::Execute => Err(Command::new("/bin/true").exec()),
        Attempt::Unshare => unshare_users().map(|()| "made".to_owned()),
        Attempt::Trace => trace_parent().map(|()| "traced".to_owned()),
        Attempt::Mount => {
            rustix::mount::mount_bind("/", "/")?;
            Ok("mounted".to_owned())
        }
        Attempt::Signal => {
            rustix::process::kill_process(Pid::INIT, Signal::CONT)?;
            Ok("sent".to_owned())
        }
        Attempt::WatchProcess => {
            rustix::process::pidfd_open(Pid::INIT, rustix::process::PidfdFlags::empty())?;
            Ok("opened".to_owned())
        }
        Attempt::Allocate(bytes) => {
            let mut memory: Vec<u8> = Vec::new();
            memory.try_reserve_exact(*bytes).map_err(|_| Errno::NOMEM)?;
            Ok("given".to_owned())
        }
        Attempt::Compute => loop {
            std::hint::spin_loop();
        },
        Attempt::Talk => loop {
            answer.write_all(&[b'x'; 4096])?;
        },
        Attempt::Fail => std::process::exit(7),
    }
}

#[expect(unsafe_code, reason = "a descriptor that may not be open has no owner to borrow it from")]
fn is_open(number: i32) -> bool {
    // SAFETY: the borrow ends with the call, which answers EBADF for a number that is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(descriptor).is_ok()
}

#[expect(unsafe_code, reason = "the attempt is the call itself")]
fn unshare_users() -> io::Result<()> {
    // SAFETY: nothing here relies on a shared user namespace.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

#[expect(unsafe_code, reason = "the attempt is the call itself")]
fn trace_parent() -> io::Result<()> {
    // SAFETY: the request takes a number and no pointer that the kernel would follow.
    match unsafe { libc::ptrace(libc::PTRACE_SEIZE, 1, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(CONFINED).env_clear();
    command
}

fn confinement(has_tree: bool) -> Confinement {
    let ids = if has_tree { Ids::from(0) } else { Ids::without_tree() };
    Confinement { ids, has_tree, memory_bytes: 256 << 20, cpu_seconds: 30 }
}

fn bounds() -> Bounds<'static> {
    Bounds { timeout: TIMEOUT, answer_bytes: 1 << 20, alive: None, cgroup: &[] }
}

fn open(directory: &Path) -> OwnedFd {
    rustix::fs::openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .expect("a directory")
}

fn ask(tree: Option<&Path>, files: Vec<OwnedFd>, attempt: &Attempt) -> Result<String, ConfinedError> {
    let all = tree.map(open).into_iter().chain(files).collect();
    let answer = confined::call(this_program(), &confinement(tree.is_some()), attempt, all, bounds())?;
    Ok(String::from_utf8(answer).expect("text"))
}

#[track_caller]
fn assert_answer(tree: Option<&Path>, attempt: &Attempt, expected: &str) {
    let answer = ask(tree, Vec::new(), attempt);
    assert!(matches!(&answer, Ok(text) if text == expected), "{attempt:?}: {answer:?}");
}

fn it_writes_its_tree_and_nothing_else() {
    let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let tree = place.path().join("tree");
    fs::create_dir(&tree).expect("a directory");
    fs::write(place.path().join("beside"), "untouched").expect("a file");
    assert_answer(Some(&tree), &Attempt::Write("/file".to_owned()), "written");
    let made = fs::metadata(tree.join("file")).expect("it is there");
    assert_eq!(
        (made.uid(), made.gid(), made.mode() & 0o7777),
        (33, 44, 0o4755),
        "ids on the disk are those of the image"
    );
    let outside = place.path().join("outside");
    assert_answer(Some(&tree), &Attempt::Write(outside.display().to_string()), "error 2");
    assert_answer(Some(&tree), &Attempt::Write("/../outside".to_owned()), "written");
    assert!(!outside.exists() && tree.join("outside").exists(), "what climbs stays in the tree");
    assert_answer(None, &Attempt::Write("/file".to_owned()), "error 30");
    assert_eq!(fs::read_to_string(place.path().join("beside")).expect("it is there"), "untouched");
}

fn the_host_s_files_are_out_of_sight() {
    let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
    for path in ["/etc/passwd", "/proc/self/status", "/dev/null"] {
        assert!(File::open(path).is_ok(), "the control: {path} is there");
        for tree in [None, Some(place.path())] {
            assert_answer(tree, &Attempt::Read(path.to_owned()), "error 2");
        }
    }
    assert_answer(None, &Attempt::List("/".to_owned()), "");
    // /dev/null three times and the pipe.
    assert_answer(None, &Attempt::CountDescriptors, "4");
    let leaked = File::open("/etc").expect("a directory");
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).expect("an open descriptor");
    assert_answer(None, &Attempt::CountDescriptors, "4");
    // A leaked descriptor of the host opens nothing, where the kernel has Landlock.
    let answer = ask(None, vec![leaked.into()], &Attempt::OpenFrom("passwd".to_owned())).expect("an answer");
    assert_eq!(answer, if launcher::landlock_version().is_some() { "error 13" } else { "opened" });
}

fn other_system_calls_end_it() {
    let control = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
    assert!(control.is_ok(), "the control: a process that is not confined makes sockets");
    assert!(Command::new("/bin/true").status().is_ok_and(|status| status.success()), "the control: it runs programs");
    let sigsys = Signal::SYS.as_raw();
    let all = [
        Attempt::Socket,
        Attempt::Execute,
        Attempt::Unshare,
        Attempt::Trace,
        Attempt::Mount,
        Attempt::Signal,
        Attempt::WatchProcess,
    ];
    for attempt in all {
        let ended = ask(None, Vec::new(), &attempt);
        let by_filter = matches!(ended, Err(ConfinedError::Ended(Ending::Signal(signal))) if signal == sigsys);
        assert!(by_filter, "{attempt:?}: {ended:?}");
    }
}

fn memory_time_and_answer_are_limited() {
    assert_answer(None, &Attempt::Allocate(64 << 20), "given");
    assert_answer(None, &Attempt::Allocate(1 << 30), "error 12");
    let call = |attempt: &Attempt, seconds: u64, bounds: Bounds<'_>| {
        let confinement = Confinement { cpu_seconds: seconds, ..confinement(false) };
        confined::call(this_program(), &confinement, attempt, Vec::new(), bounds)
    };
    let spent = call(&Attempt::Compute, 1, bounds());
    assert!(matches!(spent, Err(ConfinedError::Ended(Ending::Signal(9)))), "{spent:?}");
    let late = call(&Attempt::Compute, 30, Bounds { timeout: Duration::from_millis(300), ..bounds() });
    assert!(matches!(late, Err(ConfinedError::TimedOut(_))), "{late:?}");
    let endless = call(&Attempt::Talk, 30, bounds());
    assert!(matches!(endless, Err(ConfinedError::AnswerTooLong)), "{endless:?}");
    let failed = call(&Attempt::Fail, 30, bounds());
    assert!(matches!(failed, Err(ConfinedError::Ended(Ending::Exit(7)))), "{failed:?}");
    assert!(children().is_empty(), "none is left");
}

/// All descendants of this process.
fn children() -> Vec<i32> {
    let mut found = vec![rustix::process::getpid().as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        for thread in fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        at += 1;
    }
    found.split_off(1)
}

/// The supervisor and the confined process, once the latter works: installing the filter is the
/// last step before.
fn both() -> (Pid, Pid) {
    let pid = |number: i32| Pid::from_raw(number).expect("a process");
    eventually("both processes run", SOON, || match children()[..] {
        [supervisor, confined] => {
            (filters(&confined.to_string()) > filters("self")).then(|| (pid(supervisor), pid(confined)))
        }
        _ => None,
    })
}

/// The number of seccomp filters of a process.
fn filters(process: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?.trim().parse().ok()
}

fn is_gone(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

fn it_ends_with_its_caller_and_its_supervisor() {
    let compute = || {
        let confinement = Confinement { cpu_seconds: 60, ..confinement(false) };
        confined::call(this_program(), &confinement, &Attempt::Compute, Vec::new(), bounds())
    };
    // Either process is killed: the caller gets an error, and the other process ends, too.
    std::thread::scope(|scope| {
        let calling = scope.spawn(compute);
        let (_, process) = both();
        rustix::process::kill_process(process, Signal::KILL).expect("our own process");
        let ended = calling.join().expect("no panic");
        assert!(matches!(ended, Err(ConfinedError::Ended(Ending::Signal(9)))), "{ended:?}");
    });
    std::thread::scope(|scope| {
        let calling = scope.spawn(compute);
        let (supervisor, process) = both();
        rustix::process::kill_process(supervisor, Signal::KILL).expect("our own process");
        let ended = calling.join().expect("no panic");
        assert!(matches!(ended, Err(ConfinedError::Lost)), "{ended:?}");
        eventually("the confined process ends", SOON, || is_gone(process).then_some(()));
    });
    // The caller cancels.
    std::thread::scope(|scope| {
        let (alive, end) = io::pipe().expect("a pipe");
        let calling = scope.spawn(move || {
            let bounds = Bounds { alive: Some(alive.as_fd()), ..bounds() };
            confined::call(this_program(), &confinement(false), &Attempt::Compute, Vec::new(), bounds)
        });
        let (_, process) = both();
        drop(end);
        let ended = calling.join().expect("no panic");
        assert!(matches!(ended, Err(ConfinedError::Cancelled)), "{ended:?}");
        assert!(is_gone(process), "a cancelled call returns when its process has ended");
    });
    // A program that does not follow the protocol.
    let foreign = confined::call(Command::new("/bin/true"), &confinement(false), &Attempt::Fail, Vec::new(), bounds());
    assert!(matches!(foreign, Err(ConfinedError::Lost | ConfinedError::Start(_))), "{foreign:?}");
    assert!(children().is_empty(), "none is left");
}
