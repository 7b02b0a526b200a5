"""Dates, timestamps, times of day, time zones and intervals.

A datum is the duration in microseconds (12 bytes, biased), then months and days (4 bytes each, biased). Two intervals
with the same duration and different fields are equal to the operators of SQL, and different values to groups.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from derive.errors import SqlError

Zone: TypeAlias = int | ZoneInfo
"""A time zone: a constant offset from UTC in microseconds, or rules."""

_SECOND = 1_000_000
_MOST_DIGITS = 4
_PERIOD = 400
"""Number of years after which the Gregorian calendar repeats."""
_MICROSECONDS_OF_PERIOD = 146_097 * 86_400 * _SECOND
_FIRST_YEAR, _LAST_YEAR = 1200, 2800
"""Years within which the rules of all zones change; other years are computed from an equal year between them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAYS = _EPOCH.toordinal()
_MICROSECOND = timedelta(microseconds=1)
_DATE_LENGTH, _TIMESTAMP_LENGTH = 10, 19

_ABBREVIATIONS = {
    word: seconds * _SECOND
    for seconds, words in (
        (-36_000, "HST TAHT"),
        (-34_200, "MART"),
        (-32_400, "AKST GAMT"),
        (-28_800, "AKDT PST"),
        (-25_200, "MST PDT"),
        (-21_600, "CST GALT MDT"),
        (-18_000, "ACT CDT COT EST PET"),
        (-14_400, "AMT AST BOT EDT"),
        (-12_600, "NFT NST"),
        (-10_800, "ADT BRA BRT CLST GFT PMST PYST UYT WGT"),
        (-9000, "NDT"),
        (-7200, "BRST FNT PMDT UYST WGST"),
        (-3600, "AZOT EGT FNST"),
        (0, "AZOST EGST GMT UCT UT UTC WET Z ZULU"),
        (3600, "BST CET MET MEZ WAT WETDST"),
        (7200, "BDST CEST CETDST EET IST MEST MESZ METDST SAST"),
        (10_800, "EAT EEST EETDST FET IDT"),
        (12_600, "IRT"),
        (14_400, "MSD MUT RET SCT"),
        (16_200, "AFT"),
        (18_000, "MUST MVT PKT TFT TJT UZT"),
        (20_700, "NPT"),
        (21_600, "ALMT BDT BTT KGST PKST UZST XJT YEKST"),
        (23_400, "MMT"),
        (25_200, "ALMST CXT ICT WAST"),
        (28_800, "AWST BNT BORT CCT HKT MYT PHT WADT"),
        (31_500, "ACWST"),
        (32_400, "AWSST JAYT JST KST PWT ULAST WDT"),
        (34_200, "ACST CAST"),
        (36_000, "AEST CHUT DDUT KDT LIGT MPT PGT TRUT YAPT"),
        (37_800, "ACDT ACSST CADT LHST SADT"),
        (39_600, "AEDT AESST PONT VUT"),
        (43_200, "FJT GILT MHT NZST NZT TVT WAKT WFT"),
        (45_900, "CHAST"),
        (46_800, "FJST NZDT TOT"),
        (49_500, "CHADT"),
    )
    for word in words.split()
}
"""PostgreSQL's abbreviations with one meaning, which take precedence over names of zones:

`CET`, for example, has no summer time.
"""
_MACHINE_ZONE = "localtime"


@lru_cache(maxsize=1024)
def zone_named(name: str) -> Zone:
    """Return the time zone of a name.

    Args:
        name: a name such as `Europe/Berlin`, in any case; an abbreviation such as `CEST`; or an offset such as
            `+02` in POSIX's sense, in which west is positive.

    Raises:
        SqlError: the zone is unknown (22023).
    """
    offset = _ABBREVIATIONS.get(name.upper())
    offset = _fixed_offset(name) if offset is None else offset
    if offset is not None:
        return offset
    known = _names().get(name.lower())
    if known is not None:
        try:
            return ZoneInfo(known)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # the file is missing or invalid
            pass
    raise SqlError("22023", f'time zone "{name}" not recognized')


def offset_at(zone: Zone, timestamp: int) -> int:
    """Return the offset of a zone from UTC at an instant, in microseconds.

    Args:
        zone: the time zone.
        timestamp: microseconds since 1970-01-01 00:00 UTC.
    """
    if isinstance(zone, int):
        return zone
    return _microseconds(_shown(timestamp).astimezone(zone).utcoffset())


def offset_of_local(zone: Zone, local: int) -> int:
    """Return the offset of a zone from UTC at a local time, in microseconds.

    For a local time that occurs twice, the result is the offset after the clocks are set back; for a skipped time, the
    offset before they are set forward. In either case this is the smaller offset.

    Args:
        zone: the time zone.
        local: microseconds since 1970-01-01 00:00 as clocks in the zone show it.
    """
    if isinstance(zone, int):
        return zone
    shown = _shown(local).replace(tzinfo=zone)
    return min(_microseconds(shown.utcoffset()), _microseconds(shown.replace(fold=1).utcoffset()))


def _shown(timestamp: int) -> datetime:
    """Return an equal timestamp in a year for which the zone's rules are known."""
    year = 1970 + timestamp // (_MICROSECONDS_OF_PERIOD // _PERIOD)
    if year < _FIRST_YEAR:
        timestamp -= (year - _FIRST_YEAR) // _PERIOD * _MICROSECONDS_OF_PERIOD
    elif year > _LAST_YEAR:
        timestamp -= ((year - _LAST_YEAR) // _PERIOD + 1) * _MICROSECONDS_OF_PERIOD
    return _EPOCH + timedelta(microseconds=timestamp)


def _microseconds(offset: timedelta | None) -> int:
    return offset // _MICROSECOND if offset is not None else 0


def session_zone(name: str) -> str:
    """Return the usual name of a time zone, as a setting has it: `UTC`, `Europe/Berlin`, or `<+02>-02` for `2`.

    >>> session_zone("europe/berlin"), session_zone("-3.5"), session_zone("zulu")
    ('Europe/Berlin', '<-03:30>+03:30', 'UTC')

    Raises:
        SqlError: the zone is unknown (22023).
    """
    try:
        minutes = round(float(name) * 60)
    except ValueError:
        minutes = None
    if minutes is None:
        zone = zone_named(name)
        if name.upper() in _WITH_SUMMER_TIME:
            raise SqlError("22023", f'time zone "{name}" not recognized', hint="Name a city, as in Europe/Berlin.")
        known = _names().get(name.lower())
        if not isinstance(zone, int) and known is not None:
            return known
        if zone == 0:
            return "UTC"
        if known is not None:
            return known
        if name.upper() in _ABBREVIATIONS:
            raise SqlError("22023", f'time zone "{name}" not recognized', hint="Name a city, as in Europe/Berlin.")
        minutes = offset_at(zone, 0) // (60 * _SECOND)
    if not minutes:
        return "UTC"
    if abs(minutes) > 24 * 60:
        raise SqlError("22023", f'time zone "{name}" not recognized', hint="Name an offset of up to 24 hours.")
    hours, rest = divmod(abs(minutes), 60)
    shown = f"{hours:02}" + (f":{rest:02}" if rest else "")
    east, west = ("+", "-") if minutes > 0 else ("-", "+")
    return f"<{east}{shown}>{west}{shown}"


_WITH_SUMMER_TIME = frozenset({"CET", "EET", "MET", "WET"})
"""Names of zones that are also abbreviations without summer time."""


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Return the names of all zones by lower case, except `localtime`, which differs between machines."""
    return {name.lower(): name for name in available_timezones() - {_MACHINE_ZONE}}


_POSIX_ZONE = re.compile(r"<[+-]?\w+(?::\d\d)?>([+-]?\d{1,2}(?::?\d\d)?)")
"""A name with an offset from UTC, in which west is positive: `<+02>-02`."""


def _fixed_offset(name: str) -> int | None:
    posix = _POSIX_ZONE.fullmatch(name)
    if posix is not None:
        name = posix[1] if posix[1][0] in "+-" else f"+{posix[1]}"
    sign, digits = name[:1], name[1:].replace(":", "")
    if sign not in {"+", "-"} or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    hours, minutes = (int(digits), 0) if len(digits) <= 2 else (int(digits[:-2]), int(digits[-2:]))
    offset = (hours * 3600 + minutes * 60) * _SECOND
    return -offset if sign == "+" else offset


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
        SqlError: 22007, the text is malformed; 22008, the result is out of range.
    """
    plain = _days_of_plain(text)
    if plain is not None:
        return plain
    special = _special(text, "date", DATE_INFINITY)
    if special is not None:
        return special
    days, _, _ = _parsed(text, "date")
    if not FIRST_DAY <= days <= LAST_DAY:
        raise SqlError("22008", f'date out of range: "{text}"')
    return days


def text_in_zone(timestamp: int, zone: Zone) -> str:
    """Format a timestamp with time zone as the local time of a zone, with its offset from UTC."""
    if abs(timestamp) == INFINITY:
        return text_of_timestamp(timestamp)
    offset = offset_at(zone, timestamp)
    return text_of_timestamp(timestamp + offset, text_of_offset(offset))


def text_of_offset(offset: int) -> str:
    """Format an offset from UTC in microseconds: `+02`, `-03:30`."""
    seconds = abs(offset) // SECOND
    shown = f"{'-' if offset < 0 else '+'}{seconds // 3600:02}"
    if seconds % 3600:
        shown += f":{seconds // 60 % 60:02}"
    if seconds % 60:
        shown += f":{seconds % 60:02}"
    return shown


def timestamp_of_text(text: str, *, has_zone: bool, zone: Zone = 0) -> int:
    """Parse a timestamp into microseconds since 1970.

    Args:
        text: the text.
        has_zone: whether an offset from UTC is applied; otherwise the offset is ignored.
        zone: zone of a text without a zone, if an offset is applied.

    Raises:
        SqlError: 22007, the text is malformed; 22008, the result is out of range.
    """
    plain = _of_plain(text.removesuffix("+00")) if text.endswith("+00") or not has_zone else None
    if plain is not None:
        return plain
    kind = "timestamp with time zone" if has_zone else "timestamp"
    special = _special(text, kind, INFINITY)
    if special is not None:
        return special
    days, time, offset = _parsed(text, kind)
    timestamp = days * DAY + time
    if has_zone:
        timestamp -= offset_of_local(zone, timestamp) if offset is None else offset
    if not FIRST_TIMESTAMP <= timestamp < END_OF_TIMESTAMPS:
        raise SqlError("22008", f'timestamp out of range: "{text}"')
    return timestamp


def _days_of_plain(text: str) -> int | None:
    """Return days since 1970 for a date with four, two and two digits; None for other texts, and wrong dates."""
    if len(text) != _DATE_LENGTH or not text[4] == text[7] == "-":
        return None
    try:
        return datetime.fromisoformat(text).toordinal() - _EPOCH_DAYS
    except ValueError:
        return None


def _of_plain(text: str) -> int | None:
    """Return microseconds since 1970 for a date, a space, a time with seconds, and perhaps their fraction.

    Return None for other texts, and wrong timestamps. Most texts are plain, and are parsed in a fraction of the time.
    """
    length = len(text)
    if length < _TIMESTAMP_LENGTH or length > _TIMESTAMP_LENGTH + 7:
        return None
    if not text[4] == text[7] == "-" or text[10] != " " or not text[13] == text[16] == ":":
        return None
    if length > _TIMESTAMP_LENGTH and text[_TIMESTAMP_LENGTH] != ".":
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    if parsed.tzinfo is not None:
        return None
    seconds = (parsed.hour * 60 + parsed.minute) * 60 + parsed.second
    return (parsed.toordinal() - _EPOCH_DAYS) * DAY + seconds * SECOND + parsed.microsecond


def _special(text: str, kind: str, infinity: int) -> int | None:
    word = text.strip().lower()
    if word == "epoch":
        return 0
    if word in {"infinity", "+infinity"}:
        return infinity
    if word == "-infinity":
        return -infinity
    if word in {"now", "today", "tomorrow", "yesterday"}:
        what = f'"{text}" is not accepted as a {kind}, because its value changes with time'
        raise SqlError("22007", what, hint="Call now() or current_date.")
    return None


def _parsed(text: str, kind: str) -> tuple[int, int, int | None]:
    """Return days since 1970, microseconds of the day, and microseconds of the offset from UTC; None without one."""
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


def _offset(zone: str | None, local: int, text: str, kind: str) -> int | None:
    if not zone:
        return None
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


_BINARY = struct.Struct(">q")
_TIME = re.compile(
    r"""\s*[Tt]?(?:
        (?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?P<fraction>\.\d*)?)?
        |(?P<compact>\d{4}|\d{6}(?P<compact_fraction>\.\d*)?)
    )(?:\s*(?P<half>[AaPp][Mm])\b)?(?:\s*(?P<zone>[A-Za-z]+|[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?))?\s*""",
    re.VERBOSE | re.ASCII,
)


def time_of_text(text: str) -> int:
    """Return the time of a text; a date before it and an offset from UTC after it are ignored.

    Raises:
        SqlError: 22007, the text is not a time; 22008, the time is out of range.
    """
    return time_and_zone(text, "time")[0]


def time_and_zone(text: str, kind: str) -> tuple[int, int | None, int | None]:
    """Return the time of a text, its offset from UTC, and its date as days since 1970; None for missing parts.

    Raises:
        SqlError: 22007, the text is not a time; 22008 or 22009, a field is out of range.
    """
    if text.strip().lower() == "allballs":
        return 0, 0, None
    match = _TIME.fullmatch(text)
    if match is None:
        return _time_of_timestamp_text(text, kind)
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
    return time, _offset(match["zone"], time, text, kind), None


def _time_of_timestamp_text(text: str, kind: str) -> tuple[int, int | None, int | None]:
    error = SqlError("22007", f'invalid input syntax for type {kind}: "{text}"')
    if ":" not in text or re.search(r"\d[Tt]", text):
        raise error
    try:
        days, time, offset = _parsed(text, kind)
    except SqlError as exc:
        raise error if exc.sqlstate == "22007" else exc from None
    return time, offset, days


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
        SqlError: a field is too large (22008).
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
_MONTHS_OF_UNIT = {"month": 1, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_TOKEN = re.compile(
    r"\s*(?:(?P<time>(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d{1,2})"
    r"(?::(?P<seconds>\d{1,2}(?:\.\d*)?)|(?P<fraction>\.\d*))?)"
    r"|(?P<years_and_months>[+-]?\d+-\d+)(?=\s|$)"
    r"|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))\s*(?P<unit>[A-Za-z]*)|(?P<ago>ago))"
)
_ISO = re.compile(
    r"P(?:(-?[\d.]+)Y)?(?:(-?[\d.]+)M)?(?:(-?[\d.]+)W)?(?:(-?[\d.]+)D)?(?:T(?:(-?[\d.]+)H)?(?:(-?[\d.]+)M)?(?:(-?[\d.]+)S)?)?"
)
_ISO_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")


def interval_of_unit(unit: str, number: Decimal) -> Interval:
    """Return the interval of a number of units. Fractions of months become days, and fractions of days become time."""
    if unit in _MONTHS_OF_UNIT:
        months = number * _MONTHS_OF_UNIT[unit]
        if _MONTHS_OF_UNIT[unit] > 1:
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


def interval_of_text(text: str, fields: str = "") -> Interval:
    """Parse an interval.

    Args:
        text: text in PostgreSQL's format, the standard's format, or ISO 8601.
        fields: fields of a literal, such as `minute to second`: the last is the unit of a number without one.

    Raises:
        SqlError: 22007, the text is malformed; 22008, a field is too large.
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
            intervals.append(_time_of(token, malformed, is_short=fields == "minute to second"))
        elif token["years_and_months"]:
            years, months = token["years_and_months"].lstrip("+-").split("-")
            total = int(years) * 12 + int(months)
            intervals.append(Interval(-total if token["years_and_months"].startswith("-") else total, 0, 0))
        else:
            kind = UNIT_OF.get(token["unit"].lower()) if token["unit"] else _unit_before(body[at:], fields)
            if kind is None:
                raise malformed
            intervals.append(interval_of_unit(kind, Decimal(token["number"])))
    if not intervals:
        raise malformed
    value = _total(intervals)
    return Interval(-value.months, -value.days, -value.microseconds) if is_ago else value


def _unit_before(rest: str, fields: str) -> str | None:
    """Return the unit of a number without a unit: days before a time of day or hours, None before other fields."""
    unit = fields.rsplit(maxsplit=1)[-1] if fields else "second"
    following = _TOKEN.match(rest) if rest.strip() else None
    if following is None or following["ago"]:
        return unit
    is_hour = unit == "hour" and following["number"] and not following["unit"]
    return "day" if following["time"] or is_hour else None


def _time_of(token: re.Match[str], malformed: SqlError, *, is_short: bool) -> Interval:
    """Return a time of day; with a fraction, or if `is_short`, two numbers are minutes and seconds."""
    hours, minutes, seconds = int(token["hours"]), int(token["minutes"]), Decimal(token["seconds"] or 0)
    if token["fraction"] or (is_short and token["seconds"] is None):
        hours, minutes, seconds = 0, hours, Decimal(f"{token['minutes']}{token['fraction'] or ''}")
    if minutes > 59 or seconds >= 60:
        raise malformed
    seconds += hours * 3600 + minutes * 60
    microseconds = _rounded(seconds * SECOND)
    return Interval(0, 0, -microseconds if token["sign"] == "-" else microseconds)


def interval_of_fields(text: str, fields: str, precision: int = 6) -> Interval:
    """Parse an interval literal with fields, such as `INTERVAL '1-2' YEAR TO MONTH`.

    Args:
        text: text of the literal.
        fields: fields in lower case; smaller units than the last field are cut off.
        precision: number of decimal places of seconds, from 0 to 6.

    Raises:
        SqlError: 22007, the text is malformed; 22008, a field is too large.
    """
    value, last = interval_of_text(text, fields), fields.rsplit(maxsplit=1)[-1]
    if last in _MONTHS_OF_UNIT:
        unit = _MONTHS_OF_UNIT[last]
        return Interval(_cut(value.months, unit), 0, 0)
    if last == "day":
        return Interval(value.months, value.days, 0)
    if last == "second":
        unit = 10 ** (6 - precision)
        rounded = (abs(value.microseconds) + unit // 2) // unit * unit
        return Interval(value.months, value.days, rounded if value.microseconds >= 0 else -rounded)
    return Interval(value.months, value.days, _cut(value.microseconds, _MICROSECONDS[last]))


def _cut(number: int, unit: int) -> int:
    multiple = abs(number) // unit * unit
    return multiple if number >= 0 else -multiple


def _total(intervals: list[Interval]) -> Interval:
    return Interval(
        sum(interval.months for interval in intervals),
        sum(interval.days for interval in intervals),
        sum(interval.microseconds for interval in intervals),
    )
