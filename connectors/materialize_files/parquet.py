"""Parquet, with a typed column for each field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.kit import Binding, StoredRows, Value
from connectors.materialize_files.formats import DELETED, kind_of
from derive.document.exact import dump_exact, is_double
from derive.errors import EndpointError

_TYPES = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
}
_GROUP_ROWS = 50_000
_I64, _SHOWN = 1 << 63, 80


class ParquetSink:
    """Row groups of typed columns."""

    def __init__(self, path: Path, binding: Binding) -> None:
        self._fields = (*binding.keys, *binding.values)
        self._kinds = [kind_of(field) for field in self._fields]
        columns = [pa.field(field.name, _TYPES[kind]) for field, kind in zip(self._fields, self._kinds, strict=True)]
        self._has_document = binding.document is not None
        if binding.document:
            columns.append(pa.field(binding.document, pa.string()))
        self._schema = pa.schema([*columns, pa.field(DELETED, pa.bool_())])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[Any] = []
        self._rows = 0

    def add(self, rows: StoredRows) -> None:
        """Add rows.

        Raises:
            EndpointError: an integer has more than 64 bits, or has no equal double in a column of doubles.
        """
        columns = [*rows.key_columns, *rows.value_columns]
        arrays = [self._array(index, column, rows) for index, column in enumerate(columns)]
        if self._has_document:
            arrays.append(pa.array([document.decode() for document in rows.documents], pa.string()))
        arrays.append(pa.array(rows.deleted, pa.bool_()))
        self._waiting.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows += len(rows)
        if self._rows >= _GROUP_ROWS:
            self._write()

    def close(self) -> None:
        """Write the remaining rows."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
            self._waiting, self._rows = [], 0

    def _array(self, index: int, column: Sequence[Value], rows: StoredRows) -> Any:
        kind = self._kinds[index]
        if kind == "json":
            return pa.array([_json(value) for value in column], pa.string())
        for row, value in enumerate(column) if kind in _FITS and int in set(map(type, column)) else ():
            if type(value) is int and not _FITS[kind](value):
                raise self._unfit(index, row, value, rows)
        if kind == "number":
            return pa.array([None if value is None else float(value) for value in column], pa.float64())
        return pa.array(column, _TYPES[kind])

    def _unfit(self, index: int, row: int, value: int, rows: StoredRows) -> EndpointError:
        text = dump_exact(value).decode()
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        key = ",".join(_json(part) or "null" for part in rows.keys[row])
        reason = (
            "has more than 64 bits" if self._kinds[index] == "integer" else "is an integer that no double is equal to"
        )
        return EndpointError(
            f"column '{self._fields[index].name}' of Parquet, key [{key}]: {shown} {reason}",
            hint="the formats jsonl and csv take integers of any size; or leave the field out",
        )


_FITS: dict[str, Callable[[int], bool]] = {"integer": lambda value: -_I64 <= value < _I64, "number": is_double}
"""Function that returns whether a column can represent an integer exactly, by kind."""


def _json(value: Value) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else dump_exact(value).decode()
