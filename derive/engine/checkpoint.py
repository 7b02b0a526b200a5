"""The checkpoint of a task: its progress, which commits together with its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from derive.protocol.specs import InputSpec
from derive.time.frontier import BEGINNING
from derive.time.positions import Place


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a task, as of its last commit.

    Attributes:
        positions: for each input (by `state_key`), the adjusted timestamp before which all documents are processed.
        places: for each input (by `state_key`), the relation that its position refers to.
        shards: number of shards with the task's state.
        tokens: name of the attempt whose state the shard must have, by shard number.
    """

    positions: Mapping[str, int]
    places: Mapping[str, Place]
    shards: int
    tokens: Mapping[int, str]

    def position(self, spec: InputSpec) -> int:
        """Return the adjusted timestamp before which an input has processed all documents."""
        return self.positions.get(spec.state_key, BEGINNING)

    def after(self, taking_part: Sequence[InputSpec], end: int, tokens: Mapping[int, str]) -> Checkpoint:
        """Return the checkpoint after a transaction.

        Args:
            taking_part: inputs that the transaction has read.
            end: adjusted timestamp at which it ended.
            tokens: tokens of the shards whose state it has prepared.
        """
        return self.moved({spec.state_key: end for spec in taking_part}, tokens)

    def moved(self, positions: Mapping[str, int], tokens: Mapping[int, str]) -> Checkpoint:
        """Return the checkpoint after inputs have moved.

        Args:
            positions: new positions of the inputs.
            tokens: tokens of the shards whose state was prepared.
        """
        return replace(self, positions={**self.positions, **positions}, tokens={**self.tokens, **tokens})
