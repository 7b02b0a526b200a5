"""Limits for the size of transactions and slices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for work. Sizes are estimates; bytes are compressed, as stored.

    Attributes:
        documents: approximate limit for the documents of a transaction; a tick is never divided.
        bytes: approximate limit for the bytes of a transaction.
        slice_documents: approximate limit for the documents of a slice, large compared to the cost of a Spark task.
        small_documents: number of documents up to which a second task is not worth its cost, …
        small_bytes: … if they have no more bytes than this.
    """

    documents: int = 2_000_000
    bytes: int = 512 << 20
    slice_documents: int = 250_000
    small_documents: int = 20_000
    small_bytes: int = 8 << 20

    def hold(self, size: Size) -> bool:
        """Return true if a transaction of this size is within the limits."""
        return size.documents <= self.documents and size.bytes <= self.bytes

    def is_small(self, size: Size) -> bool:
        """Return true if the size is too small for more than one task."""
        return size.documents <= self.small_documents and size.bytes <= self.small_bytes


@dataclass(frozen=True, slots=True)
class Size:
    """Approximate size of a read.

    Attributes:
        documents: number of documents.
        bytes: bytes as stored.
    """

    documents: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """Waiting work of a task.

    Attributes:
        task: name of the task.
        size: approximate size.
        parts: number of parts that can be processed in parallel.
    """

    task: str
    size: Size
    parts: int
