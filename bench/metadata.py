"""The bench of metadata in PostgreSQL: commits, with and without a delay of the network.

`python -m bench.metadata`. A proxy delays each direction by half of the round trip. Each figure is the median of some
repetitions, in milliseconds. The exit code is 1 if a commit takes too long with a round trip of 1 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from bench.postgres import Postgres
from bench.report import Column, Report, Value
from bench.slow_network import delayed
from bench.sql import serving
from derive.catalog import load
from derive.storage.metadata.descriptions import CollectionUpdate, TaskCommit
from derive.storage.metadata.place import VARIABLE, place_of
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.store import Store
from derive.time.positions import Place, Segment

CATALOG = """
collections:
  bench/numbers: &numbers
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
  bench/copies: *numbers
"""
SOURCE, TASK, SHARDS = "bench/numbers", "bench/copies", 8
MOST_INSERT, MOST_TICK = 8.0, 15.0
"""Greatest medians of an INSERT and of a tick's commit, in milliseconds, with a round trip of `LIMITED`."""
LIMITED = 1.0


def median(work: Callable[[int], object], times: int) -> float:
    """Return the median of the times of some work, in milliseconds, after some repetitions that are not measured."""
    seconds = []
    for number in range(-10, times):
        begun = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[10:]) * 1e3


@contextmanager
def folders(stack: ExitStack, trip: float | None) -> Iterator[Path]:
    """Yield a data folder with its metadata in SQLite (None), or in PostgreSQL with a round trip in milliseconds."""
    root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    os.environ.pop(VARIABLE, None)
    if trip is not None:
        server = stack.enter_context(Postgres(root / "postgres"))
        port = stack.enter_context(delayed(server.port, trip / 2)) if trip else server.port
        os.environ[VARIABLE] = f"postgresql://flow@127.0.0.1:{port}/postgres?schema=bench"
    (root / "flow.yaml").write_text(CATALOG)
    if trip is not None:
        settle_place(root / ".flow", place_of(os.environ[VARIABLE]), creates=True)
    yield root


def commits(root: Path, times: int) -> dict[str, Value]:
    """Return the medians of operations of a store."""
    catalog = load(root / "flow.yaml")
    store = Store(root / ".flow")
    store.create(*catalog.collections.values())
    capability, _ = store.acquire_task(TASK, SHARDS, [TASK])
    store.task_capabilities.acquire_inputs(TASK, {"copy": (SOURCE, 0)}, capability)
    base = store.timeline.read()

    def commit(number: int) -> None:
        nonlocal capability
        position = base + (number + 11) * 1_000
        path = f"collections/{TASK}@/{uuid.uuid4()}.parquet"
        segment = Segment(TASK, path, (), position - 1_000, position - 1, 100, 5_000, "0" * 64)
        tokens = {shard: f"{uuid.uuid4()}-{number}" for shard in range(SHARDS)}
        places = {"copy": Place(SOURCE, 0)}
        progress = TaskCommit({"copy": position}, places, tokens, 100, 100, {"copy": position})
        capability = store.commit_task(capability, progress, [CollectionUpdate(TASK, [segment], position)])

    values: dict[str, Value] = {
        "commit": median(commit, times),
        "seal": median(lambda _: store.seal_now([SOURCE]), times),
        "stamp": median(lambda _: store.timeline.assign(1), times),
        "upper": median(lambda _: store.upper(SOURCE), times),
    }
    store.close()
    return values


def round_trip(times: int) -> float:
    """Return the median of a statement that does nothing; the proxy and other processes may add to the delay."""
    with psycopg.connect(os.environ[VARIABLE].partition("?")[0], autocommit=True) as client:
        return median(lambda _: client.execute("SELECT 1"), times)


def inserts(root: Path, times: int) -> float:
    """Return the median of an INSERT by a client of SQL."""
    with serving(root) as port, psycopg.connect(f"host=127.0.0.1 port={port} user=flow", autocommit=True) as client:
        client.execute("CREATE TABLE written (id bigint PRIMARY KEY, note text)")
        return median(lambda number: client.execute("INSERT INTO written VALUES (%s, 'a')", (number,)), times)


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200, help="number of repetitions")
    parser.add_argument("--trips", type=float, nargs="*", default=[0.0, 1.0], help="round trips in milliseconds")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    report = Report(as_json=options.json)
    names = ("trip", "insert", "commit", "seal", "stamp", "upper")
    report.begin("metadata", [Column(name) for name in names], about="Medians of metadata operations, milliseconds")
    for trip in (None, *options.trips):
        with ExitStack() as stack, folders(stack, trip) as root:
            trip_ms = None if trip is None else round_trip(options.times)
            values = {"trip": trip_ms, "insert": inserts(root, options.times), **commits(root, options.times)}
        what = "SQLite" if trip is None else f"PostgreSQL, {trip:g} ms away"
        insert, commit = values["insert"], values["commit"]
        assert isinstance(insert, float)
        assert isinstance(commit, float)
        is_slow = trip == LIMITED and (insert > MOST_INSERT or commit > MOST_TICK)
        report.row(options.times, what, values, miss="a commit takes too long" if is_slow else None)
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
