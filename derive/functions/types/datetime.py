"""Dates and timestamps: days and microseconds since 1970 as fields of the Gregorian calendar and as text, in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass

from derive.errors import SqlError
from derive.functions.types.time_zone import offset_of_local, zone_named

SECOND = 1_000_000
"""Microseconds."""
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND

DATE_INFINITY = (1 << 31) - 1
"""`infinity` as a date; `-infinity` is its negative."""
INFINITY = (1 << 63) - 1
"""`infinity` as a timestamp; `-infinity` is its negative."""

FIRST_DAY = -2_440_588
"""4714-11-24 BC, the first date."""
LAST_DAY = 2_145_042_905
"""5874897-12-31, the last date."""
FIRST_TIMESTAMP = FIRST_DAY * DAY
END_OF_TIMESTAMPS = 106_751_982 * DAY
"""The start of the year 294247, which is out of range: 64 bits count from 1970 here, and from 2000 in PostgreSQL."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIMESTAMP = re.compile(
    r"""\s*(?:
        (?P<year>\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})
        |(?P<compact>\d{8})(?=$|[\sT])
        |(?P<american>\d{1,2}/\d{1,2}/\d{4,7})
        |(?P<named>[A-Za-z]{3,9}\s+\d{1,2},?\s+\d{4,7}|\d{1,2}[\s-][A-Za-z]{3,9}[\s-]\d{4,7}|\d{4,7}-[A-Za-z]{3,9}-\d{1,2})
    )
    (?:(?:\s*[Tt]\s*|\s+)(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?P<fraction>\.\d*)?)?
        (?:\s*(?P<half>[AaPp][Mm])\b)?)?
    (?:\s*(?P<zone>[Zz]|[+-]\d{1,2}(?::?\d{2}(?::\d{2})?)?
        |(?!(?:[Bb][Cc]|[Aa][DdMm]|[Pp][Mm])\b)[A-Za-z](?:[A-Za-z0-9_]+|(?=[/+-]))(?:[/+-][A-Za-z0-9_]+)*))?
    (?:\s*(?P<era>[Bb][Cc]|[Aa][Dd]))?\s*""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Civil:
    """A date's year (0 is 1 BC), month and day."""

    year: int
    month: int
    day: int


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a Gregorian date, whose day may exceed its month."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def civil_of(days: int) -> Civil:
    """Return the date of a number of days since 1970-01-01."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return Civil(year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1)


def length_of_month(year: int, month: int) -> int:
    """Return the number of days in a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    return 30 if month in {4, 6, 9, 11} else 31


def text_of_date(days: int) -> str:
    """Format a date in ISO 8601, with an era before the year 1."""
    if abs(days) == DATE_INFINITY:
        return "infinity" if days > 0 else "-infinity"
    date = civil_of(days)
    year, era = (date.year, "") if date.year > 0 else (1 - date.year, " BC")
    return f"{year:04}-{date.month:02}-{date.day:02}{era}"


def text_of_time(microseconds: int) -> str:
    """Format a time of day, without trailing zeros."""
    seconds, fraction = divmod(microseconds, SECOND)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def text_of_timestamp(timestamp: int, zone: str = "") -> str:
    """Format a timestamp as PostgreSQL does.

    Args:
        timestamp: microseconds since 1970.
        zone: suffix of the time: `+00` for timestamps with a time zone.
    """
    if abs(timestamp) == INFINITY:
        return "infinity" if timestamp > 0 else "-infinity"
    days, time = divmod(timestamp, DAY)
    date = text_of_date(days)
    era = " BC" if date.endswith(" BC") else ""
    return f"{date.removesuffix(' BC')} {text_of_time(time)}{zone}{era}"


def date_of_text(text: str) -> int:
    """Parse a date into days since 1970.

    Raises:
        SqlError: 22007, it is malformed; 22008, it is out of range.
    """
    special = _special(text, "date", DATE_INFINITY)
    if special is not None:
        return special
    days, _, _ = _parsed(text, "date")
    if not FIRST_DAY <= days <= LAST_DAY:
        raise SqlError("22008", f'date out of range: "{text}"')
    return days


def timestamp_of_text(text: str, *, has_zone: bool) -> int:
    """Parse a timestamp into microseconds since 1970.

    Args:
        text: the text.
        has_zone: whether an offset from UTC is applied; otherwise it is ignored.

    Raises:
        SqlError: 22007, it is malformed; 22008, it is out of range.
    """
    kind = "timestamp with time zone" if has_zone else "timestamp"
    special = _special(text, kind, INFINITY)
    if special is not None:
        return special
    days, time, offset = _parsed(text, kind)
    timestamp = days * DAY + time - (offset if has_zone else 0)
    if not FIRST_TIMESTAMP <= timestamp < END_OF_TIMESTAMPS:
        raise SqlError("22008", f'timestamp out of range: "{text}"')
    return timestamp


def _special(text: str, kind: str, infinity: int) -> int | None:
    word = text.strip().lower()
    if word == "epoch":
        return 0
    if word in {"infinity", "+infinity"}:
        return infinity
    if word == "-infinity":
        return -infinity
    if word in {"now", "today", "tomorrow", "yesterday"}:
        what = f'"{text}" is not accepted as a {kind}, since it means another one every time'
        raise SqlError("22007", what, hint="call now() or current_date")
    return None


def _parsed(text: str, kind: str) -> tuple[int, int, int]:
    """Return days since 1970, microseconds of the day, and microseconds of the offset from UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise SqlError("22007", f'invalid input syntax for type {kind}: "{text}"')
    out_of_range = SqlError("22008", f'date/time field value out of range: "{text}"')
    year, month, day = _date_fields(match, text, kind)
    if match["era"] and match["era"].lower() == "bc":
        if not year:
            raise out_of_range
        year = 1 - year
    elif not year:
        raise out_of_range
    if not 1 <= month <= 12 or not 1 <= day <= length_of_month(year, month):
        raise out_of_range
    hour, minute, second = (int(match[field] or 0) for field in ("hour", "minute", "second"))
    if match["half"]:
        if hour > 12:
            raise out_of_range
        hour = hour % 12 + 12 * (match["half"].lower() == "pm")
    fraction = round(float(f"0{match['fraction'] or '.'}0") * SECOND)
    time = (hour * 3600 + minute * 60 + second) * SECOND + fraction
    if minute > 59 or second > 60 or time > DAY:
        raise out_of_range
    days = days_of(year, month, day)
    return days, time, _offset(match["zone"], days * DAY + time, text, kind)


def _date_fields(match: re.Match[str], text: str, kind: str) -> tuple[int, int, int]:
    if match["year"]:
        return int(match["year"]), int(match["month"]), int(match["day"])
    if match["compact"]:
        return int(match["compact"][:4]), int(match["compact"][4:6]), int(match["compact"][6:])
    if match["american"]:
        month, day, year = match["american"].split("/")
        return int(year), int(month), int(day)
    parts = re.split(r"[\s,-]+", match["named"])
    names = [part[:3].lower() for part in parts if part[0].isalpha()]
    if names[0] not in _MONTHS:
        raise SqlError("22007", f'invalid input syntax for type {kind}: "{text}"')
    first, second = (int(part) for part in parts if not part[0].isalpha())
    year, day = (first, second) if len(parts[0]) >= 4 and parts[0].isdigit() else (second, first)
    return year, _MONTHS.index(names[0]) + 1, day


def _offset(zone: str | None, local: int, text: str, kind: str) -> int:
    if not zone:
        return 0
    if zone[0] not in "+-":
        try:
            return offset_of_local(zone_named(zone), local)
        except SqlError:
            if "/" in zone:
                raise
            raise SqlError("22007", f'invalid input syntax for type {kind}: "{text}"') from None
    digits = zone[1:].replace(":", "")
    if ":" not in zone and len(digits) <= 2:
        hours, minutes, seconds = int(digits), 0, 0
    else:
        digits = digits.zfill(4 if len(digits) < 5 else 6).ljust(6, "0")
        hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 15 or minutes > 59 or seconds > 59:
        raise SqlError("22009", f'time zone displacement out of range: "{text}"')
    offset = (hours * 3600 + minutes * 60 + seconds) * SECOND
    return -offset if zone[0] == "-" else offset
