"""Processes: who holds something, in words that no other process can be taken for.

A number alone does not name a process: it is given again to a later one, and every container counts from 1. So the
name also says in which namespace the number counts, on which start of which machine, and when the process began. A
process whose namespace is not ours is never called dead: we cannot see it.
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
    """This process, as `host:pid:namespace:began`; the last two are empty where the system does not tell them."""
    return f"{socket.gethostname()}:{os.getpid()}:{_namespace()}:{_began(os.getpid())}"


def show_process(name: str) -> str:
    """A process as people know it: `host:pid`."""
    host, pid, *_ = _parts(name)
    return f"{host}:{pid}"


def is_here(name: str) -> bool:
    """Whether a process is one whose end could be seen from here: it counts in this process's namespace."""
    host, _, namespace, _ = _parts(name)
    return host == socket.gethostname() and namespace in ("", _namespace())


def is_dead(name: str) -> bool:
    """Whether a process is known to be gone: it could be seen from here if it were not."""
    _, pid, _, began = _parts(name)
    if not is_here(name):
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
    """Kill a process; whether it was there, and could be seen from here."""
    if not is_here(name) or is_dead(name):
        return False
    with suppress(ProcessLookupError):
        os.kill(int(_parts(name)[1]), signal.SIGKILL)
    return True


def lock_holder(status: os.stat_result, kind: Literal["FLOCK", "POSIX"]) -> int | None:
    """The process that holds an exclusive lock of this kind on a file, if it can be seen from here."""
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if (fields[1], fields[3], fields[5]) == (kind, "WRITE", wanted) and int(fields[4]) > 0:
                return int(fields[4])
    return None


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, such as Ctrl-Z gives, and does nothing until another one comes."""
    return _status(pid)[:1] == ["T"]


def _parts(name: str) -> tuple[str, str, str, str]:
    """The parts of a name; those written by older versions have only the first two."""
    host, _, rest = name.partition(":")
    pid, namespace, began = [*rest.split(":"), "", ""][:3]
    return host, pid, namespace, began


@lru_cache(maxsize=1)
def boot() -> str:
    """What tells the present start of this machine from every other; empty where the system does not tell it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _namespace() -> str:
    """What tells apart processes of one number: the start of the machine, and the namespace in which it counts."""
    try:
        return f"{boot()}/{os.stat('/proc/self/ns/pid').st_ino}" if boot() else ""
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks since the machine started; empty where that is not known."""
    status = _status(pid)
    return status[19] if status else ""


def _status(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on (`Z`: it has ended, and its parent has not asked how)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The second field is the name of the program in parentheses, and may hold anything.
    return text.rpartition(")")[2].split()
