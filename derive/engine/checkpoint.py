"""The checkpoint of a task: how far it is, which commits together with what it has done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from derive.protocol.specs import InputSpec
from derive.time.frontier import BEGINNING
from derive.time.positions import Place


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a task is, as of its last commit.

    Attributes:
        positions: for each input (by `state_key`), the adjusted clock below which it has processed everything.
        places: for each input (by `state_key`), what its position is a position in.
        shards: how many shards keep the task's state.
        tokens: by shard number, the name of the attempt whose state the shard must be at.
    """

    positions: Mapping[str, int]
    places: Mapping[str, Place]
    shards: int
    tokens: Mapping[int, str]

    def position(self, spec: InputSpec) -> int:
        """The adjusted clock below which an input has processed everything."""
        return self.positions.get(spec.state_key, BEGINNING)

    def after(self, taking_part: Sequence[InputSpec], end: int, tokens: Mapping[int, str]) -> Checkpoint:
        """The checkpoint that follows this one.

        Args:
            taking_part: inputs that a transaction has read.
            end: adjusted clock at which it ended.
            tokens: of the shards whose state it has prepared.
        """
        return self.moved({spec.state_key: end for spec in taking_part}, tokens)

    def moved(self, positions: Mapping[str, int], tokens: Mapping[int, str]) -> Checkpoint:
        """The checkpoint that follows this one.

        Args:
            positions: of inputs that have moved.
            tokens: of the shards whose state was prepared.
        """
        return replace(self, positions={**self.positions, **positions}, tokens={**self.tokens, **tokens})
