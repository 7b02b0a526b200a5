"""Logs of tasks: one JSON object a line, appended by the driver and by workers, wherever they run.

A log is for people. It is not part of a transaction: what was rolled back has been logged, and is logged again.
"""

from __future__ import annotations

import fcntl
import os
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_args

import orjson

from derive.document.clock import format_rfc3339
from derive.errors import FlowError, InternalError
from derive.protocol.derive import Level
from derive.storage.metadata.bell import WRITTEN, Listener
from derive.storage.segments.partition import own_path

LEVELS: tuple[Level, ...] = get_args(Level)
"""From the least to the most important."""

Entry: TypeAlias = dict[str, Any]
"""`at` (RFC 3339), `level`, `task`, `message`, and what else belongs to it; `by` is `lambda` where one said it."""

MOST_BYTES = 16 << 20
"""How large a log's file grows before another one begins."""

_MOST_CHARACTERS = 10_000

_LOOK_SECONDS, _LISTEN_SECONDS = 0.2, 1.0
"""How often to look at logs, where it is not told that they have grown, and where it is."""


def log_file(root: Path, task: str) -> Path:
    """Where the log of a task is; what came before it is in the file with `.1` behind its name."""
    return root / f"{own_path('logs', task)}.jsonl"


class TaskLog:
    """The log of one task, to append to.

    Args:
        root: the data folder.
        task: the derivation.
        most_bytes: how large its file grows before another one begins.
    """

    def __init__(self, root: Path, task: str, most_bytes: int = MOST_BYTES) -> None:
        self._task = task
        self._file = log_file(root, task)
        self._most_bytes = most_bytes

    def write(self, level: Level, message: str, **fields: Any) -> None:
        """Append an entry; where the disk is full it is lost, because a log is no reason to stop."""
        at = format_rfc3339(time.time_ns() // 1000)
        entry = {"at": at, "level": level, "task": self._task, "message": message[:_MOST_CHARACTERS], **fields}
        with suppress(OSError):
            self._append(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))

    def relay(self, level: Level, message: str) -> None:
        """Append what a lambda said."""
        self.write(level, message, by="lambda")

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
        """Begin a new file, unless another process just did."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if self._file.stat().st_ino == os.fstat(descriptor).st_ino:
            self._file.replace(f"{self._file}.1")


class LogReader:
    """Reads a task's log, and goes on where it stopped.

    Args:
        root: the data folder.
        task: the derivation.
    """

    def __init__(self, root: Path, task: str) -> None:
        self._file = log_file(root, task)
        self._stream: BinaryIO | None = None  # held open, so that no other file gets its inode

    def read(self) -> list[Entry]:
        """Entries that were added since the last time; the first time, from the oldest one that is kept on."""
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
        """Whether a file came after the one that is being read."""
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
                self._stream.seek(-len(line), os.SEEK_CUR)  # it is still being written
                return
            with suppress(orjson.JSONDecodeError):  # cut short by a crash
                yield orjson.loads(line)


class LogChanges:
    """Tells when something may have been added to logs.

    Args:
        root: the data folder.
        tasks: whose logs.
    """

    def __init__(self, root: Path, tasks: Iterable[str]) -> None:
        self._folders = {log_file(root, task).parent for task in tasks}
        self._listener: Listener | None = None

    def begin(self) -> None:
        """Be about to read: what is added from here on ends the next wait."""
        if self._listener is not None:
            self._listener.forget()

    def wait(self) -> None:
        """Wait until something may have been added since `begin`."""
        if self._listener is not None:
            self._listener.listen(_LISTEN_SECONDS)
            return
        time.sleep(_LOOK_SECONDS)
        with suppress(OSError):  # there are no logs yet, or nothing can be watched here
            self._listener = Listener(self._folders, WRITTEN)


def internal(root: Path, task: str, error: Exception) -> FlowError:
    """An exception of a task as an error for people; one that nobody foresaw leaves its traceback in the task's log."""
    if isinstance(error, FlowError):
        return error
    TaskLog(root, task).write("error", "".join(traceback.format_exception(error)))
    return InternalError(
        f"flowctl has a defect that '{task}' meets: {type(error).__name__}: {error}",
        hint=f"nothing is lost; please report it with what 'flowctl logs --task {task}' says",
    )


def recent_entries(root: Path, task: str, size: int = 64 << 10) -> list[Entry]:
    """About the last `size` bytes of a task's log."""
    try:
        with log_file(root, task).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            lines = stream.read().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    entries = []
    for line in lines:
        with suppress(orjson.JSONDecodeError):  # cut short by a crash, or by where reading began
            entries.append(orjson.loads(line))
    return entries
