"""Names of processes that are unique across machines, containers and time.

A number alone does not identify a process: numbers are reused, and every container counts from 1. The name therefore
includes the PID namespace, the boot of the machine and the start time of the process. A process of another namespace is
invisible, so it is never reported as dead.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal


def this_process() -> str:
    """Return the name of this process, `host:pid:namespace:began`; unknown parts are empty."""
    return f"{socket.gethostname()}:{_own_parts(os.getpid())}"


@lru_cache(maxsize=1)
def _own_parts(pid: int) -> str:
    """Return the name of this process without the host; a fork has another number."""
    return f"{pid}:{_namespace()}:{_began(pid)}"


def show_process(name: str) -> str:
    """Return the short name of a process, for people: `host:pid`."""
    host, pid, *_ = _parts(name)
    return f"{host}:{pid}"


def is_local(name: str) -> bool:
    """Return true if a process is in the PID namespace of this process, so that its end is visible."""
    host, _, namespace, _ = _parts(name)
    return host == socket.gethostname() and namespace in ("", _namespace())


def is_of_this_boot(name: str) -> bool:
    """Return true if a process began on this machine since its boot, perhaps in another container."""
    _, _, namespace, _ = _parts(name)
    return bool(boot()) and namespace.partition("/")[0] == boot()


def local_pid(name: str) -> int | None:
    """Return the number of a process in the PID namespace of this process; None for other processes."""
    return int(_parts(name)[1]) if is_local(name) else None


def is_dead(name: str) -> bool:
    """Return true if a process is known to have ended; the end of an invisible process is not known."""
    if name == this_process():
        return False
    _, pid, _, began = _parts(name)
    if not is_local(name):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    state, *_ = _status(int(pid)) or [""]
    return state in ("Z", "X") or (bool(began) and _began(int(pid)) not in ("", began))


def kill(name: str) -> bool:
    """Kill another process; return true if it existed and was visible."""
    if not is_local(name) or is_dead(name) or int(_parts(name)[1]) == os.getpid():
        return False
    with suppress(ProcessLookupError):
        os.kill(int(_parts(name)[1]), signal.SIGKILL)
    return True


def lock_holder(status: os.stat_result, kind: Literal["FLOCK", "POSIX"]) -> int | None:
    """Return the process with an exclusive lock of this kind on a file; None without a lock or a visible process."""
    desired = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if (fields[1], fields[3], fields[5]) == (kind, "WRITE", desired) and int(fields[4]) > 0:
                return int(fields[4])
    return None


def has_open(pid: int, status: os.stat_result) -> bool:
    """Return true if a process has a file open.

    The holder of a lock may have closed the file, if a child process still has the file open.
    """
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            opened = entry.stat()
            if (opened.st_dev, opened.st_ino) == (status.st_dev, status.st_ino):
                return True
    return False


def is_stopped(pid: int) -> bool:
    """Return true if a process is stopped by a signal, such as after Ctrl-Z."""
    return _status(pid)[:1] == ["T"]


def ways_to_release(pid: int) -> str:
    """Return the two ways to release the locks of a stopped process, for the hint of an error."""
    return f"let it continue (kill -CONT {pid}), or end it (kill -KILL {pid})"


def _parts(name: str) -> tuple[str, str, str, str]:
    """Return the four parts of a name; older versions wrote only the first two."""
    host, _, rest = name.partition(":")
    pid, namespace, began = [*rest.split(":"), "", ""][:3]
    return host, pid, namespace, began


@lru_cache(maxsize=1)
def boot() -> str:
    """Return the identifier of this machine's boot; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _namespace() -> str:
    """Return the identifier of this process's PID namespace: boot and inode; empty if unknown."""
    try:
        return f"{boot()}/{os.stat('/proc/self/ns/pid').st_ino}" if boot() else ""
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return the start time of a process, in kernel ticks since boot; empty if unknown."""
    status = _status(pid)
    return status[19] if status else ""


def _status(pid: int) -> list[str]:
    """Return the kernel's status fields of a process from its state on; a zombie has the state `Z`."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The second field is the program's name in parentheses, which may contain any character.
    return text.rpartition(")")[2].split()
