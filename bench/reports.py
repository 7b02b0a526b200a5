"""The bench of reports: the queries of TPC-H, or of Nexmark, as maintained views, beside REFRESH in PostgreSQL.

Both servers have the same rows (60,000 lines or 46,000 bids by default) and get the same changes: new and removed
orders with their lines, or new and removed bids, and replaced rows of other tables. Measured is the time from the last
acknowledged statement until all views have been queried, with all changes; PostgreSQL, which has indexes on all keys,
refreshes its materialized views before. The exit code is 1 if the numbers of rows of a view differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

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
_PAUSE_SECONDS = 0.1
_FIRST_SECONDS = 2
"""Seconds after which no view has its first time, so that a later time is known only with its rows."""
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


def _wait(connection: _Connection, clock: float, views: int) -> None:
    """Wait until all views are known after a time, in seconds since 1970."""
    while True:
        known = [row[1] for row in connection.execute("SHOW MAINTENANCE")]
        if len(known) == views and all(upper is not None and int(upper) > clock * 1e6 for upper in known):
            return
        time.sleep(_PAUSE_SECONDS)


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
        begin = time.time()
        for number, query in dataset.reports.items():
            for connection in (ours, theirs):
                connection.execute(f"CREATE MATERIALIZED VIEW q{number} AS {query}")
        _wait(ours, time.time() + _FIRST_SECONDS, len(numbers))
        size = f"{len(company.tables[largest]):,} {largest}"
        report.say(f"{len(numbers)} views over {size}: {time.time() - begin:.1f} s")
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
