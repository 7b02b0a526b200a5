"""A numbered line of an input."""

from __future__ import annotations

from typing import TypeAlias

from derive.document.exact import dump_exact
from derive.errors import DocumentError
from derive.protocol.specs import Document

Line: TypeAlias = tuple[int, "bytes | Document | DocumentError"]
"""A line number (of a table, the number of a row), from 1, and its JSON text, its document, or why it has none.

A large document comes as its text, whatever the form of the input: the length of the text bounds a batch.
"""

NOTHING_INGESTED = "nothing of this file was ingested"
"""The hint of an error that ends an ingestion."""

MOST_DOCUMENT_BYTES = 128 << 20
"""The default limit of a document's size in an input."""

_LARGE_BYTES = 16 << 10


def sized(document: Document, size: int) -> bytes | Document | DocumentError:
    """Return a document as a line's content: as text if it has many bytes.

    Args:
        document: the document.
        size: about how many bytes its text has.
    """
    if size < _LARGE_BYTES:
        return document
    try:
        return dump_exact(document)
    except DocumentError as exc:
        return exc


def too_large(limit: int, noun: str = "the document") -> DocumentError:
    """Return the error of a document beyond the limit of bytes."""
    shown = f"{limit >> 20} MiB" if limit >= 1 << 20 and not limit % (1 << 20) else f"{limit:,} bytes"
    return DocumentError(f"{noun} has more than {shown}, the limit of a document: --max-document-mib raises the limit")
