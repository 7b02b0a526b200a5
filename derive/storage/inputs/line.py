"""A numbered line of an input."""

from __future__ import annotations

from typing import TypeAlias

from derive.document.exact import dump_exact
from derive.errors import DocumentError
from derive.protocol.specs import Document

Line: TypeAlias = tuple[int, "bytes | Document | DocumentError"]
"""A line number (or row number), from 1, and the JSON text of the document, the document, or its error.

A large document is a text in every input format, so that the length of texts bounds a batch.
"""

NOTHING_INGESTED = "nothing of this file was ingested"
"""Hint of an error that ends an ingestion."""

MOST_DOCUMENT_BYTES = 128 << 20
"""Default limit for the size of a document in an input."""

_BYTES_A_VALUE = 16
"""Bytes of the size limit for each value that a document may have; `FEW_VALUES` are always permitted."""

FEW_VALUES = 1_000_000
"""Number of values, and size in bytes of a text, below which nothing is counted."""

_LARGE_BYTES = 16 << 10
_PART_BYTES = 1 << 20


def sized(document: Document, size: int) -> bytes | Document | DocumentError:
    """Return a document as the content of a line: as text if it is large.

    Args:
        document: the document.
        size: approximate size of its text, bytes.
    """
    if size < _LARGE_BYTES:
        return document
    try:
        return dump_exact(document)
    except DocumentError as exc:
        return exc


def too_large(limit: int, noun: str = "the document") -> DocumentError:
    """Return the error of a document beyond the size limit."""
    return DocumentError(
        f"{noun} has more than {_shown(limit)}, the limit of a document: --max-document-mib raises the limit"
    )


def too_many_values(text: bytes, limit: int) -> DocumentError | None:
    """Return the error of a JSON text with too many values for the memory of a parser; None if the text is accepted.

    The number of values is estimated by the commas and opening brackets outside strings.

    Args:
        text: JSON text of a document or of a part of it.
        limit: size limit of a document in bytes.
    """
    most = max(limit // _BYTES_A_VALUE, FEW_VALUES)
    if sum(map(text.count, (b",", b"[", b"{"))) <= most or _count_values(text) <= most:
        return None
    told = f"the document has more than {most:,} values, the limit for {_shown(limit)}"
    return DocumentError(f"{told}: --max-document-mib raises the limit")


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


def _shown(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 and not limit % (1 << 20) else f"{limit:,} bytes"
