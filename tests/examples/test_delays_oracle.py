"""Delays: the derivations in Python agree with plain loops, and the model in the file is the best one for its data."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import oracle_delays as oracle
import pytest
from conftest import World
from example_script import EXAMPLES, import_script
from oracle_delays import Document

from derive.catalog import load

MODEL: dict[str, Any] = json.loads((EXAMPLES / "delays/model.json").read_text())
BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
AIRPORTS = ("EWR", "JFK", "LGA")


def flights(count: int) -> list[Document]:
    """Return flights every 7 minutes: some on a full hour, every fifth cancelled, every eleventh diverted."""
    found = []
    for number in range(count):
        scheduled = (BEGIN + timedelta(minutes=7 * number)).strftime("%Y-%m-%dT%H:%M:00Z")
        flight: Document = {
            "carrier": "AA",
            "flight": number,
            "origin": AIRPORTS[number * 5 % 7 % 3],
            "dest": "MIA",
            "scheduled": scheduled,
            "hour": f"{scheduled[:13]}:00:00Z",
            "date": scheduled[:10],
            "cancelled": number % 5 == 4,
            "diverted": number % 11 == 10,
            "distance": 100 + number * 37 % 2000,
        }
        if not flight["cancelled"]:
            flight["dep_delay"] = number * 13 % 90 - 20
            if not flight["diverted"]:
                flight["arr_delay"] = flight["dep_delay"] - 5
        found.append(flight)
    return found


def weather(hours: int) -> list[Document]:
    """Return an observation of each airport and hour, except some, with a measurement that is sometimes missing."""
    return [
        {
            "origin": origin,
            "hour": (BEGIN + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:00:00Z"),
            "visib": 10 / (1 + hour * place % 7),
            "precip": hour * place % 4 / 8,
            **({"wind_speed": hour * 2.5 + place} if hour % 4 else {}),
        }
        for hour in range(1, hours)
        for place, origin in enumerate(AIRPORTS)
        if (hour + place) % 3
    ]


def found_in(world: World, collection: str) -> dict[Any, Document]:
    documents = (json.loads(text) for *_, text in world.rows(collection))
    return {tuple(document[name] for name in oracle.KEY): document for document in documents}


@pytest.mark.parametrize("shards", [1, 3])
def test_delays_equal_plain_loops_for_any_number_of_shards(shards: int, tmp_path: Path, empty_pool: None) -> None:
    world = World(tmp_path / "data", load(EXAMPLES / "delays/flow.yaml"))
    departing, observed = flights(120), weather(16)
    world.ingest("flights/weather", observed, "/hour")
    world.ingest("flights/flights", departing, "/scheduled")
    world.step(shards=shards)

    departures = oracle.expected_departures(departing, observed)
    scores = found_in(world, "delays/late-arrivals")
    assert found_in(world, "delays/departures") == departures
    assert scores == oracle.expected_late_arrivals(departures.values(), MODEL)
    assert len(scores) == 96
    assert len({score["probability"] for score in scores.values()}) > 50
    world.store.close()


@pytest.mark.torture  # reads a year of flights
def test_model_of_delays_has_the_greatest_likelihood_of_its_departures() -> None:
    """The gradient of a logistic regression's loss is zero; scikit-learn has a penalty of half the squared weights."""
    script, training = import_script("flights/load.py"), import_script("delays/train.py")
    folder = script.data_folder()
    departures = oracle.expected_departures(script.flights(folder), script.weather(folder)).values()
    arrived = [each for each in departures if "arr_delay" in each and each["scheduled"] < training.TRAINED_BEFORE]
    values, late = training.table(arrived)
    features = [MODEL["features"][name] for name in training.FEATURES]
    missing, weights = (np.array([feature[name] for feature in features]) for name in ("missing", "weight"))

    assert np.allclose(missing, np.nanmean(values, axis=0), rtol=1e-5)
    known = np.where(np.isnan(values), missing, values)
    deviations = known.std(axis=0)
    wrong = 1 / (1 + np.exp(-(MODEL["intercept"] + known @ weights))) - late
    gradient = ((known - known.mean(axis=0)) / deviations).T @ wrong + weights * deviations
    assert abs(wrong.mean()) < 1e-5
    assert np.abs(gradient).max() / len(late) < 1e-5
