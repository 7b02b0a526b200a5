"""Published documents that a session gathers from its answers, as columns for as long as all have the same properties.

The documents of an answer become parts of columns at once, as long as the processor's caches hold them.
"""

from __future__ import annotations

from collections.abc import Iterator

from derive.document.columns import Columns, concat
from derive.protocol.derive import PublishedColumns, PublishedDocuments
from derive.protocol.specs import Document

PART = 10_000
"""How many published documents are worth handling at once."""


def gathered(answers: Iterator[tuple[list[int], list[Document]]]) -> Iterator[PublishedColumns | PublishedDocuments]:
    """What is published, some thousand documents at a time: columns, up to an answer that cannot be part of them.

    Args:
        answers: documents, and the places of those that caused them.
    """
    causes: list[int] = []
    parts: list[Columns] = []
    for more, documents in answers:
        if not documents:
            continue
        columns = Columns.of_documents(documents)
        if columns is None or (parts and columns.names != parts[0].names):
            if parts:
                yield PublishedColumns(causes, concat(parts))
            yield from _listed(more, documents, answers)
            return
        causes += more
        parts.append(columns)
        if len(causes) >= PART:
            yield PublishedColumns(causes, concat(parts))
            causes, parts = [], []
    if parts:
        yield PublishedColumns(causes, concat(parts))


def _listed(
    causes: list[int], documents: list[Document], answers: Iterator[tuple[list[int], list[Document]]]
) -> Iterator[PublishedDocuments]:
    """Documents that were published, and all that are published after them."""
    for more, others in answers:
        if len(causes) >= PART:
            yield PublishedDocuments(causes, documents)
            causes, documents = [], []
        causes += more
        documents += others
    if causes:
        yield PublishedDocuments(causes, documents)
