"""Progress: how many documents a transaction has processed, while its workers are still at work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from derive.shard.plan import Plan
from derive.storage.layout import own_path

Progress: TypeAlias = Callable[[int], None]
"""Told now and then how many documents of the transaction have been processed so far."""

_STEP = 10_000


class Counter:
    """Counts processed documents where the driver can see it.

    Attributes:
        total: how many there were.
    """

    def __init__(self, plan: Plan, name: str) -> None:
        self.total = 0
        self._file = progress_folder(plan.root, plan.spec.name) / plan.token / name

    def add(self, count: int) -> None:
        """Count some more; the file is written about every 10,000 documents."""
        before, self.total = self.total, self.total + count
        if self.total // _STEP != before // _STEP:
            with suppress(OSError):  # progress is a courtesy
                self._file.write_bytes(self.total.to_bytes(8, "little"))


def progress_folder(root: Path, task: str) -> Path:
    """Where workers of a task leave their counts, in a folder for each attempt."""
    return root / own_path("tmp", task)
