"""Progress: how many documents a transaction has processed, while its workers are still at work.

Workers of Spark leave their counts in files. Who carries a transaction out in its own process is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from derive.storage.segments.partition import own_path

Progress: TypeAlias = Callable[[int], None]
"""Told now and then how many documents of the transaction have been processed so far."""

_STEP = 10_000


class Named(Protocol):
    """What has a name."""

    @property
    def name(self) -> str:
        """Of the task."""


class Watched(Protocol):
    """A plan, as far as its progress is concerned."""

    @property
    def spec(self) -> Named:
        """The task."""

    @property
    def root(self) -> Path:
        """The data folder."""

    @property
    def token(self) -> str:
        """A UUID of the transaction's own."""

    @property
    def parts(self) -> Sequence[Watched]:
        """Plans of all tasks that take part in it."""


_listeners: dict[str, Callable[[int], None]] = {}
"""Who listens in this process, by the token of the transaction."""


@contextmanager
def listening(plan: Watched, listener: Callable[[int], None]) -> Iterator[None]:
    """Be told of a transaction whose parts are carried out in this process, for as long as the block takes.

    Args:
        plan: the transaction.
        listener: told after some documents how many they were, and 0 after those of other derivations of a cycle; what
            it raises ends the part that is at work.
    """
    for part in plan.parts:
        _listeners[part.token] = listener if part is plan else lambda _: listener(0)
    try:
        yield
    finally:
        for part in plan.parts:
            del _listeners[part.token]


class Counter:
    """Counts processed documents where the driver can see it, or tells who listens in this process.

    Attributes:
        total: how many there were.
    """

    def __init__(self, plan: Watched, name: str) -> None:
        self.total = 0
        self._listener = _listeners.get(plan.token)
        self._file = progress_folder(plan.root, plan.spec.name) / plan.token / name

    def add(self, count: int) -> None:
        """Count some more; the file is written about every 10,000 documents."""
        before, self.total = self.total, self.total + count
        if self._listener is not None:
            self._listener(count)
        elif self.total // _STEP != before // _STEP:
            with suppress(OSError):  # progress is a courtesy
                self._file.write_bytes(self.total.to_bytes(8, "little"))


def progress_folder(root: Path, task: str) -> Path:
    """Where workers of a task leave their counts, in a folder for each attempt."""
    return root / own_path("tmp", task)
