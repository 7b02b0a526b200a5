"""What the derived collections of flights must hold, computed from the flights in plain Python.

Like every oracle it shares nothing with what it judges. Flights are ascending by `scheduled`, as ingested with
`--clock /scheduled`, and weather is ascending by `hour`, as ingested with `--clock /hour`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]

DAY = timedelta(hours=24)


def expected_last_seen(flights: Iterable[Document]) -> dict[str, Document]:
    """flights/aircraft-last-seen, by tail number."""
    names = ("tailnum", "scheduled", "carrier", "flight")
    return {
        each["tailnum"]: {**{name: each[name] for name in names}, "place": each["dest"]}
        for each in flights
        if _departed(each)
    }


def expected_idle(flights: Iterable[Document]) -> dict[tuple[str, str], Document]:
    """flights/idle-aircraft, by tail number and time, when every delayed read has come due.

    A departure exactly 24 hours later is early enough: at equal adjusted clocks it is noted before the look-up, as the
    catalog has it. Of two departures of one aircraft at the same time the latter is the last.
    """
    departures: dict[str, list[Document]] = defaultdict(list)
    for each in flights:
        if _departed(each):
            departures[each["tailnum"]].append(each)
    idle = {}
    for tailnum, flown in departures.items():
        for each, following in zip(flown, [*flown[1:], None], strict=True):
            if following is None or _time(following) - _time(each) > DAY:
                key = (tailnum, each["scheduled"])
                idle[key] = {"tailnum": tailnum, "since": each["scheduled"], "place": each["dest"]}
    return idle


def expected_daily_stats(flights: Iterable[Document]) -> dict[tuple[str, str], Document]:
    """flights/daily-carrier-stats, by carrier and date."""
    groups: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for each in flights:
        groups[each["carrier"], each["date"]].append(each)
    stats = {}
    for (carrier, date), group in groups.items():
        delays = [each["dep_delay"] for each in group if "dep_delay" in each]
        times = sorted(each["scheduled"] for each in group)
        stats[carrier, date] = {
            "carrier": carrier,
            "date": date,
            "flights": len(group),
            "cancelled": sum(each["cancelled"] for each in group),
            "delay_minutes": sum(delay for delay in delays if delay > 0),
            "longest_delay": max(delays, default=None),
            "first_departure": times[0],
            "last_departure": times[-1],
        }
    return stats


def expected_departures(
    flights: Iterable[Document], weather: Iterable[Document]
) -> dict[tuple[str, int, str, str], Document]:
    """flights/departures-with-weather, by carrier, flight, origin and time."""
    observed = {(each["origin"], each["hour"]): each for each in weather}
    departures = {}
    for each in flights:
        found = observed.get((each["origin"], each["hour"]), {})
        kept = {name: each[name] for name in ("carrier", "flight", "origin", "dest", "scheduled", "cancelled")}
        joined = {name: found.get(name) for name in ("temp", "wind_speed", "precip", "visib")}
        key = (each["carrier"], each["flight"], each["origin"], each["scheduled"])
        departures[key] = {**kept, "dep_delay": each.get("dep_delay"), **joined}
    return departures


def _departed(flight: Document) -> bool:
    return "tailnum" in flight and not flight["cancelled"]


def _time(flight: Document) -> datetime:
    return datetime.fromisoformat(flight["scheduled"])
