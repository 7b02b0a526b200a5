"""The sandbox of a module on Linux: Landlock limits its files, and seccomp its system calls.

A module reads the files of its project, of its Python environment and of the system's libraries, and the files and
folders of its permissions. A module writes no file, starts no process, sends no signal to another process, and has no
network unless its permissions name one. Neither mechanism needs privileges.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Iterable, Sequence

_NR_CREATE_RULESET, _NR_ADD_RULE, _NR_RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _EXECUTE = 1 << 2, 1 << 3, 1 << 0
_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights to files that each version of Landlock added to those before; all are denied unless a rule grants them."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _REFUSE, _ABSENT = 0x7FFF0000, 0x00050000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_CLONE_THREAD = 0x00010000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPES = 1, 1, 0xF
_SCOPE_SIGNALS, _SCOPE_ABI = 1 << 1, 6

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The audit number of each architecture, and its column in the table of system calls."""

_NETWORK = {"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202)}

_REFUSED = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utimensat": (280, 88),
    "utime": (132, None),
    "utimes": (235, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "open_by_handle_at": (304, 265),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "fchmodat2": (452, 452),
    "futimesat": (261, None),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "truncate": (76, 45),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "userfaultfd": (323, 282),
    "setrlimit": (160, 164),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "personality": (135, 92),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "kexec_file_load": (320, 294),
    "setdomainname": (171, 162),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
_CLONE, _CLONE3 = (56, 220), 435
_KILL, _TKILL, _TGKILL = (62, 129), (200, 130), (234, 131)
_FCNTL, _IOCTL, _PRLIMIT, _SOCKETPAIR = (72, 25), (16, 29), (302, 261), (53, 199)

_REFUSED_FCNTL = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX send signals to other processes; F_SETLEASE and F_NOTIFY observe them."""

_ALLOWED_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX."""

_SYSTEM_FILES = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/zero",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system/cpu",
)


def enter(folders: Iterable[str], *, network: bool) -> list[str]:
    """Restrict this process and its future threads, for ever.

    Args:
        folders: files and folders that the module may read, beside the Python environment and the system's libraries.
        network: true if the module may use the network.

    Returns:
        The restrictions that this system does not offer; empty if all are in force.
    """
    if sys.platform != "linux":
        return ["files, processes and the network are not restricted on this system"]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    lacking = []
    if not _restrict_files(libc, [*_environment_folders(), *_SYSTEM_FILES, *folders]):
        lacking.append("files are not restricted, because the kernel has no Landlock")
    if not _restrict_calls(libc, network=network):
        lacking.append("processes and the network are not restricted, because the kernel has no seccomp")
    return lacking


def _environment_folders() -> list[str]:
    folders = {*sys.path, *sysconfig.get_paths().values(), sys.prefix, os.path.join(sys.base_prefix, "lib")}
    folders |= {os.path.realpath(folder) for folder in folders}
    return sorted(folder for folder in folders if folder and os.path.isabs(folder))


def _restrict_files(libc: ctypes.CDLL, readable: Sequence[str]) -> bool:
    abi = libc.syscall(_NR_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return False
    handled = _RIGHTS_OF_ABI[max(version for version in _RIGHTS_OF_ABI if version <= abi)]
    text = struct.pack("QQQ", handled, 0, _SCOPE_SIGNALS) if abi >= _SCOPE_ABI else struct.pack("Q", handled)
    attributes = ctypes.create_string_buffer(text, len(text))
    ruleset = libc.syscall(_NR_CREATE_RULESET, attributes, ctypes.c_size_t(len(text)), 0)
    if ruleset < 0:
        return False
    for path in readable:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights = _READ_FILE | (_READ_DIR | _EXECUTE if os.path.isdir(path) else 0)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        libc.syscall(_NR_ADD_RULE, ruleset, 1, rule, 0)
        os.close(descriptor)
    is_restricted: bool = libc.syscall(_NR_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return is_restricted


def _statement(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _checked(number: int, decision: Sequence[bytes]) -> list[bytes]:
    """Return statements that run `decision`, which returns, for one system call."""
    return [_statement(_EQUAL, number, 0, len(decision)), *decision]


def _matched(argument: int, values: Iterable[int], match: bytes, other: bytes) -> list[bytes]:
    """Return statements that compare the low half of an argument with values."""
    tests = [part for value in values for part in (_statement(_EQUAL, value, 0, 1), match)]
    return [_statement(_LOAD, argument), *tests, other]


def _program(machine: str, process: int, *, network: bool) -> bytes:
    """Return the filter of system calls; a refused call fails with EPERM."""
    audit, column = _ARCHITECTURES[machine]
    refused = _REFUSED | ({} if network else _NETWORK)
    allow, refuse = _statement(_RETURN, _ALLOW), _statement(_RETURN, _REFUSE | _EPERM)
    parts = [
        _statement(_LOAD, _ARCH),
        _statement(_EQUAL, audit, 1, 0),
        refuse,
        _statement(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":  # the numbers of the x32 interface
        parts += [_statement(0x35, 0x40000000, 0, 1), refuse]
    for numbers in refused.values():
        if (number := numbers[column]) is not None:
            parts += [_statement(_EQUAL, number, 0, 1), refuse]
    # The C library uses `clone` where `clone3` does not exist. Only the arguments of `clone` can be checked.
    parts += [_statement(_EQUAL, _CLONE3, 0, 1), _statement(_RETURN, _ABSENT | _ENOSYS)]
    parts += _checked(
        _CLONE[column],
        [_statement(_LOAD, _FIRST_ARGUMENT), _statement(_ANY_BIT, _CLONE_THREAD, 0, 1), allow, refuse],
    )
    own = _matched(_FIRST_ARGUMENT, [process], allow, refuse)
    parts += [*_checked(_KILL[column], own), *_checked(_TGKILL[column], own)]
    parts += _checked(_TKILL[column], [refuse])  # names a thread of any process
    parts += _checked(_FCNTL[column], _matched(_SECOND_ARGUMENT, _REFUSED_FCNTL, refuse, allow))
    parts += _checked(_IOCTL[column], _matched(_SECOND_ARGUMENT, _ALLOWED_IOCTL, allow, refuse))
    # Limits may be read, and not set: both halves of the pointer to the new limit are zero.
    reads = [_statement(_LOAD, _THIRD_ARGUMENT), _statement(_EQUAL, 0, 0, 3)]
    reads += [_statement(_LOAD, _THIRD_ARGUMENT + 4), _statement(_EQUAL, 0, 0, 1), allow, refuse]
    parts += _checked(_PRLIMIT[column], reads)
    if not network:  # a pair of another type can send to the sockets of other processes
        pair = [_statement(_LOAD, _FIRST_ARGUMENT), _statement(_EQUAL, _AF_UNIX, 1, 0), refuse]
        pair += [_statement(_LOAD, _SECOND_ARGUMENT), _statement(_AND, _SOCK_TYPES)]
        pair += [_statement(_EQUAL, _SOCK_STREAM, 0, 1), allow, refuse]
        parts += _checked(_SOCKETPAIR[column], pair)
    return b"".join([*parts, allow])


def _restrict_calls(libc: ctypes.CDLL, *, network: bool) -> bool:
    machine = platform.machine()
    if machine not in _ARCHITECTURES or sys.byteorder != "little":
        return False
    text = _program(machine, os.getpid(), network=network)
    code = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HP", len(text) // 8, ctypes.addressof(code))
    held = ctypes.create_string_buffer(program, len(program))
    result: int = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, held, 0, 0)
    return result == 0
