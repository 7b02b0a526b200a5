"""The bench of hydration: the effect on other clients while a view of many rows is hydrated.

A small view ticks ten times a second, and rows are looked up all the time. Meanwhile views of a reduced collection and
of a table hydrate, a million rows each. Printed are the seconds of hydration, the latest tick, and the times of
lookups, beside those of a quiet server. The exit code is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psycopg

from bench.process import flowctl, run
from bench.read import CATALOG
from bench.report import Column, Report, Value
from bench.sql import Connection, connect, percentile, serving
from derive.storage.store import Store

MOST_TICK_SECONDS = 0.5
"""Maximum lateness of a tick while a view hydrates, in seconds."""
MOST_RATIO = 2.0
"""Maximum ratio of the 99th percentile of lookups to that on a quiet server."""

QUIET_SECONDS, PATIENCE_SECONDS = 8.0, 300.0
_LOOKED_UP = 10_000


def facts(folder: Path, accounts: int) -> None:
    """Ingest spending of accounts: one document for each account, and another one for every tenth."""
    lines = folder / "spending.jsonl"
    (folder / "flow.yaml").write_text(CATALOG)
    with lines.open("wb") as file:
        for number in range(accounts + accounts // 10):
            account = f"account-{number * 7_919 % accounts:07d}"
            file.write(orjson.dumps({"account": account, "transfers": 1, "spent": number % 1_000 / 4}) + b"\n")
    run(flowctl("ingest", "--source", str(folder / "flow.yaml"), "--collection", "bench/spending", str(lines)))


@dataclass(slots=True)
class Others:
    """Measurements of other clients, in seconds."""

    ticks: list[float] = field(default_factory=list)
    lookups: list[float] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)


@contextmanager
def noticing(port: int) -> Iterator[Others]:
    """Run other clients for the length of the block."""
    others = Others()
    is_over = threading.Event()

    def tick(connection: Connection) -> None:
        while not is_over.wait(0.1):
            begun = time.perf_counter()
            connection.execute("INSERT INTO ticks VALUES (1)")
            connection.execute("SELECT count FROM ticked", prepare=True).fetchall()
            others.ticks.append(time.perf_counter() - begun)

    def look_up(connection: Connection) -> None:
        number = 0
        while not is_over.wait(0.002):
            number = (number + 7_919) % _LOOKED_UP
            begun = time.perf_counter()
            row = connection.execute("SELECT id FROM looked_up WHERE id = %s", (number,), prepare=True).fetchone()
            others.lookups.append(time.perf_counter() - begun)
            assert row == (number,)

    def work(work: Any) -> None:
        try:
            with connect(port) as connection:
                work(connection)
        except BaseException as exc:
            others.failures.append(exc)

    threads = [threading.Thread(target=work, args=(one,)) for one in (tick, look_up)]
    for thread in threads:
        thread.start()
    try:
        yield others
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    if others.failures:
        raise others.failures[0]


def prepare(connection: Connection, rows: int) -> None:
    """Create the views and tables that other clients read, and the large table."""
    connection.execute("CREATE TABLE ticks (n bigint)")
    connection.execute("CREATE VIEW ticked AS SELECT count(*) FROM ticks")
    connection.execute("CREATE INDEX ON ticked (count)")
    connection.execute("CREATE TABLE looked_up (id bigint)")
    connection.execute("CREATE TABLE large (id bigint, name text, amount double precision)")
    with connection.cursor() as cursor:
        with cursor.copy("COPY looked_up FROM STDIN") as copy:
            for number in range(_LOOKED_UP):
                copy.write_row((number,))
        for begin in range(0, rows, 100_000):
            with cursor.copy("COPY large FROM STDIN") as copy:
                for number in range(begin, min(rows, begin + 100_000)):
                    copy.write_row((number, f"name of {number}", number / 8))
    connection.execute("CREATE INDEX by_id ON looked_up (id)")


def hydrate(connection: Connection, view: str, query: str, column: str, value: str) -> float:
    """Create a view and its index; return the seconds until its rows can be looked up."""
    begun = time.perf_counter()
    connection.execute(f"CREATE VIEW {view} AS {query}")
    connection.execute(f"CREATE INDEX ON {view} ({column})")
    connection.execute("SET statement_timeout = '150ms'")
    while time.perf_counter() - begun < PATIENCE_SECONDS:
        time.sleep(1)
        try:
            rows = connection.execute(f"SELECT count(*) FROM {view} WHERE {column} = {value}").fetchone()
        except psycopg.errors.QueryCanceled:
            continue
        assert rows == (1,), rows
        return time.perf_counter() - begun
    raise SystemExit(f"{view} does not begin")


def materialize(connection: Connection, folder: Path) -> float:
    """Create a materialized view; return the seconds until it is written to Storage."""
    begun = time.perf_counter()
    connection.execute("SET statement_timeout = '1h'")
    connection.execute('CREATE MATERIALIZED VIEW written AS SELECT account, spent FROM "bench/spending"')
    store = Store(folder / ".flow", reading=True)
    while time.perf_counter() - begun < PATIENCE_SECONDS:
        time.sleep(0.2)
        table = store.tables.find("sql/public/written")
        if table is not None and table.upper > table.since:
            store.close()
            return time.perf_counter() - begun
    raise SystemExit("the view is not written")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a view")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    arguments = parser.parse_args()
    report = Report(as_json=arguments.json)
    columns = [Column(name) for name in ("seconds", "late tick s", "p50 µs", "p99 µs", "ratio")]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        facts(folder, arguments.rows)
        port = stack.enter_context(serving(folder))
        connection = stack.enter_context(connect(port))
        prepare(connection, arguments.rows)
        report.begin("hydration", columns, about="Latency of other statements during the hydration of a view")
        time.sleep(QUIET_SECONDS)
        with noticing(port) as quiet:
            time.sleep(QUIET_SECONDS)
        usual = percentile(quiet.lookups)
        row(report, 0, "nothing", 0.0, quiet, usual)
        for name, query, column, value in (
            ("of_collection", 'SELECT account, spent FROM "bench/spending"', "account", "'account-0000077'"),
            ("of_table", "SELECT id, name, amount FROM large WHERE amount >= 0", "id", "77"),
        ):
            with noticing(port) as others:
                seconds = hydrate(connection, name, query, column, value)
            row(report, arguments.rows, name, seconds, others, usual)
        with noticing(port) as others:
            seconds = materialize(connection, folder)
        row(report, arguments.rows, "materialized", seconds, others, usual)
    return int(bool(report.missed))


def row(report: Report, rows: int, what: str, seconds: float, others: Others, usual: float) -> None:
    """Print the measurements of other clients."""
    ratio = percentile(others.lookups) / usual
    values: dict[str, Value] = {
        "seconds": seconds,
        "late tick s": max(others.ticks),
        "p50 µs": sorted(others.lookups)[len(others.lookups) // 2] * 1e6,
        "p99 µs": percentile(others.lookups) * 1e6,
        "ratio": ratio,
    }
    missed = max(others.ticks) > MOST_TICK_SECONDS or ratio > MOST_RATIO
    report.row(rows, what, values, miss="others wait too long" if missed and rows else None)


if __name__ == "__main__":
    sys.exit(main())
