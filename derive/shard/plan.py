"""A plan: one transaction of a derivation, as data that travels to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from derive.protocol.specs import DerivationSpec
from derive.shard.attempt import Attempt
from derive.time.source_read import SourceRead

Shape: TypeAlias = Literal["slices", "single", "sharded", "cycle"]
"""How a transaction is cut: into slices of time (nothing is shared between documents), one shard that combines as it
goes, or several shards with a second shuffle behind them. One of all derivations of a cycle is not cut at all."""


MEMORY = 128 << 20
"""About how many bytes of documents that belong together a task holds in memory before it spills them."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """What belongs to a transaction of all derivations of a cycle, besides the plan of its first one.

    Attributes:
        others: plans of the other derivations, in the order in which they take turns.
        positions: for each derivation, by index of the input, the adjusted clock below which it has processed
            everything.
        uppers: of the collections that they read, by name.
        documents: about how many documents to process before it ends, and in one step of one of them.
        small: a step of more documents than these is the last one if the derivation has several shards, which can
            share the work of such steps.
        rounds: how many rounds of turns to go at most; None for as many as there are.
    """

    others: tuple[Plan, ...]
    positions: tuple[Mapping[int, int], ...]
    uppers: Mapping[str, int]
    documents: int
    small: int
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One transaction of a derivation, as data.

    Attributes:
        spec: the derivation.
        root: the data folder.
        token: of this transaction alone; it begins with the identifier of the run's capability.
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
        is_disjoint: no two shards are known to publish documents of one key in one tick: each of several combines its
            own, and only their keys are compared.
        memory: about how many bytes of documents that belong together a task holds in memory before it spills them.
        cycle: for the shape `cycle`, what else belongs to it; `end` is up to when time has come.
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
    is_disjoint: bool = False
    memory: int = MEMORY
    cycle: Cycle | None = None

    @property
    def tasks(self) -> int:
        """Into how many tasks that need nothing of one another it can be cut."""
        return len(self.slices) - 1 if self.shape == "slices" else 1

    @property
    def parts(self) -> tuple[Plan, ...]:
        """Plans of all derivations that take part in it."""
        return (self, *self.cycle.others) if self.cycle else (self,)

    def attempt(self, number: int) -> Attempt:
        """An attempt at a part of this transaction, by the number its executor gives it."""
        return Attempt(self.epoch, self.transaction, number, self.token)
