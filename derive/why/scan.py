"""Scans of collections with filters on columns, so that few documents are read.

A scan returns all requested rows. It may return more rows, because typed columns cannot hold every value. Threads read
the row groups, and read the documents only of row groups with requested rows.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from derive.document.pointer import JSON
from derive.protocol.specs import CollectionSpec, SelectorSpec
from derive.storage.location import Location
from derive.storage.roles import Readable
from derive.storage.segments.columns import EXACT, POINTERS, TypedColumn, unpack_codes
from derive.storage.segments.rows import CLOCK, DIFF, DOC, KEY, SEQ, StoredRows, as_documents
from derive.storage.segments.segment_file import open_segment, readable
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import Segment

_PLAIN = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_I64 = 1 << 63

_THREADS = min(os.cpu_count() or 1, 8)

_PIECE_GROUPS = 4
"""Number of row groups that a thread reads at once: about 10 MB of documents if all are desired."""


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
        places: index of each typed column of a file, by name; empty without a file.
    """

    keys: pa.Array | None = None
    values: Mapping[TypedColumn, pa.Array] = field(default_factory=dict)
    nulls: frozenset[TypedColumn] = frozenset()
    places: Mapping[str, int] = field(default_factory=dict)

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
        return replace(self, values=held, places={name: place for place, name in enumerate(pointers)})

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns that the filter needs."""
        names = [] if self.keys is None else [KEY]
        return [*names, *(column.name for column in self.values), *([EXACT] if self.values else [])]

    def mask(self, columns: Mapping[str, pa.ChunkedArray]) -> np.ndarray:
        """Return the mask of rows that may match: a row matches a typed column in which its value is inexact.

        Args:
            columns: the columns that the filter needs, at least one.
        """
        masks = []
        codes = unpack_codes(columns[EXACT].combine_chunks()) if self.values else None
        for column, values in self.values.items():
            matches = pc.is_in(columns[column.name], value_set=values)
            if column in self.nulls:
                matches = pc.or_(matches, pc.is_null(columns[column.name]))
            masks.append(matches.to_numpy())
            if codes is not None:
                masks[-1] = masks[-1] | (codes[:, self.places[column.name]] != 0)
        if self.keys is not None:
            masks.append(pc.is_in(columns[KEY], value_set=self.keys).to_numpy())
        every: np.ndarray = np.logical_and.reduce(masks)
        return every


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

    def covers(self, least: int, most: int) -> bool:
        """Return whether every timestamp between two timestamps is desired."""
        return self.begin <= least and most < self.end and self.ticks is None

    def mask(self, clocks: np.ndarray) -> np.ndarray:
        """Return the mask of desired timestamps."""
        mask = (clocks >= self.begin) & (clocks < self.end)
        return mask if self.ticks is None else mask & self.ticks.mask(clocks + self.offset)


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
    waiting: deque[Future[list[pa.Table]]] = deque()
    pool = ThreadPoolExecutor(_THREADS, "scan")
    try:
        for piece in _pieces(store.location, (*store.segments(spec, selector, bounds.begin), *others), bounds):
            waiting.append(pool.submit(piece.read))
            if len(waiting) > 2 * _THREADS:
                yield from _documents(waiting.popleft().result())
        while waiting:
            yield from _documents(waiting.popleft().result())
    finally:
        pool.shutdown(cancel_futures=True)


def _documents(tables: Iterable[pa.Table]) -> Iterator[StoredDocument]:
    for table in tables:
        yield from map(StoredDocument, *(table.column(name).to_pylist() for name in (CLOCK, SEQ, KEY, DOC)))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some row groups of a segment, which one thread reads.

    Attributes:
        location: location of the segments.
        segment: the segment.
        metadata: metadata of its file.
        groups: for each row group, its number and whether all its timestamps are desired.
        bounds: the desired rows.
        match: filter of the bounds, for this file.
    """

    location: Location
    segment: Segment
    metadata: pq.FileMetaData
    groups: Sequence[tuple[int, bool]]
    bounds: ScanBounds
    match: Match | None

    def read(self) -> list[pa.Table]:
        """Return the desired rows of each row group that has some.

        Raises:
            SegmentError: the file is missing, damaged or cannot be read.
        """
        with open_segment(self.location, self.segment, self.metadata) as file, readable(self.segment):
            tables = (self._rows(file, number, is_covered=is_covered) for number, is_covered in self.groups)
            return [table for table in tables if table is not None]

    def _rows(self, file: pq.ParquetFile, number: int, *, is_covered: bool) -> pa.Table | None:
        read: dict[str, pa.ChunkedArray] = {}
        mask = np.ones(self.metadata.row_group(number).num_rows, dtype=bool)
        if not is_covered:
            read |= _columns(file, number, [CLOCK])
            mask = self.bounds.mask(read[CLOCK].to_numpy())
        if self.match is not None and self.match.columns and mask.any():
            read |= _columns(file, number, self.match.columns)
            mask &= self.match.mask(read)
        places = pa.array(np.flatnonzero(mask))
        if not len(places):
            return None
        read |= _columns(file, number, [name for name in _READ if name not in read])
        return as_documents(pa.table({name: read[name].take(places) for name in _READ}))


def _pieces(location: Location, segments: Iterable[Segment], bounds: ScanBounds) -> Iterator[_Piece]:
    """Yield the row groups of segments in which rows may be desired."""
    keys = [] if bounds.match is None or bounds.match.keys is None else bounds.match.keys.to_pylist()
    for segment in segments:
        if not bounds.overlaps(segment.clock_min, segment.clock_max):
            continue
        with open_segment(location, segment) as file, readable(segment):
            metadata = file.metadata
            match = None if bounds.match is None else bounds.match.within(file)
        groups = []
        for number in range(metadata.num_row_groups):
            clocks, packed = _range(metadata, number, CLOCK), _range(metadata, number, KEY) if keys else None
            if packed is not None and bisect_left(keys, packed[0]) == bisect_right(keys, packed[1]):
                continue
            if clocks is None or bounds.overlaps(*clocks):
                groups.append((number, clocks is not None and bounds.covers(*clocks)))
        for begin in range(0, len(groups), _PIECE_GROUPS):
            yield _Piece(location, segment, metadata, groups[begin : begin + _PIECE_GROUPS], bounds, match)


def _range(metadata: pq.FileMetaData, number: int, name: str) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column in a row group; None if statistics do not show them."""
    statistics = metadata.row_group(number).column(StoredRows.SCHEMA.get_field_index(name)).statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def _columns(file: pq.ParquetFile, number: int, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    # Parquet may match a name with a dot to a nested column too.
    table = file.read_row_group(number, columns=list(names), use_threads=False)
    return {name: table.column(name) for name in names}
