"""Parquet input: one document per row, from batches with bounded size in memory.

A dictionary page holds a value once for any number of rows. One row of each row group is therefore read first, with
byte columns as dictionaries: the longest dictionary value bounds the size of a row.

Times of INT96 are read twice. As nanoseconds they overflow outside the years 1677 to 2262, and as microseconds they
lose digits. Both columns together give the exact time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from derive.errors import DocumentError
from derive.protocol.specs import JSON, CollectionSpec
from derive.schema.infer import infer
from derive.schema.redaction import Redactor
from derive.schema.shape import Shape
from derive.storage.inputs.arrow_values import Convert, converter, exceeds, int96_converter
from derive.storage.inputs.line import (
    MOST_DOCUMENT_BYTES,
    NOTHING_INGESTED,
    Line,
    UnfitError,
    sized,
    too_large,
    too_many,
)
from derive.value_count import most_values

_MOST_ROWS, _BATCH_BYTES = 5_000, 8 << 20
_LARGE_GROUP_BYTES, _FEW_ROWS = 64 << 20, 256
"""Size up to which a row group is read in large batches, and the batch size of larger row groups in rows."""


class ParquetBatches:
    """Reads a Parquet file batch by batch.

    Args:
        path: path of the file.

    Attributes:
        schema: names and Arrow types of the columns.

    Raises:
        OSError: the file cannot be read.
        pa.ArrowException: it is no Parquet file.
    """

    def __init__(self, path: str) -> None:
        with ExitStack() as stack:
            self._file = stack.enter_context(pq.ParquetFile(path))
            leaves = [self._file.schema.column(index) for index in range(len(self._file.schema))]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
            self._probe = stack.enter_context(pq.ParquetFile(path, read_dictionary=texts)) if texts else None
            has_int96 = any(leaf.physical_type == "INT96" for leaf in leaves)
            coerced = pq.ParquetFile(path, coerce_int96_timestamp_unit="us") if has_int96 else None
            self._micros = stack.enter_context(coerced) if coerced else None
            self._stack = stack.pop_all()
        self.schema: pa.Schema = self._file.schema_arrow
        other = self._micros.schema_arrow if self._micros else self.schema
        self._kinds = list(zip(self.schema.types, other.types, strict=True))

    def converter(self, index: int, shape: Shape | None) -> Convert:
        """Return a function from a column of batches to JSON values.

        Args:
            index: index of the column.
            shape: shape of the column in the schema; None for any.

        Raises:
            UnfitError: values of the column's type have no JSON form.
        """
        kind, coerced = self._kinds[index]
        return converter(kind, shape) if kind == coerced else int96_converter(kind, coerced, shape)

    def __enter__(self) -> ParquetBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for group in range(self._file.num_row_groups):
            size = self._rows_at_once(group)
            batches = self._file.iter_batches(batch_size=size, row_groups=[group])
            if self._micros is None:
                yield from batches
                continue
            coerced = self._micros.iter_batches(batch_size=size, row_groups=[group])
            for batch, other in zip(batches, coerced, strict=True):
                yield self._paired(batch, other)

    def _paired(self, batch: pa.RecordBatch, coerced: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if kind == other else pa.StructArray.from_arrays([column, coerced.column(index)], names=["ns", "us"])
            for index, (column, (kind, other)) in enumerate(zip(batch.columns, self._kinds, strict=True))
        ]
        return pa.RecordBatch.from_arrays(columns, names=self.schema.names)

    def _rows_at_once(self, group: int) -> int:
        about = self._file.metadata.row_group(group)
        rows = max(about.num_rows, 1)
        most = _MOST_ROWS if about.total_byte_size <= _LARGE_GROUP_BYTES else _FEW_ROWS
        values = max((about.column(index).num_values for index in range(about.num_columns)), default=0)
        row_bytes = about.total_byte_size // rows + self._longest(group) * max(1, values // rows)
        return int(max(1, min(most, _BATCH_BYTES // max(row_bytes, 1))))

    def _longest(self, group: int) -> int:
        """Return the sum over columns of the longest dictionary value of a row group, in bytes."""
        if self._probe is None:
            return 0
        first = next(self._probe.iter_batches(batch_size=1, row_groups=[group]), None)
        return 0 if first is None else sum(_longest(column) for column in first.columns)


def _longest(array: Any) -> int:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _longest(array.storage)
    if types.is_dictionary(kind):
        values = array.dictionary
        is_bytes = types.is_string(values.type) or types.is_binary(values.type)
        return int(pc.max(pc.binary_length(values)).as_py() or 0) if is_bytes else 0
    if types.is_map(kind):
        return _longest(array.keys) + _longest(array.items)
    if types.is_struct(kind):
        return sum(map(_longest, array.flatten()))
    return _longest(array.flatten()) if types.is_nested(kind) else 0


_HIDDEN = "a value that has no JSON form, which is not shown as the schema redacts it"


def parquet_rows(path: str, spec: CollectionSpec, most_bytes: int = MOST_DOCUMENT_BYTES) -> Iterator[Line]:
    """Yield the documents of a Parquet file: a column is a property, and a null is omitted.

    A value without an exact JSON form makes its row a `DocumentError` that names the column. A row of more than
    `most_bytes`, or of too many values, is a `DocumentError` too.

    Raises:
        DocumentError: the file is no Parquet file or damaged, or a column's type has no JSON form.
    """
    read = 0
    try:
        with ParquetBatches(path) as batches:
            rows = _Rows(batches, spec, path, most_bytes)
            for batch in batches:
                yield from enumerate(rows.of(batch), start=read + 1)
                read += batch.num_rows
    except (OSError, pa.ArrowException) as exc:
        what = "is not a readable Parquet file" if not read else f"is damaged behind its row {read:,}"
        raise DocumentError(f"{path} {what}: {' '.join(str(exc).split())}", hint=NOTHING_INGESTED) from exc


class _Rows:
    """Converts batches to documents."""

    def __init__(self, batches: ParquetBatches, spec: CollectionSpec, path: str, most_bytes: int) -> None:
        self._names: list[str] = batches.schema.names
        self._most_bytes = most_bytes
        redactor = Redactor(spec.redaction, b"") if spec.redaction else None
        self._hidden = frozenset(name for name in self._names if redactor is not None and redactor.hides(name))
        shape = infer(spec.input_schema)
        self._converters = []
        for index, name in enumerate(self._names):
            try:
                self._converters.append(batches.converter(index, shape.member(name)))
            except UnfitError as exc:
                raise DocumentError(
                    f"{path}: column '{name}' has {exc}", hint="convert it before, or leave it out"
                ) from exc
        if len(set(self._names)) < len(self._names):
            raise DocumentError(f"{path} has two columns of one name: {', '.join(self._names)}", hint=NOTHING_INGESTED)

    def of(self, batch: Any) -> Iterator[bytes | dict[str, JSON] | DocumentError]:
        is_large = batch.nbytes > self._most_bytes
        has_many = not is_large and exceeds(batch, most_values(self._most_bytes))
        if (is_large or has_many) and batch.num_rows > 1:
            for row in range(batch.num_rows):
                yield from self.of(batch.slice(row, 1))
            return
        size = batch.nbytes // max(batch.num_rows, 1)
        if size > self._most_bytes:
            yield too_large(self._most_bytes, "the row")
            return
        if has_many:
            yield too_many(self._most_bytes)
            return
        unfit: dict[int, str] = {}
        columns = [self._values(index, batch.column(index), unfit) for index in range(batch.num_columns)]
        rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
        for index, cells in enumerate(rows):
            if index in unfit:
                yield DocumentError(unfit[index])
            else:
                document = {name: value for name, value in zip(self._names, cells, strict=True) if value is not None}
                yield sized(document, size)

    def _values(self, index: int, column: Any, unfit: dict[int, str]) -> list[JSON]:
        convert = self._converters[index]
        try:
            return convert(column)
        except UnfitError:
            pass
        values: list[JSON] = []
        for row in range(len(column)):
            try:
                values += convert(column.slice(row, 1))
            except UnfitError as exc:
                values.append(None)
                name = self._names[index]
                unfit.setdefault(row, f"column '{name}': {_HIDDEN if name in self._hidden else exc}")
        return values
