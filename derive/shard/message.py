"""Messages: what workers tell the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from derive.time.segment import Segment


@dataclass(frozen=True, slots=True)
class Reached:
    """How far one derivation of a cycle has come in a transaction of all of them.

    Attributes:
        task: its name.
        positions: by index of the input, the adjusted clock below which it has processed everything.
        upper: of its output.
    """

    task: str
    positions: Mapping[int, int]
    upper: int


@dataclass(frozen=True, slots=True)
class Message:
    """What came of one part of a transaction.

    Attributes:
        segments: files it wrote.
        shards: by number of each shard whose state is prepared, the name of the attempt that prepared it.
        documents_in: source documents it processed.
        documents_out: documents it wrote.
        error: JSON of a `FlowError`, if it failed.
        rounds: where a cycle took turns, how many rounds of them have come to their end.
        reached: how far a derivation of a cycle has come.
        behind: where the endpoint of a materialization has less than was known to be stored, and so nothing was done:
            for each such binding (by state key), the adjusted clock below which it has everything.
        is_shared: whether several shards have published documents of one key in one tick.
        cleared: state keys of bindings of which nothing is left at the endpoint, and that begin from nothing.
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
        """As JSON text."""
        segments = [segment.to_json() for segment in self.segments]
        reached = self.reached and [self.reached.task, list(self.reached.positions.items()), self.reached.upper]
        counts = [self.documents_in, self.documents_out]
        shards = list(self.shards.items())
        rest = [self.error, self.rounds, reached, self.behind, self.is_shared, self.cleared]
        return orjson.dumps([segments, shards, *counts, *rest]).decode()

    @staticmethod
    def from_json(text: str) -> Message:
        """The message that `to_json` described."""
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
