"""Time zones are PostgreSQL's: where clocks are set forward and back, and far from there.

PostgreSQL is asked about the zones of the database that it comes with, and Python reads these same files, so that no
release of the database has other rules on one side.
"""

from __future__ import annotations

import os
import random
import struct
import zoneinfo
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_oracle import connection, of_postgres
from postgres_server import zone_files

from derive.algebra.expression import Call, Literal
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.functions.types import datetime as datetime_type
from derive.functions.types.datetime import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Interval,
    days_of,
    interval_datum,
    offset_at,
    text_of_interval,
    text_of_timestamp,
    timestamp_of_text,
    zone_named,
)
from derive.functions.types.type_info import datum_of_text

SAME = "FLOW_LAW_EXAMPLES" not in os.environ
EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "10")) * 20
CHANGES = 3 if SAME else 1000
"""Changes of a zone's clocks that are tried, at most."""
FIELDS = (
    *("microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year"),
    *("decade", "century", "millennium"),
)
_HEAD = struct.Struct(">4sc15x6I")


@pytest.fixture(autouse=True, scope="module")
def zones_of_postgresql() -> Iterator[None]:
    """Read zones from the files of PostgreSQL."""
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([zone_files()])
    _forget()
    yield
    zoneinfo.reset_tzpath(before)
    _forget()


def _forget() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    zone_named.cache_clear()
    datetime_type._names.cache_clear()


@cache
def zone_names() -> tuple[str, ...]:
    """All zones that PostgreSQL knows, one of each that have the same rules."""
    folder = Path(zone_files())
    known = [name for (name,) in connection().execute("SELECT name FROM pg_timezone_names ORDER BY name").fetchall()]
    by_content = {(folder / name).read_bytes(): name for name in known}
    return tuple(sorted(by_content.values()))


@cache
def changes(name: str) -> tuple[int, ...]:
    """Moments at which the clocks of a zone are set: those of its file, and others by its last rule."""
    data = (Path(zone_files()) / name).read_bytes()
    _, _, isut, isstd, leaps, times, types, characters = _HEAD.unpack_from(data)
    at = _HEAD.size + times * 5 + types * 6 + characters + leaps * 8 + isstd + isut
    times = _HEAD.unpack_from(data, at)[5]
    seconds = struct.unpack_from(f">{times}q", data, at + _HEAD.size)
    first = days_of(1700, 1, 1) * 86_400
    found = [second * SECOND for second in seconds if second > first]
    zone = zone_named(name)
    if found and offset_at(zone, found[-1]) != offset_at(zone, found[-1] + SECOND):
        # A file of PostgreSQL breaks RFC 8536: its rule for the future denies its last change, which Python then leaves
        # out. Those of the operating system and of `tzdata` do not.
        assert name == "America/Ojinaga"
        found.pop()
    for year in (2050, 2399, 2401, 2799, 2803, 9000):
        begin = days_of(year, 1, 1) * DAY
        for month in range(12):
            low, high = begin + month * 30 * DAY, begin + (month + 1) * 30 * DAY
            before = offset_at(zone, low)
            if offset_at(zone, high) == before:
                continue
            while high - low > SECOND:
                middle = (low + high) // 2 // SECOND * SECOND
                low, high = (middle, high) if offset_at(zone, middle) == before else (low, middle)
            found.append(high)
    return tuple(found)


def timestamps_near(change: int) -> list[int]:
    steps = (1, SECOND, MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, DAY)
    return [change, *(change + step for step in steps), *(change - step for step in steps)]


def some_zones(first: int) -> tuple[str, ...]:
    """Return every third zone from the first one on; in `make torture` all."""
    return zone_names()[first::3] if SAME else zone_names()


def chosen(name: str) -> list[int]:
    """Changes of a zone that are tried: its first and last ones, and some in between."""
    found = changes(name)
    if len(found) <= CHANGES:
        return list(found)
    return [found[0], *random.Random(name).sample(found[1:-1], CHANGES - 2), found[-1]]


def of_theirs(sql: str, zone: str, timestamps: list[int], kind: str) -> list[int]:
    """Return the values of an expression about `m` and the zone `z` for timestamps, in PostgreSQL."""
    texts = [text_of_timestamp(timestamp, "+00" if kind == "timestamptz" else "") for timestamp in timestamps]
    rows = connection().execute(
        f"SELECT ({sql})::text FROM (SELECT %s::text) AS r(z), unnest(%s::{kind}[]) WITH ORDINALITY AS s(m, i) ORDER BY i",
        (zone, texts),
    )
    return [timestamp_of_text(text, has_zone=True) for (text,) in rows.fetchall()]


def of_ours(function: str, *arguments: tuple[object, Type]) -> int:
    result = Type.TIMESTAMPTZ if not function.endswith("timestamptz") else Type.TIMESTAMP
    value = evaluate(Call(function, tuple(Literal(datum, kind) for datum, kind in arguments), result))  # type: ignore[arg-type]
    assert isinstance(value, int)
    return value


def test_tested_zones_have_many_changes() -> None:
    assert len(zone_names()) > 300
    assert sum(len(changes(name)) for name in zone_names()) > 15_000


def test_at_time_zone_equals_postgresql_around_changes() -> None:
    """Local times of timestamps, and timestamps of local times, equal those of PostgreSQL."""
    for name in some_zones(1):
        near = [timestamp for change in chosen(name) for timestamp in timestamps_near(change)] or [0, DAY]
        locals_ = of_theirs("m AT TIME ZONE z", name, near, "timestamptz")
        ours = [
            of_ours("timezone_text_timestamptz", (name, Type.TEXT), (timestamp, Type.TIMESTAMPTZ)) for timestamp in near
        ]
        assert ours == locals_, name
        zone = zone_named(name)
        # Times that clocks show twice or never lie between what both offsets make of a change.
        edges = {change + offset_at(zone, change + side) for change in chosen(name) for side in (-1, 0)}
        shown = sorted({local for edge in edges for local in timestamps_near(edge)} | set(locals_))
        theirs = of_theirs("m AT TIME ZONE z", name, shown, "timestamp")
        back = [of_ours("timezone_text_timestamp", (name, Type.TEXT), (local, Type.TIMESTAMP)) for local in shown]
        assert back == theirs, name


def test_date_trunc_equals_postgresql_around_changes() -> None:
    """A timestamp is truncated to each field in each zone as in PostgreSQL."""
    for index, name in enumerate(some_zones(0)):
        near = [timestamp for change in chosen(name) for timestamp in timestamps_near(change)] or [0, DAY]
        for field in FIELDS if not SAME else (FIELDS[index % len(FIELDS)], "hour", "day"):
            theirs = of_theirs(f"date_trunc('{field}', m, z)", name, near, "timestamptz")
            ours = [
                of_ours(
                    "date_trunc_text_timestamptz_text",
                    (field, Type.TEXT),
                    (timestamp, Type.TIMESTAMPTZ),
                    (name, Type.TEXT),
                )
                for timestamp in near
            ]
            assert ours == theirs, (name, field)


@settings(max_examples=EXAMPLES, derandomize=SAME, deadline=None)
@given(st.data())
def test_intervals_in_a_zone_equal_postgresql(data: st.DataObject) -> None:
    """Months and days are those of the zone's clocks, hours are hours."""
    name = data.draw(st.sampled_from(zone_names()))
    near = data.draw(st.sampled_from(changes(name) or (0,)))
    timestamp = data.draw(st.sampled_from(timestamps_near(near)))
    interval = Interval(
        data.draw(st.integers(-14, 14)), data.draw(st.integers(-40, 40)), data.draw(st.integers(-50, 50)) * 30 * MINUTE
    )
    begin = timestamp - interval.days * DAY - interval.microseconds + data.draw(st.sampled_from([0, 1, -SECOND]))
    text = text_of_interval(interval)
    for function in ("date_add", "date_subtract"):
        theirs = of_theirs(f"{function}(m, interval '{text}', z)", name, [begin], "timestamptz")
        arguments = (begin, Type.TIMESTAMPTZ), (interval_datum(interval), Type.INTERVAL), (name, Type.TEXT)
        assert [of_ours(f"{function}_timestamptz_interval_text", *arguments)] == theirs


@settings(max_examples=EXAMPLES, derandomize=SAME, deadline=None)
@given(st.data())
def test_texts_with_a_zone_equal_postgresql(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(zone_names()))
    near = data.draw(st.sampled_from(changes(name) or (0,)))
    local = data.draw(st.sampled_from(timestamps_near(near + offset_at(zone_named(name), near - 1))))
    written = data.draw(st.sampled_from([name, name.lower(), name.upper()]))
    text = f"{text_of_timestamp(local)} {written}"

    assert datum_of_text(Type.TIMESTAMPTZ, text) == of_postgres(f"timestamptz '{text}'").datum


@pytest.mark.parametrize(
    "zone",
    [
        *(
            "UTC",
            "utc",
            "Z",
            "zulu",
            "GMT",
            "CEST",
            "cet",
            "EST",
            "MST",
            "HST",
            "MET",
            "WET",
            "EET",
            "PST8PDT",
            "EST5EDT",
        ),
        *(
            "europe/berlin",
            "W-SU",  # its first word is one letter
            "EUROPE/BERLIN",
            "Etc/GMT+5",
            "etc/gmt-14",
            "+02",
            "-05:30",
            "+0",
            "Nowhere",
            "Nowhere/There",
        ),
        *("localtime", " UTC", "", "posix/Europe/Berlin", "../UTC", "Europe", "allballs"),
    ],
)
def test_zone_names_equal_postgresql(zone: str) -> None:
    """A name means the zone that PostgreSQL means, or none."""
    for timestamp in ("2024-01-15 10:00:00+00", "1900-01-01 00:00:00+00", "2024-07-15 10:00:00+00"):
        theirs = of_postgres(f"timestamptz '{timestamp}' AT TIME ZONE '{zone}'")
        datum = timestamp_of_text(timestamp, has_zone=True)
        arguments = (zone, Type.TEXT), (datum, Type.TIMESTAMPTZ)
        if theirs.sqlstate:
            with pytest.raises(SqlError) as raised:
                of_ours("timezone_text_timestamptz", *arguments)
            assert raised.value.sqlstate == theirs.sqlstate
        else:
            assert of_ours("timezone_text_timestamptz", *arguments) == theirs.datum


def test_abbreviations_equal_postgresql() -> None:
    rows = connection().execute("SELECT abbrev FROM pg_timezone_abbrevs").fetchall()
    known = [name for (name,) in rows if name in datetime_type._ABBREVIATIONS]
    assert len(known) == len(datetime_type._ABBREVIATIONS)
    for name in known:
        theirs = of_postgres(f"timestamptz '2024-01-15 10:00+00' AT TIME ZONE '{name}'")
        timestamp = timestamp_of_text("2024-01-15 10:00+00", has_zone=True)
        assert timestamp + offset_at(zone_named(name), timestamp) == theirs.datum, name


@pytest.mark.parametrize(
    "text",
    [
        "2020-07-01 10:00 foo",
        "2020-07-01 10:00 Foo/Bar",
        "2020-07-01 10:00Europe/Berlin",
        "2020-07-01 Europe/Berlin",
        "2020-07-01 10:00 PM CET",
        "2020-07-01 10:00 America/New_York BC",
        "2020-07-01 10:00 Etc/GMT+5",
        "2020-07-01 10:00:00.5 utc",
        "2020-07-01 10:00 localtime",
    ],
)
@pytest.mark.parametrize("kind", [Type.TIMESTAMP, Type.TIMESTAMPTZ, Type.DATE])
def test_timestamp_texts_equal_postgresql(kind: Type, text: str) -> None:
    theirs = of_postgres(f"CAST('{text}' AS {kind.value})")
    if theirs.sqlstate:
        with pytest.raises(SqlError) as raised:
            datum_of_text(kind, text)
        assert raised.value.sqlstate == theirs.sqlstate
    else:
        assert datum_of_text(kind, text) == theirs.datum
