"""Parquet input: one document per row, from batches with bounded size in memory.

NaN and infinities are refused, because JSON has no number for them. A decimal becomes the JSON number with the same
digits. A decimal that a double cannot hold becomes a string if the schema allows strings.

A dictionary page holds a value once for any number of rows, so the size of a page does not bound the size of rows. So
one row of each row group is read first, with byte columns as dictionaries: the longest dictionary value bounds the size
of a row.

Times of INT96 are read twice. As nanoseconds they overflow outside the years 1677 to 2262, and as microseconds they
lose digits. Both columns together give the exact time.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.errors import DocumentError
from derive.functions.types.jsonb import FEW_VALUES, exceeds_values, most_values
from derive.protocol.specs import CollectionSpec
from derive.schema.redaction import Redactor
from derive.schema.shape import ALL, ANYTHING, NUMBER, Shape, infer
from derive.storage.inputs.line import (
    FIRST_SECOND,
    LAST_SECOND,
    MOST_DOCUMENT_BYTES,
    NOTHING_INGESTED,
    Line,
    UnfitError,
    sized,
    too_large,
    too_many,
)

_MICROS = 1_000_000


def text_type(nanos: pa.DataType, micros: pa.DataType) -> pa.DataType:
    """Return the type of a column in which texts replace the times of INT96.

    Args:
        nanos: type of the column read as nanoseconds.
        micros: type of the column read as microseconds.

    Raises:
        UnfitError: the times are in a type that Parquet does not have.
    """
    if nanos == micros:
        return nanos
    if types.is_timestamp(nanos):
        return pa.string()
    if types.is_struct(nanos):
        fields = [nanos.field(index) for index in range(nanos.num_fields)]
        kinds = [text_type(field.type, micros.field(index).type) for index, field in enumerate(fields)]
        return pa.struct([field.with_type(kind) for field, kind in zip(fields, kinds, strict=True)])
    if types.is_map(nanos):
        keys = text_type(nanos.key_type, micros.key_type)
        return pa.map_(keys, text_type(nanos.item_type, micros.item_type))
    if types.is_list(nanos) or types.is_large_list(nanos) or types.is_fixed_size_list(nanos):
        return pa.list_(text_type(nanos.value_type, micros.value_type))
    raise UnfitError(f"the type {nanos} of times of INT96, which has no JSON form")


def with_texts(nanos: Any, micros: Any) -> Any:
    """Return an array in which RFC 3339 texts, without an offset, replace the times of INT96.

    Args:
        nanos: the column read as nanoseconds, modulo 2**64.
        micros: the column read as microseconds.

    Raises:
        UnfitError: a time is outside the years 1 to 9999.
    """
    kind = nanos.type
    if kind == micros.type:
        return nanos
    if types.is_timestamp(kind):
        return _time_texts(nanos, micros)
    if types.is_struct(kind):
        parts = [with_texts(*pair) for pair in zip(nanos.flatten(), micros.flatten(), strict=True)]
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, names=names, mask=nanos.is_null())
    if types.is_map(kind):
        first, count = nanos.offsets[0].as_py(), nanos.offsets[-1].as_py() - nanos.offsets[0].as_py()
        keys, items = (
            with_texts(ours.slice(first, count), others.slice(micros.offsets[0].as_py(), count))
            for ours, others in ((nanos.keys, micros.keys), (nanos.items, micros.items))
        )
        return pa.MapArray.from_arrays(_offsets(nanos, pc.subtract(nanos.offsets, first)), keys, items)
    lengths = pc.fill_null(pc.list_value_length(nanos), 0).cast(pa.int32())
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(_offsets(nanos, ends), with_texts(nanos.flatten(), micros.flatten()))


def _offsets(array: Any, offsets: Any) -> Any:
    """Return the offsets of items, null where the array is null."""
    is_valid = pa.concat_arrays([array.is_valid(), pa.array([True])])
    return pc.if_else(is_valid, offsets, None)


def _time_texts(nanos: Any, micros: Any) -> Any:
    valid = np.asarray(micros.is_valid())
    counted = np.asarray(pc.fill_null(micros.view(pa.int64()), 0))
    wrapped = np.asarray(pc.fill_null(nanos.view(pa.int64()), 0))
    seconds = counted // _MICROS
    if seconds.size and not (seconds.min() >= FIRST_SECOND and seconds.max() <= LAST_SECOND):
        raise UnfitError("a time beyond the years 1 to 9999")
    rest = wrapped.view(np.uint64) - counted.view(np.uint64) * np.uint64(1_000)  # modulo 2**64, and below 1,000
    texts = np.datetime_as_string(counted.astype("datetime64[us]")).tolist()
    exact = [f"{text}{digits:03}" for text, digits in zip(texts, rest.tolist(), strict=True)]
    return pa.array(exact, pa.string(), mask=~valid)


Convert: TypeAlias = Callable[[Any], list[JSON]]
"""Function from an array to the JSON values of its items, None for a null; raises `UnfitError`."""

_EXACT_DIGITS = 15
"""Number of digits up to which a decimal survives the conversion to a double and back."""

_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def converter(kind: Any, shape: Shape | None) -> Convert:
    """Return a function from arrays of a type to JSON values.

    Args:
        kind: the Arrow type.
        shape: shape of the location in the schema; None for any.

    Raises:
        UnfitError: values of this type have no JSON form.
    """
    shape = shape or ANYTHING
    for applies, convert in _PLAIN:
        if applies(kind):
            return convert
    if types.is_decimal(kind):
        return partial(_decimals, kind, shape.types)
    if types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind):
        return partial(_times, kind)
    return _nested(kind, shape)


def exceeds(batch: pa.RecordBatch, most: int) -> bool:
    """Return whether a batch may have more than `most` values; for a batch of one row, the answer is exact."""
    return batch.nbytes * 8 > FEW_VALUES and sum(_count(column, most) for column in batch.columns) > most


def _count(array: Any, most: int) -> int:
    """Return the number of values in an array; a JSON text that exceeds `most` counts as `most` + 1."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.json" and array.nbytes > FEW_VALUES:
            texts = (text.encode() for text in array.storage.to_pylist() if text)
            return most + 1 if exceeds_values(texts, most) else len(array)
        return _count(array.storage, most)
    if types.is_struct(kind):
        return sum(_count(field, most) for field in array.flatten())
    if types.is_map(kind):
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_count(part.slice(begin, end - begin), most) for part in (array.keys, array.items))
    if types.is_nested(kind) and not types.is_union(kind):
        return len(array) + _count(array.flatten(), most)
    return len(array)


def int96_converter(nanos: Any, micros: Any, shape: Shape | None) -> Convert:
    """Return a function from pairs of INT96 arrays (see `with_texts`) to JSON values.

    Args:
        nanos: Arrow type of the column read as nanoseconds.
        micros: Arrow type of the column read as microseconds.
        shape: shape of the location in the schema; None for any.

    Raises:
        UnfitError: values of this type have no JSON form.
    """
    convert = converter(text_type(nanos, micros), shape)
    return lambda pairs: convert(with_texts(*pairs.flatten()))


def _nested(kind: Any, shape: Shape) -> Convert:
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(kind, shape)
    if types.is_dictionary(kind):
        return partial(_dictionaries, converter(kind.value_type, shape))
    if types.is_map(kind):
        return partial(_maps, converter(kind.key_type, None), converter(kind.item_type, shape.additional))
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise UnfitError("two fields of one name")
        return partial(_structs, names, [converter(field.type, shape.member(field.name)) for field in fields])
    if types.is_nested(kind) and not types.is_union(kind):
        return partial(_lists, converter(kind.value_type, shape.items))
    raise UnfitError(f"the type {kind}, which has no JSON form")


def _extension(kind: Any, shape: Shape) -> Convert:
    if kind.extension_name == "arrow.uuid":
        return lambda array: [item and str(uuid.UUID(bytes=item)) for item in array.storage.to_pylist()]
    storage = converter(kind.storage_type, shape)
    if kind.extension_name == "arrow.json":
        return lambda array: [_parsed(item) for item in storage(array.storage)]
    return lambda array: storage(array.storage)


def _parsed(text: JSON) -> JSON:
    try:
        return text and parse_exact(text.encode())
    except ValueError as exc:
        raise UnfitError(f"a text that is not JSON, in a column of JSON: {exc}") from exc


def _as_they_are(array: Any) -> list[JSON]:
    values: list[JSON] = array.to_pylist()
    return values


def _texts(array: Any) -> list[JSON]:
    try:
        return _as_they_are(array)
    except UnicodeDecodeError as exc:
        raise UnfitError("a string that is not valid UTF-8") from exc


def _binaries(array: Any) -> list[JSON]:
    return [None if item is None else base64.b64encode(item).decode() for item in array.to_pylist()]


def _floats(array: Any) -> list[JSON]:
    odd_ones = pc.filter(array, pc.invert(pc.is_finite(array)))  # without nulls
    if len(odd_ones):
        odd = odd_ones[0].as_py()
        name = "NaN" if math.isnan(odd) else "Infinity" if odd > 0 else "-Infinity"
        raise UnfitError(f"{name}, which JSON cannot express; write null for a missing number")
    return _as_they_are(array)


def _decimals(kind: Any, allowed: frozenset[str], array: Any) -> list[JSON]:
    values: list[Decimal | None] = array.to_pylist()
    if not allowed & NUMBER:
        return [None if value is None else format(value, "f") for value in values]
    if kind.scale == 0:
        return [None if value is None else int(value) for value in values]
    if kind.precision <= _EXACT_DIGITS and "fractional" in allowed:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else _number(value, allowed) for value in values]


def _number(value: Decimal, allowed: frozenset[str]) -> JSON:
    number = float(value)
    is_exact = Decimal(repr(number)) == value
    if is_exact and "fractional" in allowed:
        return number
    if value == value.to_integral_value():
        return int(value)
    if "string" in allowed and allowed != ALL:
        return format(value, "f")
    if is_exact:
        return number  # the validator reports the wrong type
    raise UnfitError(
        f"{value:f} has more digits than a number with a fraction keeps (it would be {number!r}); let its schema say"
        " 'string', or round it"
    )


def _times(kind: Any, array: Any) -> list[JSON]:
    """Return RFC 3339 texts with the digits of the column's unit; a timestamp without a time zone has no offset."""
    if types.is_date32(kind):
        unit, width, divisor = "D", pa.int32(), 1
    else:
        unit = "ms" if types.is_date64(kind) else kind.unit
        width, divisor = pa.int32() if types.is_time32(kind) else pa.int64(), _PER_SECOND[unit]
    ticks = np.asarray(pc.fill_null(array.view(width), 0), dtype=np.int64)
    seconds = ticks * _DAY if unit == "D" else ticks // divisor
    least, most = (0, _DAY - 1) if types.is_time(kind) else (FIRST_SECOND, LAST_SECOND)
    if seconds.size and not (least <= seconds.min() and seconds.max() <= most):
        raise UnfitError("a time beyond 24 hours" if types.is_time(kind) else "a time beyond the years 1 to 9999")
    texts = np.datetime_as_string(ticks.astype(f"datetime64[{unit}]")).tolist()
    if types.is_date(kind):
        texts = [text[:10] for text in texts]
    elif types.is_time(kind):
        texts = [text[11:] for text in texts]
    elif kind.tz is not None:
        texts = [f"{text}Z" for text in texts]
    if not array.null_count:
        return list(texts)
    return [text if valid else None for text, valid in zip(texts, array.is_valid().to_pylist(), strict=True)]


def _dictionaries(values: Convert, array: Any) -> list[JSON]:
    """Return the values of a dictionary array; each dictionary item is converted once."""
    indices = array.indices
    used = pc.drop_null(pc.unique(indices))
    converted = dict(zip(used.to_pylist(), values(array.dictionary.take(used)), strict=True))
    return [converted.get(index) for index in indices.to_pylist()]


def _lists(items: Convert, array: Any) -> list[JSON]:
    values = iter(items(array.flatten()))
    lengths = pc.list_value_length(array).to_pylist()
    return [None if length is None else list(islice(values, length)) for length in lengths]


def _maps(keys: Convert, items: Convert, array: Any) -> list[JSON]:
    """Return objects without null values; a key that is not a string becomes its JSON text."""
    offsets = array.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    names = [key if isinstance(key, str) else dump_exact(key).decode() for key in keys(array.keys.slice(first, count))]
    values = items(array.items.slice(first, count))
    objects: list[JSON] = []
    for index, valid in enumerate(array.is_valid().to_pylist()):
        begin, end = offsets[index] - first, offsets[index + 1] - first
        if valid and len(set(names[begin:end])) < end - begin:
            raise UnfitError("a map with a key twice")
        members = zip(names[begin:end], values[begin:end], strict=True)
        objects.append({name: value for name, value in members if value is not None} if valid else None)
    return objects


def _structs(names: list[str], fields: list[Convert], array: Any) -> list[JSON]:
    """Return objects without null fields."""
    columns = [convert(column) for convert, column in zip(fields, array.flatten(), strict=True)]
    rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
    return [
        {name: value for name, value in zip(names, row, strict=True) if value is not None} if valid else None
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: Any) -> bool:
    is_plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_plain or types.is_fixed_size_binary(kind))


_PLAIN: tuple[tuple[Callable[[Any], bool], Convert], ...] = (
    (types.is_null, _as_they_are),
    (types.is_boolean, _as_they_are),
    (types.is_integer, _as_they_are),
    (_is_text, _texts),
    (_is_binary, _binaries),
    (types.is_float16, lambda array: _floats(array.cast(pa.float32()))),
    (types.is_floating, _floats),
)


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
        pa.ArrowException: the file is not a Parquet file.
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


def parquet_rows(path: str, spec: CollectionSpec | None, most_bytes: int = MOST_DOCUMENT_BYTES) -> Iterator[Line]:
    """Yield the documents of a Parquet file: a column is a property, and a null is omitted.

    Without a collection, values may have any type, so a decimal that no JSON number holds becomes a string.

    For a value without an exact JSON form, the row is a `DocumentError` that names the column. A row of more than
    `most_bytes`, or of too many values, is a `DocumentError`, too.

    Raises:
        DocumentError: the file is damaged or not a Parquet file, or the type of a column has no JSON form.
    """
    read = 0
    try:
        with ParquetBatches(path) as batches:
            rows = _Rows(batches, spec, path, most_bytes)
            for batch in batches:
                yield from enumerate(rows.of(batch), start=read + 1)
                read += batch.num_rows
    except (OSError, pa.ArrowException) as exc:
        what = "is not a readable Parquet file" if not read else f"is damaged after its row {read:,}"
        raise DocumentError(f"{path} {what}: {' '.join(str(exc).split())}", hint=NOTHING_INGESTED) from exc


class _Rows:
    """Converts batches to documents."""

    def __init__(self, batches: ParquetBatches, spec: CollectionSpec | None, path: str, most_bytes: int) -> None:
        self._names: list[str] = batches.schema.names
        self._most_bytes = most_bytes
        redactor = Redactor(spec.redaction, b"") if spec is not None and spec.redaction else None
        self._hidden = frozenset(name for name in self._names if redactor is not None and redactor.hides(name))
        shape = ANYTHING if spec is None else infer(spec.input_schema)
        self._converters = []
        for index, name in enumerate(self._names):
            try:
                self._converters.append(batches.converter(index, shape.member(name)))
            except UnfitError as exc:
                raise DocumentError(
                    f"{path}: column '{name}' has {exc}", hint="convert the column, or leave the column out"
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
