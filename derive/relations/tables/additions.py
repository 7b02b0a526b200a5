"""Append-only tables, whose contents are their updates.

Such a table needs no sorting and counting. If files have typed columns for all needed columns, no document is parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from derive.algebra.types import Datum, Row
from derive.document.pointer import JSON
from derive.relations.tables.rows import TableRows, rows_of
from derive.storage.table import AppendedRow, Table
from derive.time.source_read import Segment, SourceRead

if TYPE_CHECKING:
    from derive.storage.segments.columns import TypedColumn
    from derive.storage.segments.rows import ReadRows

_BATCH = 16_384


def is_added_to(root: Path, segments: Sequence[Segment], appended: Sequence[AppendedRow]) -> bool:
    """Return whether a table has no deletions, according to the statistics of its files.

    Args:
        root: the data folder.
        segments: segments of the table.
        appended: updates that are in no segment yet.
    """
    from derive.storage.segments.segment_file import only_adds

    return all(diff > 0 for _, _, diff, _, _ in appended) and all(only_adds(root, segment) for segment in segments)


class TableAdditions:
    """A reader of a table for which `is_added_to` is true.

    Args:
        root: the data folder.
        table: the table.
        requested: indexes of the needed columns, others may be NULL; None for all.
    """

    def __init__(self, root: Path, table: Table, requested: Collection[int] | None) -> None:
        from derive.storage.segments.columns import typed_columns

        self._root = root
        self._rows: TableRows = rows_of(table)
        self._width = len(table.columns)
        self._requested = range(self._width) if requested is None else sorted(set(requested))
        typed = {column.pointer: column for column in typed_columns(table.spec)}
        columns = [typed.get(table.columns[index].pointer) for index in self._requested]
        self._columns: list[TypedColumn] | None = None if None in columns else [one for one in columns if one]

    def read(self, read: SourceRead, appended: Sequence[AppendedRow]) -> Iterator[list[Row]]:
        """Yield all rows in batches, each repeated by its count.

        Args:
            read: read of the segments.
            appended: updates that are in no segment yet.
        """
        from derive.storage.segments.reader import read_segment
        from derive.storage.segments.selection import TOLD_DOCUMENTS, Selection

        selection = TOLD_DOCUMENTS
        if self._columns is not None:
            kinds = tuple(column.kind for column in self._columns)
            selection = Selection(kinds, {read.index: self._columns}, has_documents=False, marks_deletions=True)
        for segment in read.segments:
            for rows in read_segment(self._root, read, segment, selection):
                for begin in range(0, len(rows), _BATCH):
                    yield self._of(rows.slice(begin, _BATCH))
        texts = [text for _, _, diff, _, text in appended for _ in range(diff)]
        for begin in range(0, len(texts), _BATCH):
            yield self._rows.rows(texts[begin : begin + _BATCH])

    def _of(self, rows: ReadRows) -> list[Row]:
        from derive.storage.segments.columns import decode, unpack_codes

        if rows.fields is None or self._columns is None:
            return self._rows.rows(rows.texts.to_pylist())
        data: list[Sequence[Datum]] = [[None] * len(rows)] * self._width
        codes = unpack_codes(rows.fields.field(len(self._columns)))
        for place, (index, column) in enumerate(zip(self._requested, self._columns, strict=True)):
            told = None if codes is None else codes[:, place]
            look = partial(_looked_up, rows, column)
            data[index] = self._rows.data(index, decode(rows.fields.field(place), told, None, look))
        return list(zip(*data, strict=True)) if data else [()] * len(rows)


def _looked_up(rows: ReadRows, column: TypedColumn, some: list[int]) -> list[JSON]:
    """Return the values in some rows' documents, for values that a typed column does not hold."""
    from derive.storage.segments.columns import compile_values

    return compile_values(column.pointer)(rows.take(some).documents())
