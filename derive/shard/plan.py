"""A plan: one transaction of a derivation, as data for workers, and the attempts at its parts, in order.

Spark reruns a part of a transaction if it considers a worker lost. The lost worker may still be running, or resume an
hour later. So each attempt uses unique names for its files, and attempts are ordered: shared resources record the
newest attempt, and refuse earlier attempts (law L5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from derive.protocol.specs import DerivationSpec
from derive.storage.location import Location
from derive.storage.metadata.chain import Chain
from derive.time.positions import SourceRead


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One attempt at a part of a transaction; later attempts compare as greater.

    Attributes:
        epoch: epoch of the run.
        transaction: number of the transaction within the run.
        number: number of the attempt at its executor; Spark's task attempt id.
        token: unique name of the transaction, a part of the attempt's name.
    """

    epoch: int
    transaction: int = 0
    number: int = 0
    token: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return the unique name of the attempt."""
        return f"{self.token}-{self.number}"

    def is_sibling(self, name: str) -> bool:
        """Return true if a name belongs to an attempt at the same transaction; either attempt may be committed."""
        return name.rpartition("-")[0] == self.token

    def to_json(self) -> list[int]:
        """Return the position among attempts, as JSON."""
        return [self.epoch, self.transaction, self.number]

    @staticmethod
    def from_json(value: Sequence[int]) -> Attempt:
        """Return an attempt at the position that `to_json` described."""
        epoch, transaction, number = value
        return Attempt(epoch, transaction, number)


Shape: TypeAlias = Literal["slices", "single", "sharded", "cycle"]
"""Division of a transaction.

The shapes are `slices` of time (documents are independent), `single` (one shard, which also combines), `sharded`
(several shards, with a second shuffle) and `cycle` (an undivided transaction of all derivations of a cycle).
"""


MEMORY = 128 << 20
"""Approximate memory limit of a task for documents that belong together, bytes; more documents are spilled."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The part of a cycle transaction that its derivations share, in the plan of the first derivation.

    Attributes:
        others: plans of the other derivations, in the order of their turns.
        positions: positions of the inputs of each derivation, by index: the adjusted timestamp below which each is
            processed.
        uppers: `upper` of the collections that they read, by name.
        documents: approximate limit for the documents of the transaction, and of one step.
        small: largest number of documents of a step that several shards need not share; for a derivation with several
            shards, a larger step ends the transaction.
        rounds: limit for the number of rounds; None for no limit.
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
        location: location of the segments.
        token: unique name of the transaction, which begins with the identifier of the run's capability.
        epoch: epoch of the run; workers of an older epoch are fenced.
        transaction: number of the transaction within the run, for this task.
        shape: division of the transaction.
        shards: number of the task's shards.
        tokens: attempt whose state each shard must have, by shard number.
        clamp: the output's `upper`, the lower bound of published timestamps.
        end: adjusted timestamp of the transaction's end, a tick boundary.
        reads: reads of the participating transforms.
        slices: for divisions into slices, ascending borders in adjusted time, including the first and the last.
        is_small: true if one task should process the whole input, because it is small.
        is_conflict_free: true until two shards have published documents of one key in one tick. While it is true, each
            shard combines its own documents, and only keys are compared.
        memory: approximate memory limit of a task for documents that belong together, bytes.
        cycle: for the division `cycle`, the common part; `end` is then the present bound of time.
        home: the task in whose folder the state is; empty for the derivation's own folder.
        chains: chain of the state that each shard must have, by shard number, for states that travel.
        cache: folder on each machine for the caches of states that travel; None if states stay in the data folder.
    """

    spec: DerivationSpec
    root: Path
    location: Location
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
    is_conflict_free: bool = False
    memory: int = MEMORY
    cycle: Cycle | None = None
    home: str = ""
    chains: Mapping[int, Chain] = field(default_factory=dict)
    cache: Path | None = None

    @property
    def folder(self) -> str:
        """Return the name of the task in whose folder the state is."""
        return self.home or self.spec.name

    @property
    def tasks(self) -> int:
        """Return the number of independent tasks."""
        return len(self.slices) - 1 if self.shape == "slices" else 1

    @property
    def parts(self) -> tuple[Plan, ...]:
        """Return the plans of all participating derivations."""
        return (self, *self.cycle.others) if self.cycle else (self,)

    @property
    def needs_folder(self) -> bool:
        """Return true if workers need the data folder, because it has segments or the state of a shard."""
        return any(part.has_files for part in self.parts)

    @property
    def has_files(self) -> bool:
        """Return true if segments of this derivation or the state of a shard are in the data folder."""
        if isinstance(self.location, Path):
            return True
        return self.shape != "slices" and (self.cache is None or not self.tokens.keys() <= self.chains.keys())

    def attempt(self, number: int) -> Attempt:
        """Return an attempt at a part of this transaction, by the executor's number."""
        return Attempt(self.epoch, self.transaction, number, self.token)
