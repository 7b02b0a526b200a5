"""Idle processes between sessions, so that the next session of the same module need not start Deno."""

from __future__ import annotations

import atexit
import os
import threading

from connectors.derive_typescript.runtime.process import DenoProcess

_LIMIT = 8
"""Maximum number of idle processes."""


class Pool:
    """Idle processes, oldest first, by the digest of their project."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[str, DenoProcess]] = []

    def take(self, digest: str, version: str | None, shard: str = "") -> DenoProcess | None:
        """Return the idle process of this project that was used last; None if there is none.

        A module that keeps state may hold some of it where no constructor clears it. So its process is reused only at
        exactly the version it committed, or for empty state if it can reset itself. A process that served this shard at
        another version was rolled back, and is ended.

        Args:
            digest: digest of the project.
            version: version of the committed state; None if there is none.
            shard: name of the state's shard; empty without a shard.
        """
        with self._lock:
            stale = [
                process
                for _, process in self._idle
                if shard and process.shard == shard and not _continues(process, version)
            ]
            self._idle = [waiting for waiting in self._idle if waiting[1] not in stale]
        for process in stale:
            process.end()
        with self._lock:
            places = [
                index
                for index, (waiting, process) in enumerate(self._idle)
                if waiting == digest and _continues(process, version)
            ]
            return self._idle.pop(places[-1])[1] if places else None

    def give(self, digest: str, process: DenoProcess) -> None:
        """Return a process to the pool after it has answered all frames."""
        with self._lock:
            self._idle.append((digest, process))
            surplus = [self._idle.pop(0)[1]] if len(self._idle) > _LIMIT else []
        for oldest in surplus:
            oldest.end()

    def close(self) -> None:
        """End all idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, process in idle:
            process.end()

    def forget(self) -> None:
        """Drop the processes after a fork: they, and the lock's holder, belong to the parent."""
        self._lock = threading.Lock()
        idle, self._idle = self._idle, []
        for _, process in idle:
            process.abandon()


def _continues(process: DenoProcess, version: str | None) -> bool:
    if process.version is None or process.version == version:
        return True
    return version is None and process.abilities["reset"]


POOL = Pool()
"""The pool of this Python process."""

atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)
