"""What was put into a table, row by row, where nothing was ever taken out: that is all that it holds.

Nothing has to be sorted or counted then. And where files have typed columns of all that is wanted, no document is read.
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
from derive.time.segment import Segment
from derive.time.source_read import SourceRead

if TYPE_CHECKING:
    from derive.storage.segments.columns import TypedColumn
    from derive.storage.segments.rows import ReadRows

_BATCH = 16_384


def is_added_to(root: Path, segments: Sequence[Segment], appended: Sequence[AppendedRow]) -> bool:
    """Whether a table is only added to: no update takes a row away, as far as statistics of files tell.

    Args:
        root: the data folder.
        segments: of a table.
        appended: what is in no segment yet.
    """
    from derive.storage.segments.segment_file import only_adds

    return all(diff > 0 for _, _, diff, _, _ in appended) and all(only_adds(root, segment) for segment in segments)


class TableAdditions:
    """Reads a table of which `is_added_to` is true.

    Args:
        root: the data folder.
        table: the table.
        wanted: indexes of the columns that are needed, all others may be NULL; None for all.
    """

    def __init__(self, root: Path, table: Table, wanted: Collection[int] | None) -> None:
        from derive.storage.segments.columns import typed_columns

        self._root = root
        self._rows: TableRows = rows_of(table)
        self._width = len(table.columns)
        self._wanted = range(self._width) if wanted is None else sorted(set(wanted))
        typed = {column.pointer: column for column in typed_columns(table.spec)}
        columns = [typed.get(table.columns[index].pointer) for index in self._wanted]
        self._columns: list[TypedColumn] | None = None if None in columns else [one for one in columns if one]

    def read(self, read: SourceRead, appended: Sequence[AppendedRow]) -> Iterator[list[Row]]:
        """All rows in batches, each as often as it was put in.

        Args:
            read: what is read of segments.
            appended: what is in no segment yet.
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
        for place, (index, column) in enumerate(zip(self._wanted, self._columns, strict=True)):
            told = None if codes is None else codes[:, place]
            look = partial(_looked_up, rows, column)
            data[index] = self._rows.data(index, decode(rows.fields.field(place), told, None, look))
        return list(zip(*data, strict=True)) if data else [()] * len(rows)


def _looked_up(rows: ReadRows, column: TypedColumn, some: list[int]) -> list[JSON]:
    """What documents of some rows have, whose column does not hold it."""
    from derive.storage.segments.columns import compile_values

    return compile_values(column.pointer)(rows.take(some).documents())
