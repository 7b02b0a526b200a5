"""A numbered line of an input."""

from __future__ import annotations

from typing import TypeAlias

from derive.errors import DocumentError
from derive.protocol.specs import Document

Line: TypeAlias = tuple[int, "bytes | Document | DocumentError"]
"""A line number (of a table, the number of a row), from 1, and its JSON text, its document, or why it has none."""

NOTHING_INGESTED = "nothing of this file was ingested"
"""The hint of an error that ends an ingestion."""
