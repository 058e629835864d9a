//! Exits of processes in the wire format.

use protocol::rpc::process::process_event::EndEvent;
use rustix::process::WaitStatus;

/// The exit of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal { number: i32, core: bool },
}

impl From<WaitStatus> for Exit {
    fn from(status: WaitStatus) -> Self {
        const CORE_DUMPED: i32 = 0x80;
        match status.terminating_signal() {
            Some(number) => Self::Signal { number, core: status.as_raw() & CORE_DUMPED != 0 },
            None => Self::Code(status.exit_status().unwrap_or_default()),
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal { number, core } => {
                match signal_name(*number) {
                    Some(name) => write!(f, "signal: {name}")?,
                    None => write!(f, "signal: signal {number}")?,
                }
                if *core { f.write_str(" (core dumped)") } else { Ok(()) }
            }
        }
    }
}

impl Exit {
    pub(crate) fn by_signal(self) -> bool {
        matches!(self, Self::Signal { .. })
    }

    pub(crate) fn event(self) -> EndEvent {
        let status = self.to_string();
        let (exit_code, exited) = match self {
            Self::Code(code) => (code, true),
            Self::Signal { .. } => (-1, false),
        };
        let error = (self != Self::Code(0)).then(|| status.clone());
        EndEvent { exit_code, exited, status, error, ..EndEvent::default() }
    }
}

/// The descriptions that clients know from the original daemon.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        libc::SIGSTKFLT => "stack fault",
        libc::SIGXCPU => "CPU time limit exceeded",
        libc::SIGXFSZ => "file size limit exceeded",
        libc::SIGVTALRM => "virtual timer expired",
        libc::SIGPROF => "profiling timer expired",
        libc::SIGIO => "I/O possible",
        libc::SIGPWR => "power failure",
        libc::SIGSYS => "bad system call",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_match_the_client_format() {
        let event = |exit: Exit| {
            let EndEvent { exit_code, exited, status, error, .. } = exit.event();
            (exit_code, exited, status, error)
        };
        assert_eq!(event(Exit::Code(0)), (0, true, "exit status 0".into(), None));
        assert_eq!(event(Exit::Code(7)), (7, true, "exit status 7".into(), Some("exit status 7".into())));
        let killed = "signal: killed".to_owned();
        let signal = Exit::Signal { number: libc::SIGKILL, core: false };
        assert_eq!(event(signal), (-1, false, killed.clone(), Some(killed)));
        let dumped = Exit::Signal { number: libc::SIGSEGV, core: true };
        assert_eq!(dumped.to_string(), "signal: segmentation fault (core dumped)");
    }
}
