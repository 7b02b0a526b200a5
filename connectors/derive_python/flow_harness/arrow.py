"""Methods with `@arrow`: documents as a batch of columns, and the returned table as documents of each row.

The documents of a row depend on this row only, so that the division of documents into batches does not matter. Some
rows of each batch are therefore run alone as well, and another result than within the batch is an error. If a method
fails, rows run alone until one of them fails, so that the error names its document.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from difflib import get_close_matches
from typing import Any, TypeAlias

from pydantic_core import from_json, to_json

from .pandas_import import defer_pandas

ROW, PUBLISHED_AT, NOW = "flow_row", "flow_published_at", "flow_now"
"""Columns of a batch beside the properties: place of the row, and the two times of its document."""

_INDEX = "__index_level_"
"""Prefix of the names of columns that pandas adds."""

_MOST_EXACT = 1 << 53

_END_BYTES = 64
"""Most bytes of the marks in a stream of one batch."""

_ABSENT = object()
"""A property that a document does not have."""

_DEPENDENT = (
    "the method returns other documents for this row alone than within a batch of {} rows: the documents of a row may"
    " depend on this row only. Round results whose last digits depend on the number of rows"
)

Rows: TypeAlias = list[Any]
"""Documents by row: a list, or the error of the row."""


class ArrowMethod:
    """A method with `@arrow`.

    Args:
        call: calls the method with a batch.
        columns: name and kind of each property of the source.
        published: name, kind, and whether it is required and nullable, of each property of the output.
    """

    def __init__(
        self, call: Callable[[Any], Awaitable[Any]], columns: list[list[Any]], published: list[list[Any]]
    ) -> None:
        import pyarrow as pa
        import pyarrow.compute

        defer_pandas(pa)
        self._pa = pa
        self._call = call
        self._columns = [(name, kind, self._type(kind)) for name, kind, *_ in columns]
        self._published = {name: (kind, required, nullable) for name, kind, required, nullable in published}
        self._stamp = pa.timestamp("us", tz="UTC")

    def _type(self, kind: str) -> Any:
        if kind.startswith("[]"):
            return self._pa.list_(self._type(kind[2:]))
        names = {"integer": "int64", "number": "float64", "boolean": "bool_"}
        return getattr(self._pa, names.get(kind, "string"))()

    async def run(self, documents: Sequence[Any], clocks: Sequence[int], published: Sequence[int]) -> Rows:
        """Return the documents that each document causes, up to the first one that fails."""
        rows: Rows
        try:
            batch = self._batch(documents, clocks, published)
        except Exception as error:
            if len(documents) == 1:
                return [error]
            rows = []
            for place in range(len(documents)):
                part = slice(place, place + 1)
                rows += await self.run(documents[part], clocks[part], published[part])
                if isinstance(rows[-1], Exception):
                    break
            return rows
        rows = await self.run_batch(batch)
        return rows

    async def run_batch(self, batch: Any, *, as_stream: bool = False) -> Any:
        """Return the documents that each row of a batch causes, up to the first one that fails.

        Args:
            batch: the batch.
            as_stream: whether to return documents as a stream of Arrow, if these have common properties with scalars:
                the row that causes each document, and a column for each property.
        """
        count = batch.num_rows
        try:
            table = await self._called(batch)
            causes = self._causes(table, count)
            stream = self._stream(table, causes) if as_stream else None
            rows: Rows = [] if stream else self._rows(table, causes, count)
            wrong = None
            for place in _samples(count):
                alone = await self._called(self._row(batch, place))
                self._causes(alone, 1)
                inside = self._caused(table, causes, place)
                if self._documents(alone) != self._documents(inside):
                    wrong = place
                    break
        except Exception as error:
            return await self._alone(batch, error)
        if wrong is not None:
            rows = rows or [[] for _ in range(count)]
            rows[wrong] = RuntimeError(_DEPENDENT.format(count))
            return rows
        return stream or rows

    def _caused(self, table: Any, causes: Any, place: int) -> Any:
        """Return the rows of a table that a row causes."""
        compute = self._pa.compute
        begin, end = (
            compute.sum(test(causes, place), min_count=0).as_py() for test in (compute.less, compute.less_equal)
        )
        return table.slice(begin, end - begin)

    def _row(self, batch: Any, place: int) -> Any:
        """Return one row of a batch as a batch."""
        return batch.slice(place, 1).set_column(0, ROW, self._pa.array([0]))

    async def answer(self, arrays: memoryview | bytes, *, as_columns: bool) -> tuple[Rows, bytes | None]:
        """Return the documents of a batch that is a stream of Arrow, up to the first row that fails.

        Returns:
            The documents by row, and None; or nothing, and all documents as a stream.
        """
        with self._pa.ipc.open_stream(arrays) as reader:
            batch = reader.read_next_batch()
        result = await self.run_batch(batch, as_stream=as_columns)
        return ([], result) if isinstance(result, bytes) else (result, None)

    async def _called(self, batch: Any) -> Any:
        return self._table(await self._call(batch))

    async def _alone(self, batch: Any, error: Exception) -> Rows:
        """Return the documents of the rows before the first one that fails alone, and its error."""
        if batch.num_rows == 1:
            return [error]
        rows: Rows = []
        for place in range(batch.num_rows):
            rows += await self.run_batch(self._row(batch, place))
            if isinstance(rows[-1], Exception):
                return rows
        return [error]

    def _batch(self, documents: Sequence[Any], clocks: Sequence[int], published: Sequence[int]) -> Any:
        """Return documents as a batch."""
        pa = self._pa
        arrays = [pa.array(range(len(documents)), pa.int64())]
        for name, kind, type_ in self._columns:
            if kind == "json":
                values = [to_json(document[name]).decode() if name in document else None for document in documents]
            else:
                values = [document.get(name) for document in documents]
            try:
                arrays.append(pa.array(values, type_))
            except (OverflowError, pa.ArrowInvalid) as error:
                raise ValueError(f"the number of '{name}' does not fit into the type {type_}") from error
        arrays += [pa.array(times, self._stamp) for times in (published, clocks)]
        return pa.record_batch(arrays, names=[ROW, *(name for name, *_ in self._columns), PUBLISHED_AT, NOW])

    def _rows(self, table: Any, causes: Any, count: int) -> Rows:
        """Return the documents of each row of a batch of `count` rows."""
        rows: Rows = [[] for _ in range(count)]
        for cause, document in zip(causes.to_pylist(), self._listed(table), strict=True):
            rows[cause].append(document)
        return rows

    def _listed(self, table: Any) -> list[dict[str, Any]]:
        """Return the documents of a table."""
        names = self._names(table)
        columns = [self._values(name, table.column(name)) for name in names]
        if not columns:
            return [{} for _ in range(table.num_rows)]
        return [
            {name: value for name, value in zip(names, values, strict=True) if value is not _ABSENT}
            for values in zip(*columns, strict=True)
        ]

    def _documents(self, table: Any) -> bytes:
        return to_json(self._listed(table))

    def _stream(self, table: Any, causes: Any) -> bytes | None:
        """Return a table as a line with the names of properties, and a stream of Arrow; None if some are no scalars."""
        pa = self._pa
        names = self._names(table)
        columns = [self._scalars(name, table.column(name)) for name in names]
        if not names or not table.num_rows or any(column is None for column in columns):
            return None
        result = pa.table([causes, *columns], names=list(map(str, range(len(names) + 1)))).combine_chunks()
        [batch] = result.to_batches()
        # a stream of known size: one that grows takes twenty times as long
        stream = bytearray(pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size + _END_BYTES)
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(stream))
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return b"".join((to_json(names), b"\n", memoryview(stream)[: sink.tell()]))

    def _scalars(self, name: str, column: Any) -> Any:
        """Return a column of texts, integers, doubles or booleans without nulls; None if it has other values."""
        pa = self._pa
        kind = self._published.get(name, ("json", True, True))[0]
        types, type_ = pa.types, column.type
        if column.null_count or not self._fits(kind, type_):
            return None
        if kind == "string" and _is_text(pa, type_):
            return column.cast(pa.string())
        if kind == "boolean":
            return column
        if kind in {"integer", "number"} and types.is_integer(type_) and not types.is_uint64(type_):
            return column.cast(pa.int64())
        if kind == "number" and types.is_floating(type_) and pa.compute.all(pa.compute.is_finite(column)).as_py():
            return column.cast(pa.float64())
        return None

    def _table(self, result: Any) -> Any:
        pa = self._pa
        if isinstance(result, pa.RecordBatch):
            return pa.Table.from_batches([result])
        if isinstance(result, pa.Table):
            return result
        if type(result).__module__.startswith("pandas.") and hasattr(result, "columns"):
            return pa.Table.from_pandas(result, preserve_index=False)
        if hasattr(result, "__arrow_c_stream__"):
            return pa.table(result)
        raise TypeError(
            f"the method returned a value of type '{type(result).__name__}', which is not a table of pyarrow, polars or"
            " pandas"
        )

    def _causes(self, table: Any, count: int) -> Any:
        """Return the row that causes each row of the result."""
        pa = self._pa
        if ROW not in table.column_names:
            raise ValueError(
                f"the returned table has no column '{ROW}': keep this column of the batch, which names the row that"
                " causes a document"
            )
        column = table.column(ROW)
        if not pa.types.is_integer(column.type):
            raise TypeError(f"the column '{ROW}' of the returned table has the type {column.type}, and not int64")
        if not self._are_causes(column, count):
            previous = 0
            for place, cause in enumerate(column.to_pylist()):
                where = f"'{ROW}' of row {place} of the returned table is {cause}"
                if cause is None or not 0 <= cause < count:
                    raise ValueError(f"{where}, and the rows of the batch have the numbers 0 to {count - 1}")
                if cause < previous:
                    raise ValueError(f"{where}, after {previous}: sort the table by '{ROW}'")
                previous = cause
        return column.cast(pa.int64())

    def _are_causes(self, column: Any, count: int) -> bool:
        """Return whether a column has ascending rows of a batch of `count` rows."""
        if column.null_count or not len(column):
            return not column.null_count
        compute = self._pa.compute
        following = compute.greater_equal(column.slice(1), column.slice(0, len(column) - 1))
        is_ascending = compute.all(following, min_count=0).as_py()
        return bool(is_ascending and column[0].as_py() >= 0 and column[-1].as_py() < count)

    def _names(self, table: Any) -> list[str]:
        """Return the columns that are properties."""
        names = [name for name in table.column_names if not name.startswith(("flow_", _INDEX))]
        if self._published:
            for name in names:
                if name not in self._published:
                    near = get_close_matches(name, self._published, 1)
                    known = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(self._published)}"
                    raise ValueError(f"the returned table has a column '{name}', which is not a property; {known}")
            for name, (_, required, _) in self._published.items():
                if required and name not in names:
                    raise ValueError(f"the returned table has no column '{name}', which is a required property")
        if len(set(names)) < len(names):
            raise ValueError("the returned table has two columns of the same name")
        return names

    def _values(self, name: str, column: Any) -> list[Any]:
        """Return the values of a column as JSON values; null is the absence of a property that is not required."""
        null = None if self._published.get(name, ("", True))[1] else _ABSENT
        values = self._json_values(name, column)
        if null is None or not column.null_count:
            return values
        return [
            value if is_valid else null for value, is_valid in zip(values, column.is_valid().to_pylist(), strict=True)
        ]

    def _json_values(self, name: str, column: Any) -> list[Any]:
        pa = self._pa
        kind, required, nullable = self._published.get(name, ("json", True, True))
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if required and not nullable and column.null_count:
            place = column.is_null().to_pylist().index(True)
            raise ValueError(f"'{name}' of row {place} of the returned table is null, and the property is required")
        if name in self._published and kind != "json" and not self._fits(kind, column.type):
            raise TypeError(
                f"the column '{name}' of the returned table has the type {column.type}, and not {self._type(kind)}"
            )
        if pa.types.is_timestamp(column.type):
            texts = (value and value.astimezone(UTC) for value in column.cast(self._stamp).to_pylist())
            return [text and text.isoformat(timespec="microseconds").replace("+00:00", "Z") for text in texts]
        if pa.types.is_date(column.type):
            return [value and value.isoformat() for value in column.cast(pa.date32()).to_pylist()]
        values: list[Any] = column.to_pylist()
        if kind == "json" and name in self._published and _is_text(pa, column.type):
            return [None if value is None else _parsed(name, place, value) for place, value in enumerate(values)]
        if kind == "integer" and pa.types.is_floating(column.type):
            return [_whole(name, place, value) for place, value in enumerate(values)]
        return [_plain(name, place, value) for place, value in enumerate(values)]

    def _fits(self, kind: str, type_: Any) -> bool:
        """Return whether a column of an Arrow type may be published as a property of a kind."""
        types = self._pa.types
        if types.is_null(type_):
            return True
        if kind.startswith("[]"):
            is_list = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
            return is_list and self._fits(kind[2:], type_.value_type)
        if kind == "boolean":
            return bool(types.is_boolean(type_))
        if kind == "string":
            return _is_text(self._pa, type_) or types.is_timestamp(type_) or types.is_date(type_)
        return bool(types.is_integer(type_) or types.is_floating(type_))


def _samples(count: int) -> list[int]:
    """Return the rows of a batch that run alone as well."""
    return [count // 2, count - 1] if count > 2 else [1] if count > 1 else []


def _is_text(pa: Any, type_: Any) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _parsed(name: str, place: int, text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"'{name}' of row {place} of the returned table is not a JSON text: {error}") from None


def _whole(name: str, place: int, value: float | None) -> int | None:
    if value is None:
        return None
    if not math.isfinite(value) or not value.is_integer():
        raise ValueError(f"'{name}' of row {place} of the returned table is {value}, and not an integer")
    return int(value)


def _plain(name: str, place: int, value: Any) -> Any:
    """Return a value of a column as a JSON value; a double without a fraction is an integer."""
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"'{name}' of row {place} of the returned table is {value}, which JSON cannot hold")
        return int(value) if value.is_integer() and abs(value) <= _MOST_EXACT else value
    if isinstance(value, list):
        return [_plain(name, place, item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(name, place, item) for key, item in value.items()}
    return value
