"""Limits: how much a task takes on at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How work is cut. Numbers of documents and bytes are estimates; bytes are as stored, which is compressed.

    Attributes:
        documents: one transaction covers about so many at most; a tick is never cut.
        bytes: the same in bytes.
        slice_documents: one slice covers about so many at most: enough for what a Spark task costs not to matter.
        small_documents: so many are not worth a second task, …
        small_bytes: … if they have no more bytes than these.
    """

    documents: int = 2_000_000
    bytes: int = 512 << 20
    slice_documents: int = 250_000
    small_documents: int = 20_000
    small_bytes: int = 8 << 20

    def hold(self, size: Size) -> bool:
        """Whether a transaction of this size is within them."""
        return size.documents <= self.documents and size.bytes <= self.bytes

    def is_small(self, size: Size) -> bool:
        """Whether there is too little to read for more than one task to be worth its while."""
        return size.documents <= self.small_documents and size.bytes <= self.small_bytes


@dataclass(frozen=True, slots=True)
class Size:
    """About how much there is to read.

    Attributes:
        documents: how many.
        bytes: as stored.
    """

    documents: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """What waits for a task.

    Attributes:
        task: its name.
        size: about how much there is to read.
        parts: into how many parts that can be worked on side by side it is cut.
    """

    task: str
    size: Size
    parts: int
