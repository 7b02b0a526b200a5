"""Timestamps as text: RFC 3339 times, times that a person writes, durations, and the UUIDs of documents.

A timestamp is an int64 of microseconds since the Unix epoch.
"""

from __future__ import annotations

import re
import time
import zlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta

_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt](?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (formatting without a zone is faster, and ours is known)
_LAST = 253_402_300_799_999_999
"""The timestamp of the last microsecond of the year 9999."""
_UUID_EPOCH = 122_192_928_000_000_000
"""100-nanosecond intervals from 1582-10-15 to the Unix epoch (RFC 4122, section 4.1.4)."""

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_SPELLINGS = {
    "us": ("us", "usec", "usecs", "microsecond", "microseconds"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "wk", "wks", "week", "weeks"),
}
_BY_SPELLING = {spelling: _UNITS[unit] for unit, spellings in _SPELLINGS.items() for spelling in spellings}
_PART = re.compile(r"\s*(\d+)\s*([a-zA-Z]+)\s*", re.ASCII)


def parse_rfc3339(text: str) -> int:
    """Return the timestamp of an RFC 3339 time, truncated to microseconds.

    Raises:
        ValueError: the text is not an RFC 3339 time.
    """
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    since = datetime.fromisoformat(text.upper()) - _EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


TIME_FORMS = "a time such as 2024-01-31T12:00:00Z, or a duration before now such as 1h"
"""The documented forms of `parse_time`, for messages."""
_AGO = re.compile(r"-(?P<negative>.+)|(?P<plain>.+?)(?:\s+ago)?", re.DOTALL)
_DATES = frozenset({4, 8})
"""Numbers of digits that a year, and a date without hyphens, have."""


def parse_time(text: str, zone: str | None = None, now: int | None = None) -> int:
    """Return the timestamp of a time that a person writes, in a command, a query or a page.

    A time is an RFC 3339 time; a time as SQL prints it, or a date, in any form that PostgreSQL reads; a number of
    microseconds since 1970; `now`; or a duration before now: `1h`, `-1h` or `1 hour ago`.

    >>> parse_time("1970-01-01T00:00:01Z"), parse_time("1970-01-01 00:00:01.5+00"), parse_time("1970-01-02")
    (1000000, 1500000, 86400000000)

    Args:
        text: the time.
        zone: time zone of a text without a zone; None for UTC.
        now: the present; None for the time of the machine.

    Raises:
        ValueError: the text is not a time.
    """
    text = text.strip()
    with suppress(ValueError):
        return parse_rfc3339(text)
    if text.isascii() and text.isdecimal() and len(text) not in _DATES:
        return int(text)
    present = time.time_ns() // 1_000 if now is None else now
    if text.lower() == "now":
        return present
    ago = _AGO.fullmatch(text)
    if ago:
        with suppress(ValueError):
            return max(0, present - parse_duration(ago["negative"] or ago["plain"]))
    return _parse_sql_time(text, zone)


def _parse_sql_time(text: str, zone: str | None) -> int:
    """Return the timestamp of a text that PostgreSQL reads as a timestamp with time zone.

    Raises:
        ValueError: the text is not such a timestamp.
    """
    from derive.errors import SqlError
    from derive.functions.types.datetime import INFINITY, timestamp_of_text, zone_named

    try:
        clock = timestamp_of_text(text, has_zone=True, zone=0 if zone is None else zone_named(zone))
    except SqlError as exc:
        raise ValueError(f"not {TIME_FORMS}: {text!r}") from exc
    if abs(clock) == INFINITY:
        raise ValueError(f"not {TIME_FORMS}: {text!r}")
    return clock


def format_rfc3339(clock: int) -> str:
    """Return a timestamp as an RFC 3339 time in UTC, always with six digits, so that texts sort like times.

    Timestamps beyond the year 9999, such as the end of a dropped collection, become the last one of that year.

    >>> format_rfc3339(0)
    '1970-01-01T00:00:00.000000Z'
    """
    return (_NAIVE_EPOCH + timedelta(microseconds=min(clock, _LAST))).isoformat(timespec="microseconds") + "Z"


def parse_duration(text: str) -> int:
    """Return the microseconds of a duration such as `15m`, `1 hour` or `1h 30s`.

    >>> parse_duration("1h 30s")
    3630000000

    Raises:
        ValueError: the text is not a duration.
    """
    total = 0
    offset = 0
    while offset < len(text) or not text:
        part = _PART.match(text, offset)
        if not part or part[2] not in _BY_SPELLING:
            raise ValueError(f"not a duration such as '15m', '24h' or '1h 30s': {text!r}")
        total += int(part[1]) * _BY_SPELLING[part[2]]
        offset = part.end()
    return total


def format_duration(micros: int) -> str:
    """Return a duration in the largest units that are exact, such as `1h 30m`; days count as hours."""
    if micros == 0:
        return "0s"
    parts = []
    for unit in ("h", "m", "s", "ms", "us"):
        count, micros = divmod(micros, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def document_uuid(clock: int, seq: int, key: bytes) -> str:
    """Return the version 1 UUID of a document, made from its timestamp, its sequence number and its key.

    Source: RFC 4122, section 4.2.
    """
    stamp = clock * 10 + _UUID_EPOCH
    low, middle, high = stamp & 0xFFFFFFFF, stamp >> 32 & 0xFFFF, stamp >> 48 & 0x0FFF | 0x1000
    node = zlib.crc32(key) | (zlib.crc32(key[::-1]) & 0xFFFF) << 32 | 1 << 40
    return f"{low:08x}-{middle:04x}-{high:04x}-{seq & 0x3FFF | 0x8000:04x}-{node:012x}"
