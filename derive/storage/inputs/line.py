"""A numbered line of an input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from derive.document.exact import dump_exact
from derive.errors import DocumentError
from derive.protocol.specs import Document
from derive.value_count import exceeds_values, most_values

Line: TypeAlias = tuple[int, "bytes | Document | DocumentError"]
"""A line number (or row number), from 1, and the JSON text of the document, the document, or its error.

A large document is a text in every input format, so that the length of texts bounds a batch.
"""

NOTHING_INGESTED = "nothing of this file was ingested"
"""Hint of an error that ends an ingestion."""

MOST_DOCUMENT_BYTES = 128 << 20
"""Default limit for the size of a document in an input."""

_LARGE_BYTES = 16 << 10


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


def too_many_values(texts: Iterable[bytes], limit: int) -> DocumentError | None:
    """Return the error of JSON texts with too many values for the memory of a parser; None if they are accepted.

    Args:
        texts: JSON text of a document, or of parts of it.
        limit: size limit of a document in bytes.
    """
    return too_many(limit) if exceeds_values(texts, most_values(limit)) else None


def too_many(limit: int) -> DocumentError:
    """Return the error of a document with too many values."""
    told = f"the document has more than {most_values(limit):,} values, the limit for {_shown(limit)}"
    return DocumentError(f"{told}: --max-document-mib raises the limit")


def _shown(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 and not limit % (1 << 20) else f"{limit:,} bytes"
