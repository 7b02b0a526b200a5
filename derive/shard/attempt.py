"""Attempts at one part of a transaction, in order.

Spark reruns a part of a transaction if it considers a worker lost, and the lost worker may still be running, or resume
an hour later. Each attempt therefore uses unique names for its files, and attempts are ordered: shared resources record
the newest attempt, and refuse earlier ones (law L5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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
        """Return true if a name belongs to an attempt at the same transaction, either of which may be committed."""
        return name.rpartition("-")[0] == self.token

    def to_json(self) -> list[int]:
        """Return the position among attempts, as JSON."""
        return [self.epoch, self.transaction, self.number]

    @staticmethod
    def from_json(value: Sequence[int]) -> Attempt:
        """Return an attempt at the position that `to_json` described."""
        epoch, transaction, number = value
        return Attempt(epoch, transaction, number)
