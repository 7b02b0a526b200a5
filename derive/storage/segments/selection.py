"""Selections: typed columns that are read in place of documents, or beside them, and whether documents are valid.

A file may lack a column: it was written before there were any, or under another catalog. Its documents are parsed then,
and the columns made of them, so that whoever reads columns need not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from derive.protocol.specs import CollectionSpec, Document
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
from derive.storage.segments.deletions import as_documents
from derive.storage.segments.rows import CLOCK, DIFF, DOC, FIELDS, UNCHECKED, ReadRows
from derive.storage.segments.segment_file import validated_against
from derive.storage.segments.texts import parse_texts

SelectedArrays: TypeAlias = tuple[list[pa.Array], list[Codes | None]]
"""What is in each place, and its codes."""

_FEW_ROWS = 1_000
"""Of so many, threads read no faster than one does: to wake them takes longer."""

_BESIDE = [name for name in ReadRows.STORED if name != DOC]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of segments beside the columns that order rows.

    Rows of several reads come mixed, so they share places: the columns of a row are those of its read.

    Attributes:
        kinds: of the typed columns, what is in each place.
        columns: by the index of a read, the column in each place; None for nothing. None for documents alone.
        has_documents: documents are read as well; otherwise only those that a column tells to look into, and those that
            are yet to be validated.
        schemas: by the index of a read, the fingerprint of the schema that its documents must be valid under; rows then
            say which of them have yet to be validated. None if that is nobody's business.
        marks_deletions: rows that a multiset loses are documents that say so, and rows that it has several times are
            several, for whoever reads documents and no diffs.
    """

    kinds: tuple[Kind, ...] = ()
    columns: Mapping[int, Sequence[TypedColumn | None]] | None = None
    has_documents: bool = True
    schemas: Mapping[int, str] | None = None
    marks_deletions: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that are read."""
        fields = [*ReadRows.SCHEMA]
        if self.columns is not None:
            fields.append(pa.field(FIELDS, fields_type(self.kinds)))
        if self.schemas is not None:
            fields.append(pa.field(UNCHECKED, pa.bool_()))
        return pa.schema(fields)


DOCUMENTS = Selection()
"""Documents, and nothing else."""

TOLD_DOCUMENTS = Selection(marks_deletions=True)
"""Documents, of which those say so that are taken away."""


def all_columns(collection: CollectionSpec) -> Selection:
    """All that segments of a collection hold, for a read whose index is 0."""
    columns = typed_columns(collection)
    return Selection(tuple(column.kind for column in columns), {0: columns}) if columns else DOCUMENTS


class SelectedColumns:
    """What is read of one file.

    Args:
        file: of a segment.
        selection: what is to be read.
        index: of the read.
    """

    def __init__(self, file: pq.ParquetFile, selection: Selection, index: int) -> None:
        self._file = file
        self._selection = selection
        self._columns = selection.columns[index] if selection.columns is not None else ()
        self._schema = file.schema_arrow  # which is made anew each time that it is asked for
        self._codes = list(orjson.loads((file.metadata.metadata or {}).get(POINTERS, b"{}")).items())
        self._names = [column.name for column in self._columns if column is not None]
        self._has_columns = all(column is None or self._has(column) for column in self._columns)
        schemas = selection.schemas
        self._is_unchecked = schemas is not None and validated_against(file) != schemas[index]

    def _has(self, column: TypedColumn) -> bool:
        return (column.name, column.pointer) in self._codes and self._schema.field(column.name).type == column.type

    def read(self, number: int, clock_begin: int, clock_end: int, mask: pa.ChunkedArray | None = None) -> pa.Table:
        """The rows of a row group with clocks of a range: columns `ReadRows.STORED`, and what else was asked for.

        Args:
            number: of the row group.
            clock_begin: the range's first clock.
            clock_end: the clock behind the range.
            mask: which rows of the row group are wanted; None for all.
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
        names = self._names if self._has_columns else []
        if names and not self._is_exact(number):
            names = [*names, EXACT]
        all_texts = self._selection.has_documents or self._is_unchecked
        has_texts = all_texts or not self._has_columns
        stored = self._rows(number, [*_BESIDE, *names, *([DOC] if has_texts else [])], clock_begin, clock_end, mask)
        arrays, codes = (self._held if self._has_columns else self._made)(stored)
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
        # A name that has a dot may be taken for one inside of another column, which is then read as well.
        has_many = self._file.metadata.row_group(number).num_rows > _FEW_ROWS
        wanted = list(names)
        if self._selection.marks_deletions and DIFF not in wanted:
            wanted.append(DIFF)
        group = self._file.read_row_group(number, columns=wanted, use_threads=has_many).select(wanted)
        begin, end = np.searchsorted(group.column(CLOCK).to_numpy(), [clock_begin, clock_end])
        group = group.slice(begin, end - begin)
        if mask is not None:
            group = group.filter(mask.slice(begin, end - begin))
        return as_documents(group).select(names) if self._selection.marks_deletions else group

    def _is_exact(self, number: int) -> bool:
        """Whether all typed columns of a row group hold their values exactly, as far as its statistics tell."""
        group = self._file.metadata.row_group(number)
        statistics = group.column(self._schema.get_field_index(EXACT)).statistics
        return statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows

    def _held(self, stored: pa.Table) -> SelectedArrays:
        """The columns, as the file has them."""
        has_codes = stored.schema.get_field_index(EXACT) >= 0
        codes = unpack_codes(_array(stored.column(EXACT))) if has_codes else None
        arrays: list[pa.Array] = []
        told: list[Codes | None] = []
        for column, kind in zip(self._columns, self._selection.kinds, strict=True):
            if column is None:
                arrays.append(pa.nulls(stored.num_rows, ARROW[kind]))
                told.append(None)
            else:
                arrays.append(_array(stored.column(column.name)))
                told.append(None if codes is None else codes[:, self._codes.index((column.name, column.pointer))])
        return arrays, told

    def _made(self, stored: pa.Table) -> SelectedArrays:
        """The columns, made of documents."""
        return made_columns(self._columns, self._selection.kinds, parse_texts(_array(stored.column(DOC))))


def made_columns(
    columns: Sequence[TypedColumn | None], kinds: Sequence[Kind], documents: Sequence[Document]
) -> SelectedArrays:
    """Columns made of documents.

    Args:
        columns: what is in each place; None for nothing.
        kinds: of the places.
        documents: parsed.
    """
    made = [
        (pa.nulls(len(documents), ARROW[kind]), None)
        if column is None
        else encode(kind, compile_values(column.pointer)(documents))
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return [array for array, _ in made], [codes for _, codes in made]


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _looked(codes: Sequence[Codes | None]) -> np.ndarray | None:
    """Which rows have a column that only the document tells; None for no row."""
    looked = [column == LOOK for column in codes if column is not None]
    is_looked = np.any(looked, axis=0) if looked else None
    return is_looked if is_looked is not None and is_looked.any() else None
