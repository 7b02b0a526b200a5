"""The oracle of flights, on cases worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_flights import expected_daily_stats, expected_departures, expected_idle, expected_last_seen


def _flight(number: int, scheduled: str, dest: str = "MIA", **properties: object) -> dict[str, Any]:
    time = f"2013-01-{scheduled}:00Z"
    plain = {
        "carrier": "AA",
        "flight": number,
        "origin": "JFK",
        "dest": dest,
        "scheduled": time,
        "hour": f"{time[:13]}:00:00Z",
        "date": time[:10],
        "tailnum": "N1",
        "cancelled": False,
        "diverted": False,
        "dep_delay": 5,
        "distance": 1,
    }
    return {name: value for name, value in {**plain, **properties}.items() if value is not None}


CANCELLED: dict[str, Any] = {"cancelled": True, "dep_delay": None}


def test_last_seen_is_the_last_flight_that_departed() -> None:
    found = expected_last_seen(
        [
            _flight(1, "01T10:00"),
            _flight(2, "01T11:00", "ORD"),
            _flight(3, "01T12:00", "LAX", **CANCELLED),
            _flight(4, "01T13:00", "SFO", tailnum=None),
        ]
    )
    assert found == {
        "N1": {"tailnum": "N1", "place": "ORD", "scheduled": "2013-01-01T11:00:00Z", "carrier": "AA", "flight": 2}
    }


@pytest.mark.parametrize(
    ("following", "since"),
    [
        (_flight(2, "02T09:59"), ["02T09:59"]),  # less than a day later
        (_flight(2, "02T10:00"), ["02T10:00"]),  # exactly a day later is early enough
        (_flight(2, "02T10:01"), ["01T10:00", "02T10:01"]),  # more than a day
        (_flight(2, "02T09:59", **CANCELLED), ["01T10:00"]),  # what is cancelled does not count
        (_flight(2, "02T09:59", tailnum=None), ["01T10:00"]),  # nor does what has no aircraft
    ],
)
def test_idle_is_who_does_not_depart_within_a_day(following: dict[str, Any], since: list[str]) -> None:
    found = expected_idle([_flight(1, "01T10:00"), following])
    assert list(found) == [("N1", f"2013-01-{each}:00Z") for each in since]


def test_of_two_departures_at_one_time_the_latter_is_the_last() -> None:
    found = expected_idle([_flight(1, "01T10:00", "ORD"), _flight(2, "01T10:00", "MIA")])
    key = ("N1", "2013-01-01T10:00:00Z")
    assert found == {key: {"tailnum": "N1", "since": "2013-01-01T10:00:00Z", "place": "MIA"}}


def test_daily_stats_add_up() -> None:
    found = expected_daily_stats(
        [
            _flight(1, "01T10:00", dep_delay=-7),
            _flight(2, "01T11:00", dep_delay=30),
            _flight(3, "01T12:00", **CANCELLED),
            _flight(4, "02T10:00", **CANCELLED),
        ]
    )
    assert found == {
        ("AA", "2013-01-01"): {
            "carrier": "AA",
            "date": "2013-01-01",
            "flights": 3,
            "cancelled": 1,
            "delay_minutes": 30,
            "longest_delay": 30,
            "first_departure": "2013-01-01T10:00:00Z",
            "last_departure": "2013-01-01T12:00:00Z",
        },
        ("AA", "2013-01-02"): {
            "carrier": "AA",
            "date": "2013-01-02",
            "flights": 1,
            "cancelled": 1,
            "delay_minutes": 0,
            "longest_delay": None,  # nothing departed
            "first_departure": "2013-01-02T10:00:00Z",
            "last_departure": "2013-01-02T10:00:00Z",
        },
    }


def test_departures_have_the_weather_of_their_airport_and_hour() -> None:
    weather = [
        {"origin": "EWR", "hour": "2013-01-01T10:00:00Z", "temp": 1.5},
        {"origin": "JFK", "hour": "2013-01-01T10:00:00Z", "temp": 2.5, "visib": 10.0},
    ]
    found = expected_departures([_flight(1, "01T10:59"), _flight(2, "01T11:00", **CANCELLED)], weather)
    assert found["AA", 1, "JFK", "2013-01-01T10:59:00Z"] == {
        "carrier": "AA",
        "flight": 1,
        "origin": "JFK",
        "dest": "MIA",
        "scheduled": "2013-01-01T10:59:00Z",
        "cancelled": False,
        "dep_delay": 5,
        "temp": 2.5,
        "wind_speed": None,
        "precip": None,
        "visib": 10.0,
    }
    assert found["AA", 2, "JFK", "2013-01-01T11:00:00Z"]["temp"] is None
