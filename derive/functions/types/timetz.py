"""Data of `time with time zone`: integers that sort by the instant of the day in UTC, and then by the zone.

PostgreSQL orders by the same, so times of one instant in several zones are distinct.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from derive.errors import SqlError
from derive.functions.types.datetime import (
    DAY,
    INFINITY,
    SECOND,
    Zone,
    offset_at,
    offset_of_local,
    text_of_offset,
    text_of_time,
    time_and_zone,
    zone_named,
)

_BITS = 17
_BIAS = 1 << _BITS - 1
_MASK = (1 << _BITS) - 1
_BINARY = struct.Struct(">qi")
_MOST_OFFSET = 16 * 3600


class ZonedTime(NamedTuple):
    """A time of day in a zone.

    Attributes:
        time: microseconds since midnight in the zone.
        west: seconds by which the zone is behind UTC.
    """

    time: int
    west: int

    @property
    def of_utc(self) -> int:
        """Return the microseconds since midnight in UTC, which may be negative, or exceed a day."""
        return self.time + self.west * SECOND

    def moved(self, west: int) -> ZonedTime:
        """Return the same instant in another zone."""
        return ZonedTime((self.of_utc - west * SECOND) % DAY, west)


def datum_of(value: ZonedTime) -> int:
    """Return the datum of a time."""
    return (value.of_utc << _BITS) + value.west + _BIAS


def value_of(datum: int) -> ZonedTime:
    """Return the time of a datum."""
    west = (datum & _MASK) - _BIAS
    return ZonedTime((datum >> _BITS) - west * SECOND, west)


def present_west(zone: Zone) -> int:
    """Return the seconds by which a zone is behind UTC now."""
    return -offset_at(zone, time.time_ns() // 1000) // SECOND


def datum_of_text(text: str, zone: Zone = 0) -> int:
    """Parse a time.

    Args:
        text: the text.
        zone: zone of a text without one.

    Raises:
        SqlError: 22007, the text is malformed; 22008 or 22009, a field is out of range.
    """
    local, offset, days = time_and_zone(text, "time with time zone")
    if offset is not None:
        return datum_of(ZonedTime(local, -offset // SECOND))
    if days is None or isinstance(zone, int):
        return datum_of(ZonedTime(local, present_west(zone)))
    return datum_of(ZonedTime(local, -offset_of_local(zone, days * DAY + local) // SECOND))


def text_of(datum: int) -> str:
    """Return a time as PostgreSQL shows it."""
    value = value_of(datum)
    return text_of_time(value.time) + text_of_offset(-value.west * SECOND)


def binary_of(datum: int) -> bytes:
    """Return a time in PostgreSQL's binary representation."""
    return _BINARY.pack(*value_of(datum))


def of_binary(data: bytes) -> int:
    """Return the time of PostgreSQL's binary representation.

    Raises:
        SqlError: 22P03, the bytes are invalid; 22008 or 22009, a field is out of range.
    """
    if len(data) != _BINARY.size:
        raise SqlError("22P03", "incorrect binary data format for type time with time zone")
    value = ZonedTime(*_BINARY.unpack(data))
    if not 0 <= value.time <= DAY:
        raise SqlError("22008", "time out of range")
    if abs(value.west) >= _MOST_OFFSET:
        raise SqlError("22009", "time zone displacement out of range")
    return datum_of(value)


def in_zone_named(name: str, value: ZonedTime) -> ZonedTime:
    """Return the same instant in the zone of a name, with its present offset.

    Raises:
        SqlError: the zone is unknown (22023).
    """
    return value.moved(present_west(zone_named(name)))


def of_timestamp(zone_name: str, timestamp: int) -> ZonedTime | None:
    """Return the local time of a timestamp in a zone; None if it is infinite."""
    if abs(timestamp) == INFINITY:
        return None
    offset = offset_at(zone_named(zone_name), timestamp)
    return ZonedTime((timestamp + offset) % DAY, -offset // SECOND)
