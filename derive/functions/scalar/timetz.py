"""Functions and casts of `time with time zone`; those of zones by name depend on the present offset of the zone."""

from __future__ import annotations

from decimal import Decimal

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions, over_data
from derive.functions.scalar.datetime import (
    TIME_FIELDS,
    checked_timestamp,
    field_named,
    time_field,
    unsupported_unit,
)
from derive.functions.types import timetz
from derive.functions.types.datetime import DAY, INFINITY, SECOND, Interval, zone_named
from derive.functions.types.timetz import ZonedTime

FUNCTIONS = Functions()

_T, _V, _Z, _D = Type.TEXT, Type.INTERVAL, Type.TIMETZ, Type.DATE


def _later(value: ZonedTime, interval: Interval) -> ZonedTime:
    return ZonedTime((value.time + interval.microseconds) % DAY, value.west)


def _earlier(value: ZonedTime, interval: Interval) -> ZonedTime:
    return ZonedTime((value.time - interval.microseconds) % DAY, value.west)


def _timestamp_of(days: int, value: ZonedTime) -> int:
    midnight = days * DAY
    if abs(midnight) >= INFINITY:
        return INFINITY if midnight > 0 else -INFINITY
    return checked_timestamp(midnight + value.of_utc)


def _field(name: str, value: ZonedTime) -> Decimal:
    field, minutes = field_named(name, _Z), abs(value.west) // 60
    match field:
        case "epoch":
            return Decimal(value.of_utc) / SECOND
        case "timezone":
            return Decimal(-value.west)
        case "timezone_hour" | "timezone_minute":
            number = minutes // 60 if field == "timezone_hour" else minutes % 60
            return Decimal(number if value.west <= 0 else -number)
    number_of_time = time_field(field, value.time) if field in TIME_FIELDS else None
    if number_of_time is None:
        raise unsupported_unit(name, _Z)
    return number_of_time


def _in_offset(interval: Interval, value: ZonedTime) -> ZonedTime:
    if interval.months or interval.days:
        raise SqlError("22023", "interval time zone must not include months or days")
    return value.moved(-interval.microseconds // SECOND)


def _add_functions() -> None:
    define = FUNCTIONS.define
    define("+", (_Z, _V), _Z, word="add", can_fail=False)(_later)
    define("+", (_V, _Z), _Z, word="add", can_fail=False)(lambda interval, value: _later(value, interval))
    define("-", (_Z, _V), _Z, word="subtract", can_fail=False)(_earlier)
    define("+", (_D, _Z), Type.TIMESTAMPTZ, word="add")(_timestamp_of)
    define("+", (_Z, _D), Type.TIMESTAMPTZ, word="add")(lambda value, days: _timestamp_of(days, value))
    define("extract", (_T, _Z), Type.NUMERIC)(_field)
    define("date_part", (_T, _Z), Type.DOUBLE)(lambda name, value: float(_field(name, value)))
    define("timezone", (_V, _Z), _Z)(_in_offset)
    define("timetz_in_zone", (_T, Type.TIMESTAMPTZ), _Z)(timetz.of_timestamp)


def _add_of_present_offsets() -> None:
    """Add functions of named zones: their values change with the summer time of the zone."""
    for symbol, kind, function in (
        ("timezone", _Z, timetz.in_zone_named),
        ("timetz_in_zone", Type.TIME, lambda name, time: ZonedTime(time, timetz.present_west(zone_named(name)))),
        (
            "timetz_in_zone",
            _T,
            lambda name, text: timetz.value_of(timetz.datum_of_text(text, zone_named(name))),
        ),
    ):
        name, of_data = f"{symbol}_text_{kind.name.lower()}", over_data(function, (_T, kind), _Z)
        FUNCTIONS.add(Function(name, symbol, (_T, kind), _Z, of_data, is_volatile=True))


_add_functions()
_add_of_present_offsets()
