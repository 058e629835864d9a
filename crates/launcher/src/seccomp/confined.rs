//! System calls that a confined process may make: those for reading open files and writing a tree.
//!
//! The kernel kills the process on a call that the list does not contain (SIGSYS). Absent are above
//! all sockets, new processes and programs, mounts, other processes (ptrace, kill), ioctls, and
//! executable memory.

use std::collections::BTreeMap;

use super::program::{Guard, Program, Unlisted, Verdict};

#[rustfmt::skip]
const ALLOWED: &[i64] = calls![
    // Open files.
    SYS_read SYS_readv SYS_pread64 SYS_write SYS_writev SYS_lseek SYS_close SYS_fcntl SYS_fstat SYS_statx SYS_newfstatat SYS_getdents64
    // Names, modes, owners, attributes and times below the root. mknodat makes pipes: a device
    // requires a capability in the initial user namespace.
    SYS_openat SYS_openat2 SYS_mkdirat SYS_mknodat SYS_symlinkat SYS_linkat SYS_unlinkat SYS_fchmod SYS_fchown SYS_fchownat
    SYS_fsetxattr SYS_utimensat
    // Memory, in addition to the guarded calls below; RLIMIT_AS bounds the address space.
    SYS_brk SYS_munmap SYS_mremap SYS_madvise
    // Used by the allocator, hash tables and process exit. The pid namespace contains no other
    // process.
    SYS_futex SYS_getrandom SYS_clock_gettime SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack
    SYS_restart_syscall SYS_getpid SYS_gettid SYS_tgkill SYS_exit SYS_exit_group
];

const NOT_EXECUTABLE: Guard = Guard::Without { argument: 2, bits: libc::PROT_EXEC.cast_unsigned() };
const GUARDED: &[(i64, Guard)] = &[(libc::SYS_mmap, NOT_EXECUTABLE), (libc::SYS_mprotect, NOT_EXECUTABLE)];

/// Assembles the filter.
pub(crate) fn filter() -> Program {
    let allowed = ALLOWED.iter().map(|call| (*call, Verdict::Allow));
    let guarded = GUARDED.iter().map(|(call, guard)| (*call, Verdict::AllowIf(*guard)));
    Program::assemble(&allowed.chain(guarded).collect::<BTreeMap<_, _>>(), Unlisted::Kill)
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::{Answer, run};
    use super::*;

    #[test]
    fn what_is_not_listed_ends_the_process() {
        let filter = filter();
        let listed: Vec<i64> = ALLOWED.iter().copied().chain(GUARDED.iter().map(|(call, _)| *call)).collect();
        for call in 0..1024 {
            let expected = if listed.contains(&i64::from(call)) { Answer::Allow } else { Answer::Kill };
            assert_eq!(run(&filter, call, [0; 6]), expected, "call {call}");
        }
        for call in
            [libc::SYS_socket, libc::SYS_execve, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_clone, libc::SYS_ioctl]
        {
            assert!(!listed.contains(&call), "call {call}");
        }
    }

    #[test]
    fn memory_is_never_executable() {
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            let call = u32::try_from(call).expect("a small number");
            assert_eq!(run(&filter(), call, [0, 4096, 3, 0, 0, 0]), Answer::Allow);
            assert_eq!(run(&filter(), call, [0, 4096, 5, 0, 0, 0]), Answer::Errno(libc::EPERM));
        }
    }
}
