"""Comparison of the typed columns of a segment with its documents.

Readers of few fields take values from typed columns, so a column that differs from its documents gives wrong results
though every document is right. A file describes its own columns, so the schema by which it was written is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from derive.document.pointer import JSON
from derive.protocol.specs import Document
from derive.storage.segments.columns import (
    ARROW,
    EXACT,
    POINTERS,
    Codes,
    Kind,
    compile_values,
    encode,
    unpack_codes,
)
from derive.storage.segments.rows import CLOCK, DOC, KEY
from derive.storage.segments.segment_file import open_segment, readable
from derive.storage.segments.texts import parse_texts
from derive.time.source_read import Segment


class WrongValue(NamedTuple):
    """A value of a typed column that differs from its document.

    Attributes:
        clock: timestamp of the document.
        key: packed key of the document.
        text: the document.
        column: name of the column.
        stored: the column's value; None for null.
        expected: the value that the column should have; None for null.
    """

    clock: int
    key: bytes
    text: str
    column: str
    stored: JSON
    expected: JSON


_KIND_OF_ARROW: dict[pa.DataType, Kind] = {arrow: kind for kind, arrow in ARROW.items()}


def wrong_values(root: Path, segment: Segment) -> Iterator[WrongValue]:
    """Yield the values in typed columns of a segment that differ from its documents.

    Raises:
        SegmentError: the file is missing, damaged, unreadable, or not the committed file.
    """
    with open_segment(root, segment) as file, readable(segment):
        pointers: dict[str, str] = orjson.loads((file.metadata.metadata or {}).get(POINTERS, b"{}"))
        if pointers:
            for number in range(file.metadata.num_row_groups):
                yield from _wrong_in_group(file, number, pointers)


def _wrong_in_group(file: pq.ParquetFile, number: int, pointers: dict[str, str]) -> Iterator[WrongValue]:
    names = [CLOCK, KEY, DOC, *pointers, EXACT]
    # Parquet may match a name with a dot to a nested column too.
    table = file.read_row_group(number, columns=names, use_threads=False).select(names).combine_chunks()
    if not table.num_rows:
        return
    columns = {name: _array(table.column(name)) for name in names}
    documents, codes = parse_texts(columns[DOC]), unpack_codes(columns[EXACT])
    for place, (name, pointer) in enumerate(pointers.items()):
        own = None if codes is None else codes[:, place]
        for row, stored, expected in _differences(columns[name], own, pointer, documents):
            clock, key, text = (columns[fixed][row].as_py() for fixed in (CLOCK, KEY, DOC))
            yield WrongValue(clock, key, text, name, stored, expected)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _differences(
    array: pa.Array, codes: Codes | None, pointer: str, documents: Sequence[Document]
) -> Iterator[tuple[int, JSON, JSON]]:
    """Yield the row, the value and the expected value of each difference; an inexact value differs by its code, too."""
    expected, expected_codes = encode(_KIND_OF_ARROW[array.type], compile_values(pointer)(documents))
    count = len(array)
    told = [0] * count if codes is None else codes.tolist()
    should = [0] * count if expected_codes is None else expected_codes.tolist()
    if told == should and array.equals(expected):
        return
    for row, pairs in enumerate(zip(array.to_pylist(), expected.to_pylist(), told, should, strict=True)):
        value, right, code, right_code = pairs
        if value != right or code != right_code:
            yield row, value, right
