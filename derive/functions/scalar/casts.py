"""Casts: their contexts and functions, and the fitting of values to type modifiers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeAlias

from derive.algebra.types import ARRAYS, REGISTERED, Datum, ModifiedType, Type, TypeModifier, number
from derive.errors import SqlError
from derive.functions.function import (
    Function,
    Functions,
    SqlForm,
    are_short,
    name_of,
    narrowing_form,
    over_data,
    registered_name,
    word_of,
)
from derive.functions.scalar.math import INTEGERS, in_range
from derive.functions.types import timetz
from derive.functions.types.array import Elements, array_of, elements_of, sizes_of
from derive.functions.types.datetime import DATE_INFINITY, DAY, END_OF_TIMESTAMPS, INFINITY, SECOND, Interval
from derive.functions.types.formats import BITS
from derive.functions.types.jsonb import Json
from derive.functions.types.network import full_text_of
from derive.functions.types.numbers import decimal_of, numeric_of, rounded
from derive.functions.types.single import decimal_of as decimal_of_single
from derive.functions.types.single import single_of_double, single_of_exact
from derive.functions.types.timetz import ZonedTime
from derive.functions.types.type_info import datum_of_text, oid_of_integer, text_function

FUNCTIONS = Functions()

_T, _I, _N, _TS, _NS = Type.TEXT, Type.INTEGER, Type.NUMERIC, Type.TEXT_ARRAY, Type.NUMERIC_ARRAY


def _fit_number(value: Decimal, size: int, scale: int) -> Decimal:
    if value.is_nan():
        return value
    fitted = rounded(value, scale)
    if not fitted.is_finite() or (fitted and fitted.adjusted() >= size - scale):
        what = f"A field with precision {size}, scale {scale}"
        limit = f"10^{size - scale}" if size != scale else "1"
        detail = f"{what} must round to an absolute value less than {limit}."
        if not fitted.is_finite():
            detail = f"{what} cannot hold an infinite value."
        raise SqlError("22003", "numeric field overflow", detail=detail)
    return fitted


def _fit_text(name: ModifiedType, text: str, size: int) -> str:
    size = size or len(text)
    if len(text) > size and text[size:].strip(" "):
        raise SqlError("22001", f"value too long for type {name.value}({size})")
    return text[:size].rstrip(" ") if name is ModifiedType.BPCHAR else text[:size]


_MICROSECONDS_OF_2000 = 946_684_800 * SECOND
"""Begin of the year 2000, from which PostgreSQL counts: halves are rounded away from it."""


def _fit_time(origin: int, datum: int, size: int) -> int:
    """Round a time to a number of digits of seconds, which is `size - 1`."""
    unit = int(10 ** (7 - size))
    if unit <= 1 or abs(datum) == INFINITY:
        return datum
    distance = datum - origin
    rounded_distance = (abs(distance) + unit // 2) // unit * unit
    return origin + (rounded_distance if distance >= 0 else -rounded_distance)


def _fit_zoned(value: ZonedTime, size: int) -> ZonedTime:
    return ZonedTime(_fit_time(0, value.time, size), value.west)


def fitted(kind: Type, modifier: TypeModifier, datum: Datum) -> Datum:
    """Fit a datum to a column's modifier.

    Args:
        kind: type of the column.
        modifier: modifier of the column.
        datum: the datum.

    Raises:
        SqlError: it does not fit (22001 or 22003).
    """
    if isinstance(datum, bytes) and modifier.name is ModifiedType.NUMERIC:
        if kind is Type.NUMERIC_ARRAY:
            return _fit_elements(Type.NUMERIC, _fit_numbers)(datum, modifier.size, modifier.scale)
        return numeric_of(_fit_number(decimal_of(datum), modifier.size, modifier.scale))
    if isinstance(datum, int) and modifier.name is ModifiedType.TIMETZ:
        return timetz.datum_of(_fit_zoned(timetz.value_of(datum), modifier.size))
    if isinstance(datum, int) and modifier.name.has_precision:
        return _fit_time(_ORIGINS[modifier.name][1], datum, modifier.size)
    if isinstance(datum, bytes) and modifier.name is ModifiedType.VARCHAR:
        return _fit_elements(Type.TEXT, _fit_texts)(datum, modifier.size)
    return _fit_text(modifier.name, datum, modifier.size) if isinstance(datum, str) else datum


def _fit_elements(kind: Type, fit: Callable[..., Elements]) -> Callable[..., Datum]:
    """Return the function of arrays that fits their elements."""

    def call(datum: bytes | None, *limits: int | None) -> Datum:
        if datum is None or None in limits:
            return None
        return array_of(kind, fit(elements_of(kind, datum), *limits), sizes_of(kind, datum))

    return call


def _fit_numbers(numbers: Elements, size: int, scale: int) -> Elements:
    """Fit the elements of an array of numbers to their greatest size and their scale."""
    return tuple(
        numeric_of(_fit_number(decimal_of(datum), size, scale)) if isinstance(datum, bytes) else datum
        for datum in numbers
    )


def _fit_texts(texts: Elements, size: int) -> Elements:
    """Fit the elements of an array of texts to their greatest size."""
    return tuple(_fit_text(ModifiedType.VARCHAR, text, size) if isinstance(text, str) else text for text in texts)


def _cut_texts(texts: Elements, size: int) -> Elements:
    """Cut the elements of an array of texts to their greatest size."""
    return tuple(text[:size] if isinstance(text, str) else text for text in texts)


_ORIGINS = {
    ModifiedType.TIMESTAMP: (Type.TIMESTAMP, _MICROSECONDS_OF_2000),
    ModifiedType.TIMESTAMPTZ: (Type.TIMESTAMPTZ, _MICROSECONDS_OF_2000),
    ModifiedType.TIME: (Type.TIME, 0),
}
"""For each type with a precision, the type of its data and the time from which it is rounded."""
for _name, (_kind, _origin) in _ORIGINS.items():
    _define = FUNCTIONS.define("time(p)", (_kind, _I), _kind, word=f"fit_{_name.name.lower()}", can_fail=False)
    _define(partial(_fit_time, _origin))
FUNCTIONS.define("time(p)", (Type.TIMETZ, _I), Type.TIMETZ, word="fit_timetz", can_fail=False)(_fit_zoned)
FUNCTIONS.define("numeric(p,s)", (_N, _I, _I), _N, word="fit_numeric")(_fit_number)
_fit_number_arrays = _fit_elements(Type.NUMERIC, _fit_numbers)
FUNCTIONS.add(
    Function("fit_numeric_numeric_array_integer_integer", "numeric(p,s)[]", (_NS, _I, _I), _NS, _fit_number_arrays)
)
FUNCTIONS.define("varchar(n)", (_T, _I), _T, word="fit_varchar")(partial(_fit_text, ModifiedType.VARCHAR))
_fit_text_arrays = _fit_elements(Type.TEXT, _fit_texts)
FUNCTIONS.add(Function("fit_varchar_text_array_integer", "varchar(n)[]", (_TS, _I), _TS, _fit_text_arrays))
_cut_text_arrays = _fit_elements(Type.TEXT, _cut_texts)
FUNCTIONS.add(
    Function("cut_varchar_text_array_integer", "varchar(n)[]", (_TS, _I), _TS, _cut_text_arrays, can_fail=False)
)
FUNCTIONS.define("char(n)", (_T, _I), _T, word="fit_bpchar")(partial(_fit_text, ModifiedType.BPCHAR))
FUNCTIONS.define("varchar(n)", (_T, _I), _T, word="cut_varchar", can_fail=False)(lambda text, size: text[:size])
FUNCTIONS.define("char(n)", (_T, _I), _T, word="cut_bpchar", can_fail=False)(
    lambda text, size: text[: size or len(text)].rstrip(" ")
)
FUNCTIONS.define("text(n)", (_T, _I), _T, word="shown", can_fail=False)(
    lambda text, scale: number(scale).shown(text) if scale else text
)

FUNCTIONS.native("text()", (_T,), _T, lambda arguments, _: arguments[0], word="plain_text")
FUNCTIONS.define("text()", (_T,), _T, word="vector_text", can_fail=False)(
    lambda text: text.strip("{}").replace(",", " ")
)


def fitting_function(modifier: TypeModifier, kind: Type, *, is_cast: bool) -> str:
    """Return the function that fits a value to a modifier; it takes the value, then the numbers of the modifier."""
    if modifier.name is ModifiedType.NUMERIC:
        return name_of("", "fit_numeric", (kind, _I, _I))
    if modifier.name.has_precision:
        return name_of("", f"fit_{modifier.name.name.lower()}", (Type[modifier.name.name], _I))
    return name_of("", f"{'cut' if is_cast else 'fit'}_{modifier.name.name.lower()}", (_TS if kind is _TS else _T, _I))


CastContext: TypeAlias = Literal["implicit", "assignment", "explicit"]
"""The context of a cast: any expression, storage in a column, or explicit syntax."""


_RANK = {"implicit": 0, "assignment": 1, "explicit": 2}
_CASTS: dict[tuple[Type, Type], tuple[CastContext, str]] = {}
"""Context of a cast and its function's name ('' if the data are the same), by source and target."""


def resolve_cast(source: Type, target: Type, context: CastContext) -> str | None:
    """Return the name of a cast's function; '' if data stay the same, None if there is no cast.

    Args:
        source: type of the value.
        target: type of the result.
        context: where the cast occurs: not in the query (`implicit`), at a stored value (`assignment`), or in the query
            (`explicit`).
    """
    if source is target:
        return ""
    cast = _CASTS.get((source, target))
    if cast is None or _RANK[cast[0]] > _RANK[context]:
        return None
    return cast[1]


def _same(source: Type, target: Type, context: CastContext) -> None:
    _CASTS[source, target] = (context, "")


def _cast(
    source: Type,
    target: Type,
    context: CastContext,
    convert: Callable[[Any], Any],
    *,
    can_fail: bool = True,
    sql: SqlForm | None = None,
) -> None:
    """Add a cast of values."""
    _cast_data(source, target, context, over_data(convert, (source,), target), can_fail=can_fail, sql=sql)


def _cast_data(
    source: Type,
    target: Type,
    context: CastContext,
    convert: Callable[[Any], Datum],
    *,
    can_fail: bool,
    sql: SqlForm | None = None,
    needs_context: bool = False,
) -> None:
    """Add a cast of data; `convert` takes NULL, too."""
    name = f"{word_of(source)}_to_{word_of(target)}"
    _CASTS[source, target] = (context, name)
    function = Function(name, name, (source,), target, convert, sql, can_fail=can_fail, needs_context=needs_context)
    FUNCTIONS.add(function)


def _integer_of_double(kind: Type) -> Callable[[float], int]:
    def convert(number: float) -> int:
        if not math.isfinite(number):
            raise SqlError("22003", f"{kind.value} out of range")
        return in_range(kind, round(number))

    return convert


def _integer_of_decimal(kind: Type) -> Callable[[Decimal], int]:
    def convert(number: Decimal) -> int:
        if not number.is_finite():
            what = "NaN" if number.is_nan() else "infinity"
            raise SqlError("0A000", f"cannot convert {what} to {kind.value}")
        return in_range(kind, int(rounded(number, 0)))

    return convert


def double_of_decimal(number: Decimal) -> float:
    """Return the nearest double.

    Raises:
        SqlError: the number is too large or too small (22003).
    """
    nearest = float(number)
    if number.is_finite() and (math.isinf(nearest) or (number and not nearest)):
        raise SqlError("22003", f'"{number:f}" is out of range for type double precision')
    return nearest


def decimal_of_double(number: float) -> Decimal:
    """Return a double's first 15 digits."""
    return Decimal(f"{number:.15g}")


def _add_numbers() -> None:
    for index, narrow in enumerate(INTEGERS):
        for wide in INTEGERS[index + 1 :]:
            _same(narrow, wide, "implicit")
            form = narrowing_form(narrow, f"{word_of(wide)}_to_{word_of(narrow)}")
            _cast(wide, narrow, "assignment", _narrowing(narrow), sql=form)
        _cast(narrow, Type.NUMERIC, "implicit", Decimal, can_fail=False)
        as_real: SqlForm = lambda arguments, _: f"CAST({arguments[0]} AS REAL)"  # noqa: E731
        _cast(narrow, Type.DOUBLE, "implicit", float, can_fail=False, sql=as_real)
        _cast(Type.DOUBLE, narrow, "assignment", _integer_of_double(narrow))
        _cast(narrow, Type.REAL, "implicit", single_of_exact, can_fail=False)
        _cast(Type.REAL, narrow, "assignment", _integer_of_double(narrow))
        _cast(Type.NUMERIC, narrow, "assignment", _integer_of_decimal(narrow))
        _same(narrow, Type.MZ_TIMESTAMP, "implicit")
    _same(Type.MZ_TIMESTAMP, Type.BIGINT, "assignment")
    _cast(Type.NUMERIC, Type.DOUBLE, "implicit", double_of_decimal)
    _cast(Type.DOUBLE, Type.NUMERIC, "assignment", decimal_of_double, can_fail=False)
    _same(Type.REAL, Type.DOUBLE, "implicit")
    _cast(Type.DOUBLE, Type.REAL, "assignment", single_of_double)
    _cast(Type.NUMERIC, Type.REAL, "implicit", single_of_exact)
    _cast(Type.REAL, Type.NUMERIC, "assignment", decimal_of_single, can_fail=False)
    _cast(Type.INTEGER, Type.BOOLEAN, "explicit", bool, can_fail=False)
    _same(Type.BOOLEAN, Type.INTEGER, "explicit")


def _narrowing(kind: Type) -> Callable[[int], int]:
    return lambda number: in_range(kind, number)


def _add_timestamp_casts() -> None:
    for kind in (Type.TIMESTAMP, Type.TIMESTAMPTZ):
        _cast(Type.DATE, kind, "implicit", timestamp_of_date)
        _cast(kind, Type.DATE, "assignment", date_of_timestamp, can_fail=False)
    _same(Type.TIMESTAMP, Type.TIMESTAMPTZ, "implicit")
    _same(Type.TIMESTAMPTZ, Type.TIMESTAMP, "assignment")
    for kind in (Type.TIMESTAMP, Type.TIMESTAMPTZ):
        _cast(kind, Type.TIME, "assignment", _time_of_timestamp, can_fail=False)
    _cast(Type.TIME, Type.INTERVAL, "implicit", lambda time: Interval(0, 0, time), can_fail=False)
    _cast(Type.TIME, Type.TIMETZ, "implicit", lambda time: ZonedTime(time, 0), can_fail=False)
    _cast(Type.TIMETZ, Type.TIME, "assignment", lambda value: value.time, can_fail=False)
    _cast(Type.TIMESTAMPTZ, Type.TIMETZ, "assignment", partial(timetz.of_timestamp, "UTC"), can_fail=False)
    _cast(Type.INTERVAL, Type.TIME, "assignment", lambda interval: interval.microseconds % DAY, can_fail=False)
    _same(Type.MZ_TIMESTAMP, Type.TIMESTAMPTZ, "explicit")
    _same(Type.TIMESTAMPTZ, Type.MZ_TIMESTAMP, "explicit")


def timestamp_of_date(days: int) -> int:
    """Return the start of a date.

    Raises:
        SqlError: the date is out of range for a timestamp (22008).
    """
    if abs(days) == DATE_INFINITY:
        return INFINITY if days > 0 else -INFINITY
    if days * DAY >= END_OF_TIMESTAMPS:
        raise SqlError("22008", "date out of range for timestamp")
    return days * DAY


def date_of_timestamp(timestamp: int) -> int:
    """Return the date of a timestamp."""
    if abs(timestamp) == INFINITY:
        return DATE_INFINITY if timestamp > 0 else -DATE_INFINITY
    return timestamp // DAY


def _time_of_timestamp(timestamp: int) -> int | None:
    return None if abs(timestamp) == INFINITY else timestamp % DAY


def _add_addresses() -> None:
    _same(Type.CIDR, Type.INET, "implicit")
    _cast(Type.INET, Type.CIDR, "assignment", lambda address: address.network, can_fail=False)


def _add_object_ids() -> None:
    """Add casts of oids: integer to oid is implicit; oid to integer must be written."""
    for kind in (Type.SMALLINT, Type.INTEGER, Type.BIGINT):
        _cast(kind, Type.OID, "implicit", oid_of_integer, sql=_oid_form(kind))
    _same(Type.OID, Type.BIGINT, "assignment")
    _cast(Type.OID, Type.INTEGER, "assignment", _signed, can_fail=False)
    for registered in sorted(REGISTERED, key=lambda kind: kind.value):
        _same(registered, Type.OID, "implicit")
        _same(registered, Type.BIGINT, "assignment")
        _cast(registered, Type.INTEGER, "assignment", _signed, can_fail=False)
        _same(Type.OID, registered, "explicit")
        for kind in (Type.SMALLINT, Type.INTEGER, Type.BIGINT):
            _cast(kind, registered, "explicit", oid_of_integer, sql=_oid_form(kind))


def _oid_form(kind: Type) -> SqlForm:
    """Return the form of a cast of an integer to an oid; the function is called for negative and large integers."""

    def form(arguments: Sequence[str], _: Sequence[Type]) -> str:
        argument = arguments[0]
        call = f"{registered_name(f'{word_of(kind)}_to_oid')}({argument})"
        return f"iif({argument} BETWEEN 0 AND 4294967295, {argument}, {call})" if are_short(arguments) else call

    return form


def _signed(oid: int) -> int:
    return oid - (1 << 32) if oid >= 1 << 31 else oid


def _add_texts() -> None:
    for kind in Type:
        if kind in {Type.TEXT, Type.UNKNOWN}:
            continue
        if kind is Type.BOOLEAN:
            _cast(kind, Type.TEXT, "assignment", lambda truth: "true" if truth else "false", can_fail=False)
        elif kind is Type.JSONB:
            _same(kind, Type.TEXT, "assignment")
        elif kind is Type.INET:
            _cast(kind, Type.TEXT, "assignment", full_text_of, can_fail=False)
        else:
            show = _unless_null(text_function(kind))
            _cast_data(kind, Type.TEXT, "assignment", show, can_fail=False, needs_context=kind in REGISTERED)
        parse = _unless_null(partial(datum_of_text, kind))
        _cast_data(Type.TEXT, kind, "explicit", parse, can_fail=True, needs_context=kind in REGISTERED)
        _CASTS[Type.UNKNOWN, kind] = ("implicit", _CASTS[Type.TEXT, kind][1])
    _same(Type.UNKNOWN, Type.TEXT, "implicit")


def _unless_null(convert: Callable[[Any], Datum]) -> Callable[[Any], Datum]:
    return lambda datum: None if datum is None else convert(datum)


def _add_json() -> None:
    for kind in (*INTEGERS, Type.REAL, Type.DOUBLE, Type.NUMERIC, Type.BOOLEAN):
        _cast(Type.JSONB, kind, "explicit", _from_json(kind))


def _from_json(kind: Type) -> Callable[[Json], Any]:
    def convert(value: Json) -> Any:
        if value is None:
            return None
        if isinstance(value, bool) is not (kind is Type.BOOLEAN) or not isinstance(value, bool | int | Decimal):
            raise SqlError("22023", f"cannot cast jsonb {json_kind(value)} to type {kind.value}")
        if kind in INTEGERS:
            return _integer_of_decimal(kind)(Decimal(value))
        if kind is Type.DOUBLE:
            return double_of_decimal(Decimal(value))
        if kind is Type.REAL:
            return single_of_exact(Decimal(value))
        return Decimal(value) if kind is Type.NUMERIC else value

    return convert


def _add_bytes() -> None:
    """Add casts between integers and bytes, in two's complement from the most significant byte on."""
    for kind in INTEGERS:
        size = BITS[kind] // 8
        _cast(kind, Type.BYTEA, "explicit", partial(_bytes_of_integer, size), can_fail=False)
        _cast(Type.BYTEA, kind, "explicit", partial(_integer_of_bytes, kind, size))


def _bytes_of_integer(size: int, number: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


def _integer_of_bytes(kind: Type, size: int, data: bytes) -> int:
    if len(data) > size:
        raise SqlError("22003", f"{kind.value} out of range")
    return int.from_bytes(data, "big", signed=len(data) == size)


def _add_arrays() -> None:
    """Add casts of arrays, which cast their elements."""
    by_name = {function.name: function for function in FUNCTIONS}
    for source in ARRAYS:
        for target in ARRAYS:
            if source is target or not source.element or not target.element:
                continue
            cast = _CASTS.get((source.element, target.element))
            if cast is None:
                continue
            context, name = cast
            if not name:
                _same(source, target, context)
                continue
            function = by_name[name]
            assert function.python is not None
            convert = _elementwise(function.python, source.element, target.element)
            _cast_data(
                source,
                target,
                context,
                convert,
                can_fail=function.can_fail,
                needs_context=function.needs_context,
            )


def _elementwise(convert: Callable[..., Datum], source: Type, target: Type) -> Callable[[Any], Datum]:
    def cast(datum: Any) -> Datum:
        if datum is None:
            return None
        return array_of(target, map(convert, elements_of(source, datum)), sizes_of(source, datum))

    return cast


def json_kind(value: Json) -> str:
    """Return the kind of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | Decimal):
        return "numeric"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


_add_numbers()
_add_timestamp_casts()
_add_object_ids()
_add_texts()
_add_json()
_add_bytes()
_add_addresses()
_add_arrays()
