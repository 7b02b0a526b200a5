"""Processes between sessions: the next session of the same module need not start Deno again."""

from __future__ import annotations

import atexit
import hashlib
import os
import threading

from connectors.derive_typescript.process import DenoProcess
from connectors.derive_typescript.project import module_of
from connectors.derive_typescript.types import generate_interfaces
from derive.protocol.specs import DerivationSpec

_LIMIT = 4
"""Most processes that wait at a time."""


class Pool:
    """Idle processes, oldest first, by the digest of what they run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[bytes, DenoProcess]] = []

    def take(self, spec: DerivationSpec) -> DenoProcess | None:
        """A process that waits with this derivation's module, the one last used; None if there is none."""
        digest = _digest(spec)
        with self._lock:
            places = [place for place, (each, _) in enumerate(self._idle) if each == digest]
            return self._idle.pop(places[-1])[1] if places else None

    def give(self, spec: DerivationSpec, process: DenoProcess) -> None:
        """Take back a process that has answered everything it was sent."""
        with self._lock:
            self._idle.append((_digest(spec), process))
            surplus = [self._idle.pop(0)[1]] if len(self._idle) > _LIMIT else []
        for each in surplus:
            each.end()

    def close(self) -> None:
        """End all processes that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, process in idle:
            process.end()

    def forget(self) -> None:
        """In a fork: the processes belong to the parent, and so does whoever holds the lock."""
        self._lock = threading.Lock()
        idle, self._idle = self._idle, []
        for _, process in idle:
            process.abandon()


def _digest(spec: DerivationSpec) -> bytes:
    # The interfaces name the transforms in order, so they stand for the methods as well.
    text = f"{module_of(spec).text}\0{generate_interfaces(spec)}"
    return hashlib.sha256(text.encode()).digest()


POOL = Pool()
"""The pool of this Python process."""

atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forget)
