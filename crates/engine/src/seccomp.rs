//! Which system calls a sandbox may make.
//!
//! Two filters. The first is the allow list: what it does not name does not exist (`ENOSYS`), so that programs fall back as
//! they do on an older kernel, and a call that a future kernel adds stays shut until somebody has looked at it. The second names
//! what exists but is refused (`EPERM`), by call or by argument. The kernel asks the newest filter first and keeps its answer
//! among equals, so the second is installed last.
//!
//! Shut above all: new namespaces (a nested user namespace would hand out capabilities again), the kernel's keyrings, bpf,
//! perf, modules, kexec, the clocks, every kind of mounting, io_uring (its requests pass no filter), handles and sockets
//! of kinds no ordinary program uses.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::sys::process::install_filter;

/// Calls that came after the table of `libc` was written; the same numbers on every architecture.
mod recent {
    pub(super) const CACHESTAT: i64 = 451;
    pub(super) const FCHMODAT2: i64 = 452;
    pub(super) const MAP_SHADOW_STACK: i64 = 453;
    pub(super) const FUTEX_WAKE: i64 = 454;
    pub(super) const FUTEX_WAIT: i64 = 455;
    pub(super) const FUTEX_REQUEUE: i64 = 456;
    pub(super) const MSEAL: i64 = 462;
}

macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

#[rustfmt::skip]
const ALLOWED: &[i64] = calls![
    // Files and directories.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_openat SYS_openat2 SYS_close SYS_close_range SYS_lseek SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs
    SYS_faccessat SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_umask SYS_utimensat
    SYS_mkdirat SYS_mknodat SYS_unlinkat SYS_renameat2 SYS_linkat SYS_symlinkat SYS_readlinkat SYS_getdents64 SYS_getcwd
    SYS_chdir SYS_fchdir SYS_chroot SYS_truncate SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_readahead SYS_copy_file_range
    SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_sync SYS_syncfs SYS_fsync SYS_fdatasync SYS_flock SYS_fcntl
    SYS_ioctl SYS_dup SYS_dup3 SYS_pipe2 SYS_name_to_handle_at SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr
    SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr
    SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel
    SYS_io_getevents SYS_memfd_create SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
    // Waiting.
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_signalfd4
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_futex SYS_futex_waitv SYS_set_robust_list
    SYS_get_robust_list SYS_restart_syscall
    // Memory.
    SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_msync SYS_mincore SYS_madvise SYS_process_madvise SYS_mlock SYS_mlock2
    SYS_munlock SYS_mlockall SYS_munlockall SYS_remap_file_pages SYS_membarrier SYS_pkey_mprotect SYS_pkey_alloc SYS_pkey_free
    SYS_mbind SYS_get_mempolicy SYS_set_mempolicy SYS_set_mempolicy_home_node
    // Processes, threads and their identity. clone3 is absent on purpose: its flags lie in memory, where no filter can see
    // them, and glibc falls back to clone.
    SYS_clone SYS_unshare SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_kill SYS_tkill SYS_tgkill
    SYS_pidfd_open SYS_pidfd_send_signal SYS_pidfd_getfd SYS_process_mrelease SYS_getpid SYS_getppid SYS_gettid
    SYS_set_tid_address SYS_setpgid SYS_getpgid SYS_setsid SYS_getsid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_setuid
    SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_getresuid SYS_getresgid SYS_setfsuid SYS_setfsgid
    SYS_getgroups SYS_setgroups SYS_capget SYS_capset SYS_prctl SYS_personality SYS_seccomp SYS_prlimit64 SYS_getrusage SYS_rseq
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp SYS_getpriority SYS_setpriority SYS_ioprio_get SYS_ioprio_set
    SYS_sched_yield SYS_sched_setparam SYS_sched_getparam SYS_sched_setscheduler SYS_sched_getscheduler SYS_sched_setattr
    SYS_sched_getattr SYS_sched_setaffinity SYS_sched_getaffinity SYS_sched_get_priority_max SYS_sched_get_priority_min
    SYS_sched_rr_get_interval SYS_getcpu
    // Signals.
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigqueueinfo
    SYS_rt_tgsigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack
    // Time: read it and wait for it.
    SYS_gettimeofday SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_getitimer SYS_setitimer SYS_times
    SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
    // Sockets.
    SYS_socket SYS_socketpair SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_getsockname SYS_getpeername SYS_sendto
    SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_setsockopt SYS_getsockopt SYS_shutdown
    // Communication between processes, all of it inside the sandbox's own ipc namespace.
    SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget SYS_msgsnd SYS_msgrcv
    SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr
    // The machine.
    SYS_uname SYS_sysinfo SYS_getrandom
];

const ALLOWED_RECENT: &[i64] = &[
    recent::CACHESTAT,
    recent::FCHMODAT2,
    recent::MAP_SHADOW_STACK,
    recent::FUTEX_WAKE,
    recent::FUTEX_WAIT,
    recent::FUTEX_REQUEUE,
    recent::MSEAL,
];

/// What only this architecture has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[i64] = calls![
    SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_chmod SYS_chown SYS_lchown SYS_mkdir SYS_rmdir SYS_mknod SYS_unlink
    SYS_rename SYS_renameat SYS_link SYS_symlink SYS_readlink SYS_getdents SYS_utime SYS_utimes SYS_futimesat SYS_dup2 SYS_pipe
    SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_inotify_init SYS_eventfd SYS_signalfd SYS_pause SYS_alarm SYS_time
    SYS_fork SYS_vfork SYS_getpgrp SYS_getrlimit SYS_setrlimit SYS_arch_prctl SYS_set_thread_area SYS_get_thread_area
    SYS_sync_file_range
];
/// renameat, sync_file_range, getrlimit, setrlimit: absent from the table of `libc`.
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[i64] = &[38, 84, 163, 164];

#[rustfmt::skip]
const REFUSED: &[i64] = calls![
    SYS_mount SYS_umount2 SYS_pivot_root SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
    SYS_mount_setattr SYS_setns SYS_add_key SYS_request_key SYS_keyctl SYS_bpf SYS_perf_event_open SYS_kexec_load
    SYS_kexec_file_load SYS_init_module SYS_finit_module SYS_delete_module SYS_clock_settime SYS_clock_adjtime SYS_settimeofday
    SYS_adjtimex SYS_swapon SYS_swapoff SYS_reboot SYS_open_by_handle_at SYS_userfaultfd SYS_io_uring_setup SYS_io_uring_enter
    SYS_io_uring_register SYS_quotactl SYS_quotactl_fd SYS_acct SYS_syslog SYS_vhangup SYS_lookup_dcookie SYS_fanotify_init
    SYS_fanotify_mark SYS_sethostname SYS_setdomainname SYS_migrate_pages SYS_move_pages SYS_memfd_secret
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = calls![SYS_iopl SYS_ioperm SYS_modify_ldt];
#[cfg(target_arch = "aarch64")]
const REFUSED_HERE: &[i64] = &[];

/// Flags of clone and unshare that make a namespace.
const NAMESPACE_FLAGS: [libc::c_int; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    CLONE_NEWTIME,
];
/// For unshare only: in clone the bit belongs to the exit signal.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// Native, 32-bit view, 2.6 version numbers, both, no address randomization (debuggers), and the question for the present one.
const PERSONALITIES: [u64; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

const SOCKET_FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Routes and addresses, socket lists, audit (sudo asks and must get "connection refused" from the kernel, not a
/// permission error), device events, generic.
const NETLINK_PROTOCOLS: [u64; 5] = [0, 4, 9, 15, 16];

/// Both filters, compiled. The server does it once; launchers receive the instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filters {
    allow: Vec<Instruction>,
    refuse: Vec<Instruction>,
}

/// One instruction as its eight bytes in the kernel's layout: code, two jump distances, operand.
type Instruction = [u8; 8];

impl Filters {
    pub(crate) fn compile() -> Result<Self, seccompiler::BackendError> {
        let allowed =
            [ALLOWED, ALLOWED_RECENT, ALLOWED_HERE].concat().into_iter().map(|call| (call, Vec::new())).collect();
        let nothing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let refusal = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        Ok(Self {
            allow: assemble(allowed, nothing, SeccompAction::Allow)?,
            refuse: assemble(refusals()?, SeccompAction::Allow, refusal)?,
        })
    }

    /// The form in which they travel to launchers: the number of instructions of the first, then all instructions.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let first = u32::try_from(self.allow.len()).expect("a filter has at most 4096 instructions");
        first.to_ne_bytes().into_iter().chain(self.allow.iter().chain(&self.refuse).flatten().copied()).collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let damaged = || io::Error::from_raw_os_error(libc::EINVAL);
        let (first, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
        let (instructions, []) = rest.as_chunks::<8>() else { return Err(damaged()) };
        let first = usize::try_from(u32::from_ne_bytes(*first)).map_err(|_| damaged())?;
        let (allow, refuse) = instructions.split_at_checked(first).ok_or_else(damaged)?;
        Ok(Self { allow: allow.to_vec(), refuse: refuse.to_vec() })
    }

    /// Applies both to this process and to all that it will start.
    pub(crate) fn install(&self) -> io::Result<()> {
        for program in [&self.allow, &self.refuse] {
            let program: Vec<_> = program
                .iter()
                .map(|&[code_low, code_high, jt, jf, k @ ..]| libc::sock_filter {
                    code: u16::from_ne_bytes([code_low, code_high]),
                    jt,
                    jf,
                    k: u32::from_ne_bytes(k),
                })
                .collect();
            install_filter(&program)?;
        }
        Ok(())
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn assemble(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<Vec<Instruction>, seccompiler::BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let program: BpfProgram = SeccompFilter::new(rules, otherwise, matched, architecture)?.try_into()?;
    let encode = |instruction: seccompiler::sock_filter| {
        let [code_low, code_high] = instruction.code.to_ne_bytes();
        let [a, b, c, d] = instruction.k.to_ne_bytes();
        [code_low, code_high, instruction.jt, instruction.jf, a, b, c, d]
    };
    Ok(program.into_iter().map(encode).collect())
}

fn refusals() -> Result<Rules, seccompiler::BackendError> {
    let argument = |index, operator, value| SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value);
    let is = |index, value| argument(index, SeccompCmpOp::Eq, value);
    let is_not = |index, value| argument(index, SeccompCmpOp::Ne, value);
    let has = |index, flag: libc::c_int| {
        let flag = u64::from(flag.cast_unsigned());
        argument(index, SeccompCmpOp::MaskedEq(flag), flag)
    };
    let every_namespace = |except: libc::c_int| {
        let flags = NAMESPACE_FLAGS.iter().filter(|&&flag| flag != except);
        flags.map(|&flag| SeccompRule::new(vec![has(0, flag)?])).collect::<Result<Vec<_>, _>>()
    };
    let families = SOCKET_FAMILIES.map(|family| u64::from(family.cast_unsigned()));
    let netlink = u64::from(libc::AF_NETLINK.cast_unsigned());
    let mut strange_netlink = vec![is(0, netlink)?];
    for protocol in NETLINK_PROTOCOLS {
        strange_netlink.push(is_not(2, protocol)?);
    }
    let strange_family = families.iter().map(|&family| is_not(0, family)).collect::<Result<Vec<_>, _>>()?;
    let strange_personality = PERSONALITIES.iter().map(|&value| is_not(0, value)).collect::<Result<Vec<_>, _>>()?;

    let mut rules: Rules = [REFUSED, REFUSED_HERE].concat().into_iter().map(|call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_clone, every_namespace(CLONE_NEWTIME)?);
    rules.insert(libc::SYS_unshare, every_namespace(0)?);
    rules.insert(libc::SYS_personality, vec![SeccompRule::new(strange_personality)?]);
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(strange_family.clone())?, SeccompRule::new(strange_netlink)?]);
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(strange_family)?]);
    // Typing into a terminal on its owner's behalf.
    let terminals = [libc::TIOCSTI, libc::TIOCLINUX];
    let terminals = terminals.map(|request| SeccompRule::new(vec![is(1, request & 0xffff_ffff)?]));
    rules.insert(libc::SYS_ioctl, terminals.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_survive_the_way_to_the_launcher() {
        let filters = Filters::compile().unwrap();
        assert_eq!(Filters::decode(&filters.encode()).unwrap(), filters);
        assert!(Filters::decode(&filters.encode()[..99]).is_err());
    }

    #[test]
    fn nothing_is_both_refused_outright_and_allowed() {
        for call in [REFUSED, REFUSED_HERE].concat() {
            assert!(![ALLOWED, ALLOWED_RECENT, ALLOWED_HERE].concat().contains(&call), "system call {call}");
        }
    }
}
