"""Clocks as text."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.document.clock import (
    document_uuid,
    format_duration,
    format_rfc3339,
    parse_duration,
    parse_rfc3339,
    parse_time,
)
from derive.functions.types.datetime import text_in_zone, zone_named


@given(st.integers(0, 253_402_300_799_999_999))
def test_timestamp_survives_a_round_trip(clock: int) -> None:
    assert parse_rfc3339(format_rfc3339(clock)) == clock


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-01-01T00:00:00.25+01:00", 1_704_063_600_250_000),  # a zone and a short fraction
        ("2024-01-01t00:00:00.1234567z", 1_704_067_200_123_456),  # lower case; digits below a microsecond go
    ],
)
def test_times_are_parsed(text: str, clock: int) -> None:
    assert parse_rfc3339(text) == clock


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-01-01",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00:00",
        "2024-13-01T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:00:60Z",
        "2024-01-01T00:00:00+10:75",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00.1234567890Z",
        "٢٠٢٤-01-01T00:00:00Z",
        "2024-01-01T00:00:00Z\n",
    ],
)
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339|month|second"):
        parse_rfc3339(text)


NOW = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("2024-01-01T00:00:00Z", NOW),
        ("2024-01-01 00:00:00.25+00", NOW + 250_000),  # as SQL prints it
        ("2024-01-01 02:00:00+02", NOW),
        ("2023-12-31 19:00:00 America/New_York", NOW),
        ("2024-01-01 01:00", NOW),  # in the zone of the reader, here one hour east
        ("2024-01-01", NOW - 3_600_000_000),
        (f" {NOW} ", NOW),
        ("17", 17),
        ("now", NOW),
        ("1h", NOW - 3_600_000_000),
        ("-1h", NOW - 3_600_000_000),
        ("1 hour ago", NOW - 3_600_000_000),
        ("1h 30s ago", NOW - 3_630_000_000),
        ("9999999w", 0),  # before 1970
    ],
)
def test_times_of_a_person_are_parsed(text: str, clock: int) -> None:
    assert parse_time(text, "<+01>-01", NOW) == clock


@pytest.mark.parametrize(
    "text", ["", "2024", "20240101x", "yesterday", "infinity", "2024-02-30", "ago", "-", "1h later", "١٧", "12:00"]
)
def test_texts_that_are_no_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time such as 2024-01-31T12:00:00Z, or a duration before now"):
        parse_time(text)


@given(st.integers(0, 253_402_300_799_999_999))
def test_printed_times_are_parsed(clock: int) -> None:
    """Law: each time that commands or SQL print is accepted where a time is read."""
    assert parse_time(format_rfc3339(clock)) == parse_time(text_in_zone(clock, 0)) == clock
    assert parse_time(text_in_zone(clock, zone_named("Europe/Berlin"))) == clock


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("15m", 900_000_000),
        ("1 hour", 3_600_000_000),
        ("1h 30s", 3_630_000_000),
        ("0s", 0),
        ("100ms", 100_000),
        ("2wk", 1_209_600_000_000),
        ("1h30m", 5_400_000_000),
    ],
)
def test_durations_are_parsed(text: str, micros: int) -> None:
    assert parse_duration(text) == micros
    assert parse_duration(format_duration(micros)) == micros


@pytest.mark.parametrize("text", ["", "15", "h", "1x", "-1s"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_uuid_contains_the_timestamp() -> None:
    made = uuid.UUID(document_uuid(1_704_067_200_250_000, 3, b"key"))

    assert made.version == 1
    assert (made.time - 122_192_928_000_000_000) // 10 == 1_704_067_200_250_000


@pytest.mark.parametrize(
    ("micros", "text"), [(86_400_000_000, "24h"), (5_400_000_000, "1h 30m"), (100_000, "100ms"), (1_000_001, "1s 1us")]
)
def test_durations_are_formatted(micros: int, text: str) -> None:
    assert format_duration(micros) == text


@pytest.mark.parametrize(
    ("clock", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),  # four digits of year
    ],
)
def test_timestamps_are_formatted(clock: int, text: str) -> None:
    assert format_rfc3339(clock) == text
    assert parse_rfc3339(text) == clock


def test_uuid_distinguishes_documents_of_one_timestamp() -> None:
    made = {document_uuid(0, seq, key) for seq in (0, 1) for key in (b"a", b"b")}

    assert len(made) == 4
    assert document_uuid(0, 1, b"a") == document_uuid(0, 1, b"a")
