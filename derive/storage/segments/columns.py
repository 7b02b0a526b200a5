"""Typed columns: scalar fields of documents beside their JSON text.

Typed columns have three uses. A reader of few fields need not parse documents, tools such as DuckDB and pandas find
typed columns, and Parquet's statistics describe a file.

A column has one type, but JSON values are more varied: a column of numbers holds both 1 and 1.0, null differs from
absent, and integers have any size. So the column `flow_exact` has one byte per typed column: a code for the difference
between the column and the document. If all typed columns of a row are exact, `flow_exact` is null, and a null column
means an absent field. With these codes, reads of columns equal reads of documents.

A field has no column, and is read from the document, in four cases:

- The field may be an array, an object or of several types.
- The field has the name of a column that every segment has, such as `flow_exact`. Case is ignored, as in Spark and
  DuckDB.
- The field is a logical partition, which the name of the file's folder contains.
- The limit of columns is reached.

Readers of few fields take values from typed columns, so a column that differs from its documents gives wrong results
though every document is right. `wrong_values` finds such columns. A file describes its own columns, so the schema by
which it was written is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import repeat
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from derive.document.columns import Columns, Kinds, WrittenColumn
from derive.document.pointer import JSON, MISSING, compile_pointer, parse_pointer
from derive.protocol.specs import CollectionSpec, Document, ProjectionSpec
from derive.schema.projection import UUID_POINTER
from derive.storage.location import Location
from derive.storage.segments.rows import CLOCK, DOC, KEY
from derive.storage.segments.segment_file import open_segment, readable
from derive.storage.segments.texts import parse_texts
from derive.time.positions import Segment

Kind: TypeAlias = Literal["string", "integer", "number", "boolean"]
"""Type of a typed column."""

MakeFields: TypeAlias = "Callable[[Sequence[Document]], pa.StructArray | None]"
"""Function from documents to their typed columns, as one array; None if the collection has no typed columns."""

MakeColumnFields: TypeAlias = "Callable[[Columns], pa.StructArray | None]"
"""Function from documents as columns to their typed columns, as one array; None without typed columns."""

Codes: TypeAlias = np.ndarray
"""Codes of `flow_exact`, as uint8."""

POINTERS = b"flow.pointers"
"""Key of a file's metadata: JSON object from the names of typed columns, in order, to their JSON pointers."""

EXACT = "flow_exact"
"""Name of the column with the codes of inexact values."""

NULL, OTHER_NUMBER, LOOK = 1, 2, 3
"""Codes of `flow_exact` other than 0 (exact).

NULL: the document has null. OTHER_NUMBER: an integer in a column of numbers, or a number with a fraction or an exponent
in a column of integers. LOOK: only the document has the value.
"""

MOST_COLUMNS = 100
"""Largest number of typed columns in a segment, because each column has a fixed cost."""

_TAKEN = frozenset({"clock", "seq", "diff", "key", "doc", EXACT})
_KINDS: dict[frozenset[str], Kind] = {
    frozenset({"string"}): "string",
    frozenset({"integer"}): "integer",
    frozenset({"integer", "fractional"}): "number",
    frozenset({"fractional"}): "number",
    frozenset({"boolean"}): "boolean",
}
_PLAIN: dict[Kind, type] = {"string": str, "integer": int, "number": float, "boolean": bool}
ARROW: dict[Kind, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
"""Arrow type of each kind of column."""

_KIND_OF_ARROW: dict[pa.DataType, Kind] = {arrow: kind for kind, arrow in ARROW.items()}

_MISSING = type(MISSING)
_NONE = type(None)
_I64 = 1 << 63
_MOST_EXACT = 1 << 53
"""Bound up to which a double can hold every integer."""


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of one scalar field.

    Attributes:
        name: name of the field and of the column.
        pointer: JSON pointer of the field.
        kind: type of the values.
    """

    name: str
    pointer: str
    kind: Kind

    @property
    def type(self) -> pa.DataType:
        """Return the Arrow type."""
        return ARROW[self.kind]


def column_of(projection: ProjectionSpec) -> TypedColumn | None:
    """Return the column of a projection considered alone; None if the field must be read from the document."""
    kind = _KINDS.get(projection.types - {"null"})
    is_apart = projection.is_partition or projection.pointer in ("", UUID_POINTER)
    if kind is None or is_apart or projection.field.lower() in _TAKEN or not projection.field:
        return None
    return TypedColumn(projection.field, projection.pointer, kind)


def typed_columns(collection: CollectionSpec) -> tuple[TypedColumn, ...]:
    """Return the typed columns of a collection's segments."""
    columns: dict[str, TypedColumn] = {}
    for projection in collection.projections:
        column = column_of(projection)
        if column is not None and len(columns) < MOST_COLUMNS:
            columns.setdefault(column.name.lower(), column)
    return tuple(columns.values())


def stored_columns(collection: CollectionSpec, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a collection's segments: the fixed columns, the typed columns, and `flow_exact` last."""
    columns = typed_columns(collection)
    if not columns:
        return schema
    typed = [pa.field(column.name, column.type) for column in columns]
    pointers = {column.name: column.pointer for column in columns}
    return pa.schema([*schema, *typed, pa.field(EXACT, pa.binary())], {POINTERS: orjson.dumps(pointers)})


def fields_type(kinds: Sequence[Kind]) -> pa.StructType:
    """Return the type of several typed columns as one array: fields named by number, and their codes."""
    numbered = [pa.field(str(number), ARROW[kind]) for number, kind in enumerate(kinds)]
    return pa.struct([*numbered, pa.field(EXACT, pa.binary())])


def fields_of(arrays: Sequence[pa.Array], codes: Sequence[Codes | None], count: int) -> pa.StructArray:
    """Combine typed columns into one array.

    Args:
        arrays: values of each column.
        codes: codes of each column; None if all are exact.
        count: number of rows.
    """
    numbered = [pa.field(str(number), array.type) for number, array in enumerate(arrays)]
    children = [*arrays, pack_codes(codes, count)]
    return pa.StructArray.from_arrays(children, fields=[*numbered, pa.field(EXACT, pa.binary())])


def pack_codes(columns: Sequence[Codes | None], count: int) -> pa.BinaryArray:
    """Pack the codes of several columns in the format of `flow_exact`.

    Args:
        columns: codes of each column; None if all are exact.
        count: number of rows.
    """
    coded = [(number, column) for number, column in enumerate(columns) if column is not None and column.any()]
    if not coded:
        return pa.nulls(count, pa.binary())
    is_coded = np.logical_or.reduce([column for _, column in coded])
    codes = np.zeros((np.count_nonzero(is_coded), len(columns)), dtype=np.uint8)
    for number, column in coded:
        codes[:, number] = column[is_coded]
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(is_coded, dtype=np.int32, out=offsets[1:])
    buffers = [np.packbits(is_coded, bitorder="little"), offsets * np.int32(len(columns)), codes]
    return pa.Array.from_buffers(pa.binary(), count, list(map(pa.py_buffer, buffers)))


def unpack_codes(exact: pa.BinaryArray) -> Codes | None:
    """Return the codes that `pack_codes` packed, as an array of shape (rows, columns); None if all are exact."""
    coded = exact.drop_null()
    if not len(coded):
        return None
    codes = np.frombuffer(b"".join(coded.to_pylist()), np.uint8).reshape(len(coded), -1)
    if len(coded) == len(exact):
        return codes
    spread = np.zeros((len(exact), codes.shape[1]), dtype=np.uint8)
    spread[exact.is_valid().to_numpy(zero_copy_only=False)] = codes
    return spread


def compile_fields(collection: CollectionSpec) -> MakeFields:
    """Return a function from documents to their typed columns as one array; the function returns None without columns.

    The function works column by column, so that a check is done once per column, and not once per value.
    """
    compiled = [(column.kind, compile_values(column.pointer)) for column in typed_columns(collection)]
    if not compiled:
        return lambda _: None

    def fields(documents: Sequence[Document]) -> pa.StructArray:
        encoded = [encode(kind, values(documents)) for kind, values in compiled]
        return fields_of([array for array, _ in encoded], [codes for _, codes in encoded], len(documents))

    return fields


def compile_column_fields(collection: CollectionSpec) -> MakeColumnFields:
    """Return a function like the result of `compile_fields`, for documents as columns."""
    typed = [(column.kind, parse_pointer(column.pointer)) for column in typed_columns(collection)]
    if not typed:
        return lambda _: None

    def fields(columns: Columns) -> pa.StructArray:
        encoded = [_encode_column(kind, *columns.at(tokens)) for kind, tokens in typed]
        return fields_of([array for array, _ in encoded], [codes for _, codes in encoded], len(columns))

    return fields


def _encode_column(kind: Kind, values: Sequence[JSON], kinds: Kinds) -> tuple[pa.Array, Codes | None]:
    """Encode values whose Python types are known, like `encode`."""
    if type(values) is WrittenColumn and kind == ("string" if values.numbers is None else "number"):
        is_integer = values.is_integer
        return values.array, None if is_integer is None else is_integer.astype(np.uint8) * np.uint8(OTHER_NUMBER)
    if type(values) is WrittenColumn and kind == "integer" and kinds == {int}:
        return values.array.cast(ARROW[kind]), None
    if kinds == {_MISSING}:
        return pa.nulls(len(values), ARROW[kind]), None
    if kinds == {_PLAIN[kind]} and kind != "integer":  # an integer may exceed 64 bits
        return pa.array(values, ARROW[kind]), None
    return encode(kind, values)


def compile_values(pointer: str) -> Callable[[Sequence[Document]], list[JSON]]:
    """Return a function from documents to their values at a location, `MISSING` where absent."""
    tokens = parse_pointer(pointer)
    if len(tokens) == 1:
        return partial(_properties, tokens[0], itemgetter(tokens[0]))
    get = compile_pointer(pointer)
    return lambda documents: list(map(get, documents))


def _properties(name: str, get: Callable[[Document], JSON], documents: Sequence[Document]) -> list[JSON]:
    try:
        return list(map(get, documents))  # the fastest way, if all documents have the property
    except KeyError:
        return [document.get(name, MISSING) for document in documents]


def encode(kind: Kind, values: Sequence[JSON]) -> tuple[pa.Array, Codes | None]:
    """Return a typed column of values, and a code for each row; None if no value differs from its column.

    Args:
        kind: type of the column.
        values: JSON values, and `MISSING` where absent.
    """
    plain, arrow = _PLAIN[kind], ARROW[kind]
    kinds = set(map(type, values))
    present = [None if value is MISSING else value for value in values] if _MISSING in kinds else values
    try:
        if kinds <= {plain, _MISSING}:
            return pa.array(present, arrow), None
        if kinds <= {plain, _MISSING, _NONE}:
            return pa.array(present, arrow), _codes([NULL if value is None else 0 for value in values])
        if kind == "number" and kinds <= {int, float} and _are_doubles(values):
            codes = _codes([OTHER_NUMBER if type(value) is int else 0 for value in values])
            return pa.array(list(map(float, values)), arrow), codes
    except (OverflowError, pa.ArrowInvalid):
        pass  # an integer exceeds 64 bits
    encoded = list(map(_encode_one, repeat(kind), values))
    return pa.array([value for value, _ in encoded], arrow), _codes([code for _, code in encoded])


def _codes(codes: list[int]) -> Codes:
    return np.frombuffer(bytes(codes), np.uint8)


def _are_doubles(values: Sequence[Any]) -> bool:
    integers: list[int] = [value for value in values if type(value) is int]
    return min(integers) >= -_MOST_EXACT and max(integers) <= _MOST_EXACT


def _encode_one(kind: Kind, value: Any) -> tuple[Any, int]:
    """Return a value's content in a column of a kind, and its code."""
    if value is MISSING or value is None:
        return None, NULL if value is None else 0
    if type(value) is float and kind == "integer":
        is_held = value.is_integer() and -_I64 <= value < _I64
        is_coded = is_held and str(value) != "-0.0"
        return int(value) if is_held else None, OTHER_NUMBER if is_coded else LOOK
    if type(value) is int and kind == "number":
        is_coded = -_MOST_EXACT <= value <= _MOST_EXACT
        return float(value) if -_I64 <= value < _I64 else None, OTHER_NUMBER if is_coded else LOOK
    if type(value) is not _PLAIN[kind] or (type(value) is int and not -_I64 <= value < _I64):
        return None, LOOK
    return value, 0


def decode(
    array: pa.Array, codes: Codes | None, default: JSON, documents: Callable[[list[int]], list[JSON]]
) -> list[JSON]:
    """Return the JSON values of a typed column.

    Args:
        array: the column.
        codes: codes of its values; None if all are exact.
        default: value of an absent field.
        documents: returns the field's values in the documents of given rows, `MISSING` where absent.
    """
    values: list[JSON] = array.to_pylist()
    if default is not None and array.null_count:
        is_absent = array.is_null().to_numpy(zero_copy_only=False)
        if codes is not None:
            is_absent = is_absent & (codes == 0)
        for row in np.flatnonzero(is_absent).tolist():
            values[row] = default
    if codes is not None:
        convert = float if pa.types.is_int64(array.type) else int
        for row in np.flatnonzero(codes == OTHER_NUMBER).tolist():
            values[row] = convert(values[row])
        rows = np.flatnonzero(codes == LOOK).tolist()
        for row, value in zip(rows, documents(rows) if rows else [], strict=True):
            values[row] = default if value is MISSING else value
    return values


@lru_cache(maxsize=1_000)
def columns_in(location: Location, segment: Segment) -> frozenset[TypedColumn]:
    """Return the typed columns that the file of a segment has.

    Raises:
        SegmentError: the file cannot be read.
    """
    with open_segment(location, segment) as file:
        schema = file.schema_arrow
        pointers: dict[str, str] = orjson.loads((file.metadata.metadata or {}).get(POINTERS, b"{}"))
    return frozenset(
        TypedColumn(name, pointer, _KIND_OF_ARROW[schema.field(name).type]) for name, pointer in pointers.items()
    )


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


def wrong_values(location: Location, segment: Segment) -> Iterator[WrongValue]:
    """Yield the values in typed columns of a segment that differ from its documents.

    Raises:
        SegmentError: the file is missing, damaged, unreadable, or not the committed file.
    """
    with open_segment(location, segment) as file, readable(segment):
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
    coded = [0] * count if codes is None else codes.tolist()
    should = [0] * count if expected_codes is None else expected_codes.tolist()
    if coded == should and array.equals(expected):
        return
    for row, pairs in enumerate(zip(array.to_pylist(), expected.to_pylist(), coded, should, strict=True)):
        value, right, code, right_code = pairs
        if value != right or code != right_code:
            yield row, value, right
