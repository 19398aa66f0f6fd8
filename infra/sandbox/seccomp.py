"""A seccomp filter for the system calls that a sandboxed program does not need, as a BPF program for x86-64.

Namespaces already confine the program; the filter removes what they do not cover (vsock, memory outside every limit)
and the parts of the kernel in which most escapes were found. Numbers: arch/x86/entry/syscalls/syscall_64.tbl in Linux.
"""

import errno
import socket
import struct

# fmt: off
DENIED = {
    # other processes' memory, descriptors and events
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
    "process_madvise": 440, "process_mrelease": 448, "perf_event_open": 298,
    # memory that neither RLIMIT_AS nor the size of a tmpfs covers
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "shmat": 30, "shmctl": 31, "shmdt": 67,
    "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71,
    "mq_open": 240, "mq_unlink": 241, "add_key": 248, "request_key": 249, "keyctl": 250, "vmsplice": 278,
    # large interfaces of the kernel
    "bpf": 321, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "userfaultfd": 323,
    "fanotify_init": 300, "fanotify_mark": 301, "quotactl": 179, "quotactl_fd": 443, "modify_ldt": 154,
    "uselib": 134, "personality": 135, "syslog": 103, "acct": 163, "lookup_dcookie": 212,
    # mounts and namespaces
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "statmount": 457, "listmount": 458, "name_to_handle_at": 303, "open_by_handle_at": 304,
    # the machine
    "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
    "reboot": 169, "swapon": 167, "swapoff": 168, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "vhangup": 153, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305,
    # its scheduler and the placement of memory
    "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314, "ioprio_set": 251,
    "mbind": 237, "set_mempolicy": 238, "migrate_pages": 256, "move_pages": 279, "set_mempolicy_home_node": 450,
}
# fmt: on
# without its own namespaces, a program may not do the following either, which Landlock does not cover: start processes,
# use sockets of the host, change the metadata of the user's files or the limits of the user's processes
# fmt: off
DENIED_ALONE = {
    "fork": 57, "vfork": 58, "clone": 56, "socket": 41, "connect": 42, "sched_setaffinity": 203,
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93, "lchown": 94,
    "fchownat": 260, "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188,
    "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199,
    "inotify_init": 253, "inotify_init1": 294, "inotify_add_watch": 254, "flock": 73,
}
# fmt: on
SOCKET, CLONE, CLONE3, PRCTL, PRLIMIT, LAST_KNOWN = 41, 56, 435, 157, 302, 462
PR_SET_PDEATHSIG = 1
NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}

_X86_64 = 0xC000003E
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data


def program(alone: bool = False) -> bytes:
    """Return the filter's instructions (struct sock_filter); with `alone`, DENIED_ALONE is refused too."""
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, _X86_64, yes=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        *_refuse(_GREATER, LAST_KNOWN, errno.ENOSYS),  # newer than this list; the x32 calls too
        *_refuse(_EQUAL, CLONE3, errno.ENOSYS),  # a filter cannot read its flags; libc falls back to clone
    ]
    for number in (DENIED | (DENIED_ALONE if alone else {})).values():
        steps += _refuse(_EQUAL, number, errno.EPERM)
    if alone:  # it must end with the process that started it
        steps += [
            _step(_EQUAL, PRCTL, no=4),
            _step(_LOAD, _FIRST_ARGUMENT),
            *_refuse(_EQUAL, PR_SET_PDEATHSIG, errno.EPERM),
            _step(_RETURN, _ALLOW),
        ]
    steps += [
        _step(_EQUAL, CLONE, no=4),
        _step(_LOAD, _FIRST_ARGUMENT),
        *_refuse(_ANY_BIT, NAMESPACES, errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, PRLIMIT, no=4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_EQUAL, 0, yes=1),  # of this process
        _step(_RETURN, _ERROR | errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, SOCKET, no=3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_EQUAL, socket.AF_UNIX, yes=1),  # vsock reaches the hypervisor from any namespace
        _step(_RETURN, _ERROR | errno.EAFNOSUPPORT),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _refuse(test: int, value: int, error: int) -> list[bytes]:
    return [_step(test, value, no=1), _step(_RETURN, _ERROR | error)]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
