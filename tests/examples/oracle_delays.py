"""Contents of the derived collections of `examples/delays`, computed by plain loops.

Flights are ascending by `scheduled`, and weather is ascending by `hour`, as they are ingested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, int, str, str]

KEY = ("carrier", "flight", "origin", "scheduled")


def expected_departures(flights: Iterable[Document], weather: Iterable[Document]) -> dict[Key, Document]:
    """Return delays/departures by key."""
    observations = list(weather)
    known: dict[str, Document] = {}
    place = 0
    departures = {}
    for flight in flights:
        while place < len(observations) and observations[place]["hour"] <= flight["scheduled"]:
            known[observations[place]["origin"]] = observations[place]
            place += 1
        if "dep_delay" not in flight:
            continue
        names = ("carrier", "flight", "origin", "dest", "scheduled", "dep_delay", "distance", "arr_delay")
        document = {name: flight[name] for name in names if name in flight}
        last = known.get(flight["origin"])
        if last is not None:
            document["observed"] = last["hour"]
            document |= {name: last[name] for name in ("wind_speed", "precip", "visib") if name in last}
        departures[_key(flight)] = document
    return departures


def expected_late_arrivals(departures: Iterable[Document], model: Mapping[str, Any]) -> dict[Key, Document]:
    """Return delays/late-arrivals by key."""
    scores = {}
    for departure in departures:
        score = model["intercept"]
        for name, feature in model["features"].items():
            score += feature["weight"] * departure.get(name, feature["missing"])
        kept = {name: departure[name] for name in (*KEY, "dest")}
        scores[_key(departure)] = {**kept, "probability": round(1 / (1 + math.exp(-score)), 3)}
    return scores


def _key(document: Document) -> Key:
    carrier, flight, origin, scheduled = (document[name] for name in KEY)
    return carrier, flight, origin, scheduled
