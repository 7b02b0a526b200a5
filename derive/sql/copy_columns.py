"""Conversion of many lines of COPY at once, column by column.

Most lines have no escapes and no quotes, so line feeds and delimiters alone divide a text into its values. A column of
numbers is then parsed as one JSON array: a text that is a number in JSON is the same number in PostgreSQL. All other
lines are left to the exact reader, which also reports all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

import orjson

from derive.algebra.types import Datum, Type
from derive.functions.types.numbers import double_datum
from derive.sql.parser.statement import CopyFormat

Texts: TypeAlias = Sequence[str | None]
"""The values of a column as texts; None for NULL."""

Unescape: TypeAlias = Callable[[str], str]
"""A function that replaces the escapes of a value."""

_NONE = type(None)
_RANGES = {Type.SMALLINT: 1 << 15, Type.INTEGER: 1 << 31, Type.BIGINT: 1 << 63}
_MOST_DISTINCT = 4
"""Values are converted once each, if there are this many times fewer distinct values than rows."""


def columns_of_lines(data: bytes, form: CopyFormat, width: int, unescape: Unescape) -> list[Texts] | None:
    """Return the values of complete lines by column; None if the exact reader must divide the lines.

    Args:
        data: lines, each with its line feed.
        form: format of the lines.
        width: number of values of a line.
        unescape: a function that replaces the escapes of a value in the format `text`.
    """
    delimiter, is_csv = form.delimiter, form.name == "csv"
    if not width or b"\r" in data or b"\0" in data:
        return None
    dividing = (form.quote,) if is_csv else ("\\.", "\\\n", f"\\{delimiter}")
    if any(text.encode() in data for text in dividing):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    lines = text.split("\n")[:-1]
    if set(map(str.count, lines, repeat(delimiter))) != {width - 1}:
        return None
    values = text[:-1].replace("\n", delimiter).split(delimiter) if width > 1 else lines
    columns = [values[index::width] for index in range(width)]
    escapes = 0 if is_csv else text.count("\\") - form.null.count("\\") * values.count(form.null)
    return [_values(column, form.null, unescape if escapes else None) for column in columns]


def _values(column: Sequence[str], null: str, unescape: Unescape | None) -> Texts:
    """Return the values of a column without escapes, with None for NULL."""
    if unescape is not None and any("\\" in value for value in column):
        return [None if value == null else unescape(value) if "\\" in value else value for value in column]
    return [None if value == null else value for value in column] if null in column else column


def data_of(kind: Type, texts: Texts, datum_of: Callable[[str], Datum], *, is_plain: bool) -> Sequence[Datum]:
    """Return the data of a column.

    Args:
        kind: type of the column.
        texts: values as texts.
        datum_of: a function that converts one text.
        is_plain: whether the column has no type modifier.

    Raises:
        SqlError: a text is invalid, as `datum_of` raises it.
    """
    if is_plain:
        if kind is Type.TEXT:
            return texts
        convert = _CONVERSIONS.get(kind)
        data = convert(texts, datum_of) if convert is not None else None
        if data is not None:
            return data
    distinct = set(texts) - {None}
    if len(distinct) * _MOST_DISTINCT < len(texts):
        known: dict[str | None, Datum] = {text: datum_of(text) for text in distinct if text is not None}
        known[None] = None
        return [known[text] for text in texts]
    return [None if text is None else datum_of(text) for text in texts]


def _integers(limit: int, texts: Texts, _: Callable[[str], Datum]) -> Sequence[Datum] | None:
    """Return integers between limits; None if a text is no integer of JSON, or is out of range."""
    numbers = _numbers(texts)
    if numbers is None or not set(map(type, numbers)) <= {int, _NONE}:
        return None
    present = [number for number in numbers if number is not None] if None in texts else numbers
    if present and not (-limit <= min(present) and max(present) < limit):
        return None
    return numbers


def _doubles(texts: Texts, datum_of: Callable[[str], Datum]) -> Sequence[Datum] | None:
    """Return double precision numbers; None if a text is no number of JSON."""
    numbers = _numbers(texts)
    if numbers is None or not set(map(type, numbers)) <= {int, float, _NONE}:
        return None
    data: list[Datum] = [None if number is None else double_datum(float(number)) for number in numbers]
    if 0.0 in data:  # a number that is too small is an error, and an integer has lost the sign of zero
        pairs = zip(texts, data, strict=True)
        data = [datum_of(text) if datum == 0.0 and text is not None else datum for text, datum in pairs]
    return data


def _numbers(texts: Texts) -> list[Any] | None:
    """Return the values of texts as JSON, with None for NULL; None if they are not as many values of JSON."""
    nulls = texts.count(None)
    listed: Sequence[Any] = ["null" if text is None else text for text in texts] if nulls else texts
    try:
        numbers: list[Any] = orjson.loads(f"[{','.join(listed)}]")
    except ValueError:
        return None
    return numbers if len(numbers) == len(texts) and numbers.count(None) == nulls else None


_CONVERSIONS: Mapping[Type, Callable[[Texts, Callable[[str], Datum]], Sequence[Datum] | None]] = {
    **{kind: partial(_integers, limit) for kind, limit in _RANGES.items()},
    Type.DOUBLE: _doubles,
}
