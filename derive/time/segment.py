"""Descriptions of segments: the properties of a file that are known without opening it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Segment:
    """One immutable file of a collection.

    Attributes:
        collection: name of the collection.
        path: path relative to the data folder.
        partition: values of its logical partition, in field order.
        clock_min: least timestamp.
        clock_max: greatest timestamp.
        documents: number of updates.
        bytes: size of the file.
        checksum: SHA-256 of the file, hexadecimal; empty for files of old versions.
    """

    collection: str
    path: str
    partition: tuple[Any, ...]
    clock_min: int
    clock_max: int
    documents: int
    bytes: int
    checksum: str = ""

    def to_json(self) -> list[Any]:
        """Return the description as JSON, for the transfer from a worker to the driver."""
        values = (self.clock_min, self.clock_max, self.documents, self.bytes, self.checksum)
        return [self.collection, self.path, list(self.partition), *values]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Segment:
        """Return the segment that `to_json` described."""
        return Segment(value[0], value[1], tuple(value[2]), *value[3:])
