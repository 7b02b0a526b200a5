"""Time zones: offsets from UTC at an instant and at a local time, by PostgreSQL's rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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
_MICROSECOND = timedelta(microseconds=1)

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
        SqlError: 22023, there is no such zone.
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
    """Return an equal timestamp within the years of rules."""
    year = 1970 + timestamp // (_MICROSECONDS_OF_PERIOD // _PERIOD)
    if year < _FIRST_YEAR:
        timestamp -= (year - _FIRST_YEAR) // _PERIOD * _MICROSECONDS_OF_PERIOD
    elif year > _LAST_YEAR:
        timestamp -= ((year - _LAST_YEAR) // _PERIOD + 1) * _MICROSECONDS_OF_PERIOD
    return _EPOCH + timedelta(microseconds=timestamp)


def _microseconds(offset: timedelta | None) -> int:
    return offset // _MICROSECOND if offset is not None else 0


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Return the names of all zones by lower case, without `localtime`, which differs between machines."""
    return {name.lower(): name for name in available_timezones() - {_MACHINE_ZONE}}


def _fixed_offset(name: str) -> int | None:
    sign, digits = name[:1], name[1:].replace(":", "")
    if sign not in {"+", "-"} or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    hours, minutes = (int(digits), 0) if len(digits) <= 2 else (int(digits[:-2]), int(digits[-2:]))
    offset = (hours * 3600 + minutes * 60) * _SECOND
    return -offset if sign == "+" else offset
