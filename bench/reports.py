"""The bench of reports: the queries of TPC-H, or of Nexmark, as maintained views, beside REFRESH in PostgreSQL.

First, each view is created alone and dropped, and then all are created together. Measured is the time from CREATE
until a query returns rows, and how late a small view is meanwhile that changes ten times a second.

Both servers have the same rows (60,000 lines or 46,000 bids by default) and get the same changes: new and removed
orders with their lines, or new and removed bids, and replaced rows of other tables. Measured is the time from the last
acknowledged statement until all views have been queried, with all changes; PostgreSQL, which has indexes on all keys,
refreshes its materialized views before. The exit code is 1 if a limit is missed, or the numbers of rows of a view
differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from bench.hydration import MOST_TICK_SECONDS, noticing, prepare
from bench.postgres import Postgres
from bench.process import ROOT
from bench.report import Report
from bench.sql import connect, serving

if TYPE_CHECKING:
    from report_views import Company
    from trade_rows import Row

COUNTS = (1, 10, 100)
"""Numbers of new orders or bids, and of removed ones, in a change."""
ROUNDS = 3
_PAUSE_SECONDS, _FIRST_SECONDS = 0.05, 0.3
"""Seconds between two looks, and seconds after CREATE by which a view may get its first time without rows."""
MOST_FIRST_SECONDS = 5.0
"""Maximum seconds from CREATE until the rows of a view are known."""
MOST_LATE_SECONDS = 1.0
"""Maximum lateness of another view while many views are created at once, in seconds: a tick."""
_KEYS = {
    **dict.fromkeys(("regions", "countries", "makers", "items", "customers", "orders"), ("no",)),
    "offers": ("item_no", "maker_no"),
    "lines": ("order_no", "item_no", "maker_no"),
    **dict.fromkeys(("people", "auctions"), ("no",)),
    "bids": ("auction", "bidder", "price", "made"),
    "channels": ("name",),
}
"""Columns with an index in PostgreSQL, of each table; the first one finds removed rows."""
_LONG = {"offers": 2, "bids": 4}
"""Numbers of columns that find removed rows, where they are several."""

_Connection = psycopg.Connection[Any]


def _copy(connection: _Connection, table: str, rows: Sequence[Row]) -> None:
    with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
        for row in rows:
            copy.write("\t".join(map(str, row)) + "\n")


def _fill(connection: _Connection, company: Company, columns: Mapping[str, str], *, has_indexes: bool) -> None:
    for table, declared in columns.items():
        connection.execute(f"CREATE TABLE {table} ({declared})")
        _copy(connection, table, company.tables[table])
        if has_indexes:
            for column in _KEYS[table]:
                connection.execute(f"CREATE INDEX ON {table} ({column})")
            connection.execute(f"ANALYZE {table}")


def _apply(connection: _Connection, table: str, removed: Sequence[Row], added: Sequence[Row]) -> None:
    if removed:
        columns = _KEYS[table][: _LONG.get(table, 1)]
        places = [0, 1, 2, 5] if table == "bids" else range(len(columns))
        keys = sorted({tuple(row[place] for place in places) for row in removed}, key=str)
        texts = [" AND ".join(f"{name} = '{value}'" for name, value in zip(columns, key, strict=True)) for key in keys]
        connection.execute(f"DELETE FROM {table} WHERE {' OR '.join(texts)}")
    _copy(connection, table, added)


def _known(connection: _Connection, created: Mapping[int, float]) -> list[int]:
    """Return the views that have rows, given their times of creation; until then, the time of a view stands still."""
    uppers = {str(name): upper for name, upper, *_ in connection.execute("SHOW MAINTENANCE").fetchall()}
    least = {number: int((time_created + _FIRST_SECONDS) * 1e6) for number, time_created in created.items()}
    return [number for number, time in least.items() if int(uppers.get(f"q{number}") or 0) > time]


def _first_rows(report: Report, port: int, reports: Mapping[int, str], what: str, *, is_alone: bool) -> None:
    """Create materialized views, alone or all at once, and print the seconds until each is known."""
    seconds: dict[int, float] = {}
    with noticing(port) as others, connect(port) as connection:
        created: dict[int, float] = {}

        def wait() -> None:
            while created:
                for number in _known(connection, created):
                    seconds[number] = time.time() - created.pop(number)
                time.sleep(_PAUSE_SECONDS)

        for number, query in reports.items():
            connection.execute(f"CREATE MATERIALIZED VIEW q{number} AS {query}")
            created[number] = time.time()
            if is_alone:
                wait()
                connection.execute(f"DROP MATERIALIZED VIEW q{number}")
        wait()
    last, late = max(seconds, key=seconds.__getitem__), max(others.ticks)
    report.say(
        f"{what}: known after {statistics.median(seconds.values()):.1f} s (median),"
        f" {seconds[last]:.1f} s (view {last}); others are {late:.2f} s late"
    )
    report.missed += [
        f"view {number} is known after {spent:.1f} s, {what}"
        for number, spent in seconds.items()
        if spent > MOST_FIRST_SECONDS
    ]
    if late > (MOST_TICK_SECONDS if is_alone else MOST_LATE_SECONDS):
        report.missed.append(f"other views are {late:.2f} s late, {what}")


def main() -> int:
    """Run the measurements; return exit code 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.01, help="1 is 6,000,000 lines, or 4,600,000 bids")
    parser.add_argument("--auctions", action="store_true", help="the queries of Nexmark in place of those of TPC-H")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    sys.path.append(str(ROOT / "tests" / "compute"))
    from auction_rows import Auctions
    from report_views import AUCTIONS, TRADE
    from trade_rows import Trade

    company: Company = Trade(options.scale)
    dataset, largest = TRADE, "lines"
    if options.auctions:
        company, dataset, largest = Auctions(int(100_000 * options.scale)), AUCTIONS, "bids"
    report, numbers = Report(as_json=options.json), [*dataset.reports]
    with (
        tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name,
        serving(Path(name)) as port,
        Postgres(Path(name) / "theirs") as postgres,
        connect(port) as ours,
        postgres.connect() as theirs,
    ):
        _fill(ours, company, dataset.columns, has_indexes=False)
        _fill(theirs, company, dataset.columns, has_indexes=True)
        prepare(ours, 0)
        report.say(f"{len(numbers)} views over {len(company.tables[largest]):,} {largest}")
        _first_rows(report, port, dataset.reports, "alone", is_alone=True)
        _first_rows(report, port, dataset.reports, "together", is_alone=False)
        for number, query in dataset.reports.items():
            theirs.execute(f"CREATE MATERIALIZED VIEW q{number} AS {query}")
        for count in COUNTS:
            _measure(report, company, ours, theirs, numbers, count)
    for miss in report.missed:
        print(f"missed: {miss}", file=sys.stderr)
    return int(bool(report.missed))


def _measure(
    report: Report, company: Company, ours: _Connection, theirs: _Connection, numbers: Sequence[int], count: int
) -> None:
    fresh, refreshed, changed = [], [], 0
    for _ in range(ROUNDS):
        changes = company.change(count)
        changed = sum(len(removed) + len(added) for _, removed, added in changes)
        for change in changes:
            for connection in (ours, theirs):
                _apply(connection, *change)
        begin = time.perf_counter()
        own = _rows(ours, numbers)
        fresh.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for number in numbers:
            theirs.execute(f"REFRESH MATERIALIZED VIEW q{number}")
        others = _rows(theirs, numbers)
        refreshed.append(time.perf_counter() - begin)
        report.missed += [
            f"view {number} has {own[number]} rows, and {others[number]} in PostgreSQL"
            for number in numbers
            if own[number] != others[number]
        ]
    lag, refresh = sorted(fresh)[ROUNDS // 2], sorted(refreshed)[ROUNDS // 2]
    report.say(
        f"{changed:>6,} rows changed: all views read after {lag:.2f} s ({changed / lag:,.0f} rows/s);"
        f" REFRESH of all and read after {refresh:.2f} s"
    )


def _rows(connection: _Connection, numbers: Sequence[int]) -> dict[int, int]:
    """Return the number of rows of each view."""
    return {number: connection.execute(f"SELECT count(*) FROM q{number}").fetchall()[0][0] for number in numbers}


if __name__ == "__main__":
    sys.exit(main())
