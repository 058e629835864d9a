//! System calls that a sandbox may make.
//!
//! An allow list: a call that it does not contain does not exist (`ENOSYS`), so that programs fall
//! back as they do on an older kernel, and a call that a future kernel adds stays unavailable until
//! a maintainer has reviewed it. A call that every kernel has and a sandbox must not use is refused
//! by name (`EPERM`), which is the error that programs expect there.
//!
//! Refused above all: new namespaces (a nested user namespace would grant capabilities again), the
//! kernel's keyrings, bpf, perf, modules, kexec, the clocks, every kind of mounting, io_uring (its
//! requests pass no filter), handles, and sockets of kinds that no ordinary program uses. Absent is
//! the older asynchronous i/o (io_setup and its kin): all processes of the machine share one limit
//! of its events (`fs.aio-max-nr`), which a single sandbox could exhaust; programs fall back to
//! threads.

mod program;

use std::collections::BTreeMap;

use self::program::{Guard, Unlisted, Verdict};

pub(crate) use self::confined::filter as confined_filter;
pub(crate) use self::program::Program;

/// Calls that are newer than the table of `libc`; the same numbers on every architecture.
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

// Below the macro that it uses.
mod confined;

#[rustfmt::skip]
const ALLOWED: &[i64] = calls![
    // Reading and writing open files; the kernel checks permissions at the open.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_lseek SYS_truncate SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_readahead SYS_copy_file_range SYS_sendfile SYS_splice
    SYS_tee SYS_vmsplice SYS_sync SYS_syncfs SYS_fsync SYS_fdatasync SYS_flock SYS_fcntl
    // Names, modes and owners, in a tree whose every file belongs to the sandbox or to a read-only
    // layer. mknodat makes whiteouts, pipes and sockets; devices require a capability in the
    // initial user namespace. name_to_handle_at only queries (systemd's tools find mount points by
    // it): opening a handle is refused.
    SYS_openat SYS_openat2 SYS_close SYS_close_range SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs
    SYS_faccessat SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_umask SYS_utimensat
    SYS_mkdirat SYS_mknodat SYS_unlinkat SYS_renameat2 SYS_linkat SYS_symlinkat SYS_readlinkat SYS_getdents64 SYS_getcwd
    SYS_chdir SYS_fchdir SYS_chroot SYS_dup SYS_dup3 SYS_pipe2 SYS_name_to_handle_at
    // Attributes: package managers copy them (capabilities of programs). trusted.* requires a
    // capability in the initial user namespace.
    SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
    SYS_removexattr SYS_lremovexattr SYS_fremovexattr
    // Watching files: every dev server. The kernel counts instances and watches per sandbox (per
    // user on a rootless server).
    SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
    // Files in memory (charged to the sandbox), and Landlock, with which programs confine
    // themselves further.
    SYS_memfd_create SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
    // Waiting: event loops, timers, locks between threads.
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_signalfd4
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_futex SYS_futex_waitv SYS_set_robust_list
    SYS_get_robust_list SYS_restart_syscall
    // Memory of the calling process. RLIMIT_MEMLOCK bounds mlock, the cgroup the rest. The policies
    // (mbind) are advice to the allocator; moving pages of other processes is refused.
    SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_msync SYS_mincore SYS_madvise SYS_process_madvise SYS_mlock SYS_mlock2
    SYS_munlock SYS_mlockall SYS_munlockall SYS_remap_file_pages SYS_membarrier SYS_pkey_mprotect SYS_pkey_alloc SYS_pkey_free
    SYS_mbind SYS_get_mempolicy SYS_set_mempolicy SYS_set_mempolicy_home_node
    // Processes and threads; the pid namespace contains only the sandbox's. clone3 is absent on
    // purpose: its flags are in memory, which a filter cannot read, and glibc falls back to clone.
    SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_kill SYS_tkill SYS_tgkill
    SYS_pidfd_open SYS_pidfd_send_signal SYS_process_mrelease SYS_getpid SYS_getppid SYS_gettid
    SYS_set_tid_address SYS_setpgid SYS_getpgid SYS_setsid SYS_getsid SYS_getrusage SYS_rseq
    // Identity: sudo, su, package managers and servers that drop privileges. All ids are the
    // sandbox's own.
    SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid
    SYS_getresuid SYS_getresgid SYS_setfsuid SYS_setfsgid SYS_getgroups SYS_setgroups SYS_capget SYS_capset SYS_prctl SYS_seccomp
    // Debuggers, profilers and crash reporters of the sandbox's own processes (gdb, strace, py-spy,
    // Chromium). They cannot attach to the guest, which is not dumpable.
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp SYS_pidfd_getfd
    // Scheduling within the cgroup's share; real-time classes require a capability.
    SYS_getpriority SYS_setpriority SYS_ioprio_get SYS_ioprio_set SYS_sched_yield SYS_sched_setparam SYS_sched_getparam
    SYS_sched_setscheduler SYS_sched_getscheduler SYS_sched_setattr SYS_sched_getattr SYS_sched_setaffinity SYS_sched_getaffinity
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_getcpu
    // Signals.
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigqueueinfo
    SYS_rt_tgsigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack
    // Reading time and waiting. Setting a clock is refused.
    SYS_gettimeofday SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_getitimer SYS_setitimer SYS_times
    SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
    // Using sockets; the guard of `socket` decides which kinds exist.
    SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_getsockname SYS_getpeername SYS_sendto
    SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_setsockopt SYS_getsockopt SYS_shutdown
    // Communication between processes (databases, Chromium), inside of the sandbox's own ipc
    // namespace.
    SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget SYS_msgsnd SYS_msgrcv
    SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr
    // The machine's name, totals of its memory and load, random numbers.
    SYS_uname SYS_sysinfo SYS_getrandom
];

/// Newer forms of allowed calls: page-cache statistics of an open file, chmod with flags, shadow
/// stacks, one call per futex operation, and sealing of a process's own memory.
const ALLOWED_RECENT: &[i64] = &[
    recent::CACHESTAT,
    recent::FCHMODAT2,
    recent::MAP_SHADOW_STACK,
    recent::FUTEX_WAKE,
    recent::FUTEX_WAIT,
    recent::FUTEX_REQUEUE,
    recent::MSEAL,
];

/// Calls of this architecture only: older forms of the calls above, which old and static programs
/// still make, and the processor's registers.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[i64] = calls![
    SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_chmod SYS_chown SYS_lchown SYS_mkdir SYS_rmdir SYS_mknod SYS_unlink
    SYS_rename SYS_renameat SYS_link SYS_symlink SYS_readlink SYS_getdents SYS_utime SYS_utimes SYS_futimesat SYS_dup2 SYS_pipe
    SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_inotify_init SYS_eventfd SYS_signalfd SYS_pause SYS_alarm SYS_time
    SYS_fork SYS_vfork SYS_getpgrp SYS_getrlimit SYS_arch_prctl SYS_set_thread_area SYS_get_thread_area
    SYS_sync_file_range
];
/// renameat, sync_file_range, getrlimit, which the table of `libc` lacks.
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[i64] = &[38, 84, 163];

#[cfg(target_arch = "x86_64")]
const SETRLIMIT: i64 = libc::SYS_setrlimit;
#[cfg(target_arch = "aarch64")]
const SETRLIMIT: i64 = 164;

#[rustfmt::skip]
const REFUSED: &[i64] = calls![
    // Mounts and namespaces: they hide the host, and would grant capabilities again.
    SYS_mount SYS_umount2 SYS_pivot_root SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
    SYS_mount_setattr SYS_setns
    // All namespaces of a user share its keyrings; bpf, perf and userfaultfd are the usual way to
    // exploit the kernel.
    SYS_add_key SYS_request_key SYS_keyctl SYS_bpf SYS_perf_event_open SYS_userfaultfd
    // The machine's kernel, modules, clocks, swap, power, quotas, accounting, log and names.
    SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module SYS_delete_module SYS_clock_settime SYS_clock_adjtime
    SYS_settimeofday SYS_adjtimex SYS_swapon SYS_swapoff SYS_reboot SYS_quotactl SYS_quotactl_fd SYS_acct SYS_syslog SYS_vhangup
    SYS_lookup_dcookie SYS_sethostname SYS_setdomainname
    // Files by handle, which bypass directory modes, and watching whole mounts.
    SYS_open_by_handle_at SYS_fanotify_init SYS_fanotify_mark
    // io_uring makes calls that no filter sees.
    SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
    // Pages of other processes, and memory that the host itself cannot read.
    SYS_migrate_pages SYS_move_pages SYS_memfd_secret
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = calls![SYS_iopl SYS_ioperm SYS_modify_ldt];
#[cfg(target_arch = "aarch64")]
const REFUSED_HERE: &[i64] = &[];

/// Flags of clone and unshare that make a namespace. The bit of `CLONE_NEWTIME` is part of the exit
/// signal in clone.
const NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP)
    .cast_unsigned();
const TIME_NAMESPACE: u32 = 0x80;

const UNIX: u32 = libc::AF_UNIX.cast_unsigned();
const INET: u32 = libc::AF_INET.cast_unsigned();
const INET6: u32 = libc::AF_INET6.cast_unsigned();
const NETLINK: u32 = libc::AF_NETLINK.cast_unsigned();

const ALWAYS: Guard = Guard::Always;
const NO_SUCH_PROTOCOL: Guard = Guard::Answer(libc::EPROTONOSUPPORT);
const NO_SUCH_FAMILY: Guard = Guard::Answer(libc::EPERM);
const NO_SUCH_TYPE: Guard = Guard::Answer(libc::ESOCKTNOSUPPORT);
const ANY: u32 = u32::MAX;

/// A request for a protocol that the kernel lacks loads its module, so the others (SCTP, DCCP,
/// UDP-Lite, L2TP, SMC, …) must not reach the kernel. The error is that of a kernel without the
/// module.
const TCP: Guard = Guard::Switch {
    argument: 2,
    mask: ANY,
    cases: &[(0, &ALWAYS), (libc::IPPROTO_TCP.cast_unsigned(), &ALWAYS), (MPTCP, &ALWAYS)],
    otherwise: &NO_SUCH_PROTOCOL,
};
const MPTCP: u32 = 262;
const UDP: Guard = Guard::Switch {
    argument: 2,
    mask: ANY,
    cases: &[
        (0, &ALWAYS),
        (libc::IPPROTO_UDP.cast_unsigned(), &ALWAYS),
        // ping without capabilities.
        (libc::IPPROTO_ICMP.cast_unsigned(), &ALWAYS),
        (libc::IPPROTO_ICMPV6.cast_unsigned(), &ALWAYS),
    ],
    otherwise: &NO_SUCH_PROTOCOL,
};
/// Raw sockets load no module, whatever the protocol; they require a capability, and egress rules
/// apply to their packets.
const INTERNET: Guard = Guard::Switch {
    argument: 1,
    mask: SOCKET_TYPE,
    cases: &[
        (libc::SOCK_STREAM.cast_unsigned(), &TCP),
        (libc::SOCK_DGRAM.cast_unsigned(), &UDP),
        (libc::SOCK_RAW.cast_unsigned(), &ALWAYS),
    ],
    otherwise: &NO_SUCH_TYPE,
};
/// Routes and addresses (every resolver, `ip`), lists of sockets (`ss`), device events (libudev,
/// Chromium). Not generic netlink, which loads modules by name, nor audit: sudo and PAM take this
/// error for a kernel without it.
const NETLINK_PROTOCOLS: Guard = Guard::Switch {
    argument: 2,
    mask: ANY,
    cases: &[(0, &ALWAYS), (4, &ALWAYS), (15, &ALWAYS)],
    otherwise: &NO_SUCH_PROTOCOL,
};
const FAMILIES: Guard = Guard::Switch {
    argument: 0,
    mask: ANY,
    cases: &[(UNIX, &ALWAYS), (INET, &INTERNET), (INET6, &INTERNET), (NETLINK, &NETLINK_PROTOCOLS)],
    otherwise: &NO_SUCH_FAMILY,
};
/// The bits of a socket's type without its flags, and the type for which the kernel treats INET as
/// PACKET.
const SOCKET_TYPE: u32 = 0xf;
const PACKET_TYPE: u32 = 10;

/// The limit of core dumps stays as the launcher set it: the host's crash handler runs at any limit
/// but 1, so a program must not lower it either. Programs that forbid their own dumps (gpg,
/// ssh-agent, sudo) exit if that fails, so the call succeeds without effect: there are no dumps. A
/// call that also requests the old limit would receive none, and is refused.
const KEEP_LIMIT: Guard = Guard::Answer(0);
const REFUSE: Guard = Guard::Answer(libc::EPERM);
/// `RLIMIT_CORE`, whose type in `libc` depends on the C library.
const CORE: u32 = 4;
const PRLIMIT_OF_CORE: Guard = Guard::Null {
    argument: 2,
    then: &ALWAYS,
    otherwise: &Guard::Null { argument: 3, then: &KEEP_LIMIT, otherwise: &REFUSE },
};

/// Calls allowed by argument. The filter compares the 32 bits of an argument that the kernel uses.
const GUARDED: &[(i64, Guard)] = &[
    (libc::SYS_clone, Guard::Without { argument: 0, bits: NAMESPACES }),
    (libc::SYS_unshare, Guard::Without { argument: 0, bits: NAMESPACES | TIME_NAMESPACE }),
    (libc::SYS_socket, Guard::Unlike { argument: 1, mask: SOCKET_TYPE, value: PACKET_TYPE, then: &FAMILIES }),
    (
        libc::SYS_prlimit64,
        Guard::Switch { argument: 1, mask: ANY, cases: &[(CORE, &PRLIMIT_OF_CORE)], otherwise: &ALWAYS },
    ),
    (SETRLIMIT, Guard::Switch { argument: 0, mask: ANY, cases: &[(CORE, &KEEP_LIMIT)], otherwise: &ALWAYS }),
    (libc::SYS_socketpair, Guard::Among { argument: 0, values: &[UNIX] }),
    // Native, 32-bit view, 2.6 version numbers, both, no address randomization (debuggers), and the
    // query of the current one.
    (libc::SYS_personality, Guard::Among { argument: 0, values: &[0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff] }),
    (
        libc::SYS_ioctl,
        Guard::AmongWithin { argument: 1, mask: IOCTL_TYPE, value: BTRFS_TYPE, values: CLONES, then: &TERMINALS },
    ),
];

/// The bits of an ioctl's number that identify its subsystem.
const IOCTL_TYPE: u32 = 0xff00;
/// btrfs: its ioctls make subvolumes, which escape limits, and require no privilege on the caller's
/// own files.
const BTRFS_TYPE: u32 = 0x9400;
/// FICLONE, FICLONERANGE and FIDEDUPERANGE, which have btrfs's type and work on any file system.
const CLONES: &[u32] = &[0x4004_9409, 0x4020_940d, 0xc018_9436];
/// TIOCSTI injects input into a terminal, TIOCLINUX pastes into the console.
const TERMINALS: Guard = Guard::NotAmong { argument: 1, values: &[0x5412, 0x541c] };

/// Assembles the filter. A launcher does so in advance, while it waits for a specification.
pub(crate) fn filter() -> Program {
    Program::assemble(&verdicts(), Unlisted::Absent)
}

fn verdicts() -> BTreeMap<i64, Verdict> {
    let allowed = [ALLOWED, ALLOWED_RECENT, ALLOWED_HERE].concat().into_iter().map(|call| (call, Verdict::Allow));
    let refused = [REFUSED, REFUSED_HERE].concat().into_iter().map(|call| (call, Verdict::Refuse));
    let guarded = GUARDED.iter().map(|(call, guard)| (*call, Verdict::AllowIf(*guard)));
    allowed.chain(refused).chain(guarded).collect()
}

#[cfg(test)]
mod tests {
    use super::program::tests::{Answer, run};
    use super::*;

    #[test]
    fn nothing_is_named_twice() {
        let guarded: Vec<i64> = GUARDED.iter().map(|(call, _)| *call).collect();
        let all = [ALLOWED, ALLOWED_RECENT, ALLOWED_HERE, REFUSED, REFUSED_HERE, &guarded].concat();
        assert_eq!(all.len(), verdicts().len());
    }

    #[test]
    fn every_call_gets_its_verdict() {
        let (filter, verdicts) = (filter(), verdicts());
        for call in 0..1024 {
            let answer = run(&filter, call, [0; 6]);
            match verdicts.get(&i64::from(call)) {
                Some(Verdict::Allow) => assert_eq!(answer, Answer::Allow, "call {call}"),
                Some(Verdict::Refuse) => assert_eq!(answer, Answer::Errno(libc::EPERM), "call {call}"),
                Some(Verdict::AllowIf(_)) => {}
                None => assert_eq!(answer, Answer::Errno(libc::ENOSYS), "call {call}"),
            }
        }
        // The x32 calling convention.
        assert_eq!(run(&filter, 0x4000_0000, [0; 6]), Answer::Errno(libc::ENOSYS));
    }

    #[test]
    fn what_the_machine_counts_for_all_is_absent() {
        const IO_PGETEVENTS: i64 = if cfg!(target_arch = "x86_64") { 333 } else { 292 };
        for call in [
            libc::SYS_io_setup,
            libc::SYS_io_destroy,
            libc::SYS_io_submit,
            libc::SYS_io_cancel,
            libc::SYS_io_getevents,
            IO_PGETEVENTS,
        ] {
            assert_eq!(
                run(&filter(), u32::try_from(call).unwrap(), [0; 6]),
                Answer::Errno(libc::ENOSYS),
                "call {call}"
            );
        }
    }

    /// The calls that the filter allows, with or without conditions, as last reviewed: numbers of
    /// this architecture, with their names. A change of the list needs a change of this file, by
    /// hand.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn nothing_is_allowed_but_what_is_pinned() {
        let pinned: Vec<i64> = include_str!("allowed_x86_64.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split(' ').next().unwrap().parse().unwrap())
            .collect();
        let allowed: Vec<i64> =
            verdicts().into_iter().filter(|(_, verdict)| *verdict != Verdict::Refuse).map(|(call, _)| call).collect();
        assert_eq!(allowed, pinned);
    }

    #[track_caller]
    fn check(call: i64, arguments: [u64; 3], allowed: bool) {
        answers(call, arguments, if allowed { Answer::Allow } else { Answer::Errno(libc::EPERM) });
    }

    #[track_caller]
    fn answers(call: i64, arguments: [u64; 3], expected: Answer) {
        let [a, b, c] = arguments;
        let call = u32::try_from(call).unwrap();
        assert_eq!(run(&filter(), call, [a, b, c, 0, 0, 0]), expected, "call {call} {arguments:x?}");
    }

    #[test]
    fn sockets_are_of_known_protocols() {
        let (stream, datagram, raw) = (1, 2, 3);
        for (family, kind, protocol) in [
            (2, stream, 0),
            (2, stream, 6),
            (10, 0x8_0800 | stream, 262),
            (2, datagram, 17),
            (2, datagram, 1),
            (10, datagram, 58),
            (2, raw, 1),
            (10, raw, 255),
            (1, 5, 0),
            (16, raw, 0),
            (16, raw, 4),
            (16, datagram, 15),
        ] {
            check(libc::SYS_socket, [family, kind, protocol], true);
        }
        let (protocol, kind) = (Answer::Errno(libc::EPROTONOSUPPORT), Answer::Errno(libc::ESOCKTNOSUPPORT));
        // SCTP, DCCP, UDP-Lite, L2TP, SMC; audit, netfilter, generic.
        for arguments in [
            [2, stream, 132],
            [10, stream, 132],
            [2, stream, 17],
            [2, datagram, 136],
            [2, datagram, 115],
            [2, stream, 256],
            [16, raw, 9],
            [16, raw, 12],
            [16, raw, 16],
        ] {
            answers(libc::SYS_socket, arguments, protocol);
        }
        for arguments in [[2, 5, 132], [2, 6, 0], [2, 4, 0], [10, 5, 0]] {
            answers(libc::SYS_socket, arguments, kind);
        }
    }

    #[test]
    fn the_limit_of_core_dumps_stays() {
        let kept = Answer::Errno(0);
        answers(SETRLIMIT, [4, 0x1000, 0], kept);
        check(SETRLIMIT, [7, 0x1000, 0], true);
        check(libc::SYS_prlimit64, [0, 4, 0], true);
        check(libc::SYS_prlimit64, [0, 7, 0x1000], true);
        answers(libc::SYS_prlimit64, [0, 4, 0x1000], kept);
        // A pointer whose low half is zero is not null.
        answers(libc::SYS_prlimit64, [0, 4, 1 << 32], kept);
        let call = u32::try_from(libc::SYS_prlimit64).unwrap();
        assert_eq!(run(&filter(), call, [0, 4, 0x1000, 0x2000, 0, 0]), Answer::Errno(libc::EPERM));
        assert_eq!(run(&filter(), call, [0, 4, 0, 0x2000, 0, 0]), Answer::Allow);
    }

    #[test]
    fn arguments_decide_where_a_call_is_only_partly_harmless() {
        let thread = 0x3d_0f00;
        check(libc::SYS_clone, [thread, 0, 0], true);
        check(libc::SYS_clone, [17, 0, 0], true);
        for namespace in [0x1000_0000, 0x2_0000, 0x2000_0000, 0x4000_0000, 0x800_0000, 0x400_0000, 0x200_0000] {
            check(libc::SYS_clone, [namespace | 17, 0, 0], false);
            check(libc::SYS_unshare, [namespace, 0, 0], false);
        }
        check(libc::SYS_unshare, [0x80, 0, 0], false);
        check(libc::SYS_unshare, [0x400, 0, 0], true);
        for (family, protocol, allowed) in [
            (1, 0, true),
            (2, 6, true),
            (10, 6, true),
            (16, 0, true),
            (17, 0, false),
            (38, 0, false),
            (40, 0, false),
            // The kernel ignores the upper half, so it does not bypass the filter.
            (1 << 32 | 17, 0, false),
        ] {
            check(libc::SYS_socket, [family, 1, protocol], allowed);
        }
        for (kind, allowed) in [(1, true), (2, true), (3, true), (10, false), (0x8_080a, false)] {
            check(libc::SYS_socket, [2, kind, 0], allowed);
        }
        check(libc::SYS_socket, [2, 0x8_0801, 0], true);
        check(libc::SYS_socket, [2, 1 << 32 | 10, 0], false);
        check(libc::SYS_socketpair, [1, 1, 0], true);
        check(libc::SYS_socketpair, [17, 1, 0], false);
        check(libc::SYS_personality, [0xffff_ffff, 0, 0], true);
        check(libc::SYS_personality, [0x40_0000, 0, 0], false);
        check(libc::SYS_ioctl, [0, 0x5401, 0], true);
        check(libc::SYS_ioctl, [0, 0x5412, 0], false);
        check(libc::SYS_ioctl, [0, 1 << 32 | 0x5412, 0], false);
    }

    #[test]
    fn of_btrfs_s_ioctls_only_clones_are_allowed() {
        for clone in CLONES {
            check(libc::SYS_ioctl, [0, u64::from(*clone), 0], true);
        }
        // SNAP_CREATE, SUBVOL_CREATE, SNAP_DESTROY, INO_LOOKUP, SNAP_CREATE_V2, SUBVOL_CREATE_V2,
        // SUBVOL_SETFLAGS, QUOTA_CTL, and every number without a size.
        let named =
            [0x5000_9401, 0x5000_940e, 0x5000_940f, 0xd000_9412, 0x5000_9417, 0x5000_9418, 0x4008_941a, 0xc010_9428];
        for request in named.into_iter().chain(0x9400..=0x94ff) {
            check(libc::SYS_ioctl, [0, request, 0], false);
            check(libc::SYS_ioctl, [0, 1 << 32 | request, 0], false);
        }
        // FIONREAD, FS_IOC_GETFLAGS, FS_IOC_FIEMAP: of other types.
        for request in [0x541b, 0x8008_6601, 0xc020_660b] {
            check(libc::SYS_ioctl, [0, request, 0], true);
        }
    }
}
