"""Messages from workers to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from derive.time.segment import Segment


@dataclass(frozen=True, slots=True)
class Reached:
    """Progress of one derivation in a transaction of a cycle.

    Attributes:
        task: name of the derivation.
        positions: position of each input, by its index: the adjusted timestamp below which it is processed.
        upper: `upper` of the output.
    """

    task: str
    positions: Mapping[int, int]
    upper: int


@dataclass(frozen=True, slots=True)
class Message:
    """Outcome of one part of a transaction.

    Attributes:
        segments: written files.
        shards: name of the attempt that prepared each shard's state, by shard number.
        documents_in: number of processed source documents.
        documents_out: number of written documents.
        error: JSON of a `FlowError`; None for success.
        rounds: number of completed rounds of a cycle.
        reached: progress of a derivation of a cycle.
        behind: for bindings whose endpoint has less than the known progress, so that nothing was done: the adjusted
            timestamp below which the endpoint is complete, by state key.
        is_shared: true if several shards have published documents of one key in one tick.
        cleared: state keys of bindings that are empty at the endpoint, and begin again.
    """

    segments: tuple[Segment, ...] = ()
    shards: Mapping[int, str] = field(default_factory=dict)
    documents_in: int = 0
    documents_out: int = 0
    error: dict[str, Any] | None = None
    rounds: int = 0
    reached: Reached | None = None
    behind: Mapping[str, int] = field(default_factory=dict)
    is_shared: bool = False
    cleared: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the message as JSON text."""
        segments = [segment.to_json() for segment in self.segments]
        reached = self.reached and [self.reached.task, list(self.reached.positions.items()), self.reached.upper]
        counts = [self.documents_in, self.documents_out]
        shards = list(self.shards.items())
        rest = [self.error, self.rounds, reached, self.behind, self.is_shared, self.cleared]
        return orjson.dumps([segments, shards, *counts, *rest]).decode()

    @staticmethod
    def from_json(text: str) -> Message:
        """Return the message that `to_json` described."""
        segments, shards, documents_in, documents_out, error, *rest = orjson.loads(text)
        rounds, reached, behind, is_shared, cleared = rest
        return Message(
            tuple(map(Segment.from_json, segments)),
            dict(shards),
            documents_in,
            documents_out,
            error,
            rounds,
            reached and Reached(reached[0], dict(reached[1]), reached[2]),
            behind,
            is_shared,
            tuple(cleared),
        )
