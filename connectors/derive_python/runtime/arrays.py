"""Batches of columns for methods with `@arrow`, and the columns that they publish, as streams of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.derive_python.columns import Column
from derive.document.columns import Columns, WrittenColumn
from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.protocol.derive import PublishedColumns

_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_ANSWERED = frozenset(_TYPES.values())
_STAMP = pa.timestamp("us", tz="UTC")
_END_BYTES = 64
"""Most bytes of the marks in a stream of one batch."""

_MOST_EXACT = 1 << 53
_LEAST_PLAIN, _MOST_PLAIN = 1e-5, 1e10
"""Bounds between which Arrow spells numbers as JSON does."""


def batch_of(
    columns: Sequence[Column], fields: Sequence[Any], published: np.ndarray, clocks: np.ndarray
) -> pa.RecordBatch | None:
    """Return fields as columns for a method; None if no array can hold the values of one of them.

    Args:
        columns: columns of the source.
        fields: values of each column, as an array or a list.
        published: timestamps of publication, microseconds.
        clocks: adjusted timestamps, microseconds.
    """
    arrays = []
    for column, values in zip(columns, fields, strict=True):
        try:
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, _TYPES[column.kind]))
        except (OverflowError, pa.ArrowException):
            return None
    arrays += [pa.array(times, pa.int64()).cast(_STAMP) for times in (published, clocks)]
    names = [column.name for column in columns]
    return pa.record_batch(arrays, names=[*names, "flow_published_at", "flow_now"])


class BatchFrames:
    """Frames of batches for the harness, in memory that is used again: new memory takes longer than the rest."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def frame_of(self, batch: pa.RecordBatch, transform: int, *, as_columns: bool) -> tuple[bytes, memoryview]:
        """Return columns as a line of JSON and a stream of Arrow, which is valid until the next call."""
        rows = pa.array(np.arange(batch.num_rows, dtype=np.int64))
        batch = pa.record_batch([rows, *batch.columns], names=["flow_row", *batch.schema.names])
        most = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size + _END_BYTES
        if len(self._memory) < most:
            self._memory = bytearray(most)
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(self._memory))
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        head = dump_exact({"transform": transform, "columns": as_columns})
        return head + b"\n", memoryview(self._memory)[: sink.tell()]


def read_columns(text: bytes, rows: np.ndarray) -> PublishedColumns | None:
    """Return the columns of an answer; None if the answer is none of columns.

    Args:
        text: the answer.
        rows: for each row of the batch, the index of its document.

    Raises:
        ValueError: the answer is malformed.
    """
    end = text.find(b"\n")
    if end < 0:
        return None
    names = parse_exact(text[:end])
    try:
        with pa.ipc.open_stream(pa.py_buffer(text).slice(end + 1)) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)  # a module may have written into the memory of the harness
    except (StopIteration, OSError, MemoryError, pa.ArrowException) as exc:
        raise ValueError("there is no valid batch") from exc
    types = [array.type for array in batch.columns]
    are_names = isinstance(names, list) and set(map(type, names)) == {str} and len(set(names)) == len(names)
    if not are_names or len(types) != len(names) + 1 or types[0] != pa.int64() or not _ANSWERED.issuperset(types):
        raise ValueError("the columns have other names or types")
    if any(array.null_count for array in batch.columns) or not len(batch):
        raise ValueError("a value is missing")
    causes = batch.column(0).to_numpy()
    if causes[0] < 0 or causes[-1] >= len(rows) or (np.diff(causes) < 0).any():
        raise ValueError("the causes do not ascend")
    columns = Columns.of(tuple(names), list(map(_column, batch.columns[1:])))
    return PublishedColumns(rows.take(causes), columns)


def _column(array: pa.Array) -> Sequence[JSON]:
    """Return an array without nulls as values."""
    if pa.types.is_string(array.type):
        return WrittenColumn(array)
    if pa.types.is_int64(array.type):
        least, most = pc.min_max(array).as_py().values()
        if least >= -_MOST_EXACT and most <= _MOST_EXACT:
            return WrittenColumn(array.cast(pa.float64()), array.cast(pa.string()), np.ones(len(array), dtype=bool))
    if pa.types.is_float64(array.type):
        doubles = array.to_numpy()
        if not np.isfinite(doubles).all():
            raise ValueError("a number is not finite")
        return _doubles(doubles)
    values: list[JSON] = array.to_pylist()
    return values


def _doubles(values: np.ndarray) -> WrittenColumn:
    """Return doubles as numbers of JSON; a double without a fraction is an integer."""
    values = values + 0.0  # -0.0 becomes 0
    sizes = np.abs(values)
    is_integer = (np.trunc(values) == values) & (sizes <= _MOST_EXACT)
    array = pa.array(values)
    texts = array.cast(pa.string())
    is_other = (sizes >= _MOST_PLAIN) | ((sizes < _LEAST_PLAIN) & (sizes > 0))
    if is_other.any():
        listed = texts.to_pylist()
        for row in np.flatnonzero(is_other).tolist():
            value = float(values[row])
            listed[row] = dump_exact(int(value) if is_integer[row] else value).decode()
        texts = pa.array(listed, pa.string())
    return WrittenColumn(array, texts, is_integer if is_integer.any() else None)
