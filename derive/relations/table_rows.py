"""Conversion of table rows to documents and back: equal rows have equal texts.

A document lacks NULL columns. Numbers of `numeric`, times and bytes are texts in SQL syntax; arrays are arrays of their
elements' forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, Any

import orjson

from derive.algebra.types import Datum, Row, Type
from derive.document.exact import parse_exact
from derive.document.key import pack_column
from derive.document.pointer import JSON, MISSING
from derive.functions.types.array import array_of, array_of_nested, nested_values, sizes_of
from derive.functions.types.jsonb import jsonb_datum, parsed_json
from derive.functions.types.single import single_datum
from derive.functions.types.type_info import datum_of_text, text_of
from derive.relations.columns import columns_of
from derive.storage.table_types import BulkChanges, RowBatch, Table
from derive.storage.tables import Change

if TYPE_CHECKING:
    from derive.document.columns import Columns, Kinds

_BATCH = 16_384
"""Number of rows that are converted at once."""

_SINGLE = frozenset({-1, 1})

_INTEGERS = (Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.MZ_TIMESTAMP)

_TEXTS = frozenset({str, type(None)})

_UNCHANGED: dict[Type, frozenset[type]] = {
    **dict.fromkeys(_INTEGERS, frozenset({int, type(None)})),
    Type.TEXT: frozenset({str, type(None)}),
    Type.DOUBLE: frozenset({float, type(None)}),
}
"""Python types of document values that need no conversion, by type of the column."""


class StoredRow(tuple[str, bytes]):
    """A stored row: its text, which may have other columns than its table has now, and its packed key."""

    __slots__ = ()


def rows_of(table: Table) -> TableRows:
    """Return the cached converter of one table's rows."""
    return _rows_of(replace(table, name="", since=0, upper=0))


@lru_cache(maxsize=100)
def _rows_of(table: Table) -> TableRows:
    return TableRows(table)


class TableRows:
    """A converter of one table's rows to documents and back.

    Args:
        table: the table.
    """

    def __init__(self, table: Table) -> None:
        columns = columns_of(table)
        self._table = table
        self._names = [column.name for column in columns]
        self._to_json = [_to_json(column.type) for column in columns]
        self._of_json = [_of_json(column.type) for column in columns]
        self._unchanged = [_UNCHANGED.get(column.type, frozenset()) for column in columns]
        self._absent: list[JSON] = [MISSING if column.type is Type.JSONB else None for column in columns]
        self._keys: list[tuple[int, Callable[[JSON], JSON] | None]] = [
            (index, _key_part(column.type)) for index, column in enumerate(columns) if column.pointer in table.key
        ]
        self._has_json = any(column.type in {Type.JSONB, Type.JSONB_ARRAY} for column in columns)

    def changes(self, rows: Iterable[tuple[Row, int]]) -> list[Change]:
        """Return rows, with the changes of their counts, as `Tables.append` takes them.

        Computed rows of a table without columns have a placeholder, which is not stored.
        """
        given = list(rows)
        listed = [change for change in given if type(change[0]) is not StoredRow]
        if len(listed) < len(given):
            stored = [(*row, diff) for row, diff in given if type(row) is StoredRow]
            return [*stored, *self.changes(listed)]
        diffs = [diff for _, diff in listed]
        keys, texts = [b""] * len(listed), ["{}"] * len(listed)
        if self._names and listed:
            values = [self._values(index, [row[index] for row, _ in listed]) for index in range(len(self._names))]
            texts = self._texts(values)
            for index, convert in self._keys:
                parts = values[index]
                if convert is not None:
                    parts = [None if value is None else convert(value) for value in parts]
                keys = list(map(add, keys, pack_column(parts)))
        return list(zip(texts, keys, diffs, strict=True))

    def bulk(self, rows: Sequence[Row], diffs: Sequence[int] = ()) -> BulkChanges | None:
        """Return changed rows as `Tables.append` takes them; None if `changes` must convert them.

        Args:
            rows: the rows.
            diffs: the changes of their counts; empty if each is 1.
        """
        if not self._names or set(map(type, rows)) != {tuple}:
            return None
        if not diffs:
            return BulkChanges(len(rows), partial(self._batches, rows, 1))
        if not _SINGLE.issuperset(diffs):
            return None
        deleted, inserted = ([row for row, one in zip(rows, diffs, strict=True) if one == diff] for diff in (-1, 1))
        if not inserted:
            return BulkChanges(len(rows), partial(self._batches, rows, -1))
        retractions, insertions = list(self._batches(deleted, -1)), list(self._batches(inserted, 1))
        if _have_common_texts(retractions, insertions):  # their changes must be added
            return None
        return BulkChanges(len(rows), lambda: [*retractions, *insertions])

    def _batches(self, rows: Sequence[Row], diff: int) -> Iterator[RowBatch]:
        from derive.document.key_columns import pack_columns
        from derive.storage.segments.columns import compile_column_fields
        from derive.storage.segments.texts import write_properties

        fields_of = compile_column_fields(self._table.spec)
        for begin in range(0, len(rows), _BATCH):
            part = rows[begin : begin + _BATCH]
            columns = self._columns(part)
            keys = pack_columns([_component(columns, index, convert) for index, convert in self._keys], len(part))
            yield RowBatch(diff, write_properties(columns), keys, fields_of(_without_nones(columns)))

    def _columns(self, rows: Sequence[Row]) -> Columns:
        """Return the documents of rows; texts without NULL are converted once for their texts, keys and columns."""
        from derive.document.columns import Columns
        from derive.storage.segments.texts import written_texts

        values: list[Sequence[JSON]] = []
        kinds: list[Kinds] = []
        for index, data in enumerate(zip(*rows, strict=True)):
            column, types = self._column(index, data)
            values.append(column)
            kinds.append(types)
        if all(type(None) not in types for types in kinds):
            for index, types in enumerate(kinds):
                written = written_texts(values[index]) if types == {str} else None
                values[index] = values[index] if written is None else written
        return Columns(tuple(self._names), tuple(values), tuple(kinds))

    def _values(self, index: int, data: Sequence[Datum]) -> Sequence[JSON]:
        """Return the documents' values of a column; None for NULL."""
        return self._column(index, data)[0]

    def _column(self, index: int, data: Sequence[Datum]) -> tuple[Sequence[JSON], Kinds]:
        """Return the documents' values of a column, with None for NULL, and their types."""
        types: Kinds = frozenset(map(type, data))
        if types <= self._unchanged[index] and self._is_json(index, data):
            return data, types
        convert = self._to_json[index]
        values = [None if datum is None else convert(datum) for datum in data]
        return values, frozenset(map(type, values))

    def _is_json(self, index: int, data: Sequence[Any]) -> bool:
        """Return whether numbers are valid in JSON; False also for very large numbers, whose sum is infinite."""
        return self._to_json[index] is not _double_to_json or math.isfinite(sum(filter(None, data)))

    def _texts(self, columns: Sequence[Sequence[JSON]]) -> list[str]:
        """Return the documents with values as texts, without missing values."""
        rows = zip(*columns, strict=True)
        documents: Iterable[dict[str, JSON]] = map(dict, map(zip, repeat(self._names), rows))
        if any(None in column for column in columns):
            documents = ({name: value for name, value in one.items() if value is not None} for one in documents)
        return [text.decode() for text in map(orjson.dumps, documents)]

    def as_stored(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows as they are read from Storage, where equal rows have equal texts."""
        columns = list(zip(*rows, strict=True))
        is_unchanged = all(
            set(map(type, data)) <= self._unchanged[index] and self._is_json(index, data)
            for index, data in enumerate(columns)
        )
        if columns and is_unchanged:
            return rows
        return self.rows([text for text, _, _ in self.changes((row, 1) for row in rows)])

    def value(self, index: int, datum: Datum) -> JSON:
        """Return the document value of a datum that is not NULL."""
        return self._to_json[index](datum)

    def part(self, index: int, datum: Datum) -> str:
        """Return a text that occurs in the stored text of every row with this datum in the column."""
        return orjson.dumps({self._names[index]: self.value(index, datum)})[1:-1].decode()

    def rows(self, texts: Sequence[str]) -> list[Row]:
        """Return the rows of documents that `changes` made."""
        documents = list(map(parsed_json, texts)) if self._has_json else orjson.loads(f"[{','.join(texts)}]")
        columns = [
            self.data(index, [document.get(name, absent) for document in documents])
            for index, (name, absent) in enumerate(zip(self._names, self._absent, strict=True))
        ]
        return list(zip(*columns, strict=True)) if columns else [()] * len(texts)

    def data(self, index: int, values: Sequence[JSON]) -> Sequence[Datum]:
        """Return the data of a column, given the documents' values.

        Args:
            index: index of the column.
            values: values, with None for a missing one; with `MISSING` for a missing one of a `jsonb` column, where
                None is a value.
        """
        kinds = set(map(type, values))
        if kinds <= self._unchanged[index]:
            return values
        convert, absent = self._of_json[index], self._absent[index]
        if kinds <= _TEXTS:  # columns repeat their texts
            known = {value: None if value is absent else convert(value) for value in set(values)}
            return list(map(known.__getitem__, values))
        return [None if value is absent else convert(value) for value in values]


def _have_common_texts(some: Sequence[RowBatch], others: Sequence[RowBatch]) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.chunked_array([batch.texts for batch in some], pa.string())
    return any(pc.any(pc.is_in(batch.texts, texts)).as_py() for batch in others)


def _component(columns: Columns, index: int, convert: Callable[[JSON], JSON] | None) -> tuple[Sequence[JSON], Kinds]:
    """Return the values by which rows are ordered in a column, and their types."""
    if convert is None:
        return columns.values[index], columns.kinds[index]
    values = [None if value is None else convert(value) for value in columns.values[index]]
    return values, frozenset(map(type, values))


def _without_nones(columns: Columns) -> Columns:
    """Return columns with `MISSING` in place of None."""
    for index, kinds in enumerate(columns.kinds):
        if type(None) in kinds:
            present = [MISSING if value is None else value for value in columns.values[index]]
            columns = columns.replace(index, present)
    return columns


def _key_part(kind: Type) -> Callable[[JSON], JSON] | None:
    """Return the function from a document's value to the value by which rows are ordered; None for equal values."""
    if kind not in {Type.JSONB, Type.JSONB_ARRAY}:
        return None
    return lambda value: parse_exact(orjson.dumps(value))


def _to_json(kind: Type) -> Callable[[Any], JSON]:
    if kind is Type.BOOLEAN:
        return bool
    if kind in _INTEGERS or kind is Type.TEXT:
        return lambda datum: datum
    if kind in {Type.REAL, Type.DOUBLE}:
        return _real_to_json if kind is Type.REAL else _double_to_json
    if kind is Type.JSONB:
        return orjson.Fragment
    if kind.element:
        return _array_to_json(kind.element)
    return lambda datum: text_of(kind, datum)


def _array_to_json(kind: Type) -> Callable[[Any], Any]:
    convert = _to_json(kind)
    if kind is Type.JSONB:
        return lambda datum: (
            text_of(Type.JSONB_ARRAY, datum) if sizes_of(kind, datum) else nested_values(kind, datum, convert)
        )
    return lambda datum: nested_values(kind, datum, convert)


def _array_of_json(kind: Type) -> Callable[[Any], Datum]:
    convert = _of_json(kind)
    if kind is Type.JSONB:
        return lambda value: (
            datum_of_text(Type.JSONB_ARRAY, value)
            if isinstance(value, str)
            else array_of(kind, [None if item is None else convert(item) for item in value])
        )
    return lambda value: array_of_nested(kind, value, convert)


def _of_json(kind: Type) -> Callable[[Any], Datum]:
    if kind is Type.BOOLEAN:
        return int
    if kind in _INTEGERS or kind is Type.TEXT:
        return lambda value: value
    if kind in {Type.REAL, Type.DOUBLE}:
        return _real_of_json if kind is Type.REAL else _double_of_json
    if kind is Type.JSONB:
        return jsonb_datum
    if kind.element:
        return _array_of_json(kind.element)
    return _of_text(kind)


_MOST_CACHED, _MOST_CHARACTERS = 50_000, 40
_FAST = frozenset({Type.NUMERIC, Type.DATE, Type.TIMESTAMP, Type.TIMESTAMPTZ})
"""Types whose texts are converted faster than many texts are found in a cache."""


@cache
def _of_text(kind: Type) -> Callable[[str], Datum]:
    """Return the function from a text to its datum; it may cache short texts, because columns repeat them."""
    if kind in _FAST:
        return partial(datum_of_text, kind)
    cached = lru_cache(_MOST_CACHED)(lambda text: datum_of_text(kind, text))
    return lambda text: cached(text) if len(text) <= _MOST_CHARACTERS else datum_of_text(kind, text)


def _double_to_json(datum: float | str) -> JSON:
    if isinstance(datum, str):
        return datum
    return datum if math.isfinite(datum) else "Infinity" if datum > 0 else "-Infinity"


def _real_to_json(datum: float | str) -> JSON:
    """Return the number with the fewest digits that identify a datum."""
    text = text_of(Type.REAL, datum)
    return float(text) if isinstance(datum, float) and math.isfinite(datum) else text


def _real_of_json(value: Any) -> Datum:
    return single_datum(float(value))


def _double_of_json(value: Any) -> Datum:
    if isinstance(value, str):
        return value if value == "NaN" else float(value)
    return float(value)
