"""Scans of collections with filters on columns, so that few documents are read.

A scan returns all requested rows. It may return more rows, because typed columns cannot hold every value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from derive.document.pointer import JSON
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.roles import Readable
from derive.storage.segments.columns import EXACT, POINTERS, TypedColumn
from derive.storage.segments.consolidation import as_documents
from derive.storage.segments.rows import CLOCK, DIFF, DOC, KEY, SEQ
from derive.storage.segments.segment_file import open_segment, readable
from derive.time import BEGINNING, END_OF_TIME
from derive.time.source_read import Segment

_PLAIN = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_I64 = 1 << 63


class StoredDocument(NamedTuple):
    """A document of a collection: timestamp, sequence number, packed key and JSON text."""

    clock: int
    seq: int
    key: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Ticks:
    """Adjusted timestamps in some ticks.

    Attributes:
        numbers: numbers of the ticks, ascending.
        tick: length of a tick, microseconds.
    """

    numbers: np.ndarray
    tick: int

    def overlap(self, least: int, most: int) -> bool:
        """Return whether a timestamp between two timestamps may be in one of the ticks."""
        place = int(np.searchsorted(self.numbers, least // self.tick))
        return place < len(self.numbers) and int(self.numbers[place]) <= most // self.tick

    def mask(self, adjusted: np.ndarray) -> np.ndarray:
        """Return the mask of adjusted timestamps in one of the ticks."""
        return np.isin(adjusted // self.tick, self.numbers)


@dataclass(frozen=True, slots=True)
class Match:
    """A filter of rows by values in columns.

    Attributes:
        keys: packed keys; None for any.
        values: permitted values by typed column.
        nulls: typed columns in which null is also permitted.
    """

    keys: pa.Array | None = None
    values: Mapping[TypedColumn, pa.Array] = field(default_factory=dict)
    nulls: frozenset[TypedColumn] = frozenset()

    @staticmethod
    def of_keys(keys: Iterable[bytes]) -> Match:
        """Return the filter of rows with these packed keys."""
        return Match(pa.array(sorted(keys), pa.binary()))

    def within(self, file: pq.ParquetFile) -> Match:
        """Return the part of the filter for which a file has columns."""
        schema = file.schema_arrow
        pointers = orjson.loads((file.metadata.metadata or {}).get(POINTERS, b"{}"))
        held = {
            column: values
            for column, values in self.values.items()
            if pointers.get(column.name) == column.pointer and schema.field(column.name).type == column.type
        }
        return Match(self.keys, held, self.nulls)

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns that the filter needs."""
        names = [] if self.keys is None else [KEY]
        return [*names, *(column.name for column in self.values), *([EXACT] if self.values else [])]

    def mask(self, table: pa.Table) -> np.ndarray:
        """Return the mask of rows that may match, which include inexact rows."""
        mask = np.ones(table.num_rows, dtype=bool)
        for column, values in self.values.items():
            matches = pc.is_in(table.column(column.name), value_set=values)
            if column in self.nulls:
                matches = pc.or_(matches, pc.is_null(table.column(column.name)))
            mask &= matches.to_numpy()
        if self.values and table.column(EXACT).null_count < table.num_rows:
            mask |= table.column(EXACT).is_valid().to_numpy()
        if self.keys is not None:
            mask &= pc.is_in(table.column(KEY), value_set=self.keys).to_numpy()
        return mask


def column_values(column: TypedColumn, values: Iterable[JSON]) -> pa.Array:
    """Return the values that a typed column can hold exactly; a row with another value is inexact."""
    plain = _PLAIN[column.kind]
    held = {value for value in values if type(value) in plain and not (type(value) is int and abs(value) >= _I64)}
    return pa.array(held, column.type)


_READ = [CLOCK, SEQ, DIFF, KEY, DOC]


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """The rows that a scan requests.

    Attributes:
        begin: first timestamp.
        end: exclusive upper bound of the timestamps.
        match: filter by columns; None for all rows.
        ticks: ticks of the adjusted timestamps; None for all.
        offset: microseconds from a timestamp to the adjusted timestamp.
    """

    begin: int = BEGINNING
    end: int = END_OF_TIME
    match: Match | None = None
    ticks: Ticks | None = None
    offset: int = 0

    def overlaps(self, least: int, most: int) -> bool:
        """Return whether rows with timestamps between two timestamps may be desired."""
        if least >= self.end or most < self.begin:
            return False
        return self.ticks is None or self.ticks.overlap(least + self.offset, most + self.offset)


def scan(
    store: Readable,
    spec: CollectionSpec,
    bounds: ScanBounds,
    selector: SelectorSpec | None = None,
    others: Sequence[Segment] = (),
) -> Iterator[StoredDocument]:
    """Yield the documents of a collection that may be desired, in no particular order; deletions are marked.

    Args:
        store: the data folder.
        spec: the collection.
        bounds: the desired rows.
        selector: selection of logical partitions; None for all.
        others: other segments to scan.

    Raises:
        SegmentError: a file is missing, damaged or cannot be read.
    """
    for segment in (*store.segments(spec, selector, bounds.begin), *others):
        if not bounds.overlaps(segment.clock_min, segment.clock_max):
            continue
        with open_segment(store.root, segment) as file, readable(segment):
            match = None if bounds.match is None else bounds.match.within(file)
            for number in range(file.metadata.num_row_groups):
                yield from _scan_group(file, number, bounds, match)


def _scan_group(file: pq.ParquetFile, number: int, bounds: ScanBounds, match: Match | None) -> Iterator[StoredDocument]:
    statistics = file.metadata.row_group(number).column(0).statistics
    if statistics is not None and statistics.has_min_max and not bounds.overlaps(statistics.min, statistics.max):
        return
    table = _columns(file, number, [CLOCK, *(match.columns if match else [])])
    clocks = table.column(CLOCK).to_numpy()
    mask = (clocks >= bounds.begin) & (clocks < bounds.end)
    if bounds.ticks is not None:
        mask &= bounds.ticks.mask(clocks + bounds.offset)
    if match is not None:
        mask &= match.mask(table)
    places = np.flatnonzero(mask)
    if len(places):
        rows = as_documents(_columns(file, number, _READ).take(places))
        yield from map(StoredDocument, *(rows.column(name).to_pylist() for name in (CLOCK, SEQ, KEY, DOC)))


def _columns(file: pq.ParquetFile, number: int, names: Sequence[str]) -> pa.Table:
    # Parquet may match a name with a dot to a nested column too.
    return file.read_row_group(number, columns=list(names), use_threads=False).select(list(names))
