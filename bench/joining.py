"""The bench of a joining replica: the latency of another replica while the new one computes all views.

A server has one replica with a large view, and with views that clients look up, insert into and follow. In each round a
replica is created, computes all views from Storage, and is dropped. The exit code is 1 if the median lookup over all
rounds takes too long compared with before, if a statement fails, or if a subscription misses or repeats a row. A single
round is too short to be judged.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.instances import (
    Load,
    faults_of,
    has_dataflows,
    loaded,
    make_load,
    serving,
    until,
    until_maintained,
)
from bench.report import Column, Report, Value
from bench.sql import Connection, connect, percentile
from derive.sql.maintenance.controller.remote import PROCESSES

MOST_RATIO = 1.5
"""Maximum ratio of the median lookup while a replica joins to that before."""

_QUIET_SECONDS = 8.0
_DATAFLOWS = 3
_REPLICA = "joining"


def make_large(connection: Connection, rows: int) -> None:
    """Create a view of many rows."""
    connection.execute("CREATE TABLE large (id bigint, name text, amount double precision)")
    for begin in range(0, rows, 100_000):
        with connection.cursor() as cursor, cursor.copy("COPY large FROM STDIN") as copy:
            for number in range(begin, min(rows, begin + 100_000)):
                copy.write_row((number, f"name of {number}", number / 8))
    connection.execute("CREATE VIEW filtered AS SELECT id, name, amount FROM large WHERE amount >= 0")
    connection.execute("CREATE INDEX ON filtered (id)")
    until_maintained(connection, _DATAFLOWS)


def row(report: Report, what: str, load: Load, before: Load, seconds: float, faults: list[str]) -> None:
    """Print the measurements of clients, beside those before."""
    values: dict[str, Value] = {
        "seconds": seconds,
        "p50 ms": statistics.median(load.lookups) * 1e3,
        "p99 ms": percentile(load.lookups) * 1e3,
        "insert p50": statistics.median(load.inserts) * 1e3,
        "p50 ratio": _ratio(load, before),
        "p99 ratio": percentile(load.lookups) / percentile(before.lookups),
    }
    report.row(len(load.lookups), what, values, miss=", ".join(faults) or None)


def _ratio(load: Load, before: Load) -> float:
    return statistics.median(load.lookups) / statistics.median(before.lookups)


def join(report: Report, rows: int, rounds: int) -> None:
    """Let a replica join and leave, over and over."""
    all_before, all_joining, all_seconds = Load(), Load(), 0.0
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder, first = Path(scratch), 0
        served = stack.enter_context(serving(folder, "--replicas", "1"))
        connection = stack.enter_context(connect(served.port))
        make_load(connection)
        make_large(connection, rows)
        place = folder / ".flow" / PROCESSES / _REPLICA
        for _ in range(rounds):
            with loaded(served.port, first) as before:
                time.sleep(_QUIET_SECONDS)
            first += len(before.inserted)
            row(report, "look-ups before", before, before, _QUIET_SECONDS, faults_of(before))
            with loaded(served.port, first) as load:
                connection.execute(f"CREATE REPLICA {_REPLICA}")
                seconds = until(lambda: has_dataflows(place, _DATAFLOWS), "a replica has joined")
            first += len(load.inserted)
            row(report, "look-ups, a replica joins", load, before, seconds, faults_of(load))
            connection.execute(f"DROP REPLICA {_REPLICA}")
            for total, one in ((all_before, before), (all_joining, load)):
                total.lookups += one.lookups
                total.inserts += one.inserts
            all_seconds += seconds
    ratio = _ratio(all_joining, all_before)
    faults = [f"look-ups take {ratio:.2f} times as long as before, not {MOST_RATIO:g}"] if ratio > MOST_RATIO else []
    row(report, "all that were while one joined", all_joining, all_before, all_seconds / rounds, faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the view that is large")
    parser.add_argument("--rounds", type=int, default=6, help="how often a replica joins")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    arguments = parser.parse_args()
    report = Report(as_json=arguments.json)
    columns = [Column(name) for name in ("seconds", "p50 ms", "p99 ms", "insert p50", "p50 ratio", "p99 ratio")]
    report.begin("joining", columns, about="A replica works everything out while another one answers")
    join(report, arguments.rows, arguments.rounds)
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
