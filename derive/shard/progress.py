"""Progress: the number of documents that a running transaction has processed.

Spark's workers write their counts to files. A transaction in this process reports its counts directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from derive.storage.segments.partition import own_path

Progress: TypeAlias = Callable[[int], None]
"""Function that is called regularly with the number of documents processed so far."""

_STEP = 10_000


class Named(Protocol):
    """A named object."""

    @property
    def name(self) -> str:
        """Return the name of the task."""


class Watched(Protocol):
    """The part of a plan that progress needs."""

    @property
    def spec(self) -> Named:
        """Return the task."""

    @property
    def root(self) -> Path:
        """Return the data folder."""

    @property
    def token(self) -> str:
        """Return the unique identifier of the transaction."""

    @property
    def parts(self) -> Sequence[Watched]:
        """Return the plans of all participating tasks."""


_listeners: dict[str, Callable[[int], None]] = {}
"""Listeners in this process, by the token of the transaction."""


@contextmanager
def listening(plan: Watched, listener: Callable[[int], None]) -> Iterator[None]:
    """Listen to the progress of a transaction in this process while the block runs.

    Args:
        plan: the transaction.
        listener: called with the number of further documents, and with 0 for documents of a cycle's other derivations;
            an exception from it ends the running part.
    """
    for part in plan.parts:
        _listeners[part.token] = listener if part is plan else lambda _: listener(0)
    try:
        yield
    finally:
        for part in plan.parts:
            del _listeners[part.token]


class Counter:
    """Counts processed documents in a file for the driver, or for a listener in this process.

    Attributes:
        total: number of processed documents.
    """

    def __init__(self, plan: Watched, name: str) -> None:
        self.total = 0
        self._listener = _listeners.get(plan.token)
        self._file = progress_folder(plan.root, plan.spec.name) / plan.token / name

    def add(self, count: int) -> None:
        """Add to the count; the file is written about every 10,000 documents."""
        before, self.total = self.total, self.total + count
        if self._listener is not None:
            self._listener(count)
        elif self.total // _STEP != before // _STEP:
            with suppress(OSError):  # progress is optional
                self._file.write_bytes(self.total.to_bytes(8, "little"))


def progress_folder(root: Path, task: str) -> Path:
    """Return the folder for the counts of a task's workers, with a subfolder for each attempt."""
    return root / own_path("tmp", task)
