"""Attempts: who is at work on one part of a transaction, and who came later.

Spark runs a part of a transaction again where it takes a worker for lost, and the lost one may still be at work, or
wake up an hour later. So whatever an attempt writes has a name of its own, and attempts are ordered: where they share
something, the newest is noted, and those before it are refused (law L5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One attempt at a part of a transaction; a later one is greater.

    Attributes:
        epoch: of the run it works for.
        transaction: counts the transactions that the run has begun.
        number: counts what its executor has begun; Spark's task attempt id.
        token: names the transaction, and is part of the attempt's own name; no other transaction ever has the same.
    """

    epoch: int
    transaction: int = 0
    number: int = 0
    token: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Its name, which no other attempt ever has."""
        return f"{self.token}-{self.number}"

    def is_sibling(self, name: str) -> bool:
        """Whether a name is that of an attempt at the same transaction: either may be the one that is committed."""
        return name.rpartition("-")[0] == self.token

    def to_json(self) -> list[int]:
        """Its place among attempts, as JSON."""
        return [self.epoch, self.transaction, self.number]

    @staticmethod
    def from_json(value: Sequence[int]) -> Attempt:
        """An attempt at the place that `to_json` described."""
        epoch, transaction, number = value
        return Attempt(epoch, transaction, number)
