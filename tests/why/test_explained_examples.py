"""Every key of every derived collection of the examples is what a replay gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from checkout import REPOSITORY
from conftest import World
from explained import advance, assert_explained, differing

from derive.catalog import load_without_tests
from derive.document.clock import parse_rfc3339

ACCOUNTS, TRANSFERS = 12, 300


@pytest.mark.deno
def test_explanations_equal_the_documents_of_acmebank(tmp_path: Path, empty_pool: None) -> None:
    bank = REPOSITORY / "examples" / "acmebank"
    made = subprocess.run(
        [
            sys.executable,
            str(bank / "generate.py"),
            f"--transfers={TRANSFERS}",
            f"--accounts={ACCOUNTS}",
            "--every-ms=60000",
        ],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    documents = [orjson.loads(line) for line in made.splitlines()]
    world = World(tmp_path / "data", load_without_tests(bank / "flow.yaml"))
    half = len(documents) // 2
    for part in (documents[:half], documents[half:]):
        world.wall = parse_rfc3339(part[-1]["at"])
        world.ingest("acmeBank/transfers", part)
        world.wall = parse_rfc3339(part[-1]["at"]) + 1
        advance(world, 2)
    world.wall += 25 * 3600 * 1_000_000
    advance(world, 2)

    assert all(world.rows(name) for name in world.catalog.derivations)
    assert_explained(world)
    for name in world.catalog.derivations:
        assert differing(world, name, singly=True) == [], name
    world.store.close()


@pytest.mark.torture  # the same law as of the bank
def test_explanations_equal_the_documents_of_flights(tmp_path: Path) -> None:
    folder = REPOSITORY / "examples" / "flights"
    subprocess.run(
        [sys.executable, str(folder / "load.py"), str(tmp_path / "loaded"), "--days", "1"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    world = World(tmp_path / "data", load_without_tests(folder / "flow.yaml"))
    loaded = {
        name: [orjson.loads(line) for line in (tmp_path / "loaded" / f"{name}.jsonl").read_bytes().splitlines()]
        for name in ("weather", "flights")
    }
    world.wall = parse_rfc3339(loaded["flights"][-1]["scheduled"]) + 3600 * 1_000_000
    world.ingest("flights/weather", loaded["weather"], clock="/hour")
    world.ingest("flights/flights", loaded["flights"], clock="/scheduled")
    world.wall = parse_rfc3339(loaded["flights"][-1]["scheduled"]) + 40 * 24 * 3600 * 1_000_000
    advance(world, 2)

    assert all(world.rows(name) for name in world.catalog.derivations)
    assert_explained(world)
    world.store.close()
