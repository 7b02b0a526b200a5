"""Reads segments in order, with constant memory: selected columns, and rows that meet conditions.

A file that is older than a column, or than the catalog, may lack the column. Then the column is computed from the
parsed documents, so readers see no difference.

Segments are sorted, so an ordered read of several segments is a merge by row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from derive.protocol.specs import CollectionSpec, Document
from derive.storage.location import Location, blobs_of
from derive.storage.segments.columns import (
    ARROW,
    EXACT,
    LOOK,
    POINTERS,
    Codes,
    Kind,
    TypedColumn,
    compile_values,
    encode,
    fields_of,
    fields_type,
    typed_columns,
    unpack_codes,
)
from derive.storage.segments.rows import CLOCK, DIFF, DOC, FIELDS, UNCHECKED, ReadRows, StoredRows, as_documents
from derive.storage.segments.segment_file import ReadAhead, open_segment, readable, validated_against
from derive.storage.segments.sorter import Cursor, merge
from derive.storage.segments.texts import parse_texts
from derive.time.positions import Segment, SourceRead


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter on a column; at least one bound is set.

    Attributes:
        column: name of the column.
        values: permitted values, without null; None for any.
        least: lower bound, inclusive; None for none.
        most: upper bound, inclusive; None for none.
    """

    column: str
    values: pa.Array | None = None
    least: int | str | None = None
    most: int | str | None = None

    def may_hold(self, statistics: pq.Statistics | None) -> bool:
        """Return true if a column with these statistics may have matching rows."""
        if statistics is None or not statistics.has_min_max:
            return True
        least, most = statistics.min, statistics.max
        if self.values is not None and not any(least <= value <= most for value in self.values.to_pylist()):
            return False
        return (self.least is None or self.least <= most) and (self.most is None or least <= self.most)

    def mask(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return the mask of matching rows; null for no match."""
        parts: list[Any] = []
        if self.values is not None:
            parts.append(pc.is_in(column, value_set=self.values))
        if self.least is not None:
            parts.append(pc.greater_equal(column, self.least))
        if self.most is not None:
            parts.append(pc.less_equal(column, self.most))
        return reduce(pc.and_, parts)


class RowFilter:
    """Filter of the rows of one file.

    Args:
        file: file of a segment, which has the columns of the conditions.
        conditions: filters that all must match.
    """

    def __init__(self, file: pq.ParquetFile, conditions: Sequence[Condition]) -> None:
        self._file = file
        schema = file.schema_arrow
        self._conditions = [(schema.get_field_index(one.column), one) for one in conditions]

    def of(self, number: int) -> pa.ChunkedArray | None:
        """Return the mask of matching rows of a row group; None if all rows match, and empty if no row matches."""
        if not self._conditions:
            return None
        group = self._file.metadata.row_group(number)
        if all(condition.may_hold(group.column(index).statistics) for index, condition in self._conditions):
            held = self._file.read_row_group(number, columns=[one.column for _, one in self._conditions])
            mask = reduce(pc.and_, (one.mask(held.column(one.column)) for _, one in self._conditions))
            if pc.any(mask).as_py():
                return mask
        return pa.chunked_array([], pa.bool_())


SelectedArrays: TypeAlias = tuple[list[pa.Array], list[Codes | None]]
"""Array and codes of each selected column."""

_FEW_ROWS = 1_000
"""Number of rows below which one thread reads faster than several."""

_BESIDE = [name for name in ReadRows.STORED if name != DOC]


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns to read from segments besides the sort columns.

    Rows of several reads are mixed, so the reads share column slots: a row has the columns of its read.

    Attributes:
        kinds: type of each slot.
        columns: column of each slot by the index of a read, None for an empty slot; None to read documents only.
        has_documents: whether to read all documents; otherwise, only documents with inexact columns, or to be
            validated.
        schemas: fingerprint of the schema by the index of a read, to mark documents that must still be validated; None
            for no marks.
        marks_deletions: whether to convert retractions to documents with a deletion marker, and counts to repeated
            rows.
    """

    kinds: tuple[Kind, ...] = ()
    columns: Mapping[int, Sequence[TypedColumn | None]] | None = None
    has_documents: bool = True
    schemas: Mapping[int, str] | None = None
    marks_deletions: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        fields = [*ReadRows.SCHEMA]
        if self.columns is not None:
            fields.append(pa.field(FIELDS, fields_type(self.kinds)))
        if self.schemas is not None:
            fields.append(pa.field(UNCHECKED, pa.bool_()))
        return pa.schema(fields)


DOCUMENTS = Selection()
"""Selection of documents only."""

TOLD_DOCUMENTS = Selection(marks_deletions=True)
"""Selection of documents in which deleted documents have a marker."""


def all_columns(collection: CollectionSpec) -> Selection:
    """Return a selection of all columns in a collection's segments, for a read with the index 0."""
    columns = typed_columns(collection)
    return Selection(tuple(column.kind for column in columns), {0: columns}) if columns else DOCUMENTS


class SelectedColumns:
    """The selected columns of one file.

    Args:
        file: file of a segment.
        selection: the selection.
        index: index of the read.
    """

    def __init__(self, file: pq.ParquetFile, selection: Selection, index: int) -> None:
        self._file = file
        self._selection = selection
        self._columns = selection.columns[index] if selection.columns is not None else ()
        self._schema = file.schema_arrow  # a property that is computed at each access
        self._codes = list(orjson.loads((file.metadata.metadata or {}).get(POINTERS, b"{}")).items())
        self._names = [column.name for column in self._columns if column is not None]
        self._has_columns = all(column is None or self._has(column) for column in self._columns)
        has_marker = any(column and _is_marker(column) for column in self._columns)
        self._marks_deletions = selection.marks_deletions and has_marker
        schemas = selection.schemas
        self._is_unchecked = schemas is not None and validated_against(file) != schemas[index]

    def _has(self, column: TypedColumn) -> bool:
        return (column.name, column.pointer) in self._codes and self._schema.field(column.name).type == column.type

    def read(self, number: int, clock_begin: int, clock_end: int, mask: pa.ChunkedArray | None = None) -> pa.Table:
        """Return the rows of a row group with timestamps in an interval.

        The columns are `ReadRows.STORED` and the selected columns.

        Args:
            number: number of the row group.
            clock_begin: first timestamp.
            clock_end: exclusive upper bound of the timestamps.
            mask: mask of the rows to return; None for all.
        """
        selection = self._selection
        if selection.columns is None:
            table = self._rows(number, ReadRows.STORED, clock_begin, clock_end, mask)
        else:
            table = self._with_fields(number, clock_begin, clock_end, mask)
        if selection.schemas is None:
            return table
        return table.append_column(UNCHECKED, pa.repeat(pa.scalar(self._is_unchecked), table.num_rows))

    def _with_fields(self, number: int, clock_begin: int, clock_end: int, mask: pa.ChunkedArray | None) -> pa.Table:
        # A marked document has a value that the columns of the file lack.
        has_columns = self._has_columns and not (self._marks_deletions and self._has_deletions(number))
        names = self._names if has_columns else []
        if names and not self._is_exact(number):
            names = [*names, EXACT]
        all_texts = self._selection.has_documents or self._is_unchecked
        has_texts = all_texts or not has_columns
        stored = self._rows(number, [*_BESIDE, *names, *([DOC] if has_texts else [])], clock_begin, clock_end, mask)
        arrays, codes = (self._held if has_columns else self._made)(stored)
        if all_texts:
            texts = stored.column(DOC)
        elif (looked := _looked(codes)) is not None:
            texts = (stored if has_texts else self._rows(number, [CLOCK, DOC], clock_begin, clock_end, mask)).column(
                DOC
            )
            texts = pc.if_else(pa.array(looked), texts, None)
        else:
            texts = pa.nulls(stored.num_rows, pa.string())
        fields = fields_of(arrays, codes, stored.num_rows)
        return pa.table([*map(stored.column, _BESIDE), texts, fields], names=[*ReadRows.STORED, FIELDS])

    def _rows(
        self, number: int, names: Sequence[str], clock_begin: int, clock_end: int, mask: pa.ChunkedArray | None
    ) -> pa.Table:
        # Parquet may also match a name with a dot to a nested column, and read both columns.
        has_many = self._file.metadata.row_group(number).num_rows > _FEW_ROWS
        desired = list(names)
        if self._selection.marks_deletions and DIFF not in desired:
            desired.append(DIFF)
        group = self._file.read_row_group(number, columns=desired, use_threads=has_many).select(desired)
        begin, end = np.searchsorted(group.column(CLOCK).to_numpy(), [clock_begin, clock_end])
        group = group.slice(begin, end - begin)
        if mask is not None:
            group = group.filter(mask.slice(begin, end - begin))
        return as_documents(group).select(names) if self._selection.marks_deletions else group

    def _is_exact(self, number: int) -> bool:
        """Return true if statistics prove that all typed columns of a row group are exact."""
        group = self._file.metadata.row_group(number)
        statistics = group.column(self._schema.get_field_index(EXACT)).statistics
        return statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows

    def _has_deletions(self, number: int) -> bool:
        """Return false if statistics prove that no row of a row group is a retraction."""
        statistics = self._file.metadata.row_group(number).column(self._schema.get_field_index(DIFF)).statistics
        return statistics is None or not statistics.has_min_max or statistics.min < 0

    def _held(self, stored: pa.Table) -> SelectedArrays:
        """Return the columns that the file has."""
        has_codes = stored.schema.get_field_index(EXACT) >= 0
        codes = unpack_codes(_array(stored.column(EXACT))) if has_codes else None
        arrays: list[pa.Array] = []
        own_codes: list[Codes | None] = []
        for column, kind in zip(self._columns, self._selection.kinds, strict=True):
            if column is None:
                arrays.append(pa.nulls(stored.num_rows, ARROW[kind]))
                own_codes.append(None)
            else:
                arrays.append(_array(stored.column(column.name)))
                own_codes.append(None if codes is None else codes[:, self._codes.index((column.name, column.pointer))])
        return arrays, own_codes

    def _made(self, stored: pa.Table) -> SelectedArrays:
        """Return the columns, computed from the documents."""
        return made_columns(self._columns, self._selection.kinds, parse_texts(_array(stored.column(DOC))))


def made_columns(
    columns: Sequence[TypedColumn | None], kinds: Sequence[Kind], documents: Sequence[Document]
) -> SelectedArrays:
    """Compute columns from documents.

    Args:
        columns: column of each slot; None for an empty slot.
        kinds: type of each slot.
        documents: parsed documents.
    """
    made = [
        (pa.nulls(len(documents), ARROW[kind]), None)
        if column is None
        else encode(kind, compile_values(column.pointer)(documents))
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return [array for array, _ in made], [codes for _, codes in made]


def _is_marker(column: TypedColumn) -> bool:
    """Return whether the marker of a deletion changes the value of a column."""
    return f"{column.pointer}/".startswith("/_meta/")


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _looked(codes: Sequence[Codes | None]) -> np.ndarray | None:
    """Return the mask of rows with a value that only the document has; None if there are none."""
    looked = [column == LOOK for column in codes if column is not None]
    is_looked = np.any(looked, axis=0) if looked else None
    return is_looked if is_looked is not None and is_looked.any() else None


_CLOCK = StoredRows.SCHEMA.get_field_index(CLOCK)
MOST_ROWS = 10_000
"""Largest number of rows in a yielded batch."""

_MOST_BYTES = 16 << 20


def read_sorted(
    location: Location,
    reads: Sequence[SourceRead],
    order: Sequence[str] = ReadRows.ORDER,
    most_rows: int = MOST_ROWS,
    selection: Selection = DOCUMENTS,
    conditions: Sequence[Condition] = (),
) -> Iterator[ReadRows]:
    """Yield the rows of all reads, in order.

    Args:
        location: location of the segments.
        reads: reads, at most one per transform.
        order: sort columns, beginning with the adjusted timestamp; by default the order of law L4 for one priority.
        most_rows: largest number of rows in a batch.
        selection: columns to read besides the sort columns.
        conditions: filters that all must match.

    Yields:
        Batches of up to `most_rows` rows and about 16 MiB. A batch may end after any row.

    Raises:
        SegmentError: a file is missing, damaged or cannot be read.
    """
    bounds = [(_bound(read, segment), read, segment) for read in reads for segment in read.segments]
    with ExitStack() as stack:
        ahead = None
        if len(bounds) > 1 and not blobs_of(location).is_local:
            ahead = ReadAhead(location, (segment for _, _, segment in sorted(bounds, key=itemgetter(0))))
            stack.callback(ahead.close)
        cursors = [
            Cursor(bound, _batches(location, read, segment, selection, conditions, ahead), order)
            for bound, read, segment in bounds
        ]
        for rows in map(ReadRows, merge(cursors)):
            step = max(1, min(most_rows, _MOST_BYTES * len(rows) // rows.nbytes))
            for begin in range(0, len(rows), step):
                yield rows.slice(begin, step)


def _bound(read: SourceRead, segment: Segment) -> tuple[int]:
    """Return a lower bound of the rows of a read in a segment."""
    return (max(segment.clock_min, read.clock_begin) + read.offset,)


def _batches(
    location: Location,
    read: SourceRead,
    segment: Segment,
    selection: Selection,
    conditions: Sequence[Condition],
    ahead: ReadAhead | None,
) -> Iterator[pa.RecordBatch]:
    if ahead is not None:
        ahead.wait_for(segment)
    for rows in read_segment(location, read, segment, selection, conditions):
        yield rows.batch


def read_segment(
    location: Location,
    read: SourceRead,
    segment: Segment,
    selection: Selection = DOCUMENTS,
    conditions: Sequence[Condition] = (),
) -> Iterator[ReadRows]:
    """Yield the rows of one segment that are part of a read, in order, by row group.

    Args:
        location: location of the segments.
        read: the read.
        segment: one of its segments.
        selection: columns to read besides the sort columns.
        conditions: filters that all must match.

    Raises:
        SegmentError: the file is missing, damaged or cannot be read.
    """
    with open_segment(location, segment) as file:
        columns, desired = SelectedColumns(file, selection, read.index), RowFilter(file, conditions)
        for number in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(number).column(_CLOCK).statistics
            if statistics is not None and (statistics.max < read.clock_begin or statistics.min >= read.clock_end):
                continue
            with readable(segment):
                mask = desired.of(number)
                if mask is not None and not len(mask):
                    continue
                group = columns.read(number, read.clock_begin, read.clock_end, mask)
            yield from ReadRows.of_stored(group, read.index, read.offset)
