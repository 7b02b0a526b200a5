"""Set-returning functions in FROM, implemented by functions that return arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.scalar.casts import json_kind
from derive.functions.scalar.datetime import later, later_in_zone
from derive.functions.scalar.json import text_of_json
from derive.functions.scalar.json_paths import QUERY
from derive.functions.types.datetime import DAY, Interval
from derive.functions.types.jsonb import Json, jsonb_datum
from derive.functions.types.numbers import numeric_of

FUNCTIONS = Functions()

MOST_ROWS = 1_000_000
"""Maximum number of values in a series."""


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function in FROM.

    Attributes:
        symbol: name of the function that returns the array; SQL has no function of that name if it ends with `[]`.
        column: name of the result's column.
        type: type of the column if elements of the array are its texts; None for the elements' own type.
    """

    symbol: str
    column: str
    type: Type | None = None


def _series(begin: int, end: int, step: int = 1) -> tuple[int, ...]:
    if step == 0:
        raise SqlError("22023", "step size cannot equal zero")
    series = range(begin, end + (1 if step > 0 else -1), step)
    if len(series) > MOST_ROWS:
        raise SqlError("54000", f"generate_series has more than {MOST_ROWS} rows")
    return tuple(series)


def _collected(begin: Any, end: Any, after: Callable[[Any], Any], *, is_falling: bool) -> tuple[Any, ...]:
    """Return the values from `begin` to `end`, each computed from the one before."""
    series: list[Any] = []
    while begin >= end if is_falling else begin <= end:
        if len(series) == MOST_ROWS:
            raise SqlError("54000", f"generate_series has more than {MOST_ROWS} rows")
        series.append(begin)
        begin = after(begin)
    return tuple(series)


def _numbers(begin: Decimal, end: Decimal, step: Decimal = Decimal(1)) -> tuple[bytes, ...]:
    for name, value in (("start value", begin), ("stop value", end), ("step size", step)):
        if not value.is_finite():
            raise SqlError("22023", f"{name} cannot be {'NaN' if value.is_nan() else 'infinity'}")
    if not step:
        raise SqlError("22023", "step size cannot equal zero")
    count = max(0, int((end - begin) / step)) + 1
    if count > MOST_ROWS:
        raise SqlError("54000", f"generate_series has more than {MOST_ROWS} rows")
    return tuple(map(numeric_of, _collected(begin, end, lambda value: value + step, is_falling=step < 0)))


def _times(begin: int, end: int, step: Interval) -> tuple[int, ...]:
    return _collected(begin, end, lambda time: later(time, step), is_falling=_is_falling(step))


def _times_in_zone(begin: int, end: int, step: Interval, zone: str) -> tuple[int, ...]:
    return _collected(begin, end, lambda time: later_in_zone(time, step, zone), is_falling=_is_falling(step))


def _is_falling(step: Interval) -> bool:
    length = step.microseconds + DAY * (step.days + 30 * step.months)
    if not length:
        raise SqlError("22023", "step size cannot equal zero")
    return length < 0


def _elements(name: str, convert: Callable[[Json], str | None], value: Json) -> tuple[str | None, ...]:
    if not isinstance(value, list):
        what = "an object" if isinstance(value, dict) else "a scalar"
        raise SqlError("22023", f"cannot extract elements from {what}", hint=f"{name} takes an array.")
    return tuple(map(convert, value))


def _keys(name: str, value: Json) -> tuple[str, ...]:
    if not isinstance(value, dict):
        what = "an array" if isinstance(value, list) else "a scalar"
        raise SqlError("22023", f"cannot call {name} on {what}", hint=f"It takes an object, not {json_kind(value)}.")
    return tuple(sorted(value, key=lambda key: (len(key.encode()), key.encode())))


EXPANDED = "_pg_expandarray"
"""A function of `information_schema`: elements of a vector, each with its number from 1."""
EXPANDED_FIELDS = {"x": 1, "n": 2}
"""Fields of the result of `_pg_expandarray`, which is an array of two integers here, by subscript."""


def _expanded(elements: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{{{element},{number}}}" for number, element in enumerate(elements, start=1))


def _add_series(series: str) -> None:
    for kind, array in ((Type.INTEGER, Type.INTEGER_ARRAY), (Type.BIGINT, Type.BIGINT_ARRAY)):
        FUNCTIONS.define(series, (kind, kind), array, word="series")(_series)
        FUNCTIONS.define(series, (kind, kind, kind), array, word="series")(_series)
    for count in (2, 3):
        FUNCTIONS.define(series, (Type.NUMERIC,) * count, Type.NUMERIC_ARRAY, word="series")(_numbers)
    for kind in (Type.TIMESTAMP, Type.TIMESTAMPTZ):
        assert kind.array is not None
        FUNCTIONS.define(series, (kind, kind, Type.INTERVAL), kind.array, word="series")(_times)
    in_zone = (Type.TIMESTAMPTZ, Type.TIMESTAMPTZ, Type.INTERVAL, Type.TEXT)
    FUNCTIONS.define(series, in_zone, Type.TIMESTAMPTZ_ARRAY, word="series")(_times_in_zone)


def _add() -> dict[str, RowFunction]:
    functions: dict[str, RowFunction] = {
        "string_to_table": RowFunction("string_to_array", "string_to_table"),
        "regexp_split_to_table": RowFunction("regexp_split_to_table[]", "regexp_split_to_table"),
        "generate_subscripts": RowFunction("generate_subscripts[]", "generate_subscripts"),
        "pg_partition_ancestors": RowFunction("pg_partition_ancestors[]", "relid"),
        EXPANDED: RowFunction(f"{EXPANDED}[]", EXPANDED, Type.INTEGER_ARRAY),
        "regexp_matches": RowFunction("regexp_matches[]", "regexp_matches", Type.TEXT_ARRAY),
        "json_table[items]": RowFunction("json_table[items]", "item"),
    }

    for zone in ("", "_tz"):
        functions[f"{QUERY}{zone}"] = RowFunction(f"{QUERY}{zone}[]", f"{QUERY}{zone}")

    ancestors = functions["pg_partition_ancestors"].symbol
    FUNCTIONS.define(ancestors, (Type.OID,), Type.OID_ARRAY, word="partition_ancestors")(lambda oid: (oid,))
    for kind in (Type.SMALLINT_ARRAY, Type.OID_ARRAY):
        FUNCTIONS.define(f"{EXPANDED}[]", (kind,), Type.TEXT_ARRAY, word="expanded")(_expanded)

    def own(name: str, column: str) -> str:
        functions[name] = RowFunction(f"{name}[]", column)
        return functions[name].symbol

    _add_series(own("generate_series", "generate_series"))
    for prefix in ("jsonb", "json"):
        for suffix, array, convert in (
            ("", Type.JSONB_ARRAY, jsonb_datum),
            ("_text", Type.TEXT_ARRAY, text_of_json),
        ):
            name = f"{prefix}_array_elements{suffix}"
            symbol = own(name, "value")
            FUNCTIONS.define(symbol, (Type.JSONB,), array, word=name)(partial(_elements, name, convert))
        name = f"{prefix}_object_keys"
        symbol = own(name, name)
        FUNCTIONS.define(symbol, (Type.JSONB,), Type.TEXT_ARRAY, word=name)(partial(_keys, name))
    return functions


def _values(name: str, convert: Callable[[Json], str | None], value: Json) -> tuple[str | None, ...]:
    return tuple(convert(value[key]) for key in _keys(name, value))


def _add_members() -> frozenset[str]:
    names = [f"{prefix}_each{suffix}" for prefix in ("jsonb", "json") for suffix in ("", "_text")]
    for name in names:
        is_text = name.endswith("_text")
        convert = text_of_json if is_text else jsonb_datum
        array = Type.TEXT_ARRAY if is_text else Type.JSONB_ARRAY
        FUNCTIONS.define(f"{name}_keys[]", (Type.JSONB,), Type.TEXT_ARRAY, word=f"{name}_keys")(partial(_keys, name))
        FUNCTIONS.define(f"{name}_values[]", (Type.JSONB,), array, word=f"{name}_values")(
            partial(_values, name, convert)
        )
    return frozenset(names)


MEMBER_FUNCTIONS = _add_members()
"""Functions in FROM with the columns `key` and `value`, which are the arrays of two functions side by side."""
ROW_FUNCTIONS: Mapping[str, RowFunction] = _add()
"""Functions in FROM by name."""
