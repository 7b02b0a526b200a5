"""Logs of tasks: one JSON object per line, appended by the driver and by workers on any machine.

A log is for people, and is not transactional: work that is rolled back and repeated is logged twice.
"""

from __future__ import annotations

import fcntl
import os
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_args

import orjson

from derive.document.clock import format_rfc3339
from derive.errors import FlowError, InternalError
from derive.protocol.derive import Level
from derive.storage.metadata.commit_signal import WRITTEN, FileListener
from derive.storage.segments.partition import own_path

LEVELS: tuple[Level, ...] = get_args(Level)
"""Levels, from the least to the most important."""

Entry: TypeAlias = dict[str, Any]
"""An entry: `at` (RFC 3339), `level`, `task`, `message` and other fields; `by` is `lambda` for messages of lambdas."""

MOST_BYTES = 16 << 20
"""Size at which a log's file is rotated."""

_MOST_CHARACTERS = 10_000

_LOOK_SECONDS, _LISTEN_SECONDS = 0.2, 1.0
"""Poll intervals for logs: without notifications of the file system, and with notifications."""


def log_file(root: Path, task: str) -> Path:
    """Return the path of a task's log; the rotated file has the suffix `.1`."""
    return root / f"{own_path('logs', task)}.jsonl"


_MOST_COLLECTED = 1 << 20
"""Largest total size of collected entries, in bytes; further entries are dropped."""


class _Collection:
    """The entries that this process collects instead of writing them; at most one collection is active."""

    entries: list[str] | None = None
    size = 0


@contextmanager
def collected_entries() -> Iterator[list[str]]:
    """Collect the entries of all logs while the block runs, for a process without the data folder.

    Yields:
        The list of entries, as JSON texts for `append_entries`; it grows until about 1 MB is collected.
    """
    entries: list[str] = []
    _Collection.entries, _Collection.size = entries, 0
    try:
        yield entries
    finally:
        _Collection.entries = None


def append_entries(root: Path, entries: Iterable[str]) -> None:
    """Append collected entries to the logs of a data folder."""
    for entry in entries:
        TaskLog(root, orjson.loads(entry)["task"]).append(entry.encode())


class TaskLog:
    """Appends entries to the log of one task.

    Args:
        root: the data folder.
        task: name of the derivation.
        most_bytes: size at which the file is rotated.
    """

    def __init__(self, root: Path, task: str, most_bytes: int = MOST_BYTES) -> None:
        self._task = task
        self._file = log_file(root, task)
        self._most_bytes = most_bytes

    def write(self, level: Level, message: str, **fields: Any) -> None:
        """Append an entry; a failed write loses the entry, because a log must not stop the task."""
        at = format_rfc3339(time.time_ns() // 1000)
        entry = {"at": at, "level": level, "task": self._task, "message": message[:_MOST_CHARACTERS], **fields}
        line = orjson.dumps(entry)
        collected = _Collection.entries
        if collected is None:
            self.append(line)
        elif _Collection.size < _MOST_COLLECTED:
            _Collection.size += len(line)
            collected.append(line.decode())

    def relay(self, level: Level, message: str) -> None:
        """Append a message of a lambda."""
        self.write(level, message, by="lambda")

    def append(self, line: bytes) -> None:
        """Append the JSON of an entry; a failed write loses the entry."""
        with suppress(OSError):
            self._append(line + b"\n")

    def _append(self, line: bytes) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
            if os.fstat(descriptor).st_size > self._most_bytes:
                self._turn_over(descriptor)
        finally:
            os.close(descriptor)

    def _turn_over(self, descriptor: int) -> None:
        """Rotate the file, unless another process has just rotated it."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if self._file.stat().st_ino == os.fstat(descriptor).st_ino:
            self._file.replace(f"{self._file}.1")


class LogReader:
    """Reads a task's log incrementally.

    Args:
        root: the data folder.
        task: name of the derivation.
    """

    def __init__(self, root: Path, task: str) -> None:
        self._file = log_file(root, task)
        self._stream: BinaryIO | None = None  # kept open, so that its inode is not reused

    def read(self) -> list[Entry]:
        """Return the entries since the previous call; the first call returns all entries that are kept."""
        entries = list(self._rest())
        for path in (Path(f"{self._file}.1"), self._file):
            if self._is_new(path):
                with suppress(FileNotFoundError):
                    stream = path.open("rb")
                    self.close()
                    self._stream = stream
                    entries += self._rest()
        return entries

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()

    def _is_new(self, path: Path) -> bool:
        """Return true if a file is newer than the file that is being read."""
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if self._stream is None:
            return True
        held = os.fstat(self._stream.fileno())
        return status.st_ino != held.st_ino and status.st_mtime_ns >= held.st_mtime_ns

    def _rest(self) -> Iterator[Entry]:
        if self._stream is None:
            return
        for line in iter(self._stream.readline, b""):
            if not line.endswith(b"\n"):
                self._stream.seek(-len(line), os.SEEK_CUR)  # the line is incomplete
                return
            with suppress(orjson.JSONDecodeError):  # a line that a crash cut short
                yield orjson.loads(line)


class LogChanges:
    """Waits for new entries of logs.

    Args:
        root: the data folder.
        tasks: names of the tasks.
    """

    def __init__(self, root: Path, tasks: Iterable[str]) -> None:
        self._folders = {log_file(root, task).parent for task in tasks}
        self._listener: FileListener | None = None

    def begin(self) -> None:
        """Prepare to read: entries written after this call end the next wait."""
        if self._listener is not None:
            self._listener.forget()

    def wait(self) -> None:
        """Wait until an entry may have been added after `begin`."""
        if self._listener is not None:
            self._listener.listen(_LISTEN_SECONDS)
            return
        time.sleep(_LOOK_SECONDS)
        with suppress(OSError):  # the folder is missing, or cannot be watched
            self._listener = FileListener(self._folders, WRITTEN)


def internal(root: Path, task: str, error: Exception) -> FlowError:
    """Return an exception of a task as a FlowError.

    Write the traceback of an unexpected exception to the task's log.
    """
    if isinstance(error, FlowError):
        return error
    TaskLog(root, task).write("error", "".join(traceback.format_exception(error)))
    return InternalError(
        f"a defect of flowctl has stopped '{task}': {type(error).__name__}: {error}",
        hint=f"nothing is lost; please report it with what 'flowctl logs --task {task}' says",
    )


def recent_entries(root: Path, task: str, size: int = 64 << 10) -> list[Entry]:
    """Return the entries in the last `size` bytes of a task's log."""
    try:
        with log_file(root, task).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            lines = stream.read().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    entries = []
    for line in lines:
        with suppress(orjson.JSONDecodeError):  # a line that a crash or the start of the read cut short
            entries.append(orjson.loads(line))
    return entries
