"""Limits of the number of values in JSON texts: a parser needs up to 200 bytes for a value of one byte."""

from __future__ import annotations

from collections.abc import Iterable

FEW_VALUES = 1_000_000
"""Number of values, and size in bytes of a text, below which nothing is counted."""

_BYTES_A_VALUE = 16
"""Bytes of a document's size limit per permitted value; `FEW_VALUES` values are always permitted."""

_PART_BYTES = 1 << 20


def most_values(limit: int) -> int:
    """Return the maximum number of a document's values, by the limit of its size in bytes."""
    return max(limit // _BYTES_A_VALUE, FEW_VALUES)


def exceeds_values(texts: Iterable[bytes], most: int) -> bool:
    """Return whether JSON texts together have more than `most` values.

    The number of values is estimated by the commas and opening brackets outside strings.
    """
    listed = list(texts)
    estimate = sum(text.count(mark) for text in listed for mark in (b",", b"[", b"{"))
    return estimate > most and sum(map(_count_values, listed)) > most


def _count_values(text: bytes) -> int:
    """Return the number of commas and opening brackets outside strings."""
    import numpy as np

    characters = np.frombuffer(text.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    count, is_inside = 0, False
    for begin in range(0, len(characters), _PART_BYTES):
        part = characters[begin : begin + _PART_BYTES]
        inside = np.logical_xor.accumulate(part == ord('"')) ^ is_inside
        is_inside = bool(inside[-1])
        marks = (part == ord(",")) | (part == ord("[")) | (part == ord("{"))
        count += int(np.count_nonzero(marks & ~inside))
    return count
