"""Attempts that hostile code makes from inside a sandbox, as one program.

Prints a line `AREA<TAB>ATTEMPT<TAB>OUTCOME` per attempt. An outcome is the name of the errno that the
kernel returned, or `through`. Every argument is invalid on purpose: a call that the filter lets pass
does nothing and returns EFAULT, EINVAL or EBADF. By these a control on the host tells the filter from
a typing mistake.
"""

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)
BAD = -1  # neither a descriptor, nor an address, nor a flag


def say(area, attempt, outcome):
    print(area, attempt, outcome, sep="\t", flush=True)


def name(number):
    return errno.errorcode.get(number, str(number))


def call(area, attempt, number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    say(area, attempt, "through" if result >= 0 else name(ctypes.get_errno()))


def attempt(area, what, action):
    try:
        action()
    except OSError as error:
        say(area, what, name(error.errno))
    else:
        say(area, what, "through")


# Numbers of x86-64. Calls on processes of the same sandbox (ptrace, process_vm_writev, kcmp) are
# allowed.
X86 = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "acct": 163, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
    "kexec_load": 246, "kexec_file_load": 320, "add_key": 248, "request_key": 249, "keyctl": 250,
    "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "finit_module": 313, "bpf": 321, "userfaultfd": 323,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "quotactl_fd": 443,
    "syslog": 103, "lookup_dcookie": 212, "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156,
    "create_module": 174, "get_kernel_syms": 177, "query_module": 178, "nfsservctl": 180, "vserver": 236,
    "modify_ldt": 154, "migrate_pages": 256, "move_pages": 279,
}
HARMLESS_FOR_ROOT = set(X86) - {"syslog", "adjtimex", "settimeofday", "modify_ldt", "sysfs", "ustat"}


def calls(control):
    for what, number in X86.items():
        if control and what not in HARMLESS_FOR_ROOT:
            continue
        call("call", what, number, BAD, BAD, BAD, BAD, BAD, BAD)


NAMESPACES = {
    "time": 0x80, "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
    "pid": 0x20000000, "network": 0x40000000,
}


def namespaces():
    for what, flag in NAMESPACES.items():
        child = os.fork()
        if child == 0:
            call("namespace", "unshare " + what, 272, flag)
            os._exit(0)
        os.waitpid(child, 0)
        if what == "time":
            continue  # clone() has no flag for it: the bit is part of the exit signal
        # clone(2) with the flag and without CLONE_VM or a stack: as fork, memory is copy-on-write.
        ctypes.set_errno(0)
        made = libc.syscall(ctypes.c_long(56), ctypes.c_long(flag | 17), 0, 0, 0, 0)
        if made == 0:
            os._exit(0)
        if made > 0:
            os.waitpid(made, 0)
        say("namespace", "clone " + what, "through" if made > 0 else name(ctypes.get_errno()))
    call("namespace", "clone3", 435, BAD, 88)


FAMILIES = {
    "AX25": 3, "IPX": 4, "APPLETALK": 5, "X25": 9, "KEY": 15, "PACKET": 17, "RDS": 21, "LLC": 26, "CAN": 29,
    "TIPC": 30, "BLUETOOTH": 31, "ALG": 38, "NFC": 39, "VSOCK": 40, "KCM": 41, "QIPCRTR": 42, "SMC": 43, "XDP": 44,
}


def sockets():
    for what, family in FAMILIES.items():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            attempt("socket", f"{what} type {kind}", lambda: socket.socket(family, kind, 0).close())
    for protocol in ("NETFILTER", 12), ("XFRM", 6), ("CRYPTO", 21), ("AUDIT", 9), ("SELINUX", 7), ("RDMA", 20):
        attempt("socket", "netlink " + protocol[0], lambda: socket.socket(16, socket.SOCK_RAW, protocol[1]).close())


def devices():
    for kind, bit in ("block", stat.S_IFBLK), ("character", stat.S_IFCHR):
        for major, minor in (1, 1), (1, 2), (7, 0), (8, 0), (10, 200), (10, 229), (10, 232), (253, 0), (254, 0), (259, 0):
            for where in "/tmp", "/dev/shm", "/home/user":
                path = f"{where}/device-{os.getpid()}"

                def make():
                    os.mknod(path, bit | 0o600, os.makedev(major, minor))
                    os.unlink(path)

                attempt("device", f"{kind} {major}:{minor} in {where}", make)


def attributes():
    with tempfile.NamedTemporaryFile(dir="/home/user") as file:
        for attribute in "trusted.overlay.opaque", "trusted.overlay.redirect", "security.ima", "security.evm":
            attempt("attribute", attribute, lambda: os.setxattr(file.name, attribute, b"y"))


def kernel_files():
    """Opens every file below /proc/sys and /sys for writing. Opening changes nothing."""
    opened = 0
    for top in "/proc/sys", "/sys":
        for folder, _, names in os.walk(top, onerror=lambda _: None):
            for file in names:
                path = os.path.join(folder, file)
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
                except OSError:
                    continue
                opened += 1
                say("kernel file", path, "through")
    if not opened:
        say("kernel file", "all of /proc/sys and /sys", "EROFS")


def namespace_ioctls():
    NS_GET_USERNS, NS_GET_PARENT, SIOCGSKNS = 0xB701, 0xB702, 0x894C
    for kind in "mnt", "net", "uts", "ipc", "pid", "user", "cgroup":
        descriptor = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
        own = {os.stat(f"/proc/self/ns/{k}").st_ino for k in ("mnt", "net", "uts", "ipc", "pid", "user", "cgroup")}
        for what, request in ("owner", NS_GET_USERNS), ("parent", NS_GET_PARENT):
            try:
                got = fcntl.ioctl(descriptor, request)
            except OSError as error:
                # Only hierarchical namespaces have a parent; the kernel returns EINVAL for others.
                flat = what == "parent" and kind not in ("pid", "user") and error.errno == errno.EINVAL
                say("namespace handle", f"{what} of {kind}", "EPERM" if flat else name(error.errno))
            else:
                # A handle of a namespace of this sandbox is no escape.
                inode = os.fstat(got).st_ino
                say("namespace handle", f"{what} of {kind}", "EPERM" if inode in own else "through")
                os.close(got)
        os.close(descriptor)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        attempt("namespace handle", "network by socket", lambda: os.close(fcntl.ioctl(probe, SIOCGSKNS)))


def terminals():
    master, slave = os.openpty()
    pushed = struct.pack("c", b"x")
    attempt("terminal", "TIOCSTI", lambda: fcntl.ioctl(slave, 0x5412, pushed))
    attempt("terminal", "TIOCLINUX", lambda: fcntl.ioctl(slave, 0x541C, pushed))
    os.close(master), os.close(slave)


def chroot_escape():
    """Calls chroot below the working directory, climbs out of it, and compares the root directory."""
    child = os.fork()
    if child == 0:
        try:
            os.makedirs("/tmp/below", exist_ok=True)
            inside = os.stat("/").st_ino, os.stat("/").st_dev
            up = os.open("/", os.O_RDONLY)
            os.chroot("/tmp/below")
            os.fchdir(up)
            for _ in range(64):
                os.chdir("..")
            os.chroot(".")
            found = os.stat("/").st_ino, os.stat("/").st_dev
            say("chroot", "climb out", "EPERM" if found == inside else "through")
        except OSError as error:
            say("chroot", "climb out", name(error.errno))
        os._exit(0)
    os.waitpid(child, 0)


if sys.argv[1:] == ["control"]:
    calls(control=True)
else:
    calls(control=False)
    for area in (namespaces, sockets, devices, attributes, kernel_files, namespace_ioctls, terminals, chroot_escape):
        area()
