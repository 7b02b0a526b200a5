"""The bench of freshness: the lag of SQL views behind their collection, in a continuous run.

A real `flowctl run` derives AcmeBank, a real `flowctl sql serve` maintains two views over the balances, and this
process ingests single transfers at random times within a tick. For each transfer the bench notes when the balances'
upper passed its timestamp, and when a subscription of each view reported that timestamp. The exit code is 1 if a view
lags more than a tick behind the collection.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from bench.process import end, flowctl
from bench.report import Column, Report, Value
from bench.sql import connect, percentile, serving
from bench.transfers import BANK, CATALOG, generate
from derive.catalog import load
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

TICK = 1.0
"""Length of a tick of the balances in seconds, which is the maximum lag of a view."""

ACCOUNTS, STANDING = 5_000, 20_000
"""Number of accounts, and of transfers ingested before the measurement."""

PATIENCE = 120.0

_READ, _DERIVED = "acmeBank/transfers", "acmeBank/balances"
_VIEWS: tuple[LiteralString, ...] = (
    'CREATE MATERIALIZED VIEW total AS SELECT count(*) AS accounts, sum(balance) AS balance FROM "acmeBank/balances"',
    'CREATE VIEW owing AS SELECT "user", balance FROM "acmeBank/balances" WHERE balance < 0',
    'CREATE INDEX ON owing ("user")',
)
_FOLLOWED: dict[str, LiteralString] = {
    "materialized": "DECLARE c CURSOR FOR SUBSCRIBE total WITH (SNAPSHOT = false, PROGRESS)",
    "indexed": "DECLARE c CURSOR FOR SUBSCRIBE owing WITH (SNAPSHOT = false, PROGRESS)",
}
_EQUAL: tuple[tuple[LiteralString, LiteralString], ...] = (
    ('SELECT count(*), sum(balance) FROM "acmeBank/balances"', "SELECT accounts, balance FROM total"),
    ('SELECT count(*) FROM "acmeBank/balances" WHERE balance < 0', "SELECT count(*) FROM owing"),
)
"""Pairs of a query over the collection and an equal query over a view."""


class Arrivals:
    """Pairs of an upper and the wall-clock time when it was seen, both ascending."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []
        self._arrival = threading.Condition()

    def note(self, upper: int) -> None:
        """Note that `upper`, in microseconds, was reached now."""
        with self._arrival:
            if not self._seen or upper > self._seen[-1][0]:
                self._seen.append((upper, time.time()))
                self._arrival.notify_all()

    def time_of(self, clock: int) -> float:
        """Wait until the upper has passed a timestamp; return the wall-clock time when this was seen."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: bool(self._seen) and self._seen[-1][0] > clock, PATIENCE):
                raise SystemExit(f"nothing is known of {clock} after {PATIENCE:g} s")
            return next(time_of for upper, time_of in self._seen if upper > clock)


@contextmanager
def watching(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread for the length of the block."""
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def watch_collection(store: Store, known: Arrivals, is_over: threading.Event) -> None:
    """Note each new upper of the collection."""
    while not is_over.is_set():
        mark = store.changes.mark()
        collection = store.collection(_DERIVED)
        if collection is not None:
            known.note(collection.upper)
        store.changes.wait(mark, 0.5)


def watch_view(port: int, kind: str, known: Arrivals, is_over: threading.Event) -> None:
    """Note each timestamp that a subscription of a view reports as complete."""
    with connect(port) as connection, connection.transaction(), connection.cursor() as cursor:
        cursor.execute(_FOLLOWED[kind])
        while not is_over.is_set():
            reported = [row[0] for row in cursor.execute("FETCH ALL c WITH (timeout = '0.5s')") if row[1]]
            if reported:
                known.note(int(reported[-1]))


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Run `flowctl run` for the length of the block."""
    command = flowctl("run", "--source", str(folder / "flow.yaml"), "--data", str(folder / ".flow"))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            end(process)


class Feed:
    """Ingests transfers one by one.

    Args:
        store: store of the data folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._transfers = load(CATALOG).collections[_READ]
        self._ingestion = Ingestion(store, self._transfers)
        self._dice = random.Random(5)
        self._sent = STANDING

    def send(self) -> tuple[int, float]:
        """Ingest a transfer; return its timestamp in microseconds, and the wall-clock time when it was stored."""
        self._sent += 1
        sender, recipient = self._dice.sample(range(ACCOUNTS), 2)
        amount = self._dice.randrange(1, 400) / 4
        document = {"id": self._sent, "sender": _account(sender), "recipient": _account(recipient), "amount": amount}
        self._ingestion.load("bench", [(1, document)])
        stored = time.time()
        return max(segment.clock_max for segment in self._store.segments(self._transfers)), stored


def _account(number: int) -> str:
    return f"account-{number:06d}"


def until_fresh(connection: psycopg.Connection[Any], known: dict[str, Arrivals], clock: int) -> None:
    """Wait until all watched collections and views have a transfer, and check the rows of the views."""
    for watched in known.values():
        watched.time_of(clock)
    for scratch, view in _EQUAL:
        expected, rows = (connection.execute(text).fetchall() for text in (scratch, view))
        if rows != expected:
            raise SystemExit(f"{view}: {rows}, where the collection has {expected}")


def measure(report: Report, transfers: int, folder: Path) -> None:
    """Print the latency from transfers to the collection, and the lag of views behind the collection."""
    generate(folder / "generated", STANDING, ACCOUNTS, 10.0).data.rename(folder / ".flow")
    (folder / "flow.yaml").write_text(f"import: [{(BANK / 'flow.yaml').as_uri()}]\n")
    known = {kind: Arrivals() for kind in ("collection", *_FOLLOWED)}
    with ExitStack() as stack:
        store = stack.enter_context(closing(Store(folder / ".flow")))
        stack.enter_context(running(folder))
        stack.enter_context(watching(partial(watch_collection, store, known["collection"])))
        known["collection"].time_of(time.time_ns() // 1_000)  # all earlier transfers are derived
        port = stack.enter_context(serving(folder))
        connection = stack.enter_context(connect(port))
        for statement in _VIEWS:
            connection.execute(statement)
        for kind in _FOLLOWED:
            stack.enter_context(watching(partial(watch_view, port, kind, known[kind])))
        feed, pauses = Feed(store), random.Random(7)
        until_fresh(connection, known, feed.send()[0])
        sent = []
        for _ in range(transfers):
            time.sleep(pauses.uniform(0, TICK / 2))
            sent.append(feed.send())
        until_fresh(connection, known, sent[-1][0])
    reached = [known["collection"].time_of(clock) for clock, _ in sent]
    _row(report, "balances, from their storing", [at - stored for at, (_, stored) in zip(reached, sent, strict=True)])
    for kind in _FOLLOWED:
        behind = [known[kind].time_of(clock) - at for at, (clock, _) in zip(reached, sent, strict=True)]
        _row(report, f"{kind}, behind them", behind, most=TICK)


def _row(report: Report, what: str, seconds: list[float], most: float | None = None) -> None:
    values: dict[str, Value] = {
        "p50 ms": statistics.median(seconds) * 1e3,
        "p99 ms": percentile(seconds) * 1e3,
        "worst ms": max(seconds) * 1e3,
        "at most": None if most is None else most * 1e3,
    }
    is_missed = most is not None and max(seconds) > most
    report.row(len(seconds), what, values, miss=f"{max(seconds):.2f} s behind, not {most:g}" if is_missed else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transfers", type=int, default=200, help="how many arrive")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    arguments = parser.parse_args()
    report = Report(as_json=arguments.json)
    columns = [Column(name, ",.0f") for name in ("p50 ms", "p99 ms", "worst ms", "at most")]
    report.begin("freshness", columns, about="Views over AcmeBank's balances, of which a tick has 1,000 ms")
    with tempfile.TemporaryDirectory() as folder:
        measure(report, arguments.transfers, Path(folder))
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
