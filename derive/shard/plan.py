"""A plan: one transaction of a derivation, as data that travels to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from derive.protocol.specs import DerivationSpec
from derive.shard.attempt import Attempt
from derive.time.source_read import SourceRead

Shape: TypeAlias = Literal["slices", "single", "sharded"]
"""How a transaction is cut: into slices of time (nothing is shared between documents), one shard that combines as it
goes, or several shards with a second shuffle behind them."""


MEMORY = 128 << 20
"""About how many bytes of documents that belong together a task holds in memory before it spills them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One transaction of a derivation, as data.

    Attributes:
        spec: the derivation.
        root: the data folder.
        token: a UUID of this transaction's own.
        epoch: of the run; workers of an older one are fenced.
        transaction: counts the transactions that the run has begun for this task.
        shape: how it is cut.
        shards: how many shards the task has.
        tokens: by shard number, the name of the attempt whose state the shard must be at.
        clamp: the output's `upper`: published clocks are not below it.
        end: adjusted clock at which the transaction ends, a tick boundary.
        reads: what to read, one entry per transform that takes part.
        slices: for the shapes that are read in slices, ascending borders in adjusted time, first and last included.
        is_small: there is too little to read for more than one task to be worth its while.
        memory: about how many bytes of documents that belong together a task holds in memory before it spills them.
    """

    spec: DerivationSpec
    root: Path
    token: str
    epoch: int
    transaction: int
    shape: Shape
    shards: int
    tokens: Mapping[int, str]
    clamp: int
    end: int
    reads: tuple[SourceRead, ...]
    slices: tuple[int, ...] = ()
    is_small: bool = False
    memory: int = MEMORY

    @property
    def tasks(self) -> int:
        """Into how many tasks that need nothing of one another it can be cut."""
        return len(self.slices) - 1 if self.shape == "slices" else 1

    def attempt(self, number: int) -> Attempt:
        """An attempt at a part of this transaction, by the number its executor gives it."""
        return Attempt(self.epoch, self.transaction, number, self.token)
