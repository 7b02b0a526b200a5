"""Messages: what workers tell the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from derive.time.segment import Segment


@dataclass(frozen=True, slots=True)
class Message:
    """What came of one part of a transaction.

    Attributes:
        segments: files it wrote.
        shards: by number of each shard whose state is prepared, the name of the attempt that prepared it.
        documents_in: source documents it processed.
        documents_out: documents it wrote.
        error: JSON of a `FlowError`, if it failed.
    """

    segments: tuple[Segment, ...] = ()
    shards: Mapping[int, str] = field(default_factory=dict)
    documents_in: int = 0
    documents_out: int = 0
    error: dict[str, Any] | None = None

    def to_json(self) -> str:
        """As JSON text."""
        segments = [segment.to_json() for segment in self.segments]
        fields = [segments, list(self.shards.items()), self.documents_in, self.documents_out, self.error]
        return orjson.dumps(fields).decode()

    @staticmethod
    def from_json(text: str) -> Message:
        """The message that `to_json` described."""
        segments, shards, documents_in, documents_out, error = orjson.loads(text)
        return Message(tuple(map(Segment.from_json, segments)), dict(shards), documents_in, documents_out, error)
