"""Times of day without a time zone: microseconds since midnight, up to 24:00."""

from __future__ import annotations

import re
import struct

from derive.errors import SqlError
from derive.functions.types.datetime import DAY, HOUR, MINUTE, SECOND, text_of_time, timestamp_of_text

_BINARY = struct.Struct(">q")
_TIME = re.compile(
    r"""\s*[Tt]?(?:
        (?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?P<fraction>\.\d*)?)?
        |(?P<compact>\d{4}|\d{6}(?P<compact_fraction>\.\d*)?)
    )(?:\s*(?P<half>[AaPp][Mm])\b)?(?:\s*(?:[Zz]|[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?))?\s*""",
    re.VERBOSE | re.ASCII,
)


def time_of_text(text: str) -> int:
    """Return the time of a text; a date before it and an offset from UTC after it are ignored.

    Raises:
        SqlError: 22007, the text is not a time; 22008, the time is out of range.
    """
    if text.strip().lower() == "allballs":
        return 0
    match = _TIME.fullmatch(text)
    if match is None:
        return _time_of_timestamp_text(text)
    compact = match["compact"]
    if compact:
        hour, minute, second = int(compact[:2]), int(compact[2:4]), int(compact[4:6] or 0)
    else:
        hour, minute, second = (int(match[field] or 0) for field in ("hour", "minute", "second"))
    half = (match["half"] or "").lower()
    out_of_range = SqlError("22008", f'date/time field value out of range: "{text}"')
    if half:
        if hour > 12:
            raise out_of_range
        hour = hour % 12 + 12 * (half == "pm")
    fraction = match["fraction"] or match["compact_fraction"] or "."
    time = hour * HOUR + minute * MINUTE + second * SECOND + round(float(f"0{fraction}0") * SECOND)
    if minute > 59 or second > 60 or time > DAY:
        raise out_of_range
    return time


def _time_of_timestamp_text(text: str) -> int:
    error = SqlError("22007", f'invalid input syntax for type time: "{text}"')
    if ":" not in text or re.search(r"\d[Tt]", text):
        raise error
    try:
        return timestamp_of_text(text, has_zone=False) % DAY
    except SqlError as exc:
        raise error if exc.sqlstate == "22007" else exc from None


def text_of_time_of_day(time: int) -> str:
    """Return a time as PostgreSQL shows it."""
    return text_of_time(time)


def binary_of_time(time: int) -> bytes:
    """Return a time in PostgreSQL's binary representation."""
    return _BINARY.pack(time)


def time_of_binary(data: bytes) -> int:
    """Return the time of PostgreSQL's binary representation.

    Raises:
        SqlError: 22P03, the bytes are invalid; 22008, the time is out of range.
    """
    if len(data) != _BINARY.size:
        raise SqlError("22P03", "incorrect binary data format for type time without time zone")
    time = int(_BINARY.unpack(data)[0])
    if not 0 <= time <= DAY:
        raise SqlError("22008", "time out of range")
    return time
