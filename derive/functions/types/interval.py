"""Data of `interval`: bytes that sort as durations do, with a month of 30 days, and a day of 24 hours.

A datum is the duration in microseconds (12 bytes, biased), then months and days (4 bytes each, biased). Two intervals
with the same duration and different fields are equal to the operators of SQL, and different values to groups.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from derive.errors import SqlError
from derive.functions.types.datetime import DAY, HOUR, MINUTE, SECOND, text_of_time

TOTAL_BYTES = 12
"""Number of leading bytes of a datum, by which intervals compare."""

_TOTAL_BIAS, _FIELD_BIAS = 1 << 95, 1 << 31


@dataclass(frozen=True, slots=True)
class Interval:
    """Months, days and microseconds, each of any sign."""

    months: int
    days: int
    microseconds: int

    @property
    def total_microseconds(self) -> int:
        """Return the duration in microseconds."""
        return (self.months * 30 + self.days) * DAY + self.microseconds


def interval_datum(interval: Interval) -> bytes:
    """Return the datum of an interval.

    Raises:
        SqlError: 22008, a field is too large.
    """
    fields = (interval.months, interval.days)
    if not all(-_FIELD_BIAS <= field < _FIELD_BIAS for field in fields) or abs(interval.microseconds) >= 1 << 63:
        raise SqlError("22008", "interval out of range")
    months, days = ((field + _FIELD_BIAS).to_bytes(4, "big") for field in fields)
    return (interval.total_microseconds + _TOTAL_BIAS).to_bytes(TOTAL_BYTES, "big") + months + days


def interval_of(datum: bytes) -> Interval:
    """Return the interval of a datum."""
    total = int.from_bytes(datum[:TOTAL_BYTES], "big") - _TOTAL_BIAS
    months = int.from_bytes(datum[TOTAL_BYTES : TOTAL_BYTES + 4], "big") - _FIELD_BIAS
    days = int.from_bytes(datum[TOTAL_BYTES + 4 :], "big") - _FIELD_BIAS
    return Interval(months, days, total - (months * 30 + days) * DAY)


def text_of_interval(interval: Interval) -> str:
    """Format an interval as PostgreSQL does: `1 year 2 mons 3 days 04:05:06.7`."""
    years = abs(interval.months) // 12 * (-1 if interval.months < 0 else 1)
    months = interval.months - years * 12
    parts: list[str] = []
    is_before_negative = False
    for number, unit in ((years, "year"), (months, "mon"), (interval.days, "day")):
        if number:
            sign = "+" if is_before_negative and number > 0 else ""
            parts.append(f"{sign}{number} {unit}{'' if number == 1 else 's'}")
            is_before_negative = number < 0
    if interval.microseconds or not parts:
        sign = "-" if interval.microseconds < 0 else "+" if is_before_negative else ""
        parts.append(sign + text_of_time(abs(interval.microseconds)))
    return " ".join(parts)


_UNITS = {
    "microsecond": ("us", "usec", "usecs", "usecond", "useconds", "microsecon"),
    "millisecond": ("ms", "msec", "msecs", "msecond", "mseconds", "millisecon"),
    "second": ("s", "sec", "secs"),
    "minute": ("m", "min", "mins"),
    "hour": ("h", "hr", "hrs"),
    "day": ("d",),
    "week": ("w",),
    "month": ("mon", "mons"),
    "year": ("y", "yr", "yrs"),
    "decade": ("dec", "decs"),
    "century": ("c", "cent", "centuries"),
    "millennium": ("mil", "mils", "millennia"),
}
UNIT_OF = {alias: unit for unit, aliases in _UNITS.items() for alias in (unit, f"{unit}s", *aliases)}
_MICROSECONDS = {"microsecond": 1, "millisecond": 1000, "second": SECOND, "minute": MINUTE, "hour": HOUR}
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_TOKEN = re.compile(
    r"\s*(?:(?P<time>(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d{1,2})(?::(?P<seconds>\d{1,2}(?:\.\d*)?))?)"
    r"|(?P<years_and_months>[+-]?\d+-\d+)(?=\s|$)"
    r"|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))\s*(?P<unit>[A-Za-z]*)|(?P<ago>ago))"
)
_ISO = re.compile(
    r"P(?:(-?[\d.]+)Y)?(?:(-?[\d.]+)M)?(?:(-?[\d.]+)W)?(?:(-?[\d.]+)D)?(?:T(?:(-?[\d.]+)H)?(?:(-?[\d.]+)M)?(?:(-?[\d.]+)S)?)?"
)
_ISO_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")


def interval_of_unit(unit: str, number: Decimal) -> Interval:
    """Return the interval of a number of units, in the singular; fractions of months become days, and of days time."""
    if unit in _MONTHS:
        months = number * _MONTHS[unit]
        if _MONTHS[unit] > 1:
            return Interval(round(months), 0, 0)
        rest = (months - int(months)) * 30
        days = interval_of_unit("day", rest)
        return Interval(int(months), days.days, days.microseconds)
    if unit in _DAYS:
        days_ = number * _DAYS[unit]
        return Interval(0, int(days_), _rounded((days_ - int(days_)) * DAY))
    return Interval(0, 0, _rounded(number * _MICROSECONDS[unit]))


def _rounded(number: Decimal) -> int:
    return int(number.to_integral_value(ROUND_HALF_EVEN))


def interval_of_text(text: str, unit: str | None = None) -> Interval:
    """Parse an interval.

    Args:
        text: text in PostgreSQL's format, the standard's format, or ISO 8601.
        unit: unit of a number without one; seconds if None.

    Raises:
        SqlError: 22007, it is malformed; 22008, a field is too large.
    """
    malformed = SqlError("22007", f'invalid input syntax for type interval: "{text}"')
    iso = _ISO.fullmatch(text.strip())
    if iso is not None and iso.lastindex:
        numbers = [(Decimal(number), kind) for number, kind in zip(iso.groups(), _ISO_UNITS, strict=True) if number]
        return _total([interval_of_unit(kind, number) for number, kind in numbers])
    intervals: list[Interval] = []
    body, is_ago, at = text.strip().removeprefix("@").rstrip(), False, 0
    while at < len(body):
        token = _TOKEN.match(body, at)
        if token is None or is_ago:
            raise malformed
        at = token.end()
        if token["ago"]:
            is_ago = True
        elif token["time"]:
            intervals.append(_time_of(token, malformed))
        elif token["years_and_months"]:
            years, months = token["years_and_months"].lstrip("+-").split("-")
            total = int(years) * 12 + int(months)
            intervals.append(Interval(-total if token["years_and_months"].startswith("-") else total, 0, 0))
        else:
            kind = UNIT_OF.get(token["unit"].lower()) if token["unit"] else unit or _unit_before(body[at:])
            if kind is None:
                raise malformed
            intervals.append(interval_of_unit(kind, Decimal(token["number"])))
    if not intervals:
        raise malformed
    value = _total(intervals)
    return Interval(-value.months, -value.days, -value.microseconds) if is_ago else value


def _unit_before(rest: str) -> str:
    """Return the unit of a number without one: days if a time of day follows."""
    following = _TOKEN.match(rest) if rest.strip() else None
    return "day" if following and following["time"] else "second"


def _time_of(token: re.Match[str], malformed: SqlError) -> Interval:
    if int(token["minutes"]) > 59 or Decimal(token["seconds"] or 0) >= 60:
        raise malformed
    seconds = int(token["hours"]) * 3600 + int(token["minutes"]) * 60 + Decimal(token["seconds"] or 0)
    microseconds = _rounded(seconds * SECOND)
    return Interval(0, 0, -microseconds if token["sign"] == "-" else microseconds)


def _total(intervals: list[Interval]) -> Interval:
    return Interval(
        sum(interval.months for interval in intervals),
        sum(interval.days for interval in intervals),
        sum(interval.microseconds for interval in intervals),
    )
