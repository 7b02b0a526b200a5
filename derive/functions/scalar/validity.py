"""Functions of the times at which temporal filters begin or end to be true.

A temporal filter compares the time of a read with values of a row. Planning solves the comparison for the time, so that
these functions compute the first time at which it is true, or no longer true. A time that is out of range is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.types import Type
from derive.functions.function import Functions, are_short, registered_name
from derive.functions.scalar.datetime import TIME_UNITS, field_named, later, truncation
from derive.functions.types.datetime import DATE_INFINITY, DAY, INFINITY, Interval

FUNCTIONS = Functions()

MOST_MOVED = 1 << 61
"""Largest number of microseconds or days by which a time is moved."""
_LATEST = 1 << 62

_TZ, _N, _V, _D = Type.TIMESTAMPTZ, Type.BIGINT, Type.INTERVAL, Type.DATE
_MONTHS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_DAYS = {"day": 1, "week": 7}
_TRUNCATE = truncation(_TZ)


def _within(timestamp: int) -> int:
    return max(-INFINITY, min(timestamp, INFINITY))


def _moved(timestamp: int, microseconds: int) -> int:
    return timestamp if abs(timestamp) > _LATEST else timestamp + microseconds


def _moved_form(arguments: Sequence[str], _: Sequence[Type]) -> str:
    timestamp, microseconds = arguments
    if not are_short(arguments):
        return f"{registered_name('time_moved_timestamptz_bigint')}({timestamp}, {microseconds})"
    return f"iif(abs({timestamp}) > {_LATEST}, {timestamp}, {timestamp} + {microseconds})"


def _moved_date(days: int, count: int) -> int:
    if abs(days) >= DATE_INFINITY:
        return days
    return max(-DATE_INFINITY, min(days + count, DATE_INFINITY))


def _midnight(days: int) -> int:
    if abs(days) >= DATE_INFINITY:
        return INFINITY if days > 0 else -INFINITY
    return _within(days * DAY)


def _first_date(timestamp: int) -> int:
    """Return the first date that does not begin before a time."""
    if abs(timestamp) == INFINITY:
        return DATE_INFINITY if timestamp > 0 else -DATE_INFINITY
    return -(-timestamp // DAY)


def _first_truncated(name: str, timestamp: int) -> int:
    """Return the first time that is not before a time, and that `date_trunc` does not change."""
    begin = timestamp if abs(timestamp) > _LATEST else _TRUNCATE(name, timestamp)
    if begin == timestamp:
        return timestamp
    field = field_named(name, _TZ)
    return later(begin, Interval(_MONTHS.get(field, 0), _DAYS.get(field, 0), TIME_UNITS.get(field, 0)))


def _elapsed(begin: int, interval: Interval, more: int) -> int:
    """Return the time at which an interval has passed since a time, and `more` microseconds."""
    return begin if abs(begin) == INFINITY else _within(begin + interval.total_microseconds + more)


def _ahead(end: int, interval: Interval, more: int) -> int:
    """Return the time from which an interval remains until a time, and `more` microseconds."""
    return end if abs(end) == INFINITY else _within(end - interval.total_microseconds + more)


FUNCTIONS.define("time_moved", (_TZ, _N), _TZ, sql=_moved_form, can_fail=False)(_moved)
FUNCTIONS.define("date_moved", (_D, _N), _D, can_fail=False)(_moved_date)
FUNCTIONS.define("date_begin", (_D,), _TZ, can_fail=False)(_midnight)
FUNCTIONS.define("first_date", (_TZ,), _D, can_fail=False)(_first_date)
FUNCTIONS.define("first_truncated", (Type.TEXT, _TZ), _TZ)(_first_truncated)
FUNCTIONS.define("time_elapsed", (_TZ, _V, _N), _TZ, can_fail=False)(_elapsed)
FUNCTIONS.define("time_ahead", (_TZ, _V, _N), _TZ, can_fail=False)(_ahead)
