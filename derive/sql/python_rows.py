"""Values of SQL in Python: parameters of statements, and the rows of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from typing_extensions import override

from derive.algebra.types import Datum, Row, Type
from derive.document.exact import dump_exact, parse_exact
from derive.errors import UsageError
from derive.functions.types.array import Nested, nested_values
from derive.functions.types.array_literal import literal_of_nested
from derive.functions.types.pg_type import type_of_oid
from derive.functions.types.type_info import text_of
from derive.sql.pgwire.values import argument_of
from derive.sql.results import ResultColumn

if TYPE_CHECKING:
    import pyarrow as pa

_OIDS: Mapping[type, int] = {
    bool: 16,
    bytes: 17,
    date: 1082,
    time: 1083,
    Decimal: 1700,
    UUID: 2950,
    dict: 3802,
}
"""Oids of parameters by Python's type; the statement determines the type of others, as of texts and None."""


def oid_of(value: object) -> int:
    """Return the oid of a parameter; 0 if the statement determines the type."""
    if isinstance(value, bool) or type(value) in _OIDS:
        return _OIDS[type(value)]
    if isinstance(value, Integral):
        number = int(value)
        ranges = ((21, 1 << 15), (23, 1 << 31), (20, 1 << 63))
        return next((oid for oid, limit in ranges if -limit <= number < limit), 1700)
    if isinstance(value, Real):
        return 701
    if isinstance(value, datetime):
        return 1114 if value.tzinfo is None else 1184
    return 0


def datum_of(oid: int, value: object) -> Datum:
    """Return the datum of a parameter.

    Args:
        oid: oid of the type.
        value: Python's value: None, a number, text, bytes, date, time, UUID, or JSON; a list for an array.

    Raises:
        SqlError: the type has no such value.
        UsageError: the value is of an unsupported type.
    """
    kind = type_of_oid(oid) or Type.TEXT
    text = dump_exact(value).decode() if kind is Type.JSONB and isinstance(value, dict | list) else _text_of(value)
    return None if text is None else argument_of(oid, 0, text.encode())


_TEXTS: Sequence[tuple[type | tuple[type, ...], Callable[[Any], str]]] = (
    (bool, lambda value: "true" if value else "false"),
    ((str, Decimal, UUID), str),
    (bytes, lambda value: f"\\x{value.hex()}"),
    ((date, time), lambda value: value.isoformat()),
    ((list, tuple), lambda value: literal_of_nested(_texts_of(value))),
    (dict, lambda value: dump_exact(value).decode()),
    (Integral, lambda value: str(int(value))),
    (Real, lambda value: repr(float(value))),
)
"""Functions from values to texts of SQL, by Python's type; the first type that fits."""


def _texts_of(values: Sequence[object]) -> list[Nested]:
    """Return the texts of the elements of an array, as lists of lists."""
    return [_texts_of(value) if isinstance(value, list | tuple) else _text_of(value) for value in values]


def _text_of(value: object) -> str | None:
    """Return the text of a value in SQL; None for NULL."""
    if value is None:
        return None
    for kind, text in _TEXTS:
        if isinstance(value, kind):
            return text(value)
    raise UsageError(
        f"a parameter of type {type(value).__name__} is not supported",
        hint="pass a number, text, bytes, date, UUID, list or dict; or a text with a cast, such as $1::interval",
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a statement.

    Iteration yields a tuple for each row. NUMERIC is a `Decimal`, JSONB a JSON value, an array a list; dates,
    timestamps and UUIDs have Python's types; types without a counterpart, such as intervals, are texts.

    Attributes:
        tag: the command tag, such as `SELECT 3` or `CREATE TABLE`.
        names: names of the columns; empty for a statement without rows.
    """

    tag: str
    names: tuple[str, ...]
    _columns: tuple[ResultColumn, ...]
    _rows: Sequence[Row]

    @override
    def __repr__(self) -> str:
        return f"Rows({self.tag!r}, {', '.join(self.names)})" if self.names else f"Rows({self.tag!r})"

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows.

        Raises:
            UsageError: Python has no such date or timestamp.
        """
        values = [value_function(column.type) for column in self._columns]
        for row in self._rows:
            yield tuple(None if datum is None else value(datum) for value, datum in zip(values, row, strict=True))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict for each row, by the names of the columns."""
        return [dict(zip(self.names, row, strict=True)) for row in self]

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        import pyarrow as pa

        from derive.relations.arrow import arrow_rows
        from derive.relations.columns import RelationColumn

        columns = [RelationColumn(column.name, column.type, nullable=True, pointer="") for column in self._columns]
        return pa.Table.from_batches([arrow_rows(columns, self._rows)])

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame.

        Raises:
            UsageError: polars is not installed.
        """
        from derive.relations.arrow import polars_frame

        return polars_frame(self.to_arrow())


_VALUES: Mapping[Type, Callable[[Any], Any]] = {
    Type.BOOLEAN: bool,
    Type.SMALLINT: int,
    Type.INTEGER: int,
    Type.BIGINT: int,
    Type.MZ_TIMESTAMP: int,
    Type.DOUBLE: float,
    Type.BYTEA: bytes,
}
_PARSERS: Mapping[Type, Callable[[str], Any]] = {
    Type.NUMERIC: Decimal,
    Type.JSONB: lambda text: parse_exact(text.encode()),
    Type.DATE: date.fromisoformat,
    Type.TIMESTAMP: datetime.fromisoformat,
    Type.TIMESTAMPTZ: datetime.fromisoformat,
    Type.UUID: UUID,
}


def value_function(kind: Type) -> Callable[[Datum], Any]:
    """Return the function that converts a datum, which is not NULL, to Python's value."""
    if kind.element is not None:
        item = value_function(element := kind.element)
        return lambda datum: nested_values(element, cast("bytes", datum), item)
    if kind in _VALUES:
        return _VALUES[kind]
    return partial(_parsed, kind)


def _parsed(kind: Type, datum: Datum) -> Any:
    text = text_of(kind, datum)
    try:
        return _PARSERS.get(kind, str)(text)
    except ValueError as exc:
        raise UsageError(
            f"Python has no {kind.name.lower()} {text}", hint="cast the column to text, or use to_arrow()"
        ) from exc
