"""AcmeBank on Spark equals an independent computation in plain Python: every document of every derivation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import oracle_acmebank as oracle
import orjson
import pytest
from conftest import World
from example_script import EXAMPLES, import_script
from reduction_oracle import reduce_in_memory

from derive.catalog import load
from derive.spark.executor import SparkExecutor

pytestmark = [pytest.mark.spark, pytest.mark.deno]


@pytest.fixture(scope="module")
def transfers() -> list[dict[str, Any]]:
    """Twelve days of transfers, many a tick: windows close, and money is spent as soon as it has arrived."""
    generate = import_script("acmebank/generate.py")
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    dense = generate.transfers(3000, 40, seed=7, start=begin, every=timedelta(milliseconds=50))
    sparse = generate.transfers(1500, 40, seed=8, start=begin + timedelta(hours=1), every=timedelta(minutes=11))
    return [*dense, *({**each, "id": each["id"] + 3000} for each in sparse)]


@pytest.fixture(scope="module")
def world(transfers: list[dict[str, Any]], spark: SparkExecutor, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("bank") / "data", load(EXAMPLES / "acmebank" / "flow.yaml"))
    world.ingest("acmeBank/transfers", transfers)
    world.step(spark)
    return world


def reduced(world: World, collection: str) -> list[dict[str, Any]]:
    rows = ((key, orjson.loads(text)) for _, _, key, text in world.rows(collection))
    return [document for _, document in reduce_in_memory(world.catalog.collections[collection], iter(rows))]


Expected = Callable[[list[dict[str, Any]]], dict[Any, dict[str, Any]]]


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("last-large-send", "sender", oracle.expected_last_large_sends),
        ("first-send", "id", oracle.expected_first_sends),
        ("grouped-transfers", "id", oracle.expected_grouped_transfers),
        ("transfer-outcomes", "id", oracle.expected_outcomes),
        ("balances", "user", lambda transfers: oracle.expected_balances(oracle.expected_outcomes(transfers))),
    ],
)
def test_acmebank_on_spark_equals_the_oracle(
    name: str, key: str, expected: Expected, world: World, transfers: list[dict[str, Any]]
) -> None:
    assert {each[key]: each for each in reduced(world, f"acmeBank/{name}")} == expected(transfers)


def test_accounts_spend_only_money_received_a_tick_before(world: World, transfers: list[dict[str, Any]]) -> None:
    found = {each["id"]: each for each in reduced(world, "acmeBank/transfer-outcomes")}

    assert oracle.violations(transfers, found) == []
    assert {each["outcome"] for each in found.values()} == {"approve", "deny"}


def test_flights_on_spark_equal_the_oracle(spark: SparkExecutor, tmp_path: Path) -> None:
    """The first ten days of real flights: last places, idle aircraft, daily statistics, weather."""
    import oracle_flights

    script = import_script("flights/load.py")
    folder = script.data_folder()
    flights, weather = script.flights(folder, 10), script.weather(folder, 10)
    flights_world = World(tmp_path / "data", load(EXAMPLES / "flights" / "flow.yaml"))
    flights_world.ingest("flights/weather", weather, "/hour")
    flights_world.ingest("flights/flights", flights, "/scheduled")
    flights_world.step(spark)

    def found(name: str, *key: str) -> dict[Any, dict[str, Any]]:
        documents = reduced(flights_world, name)
        return {tuple(each[part] for part in key) if len(key) > 1 else each[key[0]]: each for each in documents}

    assert found("flights/aircraft-last-seen", "tailnum") == oracle_flights.expected_last_seen(flights)
    assert found("flights/idle-aircraft", "tailnum", "since") == oracle_flights.expected_idle(flights)
    assert found("flights/daily-carrier-stats", "carrier", "date") == oracle_flights.expected_daily_stats(flights)
    departures = found("flights/departures-with-weather", "carrier", "flight", "origin", "scheduled")
    assert departures == oracle_flights.expected_departures(flights, weather)
    flights_world.store.close()
