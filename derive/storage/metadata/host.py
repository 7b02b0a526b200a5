"""The host that a data folder is in use on: processes that open its metadata database are all of one machine.

SQLite's write-ahead log is shared memory, which two machines over a network file system do not share. So whoever opens
the metadata holds `host.lock` for its machine, and says now and then that it still does; processes of the same machine
hold it together. A machine that has been silent for long is taken to be gone, and finds out when it goes on.

Times are compared on the clock of the file system alone, so that machines' clocks need not agree.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

import orjson

from derive.document.clock import format_rfc3339
from derive.errors import FencedError, FlowError, StorageError
from derive.storage.disk_errors import translated
from derive.storage.metadata.process import boot, is_dead, this_process

BEAT_SECONDS = 10.0
"""How often a process says that its machine still uses a data folder."""

SILENT_SECONDS = 6 * BEAT_SECONDS
"""For how long a machine may say nothing."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine.

    Attributes:
        name: for people.
        boot: tells its present start from every other, also across containers; empty where that is not known.
    """

    name: str
    boot: str

    def is_same(self, other: Host) -> bool:
        """Whether the two share memory."""
        return self.boot == other.boot if self.boot and other.boot else self.name == other.name


def this_host() -> Host:
    """The machine on which this process runs."""
    return Host(socket.gethostname(), boot())


@dataclass(frozen=True, slots=True)
class _Use:
    """What a lock file says: who uses the data folder, since when, and by which processes (by an id for each use)."""

    host: Host
    since: str
    processes: dict[str, str]


class HostLock:
    """This process's share of its machine's lock on a data folder; acquired when it is made.

    Args:
        root: the data folder.
        host: this machine; tests hand in others.

    Raises:
        StorageError: another machine uses the folder.
    """

    def __init__(self, root: Path, host: Host) -> None:
        self._root = root
        self._file = root / "host.lock"
        self._host = host
        self._id = str(uuid.uuid4())
        self._beaten = time.monotonic()
        with self._alone() as descriptor:
            use = _read(descriptor)
            if use and not use.host.is_same(host):
                silent = self._now() - os.fstat(descriptor).st_mtime
                if silent < SILENT_SECONDS:
                    raise in_use(root, use.host, use.since, silent)
                use = None
            self._write(descriptor, use)
        _BEATS.add(self)

    def check(self) -> None:
        """Make sure that the folder is still this machine's, which costs nothing while it goes on.

        Raises:
            FencedError: another machine has taken it over.
        """
        if time.monotonic() - self._beaten > 2 * BEAT_SECONDS:
            self.beat()

    def beat(self) -> None:
        """Say that this machine still uses the folder.

        Raises:
            FencedError: another machine has taken it over.
        """
        with self._alone() as descriptor:
            use = _read(descriptor)
            if use and not use.host.is_same(self._host):
                raise FencedError(
                    f"host '{use.host.name}' has taken over the data folder {self._root}, as this one said nothing for"
                    f" {SILENT_SECONDS:.0f} s; it commits nothing more"
                )
            if use and self._id in use.processes:
                os.utime(descriptor)
            else:
                self._write(descriptor, use)
        self._beaten = time.monotonic()

    def release(self) -> None:
        """Give the lock back; it is free once no other process of this machine holds it."""
        _BEATS.discard(self)
        with suppress(StorageError), self._alone() as descriptor:
            use = _read(descriptor)
            if use and self._id in use.processes:
                del use.processes[self._id]
                self._write(descriptor, use, is_leaving=True)

    def _write(self, descriptor: int, use: _Use | None, *, is_leaving: bool = False) -> None:
        """Say who uses the folder: those who did and still live, and this process unless it leaves."""
        processes = {key: process for key, process in (use.processes if use else {}).items() if not is_dead(process)}
        if not is_leaving:
            processes[self._id] = this_process()
        host, since = (use.host, use.since) if use else (self._host, format_rfc3339(time.time_ns() // 1000))
        text = orjson.dumps({**asdict(host), "since": since, "processes": processes}) if processes else b""
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """The lock file, while no other process of any machine has it."""
        with translated(self._file):
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if os.geteuid() == 0:  # as SQLite does with its files: the folder's owner must be able to go on
                    owner = self._root.stat()
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                os.close(descriptor)

    def _now(self) -> float:
        """The present on the clock of the file system."""
        probe = self._root / f"host.{self._id}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        return now


def check_host(root: Path, host: Host) -> None:
    """Make sure that no other machine uses a data folder in which nothing can be written.

    Raises:
        StorageError: one does.
    """
    with suppress(FileNotFoundError), (root / "host.lock").open("rb") as file:
        use = _read(file.fileno())
        silent = time.time() - os.fstat(file.fileno()).st_mtime
        if use and not use.host.is_same(host) and silent < SILENT_SECONDS:
            raise in_use(root, use.host, use.since, silent)


def in_use(root: Path, host: Host, since: str, silent: float) -> StorageError:
    """The error of a data folder that another machine uses."""
    return StorageError(
        f"the data folder {root} is in use on host '{host.name}' since {since}",
        hint=f"run flowctl there, or end what runs there; if that host is gone, try again in"
        f" {SILENT_SECONDS - silent:.0f} s",
    )


def _read(descriptor: int) -> _Use | None:
    try:
        value: dict[str, Any] = orjson.loads(os.pread(descriptor, 1 << 20, 0))
        return _Use(Host(value["name"], value["boot"]), value["since"], value["processes"])
    except (ValueError, KeyError, TypeError):
        return None  # nobody uses it, or who did lost power while saying so


class _Beats:
    """Renews the locks of this process, for as long as they are not released or forgotten, on one thread."""

    def __init__(self) -> None:
        self._locks: WeakSet[HostLock] = WeakSet()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, lock: HostLock) -> None:
        with self._turn:
            self._locks.add(lock)
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._thread = threading.Thread(target=self._work, name="host.lock", daemon=True)
                self._thread.start()

    def discard(self, lock: HostLock) -> None:
        with self._turn:
            self._locks.discard(lock)

    def _work(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            with self._turn:
                locks = list(self._locks)
            for lock in locks:
                with suppress(FlowError):  # whoever uses the folder next is told
                    lock.beat()
            del locks


_BEATS = _Beats()
