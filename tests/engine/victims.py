"""Processes to kill: what a `flowctl run` started in a session of its own consists of."""

from __future__ import annotations

import os
from pathlib import Path

_DAEMON = b"-m\0derive.spark.daemon\0"


def python_workers(session: int) -> list[int]:
    """Process ids of the Python workers of a session: children of the daemon that Spark forks them from."""
    daemons = _daemons(session)
    return [pid for pid, parent in daemons.items() if parent in daemons]


def deno_processes(session: int) -> list[int]:
    """Process ids of the Deno processes of a session."""
    return [pid for pid, (_, command) in _processes(session).items() if b"deno" in command.partition(b"\0")[0]]


def module_processes(session: int) -> list[int]:
    """Process ids of the Python modules of a session."""
    return [pid for pid, (_, command) in _processes(session).items() if b"flow_harness" in command]


def connector_processes(session: int) -> list[int]:
    """Process ids of the materialize connectors that a session has started."""
    owners = set(_processes(session)) | {session}
    others = _processes(None)
    return [
        pid
        for pid, (parent, command) in others.items()
        if parent in owners and b"\0connector\0serve\0" in command and b"parent_watchdog.py" not in command
    ]


def java_processes(session: int) -> list[int]:
    """Process ids of the Java virtual machines of a session."""
    return [pid for pid, (_, command) in _processes(session).items() if command.partition(b"\0")[0].endswith(b"/java")]


def processes_of(session: int) -> list[int]:
    """Process ids of everything in a session."""
    return list(_processes(session))


def _daemons(session: int) -> dict[int, int]:
    return {pid: parent for pid, (parent, command) in _processes(session).items() if _DAEMON in command}


def _processes(session: int | None) -> dict[int, tuple[int, bytes]]:
    """Parent and command line of each process of a session, or of all, by its id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(folder.name)
            if session is None or os.getsid(pid) == session:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found[pid] = (parent, (folder / "cmdline").read_bytes())
        except (OSError, ValueError):
            continue  # it is gone already
    return found
