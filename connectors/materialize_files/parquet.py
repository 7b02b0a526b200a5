"""Parquet, with a typed column for each field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.kit import Binding, StoredRows, Value
from connectors.materialize_files.column import DELETED, kind_of
from derive.errors import EndpointError

_TYPES = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
}
_GROUP_ROWS = 50_000


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
            EndpointError: an integer has more than 64 bits.
        """
        columns = [*rows.key_columns, *rows.value_columns]
        arrays = [self._array(index, column) for index, column in enumerate(columns)]
        if self._has_document:
            arrays.append(pa.array([document.decode() for document in rows.documents], pa.string()))
        arrays.append(pa.array(rows.deleted, pa.bool_()))
        self._waiting.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows += len(rows)
        if self._rows >= _GROUP_ROWS:
            self._write()

    def close(self) -> None:
        """Write what is left."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
            self._waiting, self._rows = [], 0

    def _array(self, index: int, column: Sequence[Value]) -> Any:
        kind = self._kinds[index]
        if kind == "json":
            return pa.array([_json(value) for value in column], pa.string())
        if kind == "number":
            return pa.array([None if value is None else float(value) for value in column], pa.float64())
        try:
            return pa.array(column, _TYPES[kind])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as exc:
            name = self._fields[index].name
            hint = "integers beyond 64 bits are taken by the formats jsonl and csv, or leave the field out"
            raise EndpointError(
                f"a value of '{name}' does not fit into its column of Parquet: {exc}", hint=hint
            ) from exc


def _json(value: Value) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else orjson.dumps(value).decode()
