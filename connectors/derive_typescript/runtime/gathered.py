"""Published documents of a session, collected from its answers: columns while documents have the same properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from connectors.derive_typescript.runtime.fault import Fault, fault_in
from derive.document.column_reader import read_column
from derive.document.columns import Columns
from derive.protocol.derive import PublishedColumns, PublishedDocuments
from derive.protocol.specs import Document

PART = 10_000
"""Number of published documents in one batch."""


@dataclass(frozen=True, slots=True)
class AnsweredDocuments:
    """Documents that were published one by one.

    Attributes:
        causes: for each, the index of the document that caused it.
        documents: the documents; may be empty.
    """

    causes: list[int]
    documents: list[Document]


@dataclass(frozen=True, slots=True)
class AnsweredColumns:
    """Documents that have the same properties; none if there are no properties.

    Attributes:
        causes: for each, the index of the document that caused it.
        names: names of the properties.
        texts: for each property, the values as a JSON array.
    """

    causes: np.ndarray
    names: tuple[str, ...]
    texts: tuple[bytes, ...]


class Broken(ValueError):
    """A published value that is not valid JSON for the runtime.

    Args:
        cause: the index of the document that caused it.
        fault: its place in the published document, and the reason.
    """

    def __init__(self, cause: int, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.cause, self.fault = cause, fault


def gathered(
    answers: Iterator[AnsweredDocuments | AnsweredColumns],
) -> Iterator[PublishedColumns | PublishedDocuments]:
    """Yield the published documents, some thousand at a time.

    Raises:
        ValueError: the columns are malformed.
    """
    held: list[AnsweredColumns] = []
    count = 0
    for answer in answers:
        is_other = isinstance(answer, AnsweredDocuments) or (answer.names and held and answer.names != held[0].names)
        if held and (is_other or count >= PART):
            yield _columns(held, count)
            held, count = [], 0
        if isinstance(answer, AnsweredDocuments):
            yield from _listed(answer, answers)
        elif answer.names:
            held.append(answer)
            count += len(answer.causes)
    if held:
        yield _columns(held, count)


def _columns(answers: list[AnsweredColumns], count: int) -> PublishedColumns:
    """Return the columns of several answers whose documents have the same properties."""
    try:
        values = [read_column(texts, count) for texts in zip(*(answer.texts for answer in answers), strict=True)]
    except ValueError:
        for answer in answers:
            _find_fault(answer)
        raise
    return PublishedColumns(np.concatenate([answer.causes for answer in answers]), Columns.of(answers[0].names, values))


def _find_fault(answer: AnsweredColumns) -> None:
    """Raise `Broken` for the first value of an answer that does not parse."""
    for name, text in zip(answer.names, answer.texts, strict=True):
        fault = fault_in(text)
        if fault is not None and fault.row < len(answer.causes):
            raise Broken(int(answer.causes[fault.row]), Fault((name, *fault.path[1:]), fault.reason))


def _listed(
    first: AnsweredDocuments, answers: Iterator[AnsweredDocuments | AnsweredColumns]
) -> Iterator[PublishedDocuments]:
    """Yield documents that were published one by one, and all documents after them."""
    causes, documents = first.causes, first.documents
    for answer in answers:
        if isinstance(answer, AnsweredColumns):
            raise ValueError("columns come after documents")
        if len(causes) >= PART:
            yield PublishedDocuments(causes, documents)
            causes, documents = [], []
        causes += answer.causes
        documents += answer.documents
    if causes:
        yield PublishedDocuments(causes, documents)
