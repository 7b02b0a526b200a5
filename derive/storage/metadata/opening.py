"""Opens a data folder, after checks of its host, its owner, its access rights and its completeness.

SQLite's write-ahead log needs memory that all processes share, so processes of two machines must not use one folder on
a network file system. So all processes of a machine with open metadata share a lock, `host.lock`, and touch this file
regularly. A machine that has not touched the file for too long loses the lock, and fails at its next check.

Times are read from the clock of the file system, so the clocks of machines may differ.
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
from derive.durable import make_folders
from derive.errors import FencedError, FlowError, StorageError
from derive.storage.blobs import translated
from derive.storage.folder_id import known_folder_id, write_folder_id
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.identity import (
    DATABASE,
    PRIVATE,
    RESTORING,
    disown_files,
    identity_of,
    read_commits,
    require_known,
    require_own,
    require_restored,
    take_identity,
    traces,
)
from derive.storage.metadata.place import FILE as PLACE
from derive.storage.metadata.place import read_place
from derive.storage.metadata.process import boot, is_dead, this_process
from derive.storage.metadata.shared_opening import open_shared
from derive.storage.metadata.sqlite import SqliteMetadata

BEAT_SECONDS = 10.0
"""Interval at which a process touches the lock file."""

SILENT_SECONDS = 6 * BEAT_SECONDS
"""Time without a touch after which a machine loses the lock."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine.

    Attributes:
        name: host name, for people.
        boot: identifier of the machine's boot, equal in all its containers; empty if unknown.
    """

    name: str
    boot: str

    def is_same(self, other: Host) -> bool:
        """Return true if the two hosts share memory."""
        return self.boot == other.boot if self.boot and other.boot else self.name == other.name


def this_host() -> Host:
    """Return the machine of this process."""
    return Host(socket.gethostname(), boot())


@dataclass(frozen=True, slots=True)
class _Use:
    """Content of a lock file: the machine, the start of its use, and its processes by identifier of the use."""

    host: Host
    since: str
    processes: dict[str, str]


class HostLock:
    """The share of this process in its machine's lock on a data folder; the constructor acquires the share.

    Args:
        root: the data folder.
        host: this machine; tests pass other machines.

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
        """Check that this machine still has the lock, without a system call in the normal case.

        Raises:
            FencedError: another machine has taken the lock.
        """
        if time.monotonic() - self._beaten > 2 * BEAT_SECONDS:
            self.beat()

    def beat(self) -> None:
        """Touch the lock file.

        Raises:
            FencedError: another machine has taken the lock.
        """
        with self._alone() as descriptor:
            use = _read(descriptor)
            if use and not use.host.is_same(self._host):
                raise FencedError(
                    f"host '{use.host.name}' uses the data folder {self._root} now, because this host was silent for"
                    f" {SILENT_SECONDS:.0f} s; this process commits nothing more",
                    hint="run the command on that host, or end the processes there first",
                )
            if use and self._id in use.processes:
                os.utime(descriptor)
            else:
                self._write(descriptor, use)
        self._beaten = time.monotonic()

    def others(self) -> list[str]:
        """Return the names of the processes with other shares."""
        with self._alone() as descriptor:
            use = _read(descriptor)
        processes = use.processes if use else {}
        return sorted(process for key, process in processes.items() if key != self._id and not is_dead(process))

    def release(self) -> None:
        """Release this process's share; the lock is free once all processes of the machine have released it."""
        _BEATS.discard(self)
        with suppress(StorageError), self._alone() as descriptor:
            use = _read(descriptor)
            if use and self._id in use.processes:
                del use.processes[self._id]
                self._write(descriptor, use, is_leaving=True)

    def _write(self, descriptor: int, use: _Use | None, *, is_leaving: bool = False) -> None:
        """Write the live processes to the lock file, including this process unless it leaves."""
        processes = {key: process for key, process in (use.processes if use else {}).items() if not is_dead(process)}
        if not is_leaving:
            processes[self._id] = this_process()
        host, since = (use.host, use.since) if use else (self._host, format_rfc3339(time.time_ns() // 1000))
        text = orjson.dumps({**asdict(host), "since": since, "processes": processes}) if processes else b""
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Lock the lock file against other processes for the length of the block."""
        with translated(self._file):
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if os.geteuid() == 0:  # like SQLite: the owner of the folder must be able to write the file
                    owner = self._root.stat()
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                os.close(descriptor)

    def _now(self) -> float:
        """Return the present time on the clock of the file system."""
        probe = self._root / f"host.{self._id}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        return now


def check_host(root: Path, host: Host) -> None:
    """Raise an error if another machine uses a read-only data folder.

    Raises:
        StorageError: another machine uses the folder.
    """
    with suppress(FileNotFoundError), (root / "host.lock").open("rb") as file:
        use = _read(file.fileno())
        silent = time.time() - os.fstat(file.fileno()).st_mtime
        if use and not use.host.is_same(host) and silent < SILENT_SECONDS:
            raise in_use(root, use.host, use.since, silent)


def in_use(root: Path, host: Host, since: str, silent: float) -> StorageError:
    """Return the error of a data folder that another machine uses."""
    return StorageError(
        f"the data folder {root} is in use on host '{host.name}' since {since}",
        hint=f"run flowctl on that host, or end its flowctl processes; if that host is gone, try again in"
        f" {SILENT_SECONDS - silent:.0f} s",
    )


def _read(descriptor: int) -> _Use | None:
    try:
        value: dict[str, Any] = orjson.loads(os.pread(descriptor, 1 << 20, 0))
        return _Use(Host(value["name"], value["boot"]), value["since"], value["processes"])
    except (ValueError, KeyError, TypeError):
        return None  # no user, or a loss of power during a write


class _Beats:
    """A thread that touches the locks of this process until they are released or garbage-collected."""

    def __init__(self) -> None:
        self._locks: WeakSet[HostLock] = WeakSet()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, lock: HostLock) -> None:
        with self._turn:
            self._locks.add(lock)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no thread
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
                with suppress(FlowError):  # the next use of the folder raises the error
                    lock.beat()
            del locks


_BEATS = _Beats()


def is_data_folder(folder: Path) -> bool:
    """Return true if a folder has data of flowctl, even if its metadata database is lost."""
    return any(os.path.exists(folder / name) for name in (DATABASE, PLACE, RESTORING)) or bool(traces(folder))


def open_metadata(
    root: Path, host: Host, *, durable: bool, reading: bool, accept_older: bool = False
) -> tuple[Metadata, HostLock | None]:
    """Open the metadata of a data folder.

    Return it with this machine's lock; without a lock for a read-only folder, or if machines share the metadata.

    Args:
        root: the data folder; created if missing, unless `reading`.
        host: this machine.
        durable: whether commits are synced, so that they survive a loss of power.
        reading: whether to open only for reads: then a missing folder is empty, and a read-only folder suffices.
        accept_older: whether to accept a database that is older than the files beside it.

    Raises:
        StorageError: another machine uses the data folder, the folder cannot be used, or its metadata database is
            missing, foreign or outdated.
    """
    path = root / DATABASE
    require_restored(root)
    place = read_place(root)
    if place is not None:
        return open_shared(root, place, durable=durable, reading=reading, accept_older=accept_older), None
    counted = read_commits(root)
    if reading and not is_data_folder(root):
        return SqliteMetadata(path, access="none"), None
    if reading and not (os.access(root, os.W_OK | os.X_OK) and os.access(path, os.W_OK)):
        with translated(root):
            check_host(root, host)
        metadata = SqliteMetadata(path, access="read")
        _require_own(metadata, counted, accept_older=accept_older)
        return metadata, None
    require_known(path)
    with translated(root):
        make_folders(root.absolute(), PRIVATE)
    lock = HostLock(root, host)
    try:
        metadata = SqliteMetadata(path, durable=durable, guard=lock.check)
        _require_own(metadata, counted, accept_older=accept_older)
        _settle_identity(metadata, counted)
    except BaseException:
        lock.release()
        raise
    return metadata, lock


def _require_own(metadata: SqliteMetadata, counted: int | None, *, accept_older: bool) -> None:
    try:
        with metadata.snapshot() as db:
            require_own(metadata.path.parent, db, counted, accept_older=accept_older)
    except BaseException:
        metadata.close()
        raise


def _settle_identity(metadata: SqliteMetadata, counted: int | None) -> None:
    """Give a data folder and its metadata an identifier, if an older version has created them without an identifier."""
    root = metadata.path.parent
    with metadata.snapshot() as db:
        identifier, commits = identity_of(db)
    if not identifier or (counted is None and commits > 0):
        with metadata.transaction() as db:
            identifier = take_identity(root, db)
            # Files may be newer than the database, unless another process has just created the folder.
            if counted is None and commits > 0 and read_commits(root) is None:
                disown_files(db)
    if not known_folder_id(root):
        write_folder_id(root, identifier)
