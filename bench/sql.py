"""The bench of SQL: clients that look up and write rows, beside PostgreSQL with the same rows and clients.

Both servers are processes of their own, reached by TCP, and queried in turns, so that other load slows both. Then many
clients query flowctl at once, while others are idle. The exit code is 1 if flowctl takes too much longer.

`--folder /dev/shm` keeps the data of both servers in memory. Syncs then cost nothing, as on a fast disk, and the time
of a write is that of its statement.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import psycopg

from bench.postgres import Postgres
from bench.process import end, place
from bench.report import Column, Report, Value

MOST = 3.0
MOST_TEXTS, MOST_INSERTS, MOST_UPDATES, MOST_SCANS, MOST_BATCHES, MOST_COPIES = 4.0, 5.0, 6.0, 5.0, 5.0, 3.0
"""Maximum ratios of the median to PostgreSQL's, by kind of statement."""
MOST_COPY_FROM, MOST_CHANGES, MOST_MERGES = 8.0, 15.0, 30.0
"""The same for COPY FROM, for UPDATE and DELETE of many rows, and for MERGE of one row."""
SCANNED, BATCHES = 2_000, (1_000, 6_000)
"""Rows of the table without an index, and rows of a statement."""
BUSY, IDLE = 50, 200
"""Number of clients that query at once, and of idle clients."""

SETTLED, PATIENCE = 0.003, 120.0
"""Maximum seconds of a lookup after the index is built, and maximum seconds to wait for the index."""

ROUND = 100
_AT_ONCE = 2_000
LOOKUP = "SELECT id, name, amount FROM looked_up WHERE id = %s"
INSERT = "INSERT INTO written VALUES (%s, 'one row')"
UPDATE = "UPDATE written SET note = 'another row' WHERE id = %s"
DELETE = "DELETE FROM written WHERE id = %s"
MERGE = (
    "MERGE INTO merged AS old USING (VALUES (%s::bigint, 'merged')) AS new (id, note) ON old.id = new.id"
    " WHEN MATCHED THEN UPDATE SET note = new.note WHEN NOT MATCHED THEN INSERT VALUES (new.id, new.note)"
)
SCAN = "SELECT id, name, amount FROM scanned WHERE id = %s"
CHANGED = 20
"""A statement that changes many rows changes one of so many."""
UPDATE_MANY = f"UPDATE changed SET amount = amount + 1 WHERE id % {CHANGED} = %s"
DELETE_MANY = f"DELETE FROM changed WHERE id % {CHANGED} = %s"
KEYED = "INSERT INTO keyed SELECT id + 1000000000::bigint * %s, name, amount FROM looked_up"
MAKE = "CREATE TABLE made_%s AS SELECT id, name, amount FROM looked_up"
COPY = "INSERT INTO copied SELECT id, name, amount FROM looked_up"
BATCH = "INSERT INTO batched VALUES (%s, %s, %s)"

PREPARED, UNPREPARED, SIMPLE = "prepared", "not prepared", "as texts with their numbers"
"""Ways to send statements: psycopg starts unprepared and later prepares, psql sends texts with their numbers."""

Connection: TypeAlias = psycopg.Connection[Any]

Work: TypeAlias = Callable[[Connection, int], float]
"""A function that runs a statement of a number of rows, and returns its seconds."""


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """Run `flowctl sql serve` over a data folder, with an empty catalog unless there is one; yield its port."""
    source = folder / "flow.yaml"
    if not source.exists():
        source.write_text("collections: {}\n")
    program = [sys.executable, "-m", "derive.cli.main", "sql", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*program, "--source", str(source)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline().strip().rpartition(":")[2])
        finally:
            end(process)


def fill(connection: Connection, rows: int) -> None:
    """Create the tables and the index."""
    connection.execute("CREATE TABLE written (id bigint, note text)")
    connection.execute("CREATE TABLE looked_up (id bigint, name text, amount double precision)")
    for begin in range(0, rows, _AT_ONCE):
        numbers = range(begin, min(rows, begin + _AT_ONCE))
        connection.execute(f"INSERT INTO looked_up VALUES {values_of(numbers)}")
    connection.execute("CREATE INDEX by_id ON looked_up (id)")


def fill_others(connection: Connection) -> None:
    """Create the tables of statements without an index, and of many rows."""
    columns = "(id bigint, name text, amount double precision)"
    for name in ("scanned", "batched", "copied"):
        connection.execute(f"CREATE TABLE {name} {columns}")
    connection.execute(f"INSERT INTO scanned VALUES {values_of(range(SCANNED))}")
    connection.execute("CREATE TABLE changed AS SELECT id, name, amount FROM looked_up")
    checks = "(id bigint PRIMARY KEY, name text NOT NULL, amount double precision CHECK (amount >= 0))"
    connection.execute(f"CREATE TABLE keyed {checks}")
    connection.execute("CREATE TABLE merged (id bigint PRIMARY KEY, note text)")


def values_of(numbers: range) -> str:
    """Return the rows of numbers as texts of VALUES."""
    return ", ".join(f"({number}, 'name of {number}', {number / 8})" for number in numbers)


def insert_values(connection: Connection, count: int) -> float:
    """Return the seconds of an INSERT of rows in its text."""
    text = f"INSERT INTO batched VALUES {values_of(range(count))}"
    begun = time.perf_counter()
    connection.execute(text)
    return time.perf_counter() - begun


def insert_many(connection: Connection, count: int) -> float:
    """Return the seconds of INSERTs of one row each, sent together in a transaction."""
    rows = [(number, f"name of {number}", number / 8) for number in range(count)]
    begun = time.perf_counter()
    with connection.transaction():
        connection.cursor().executemany(BATCH, rows)
    return time.perf_counter() - begun


def insert_selected(connection: Connection, count: int) -> float:
    """Return the seconds of an INSERT of all rows of another table, and check their number."""
    begun = time.perf_counter()
    if connection.execute(COPY).rowcount != count:
        raise SystemExit(f"{count:,} rows were not inserted")
    return time.perf_counter() - begun


class Numbered:
    """A statement of many rows with the number of its round in its text.

    Args:
        text: the statement, with a place for the number.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._rounds = Counter[Connection]()

    def __call__(self, connection: Connection, count: int) -> float:
        """Return the seconds of the next round, and check the number of its rows."""
        number = self._rounds[connection]
        self._rounds[connection] += 1
        begun = time.perf_counter()
        changed = connection.execute(self._text.replace("%s", str(number))).rowcount
        if changed != count:
            raise SystemExit(f"{count:,} rows were not changed, but {changed:,}")
        return time.perf_counter() - begun


def copy_in(connection: Connection, count: int) -> float:
    """Return the seconds of COPY FROM STDIN with rows."""
    rows = "".join(f"{number}\tname of {number}\t{number / 8}\n" for number in range(count))
    begun = time.perf_counter()
    with connection.cursor().copy("COPY batched FROM STDIN") as copy:
        copy.write(rows)
    return time.perf_counter() - begun


def ask(connection: Connection, text: str, numbers: range, *, how: str = PREPARED) -> list[float]:
    """Run a statement for each number, check its rows, and return the seconds of each."""
    cursor = psycopg.ClientCursor(connection) if how == SIMPLE else connection.cursor()
    taken = []
    for number in numbers:
        begun = time.perf_counter()
        cursor.execute(text, (number,), prepare=how == PREPARED)
        rows = cursor.fetchall() if cursor.description else None
        taken.append(time.perf_counter() - begun)
        if rows is not None and rows != [(number, f"name of {number}", number / 8)]:
            raise SystemExit(f"{number} was looked up, and {rows} came")
    return taken


def settle(connection: Connection) -> None:
    """Wait until the index is built; CREATE INDEX does not wait."""
    deadline = time.monotonic() + PATIENCE
    while statistics.median(ask(connection, LOOKUP, range(20))) > SETTLED:
        if time.monotonic() > deadline:
            raise SystemExit("look-ups do not become fast: the index is not read")


@contextmanager
def placed(client: set[int], servers: set[int], postgres: Connection) -> Iterator[None]:
    """Restrict this client thread to some processors, and both servers to others, for the length of the block."""
    everywhere = os.sched_getaffinity(0)
    backend = postgres.info.backend_pid
    for process in (os.getpid(), backend):
        place(process, servers)
    os.sched_setaffinity(0, client)
    try:
        yield
    finally:
        for process in (os.getpid(), backend):
            place(process, everywhere)


def compare(
    report: Report,
    ours: Connection,
    theirs: Connection,
    text: str,
    what: str,
    count: int,
    most: float,
    how: str = PREPARED,
) -> None:
    """Query both servers in turns, and print the times."""
    of_ours: list[float] = []
    of_theirs: list[float] = []
    for connection in (ours, theirs):
        ask(connection, text, range(ROUND), how=how)
    for begin in range(0, count, ROUND):
        of_ours += ask(ours, text, range(begin, begin + ROUND), how=how)
        of_theirs += ask(theirs, text, range(begin, begin + ROUND), how=how)
    print_ratio(report, of_ours, of_theirs, what, count, most)


def compare_batches(
    report: Report,
    ours: Connection,
    theirs: Connection,
    work: Work,
    what: str,
    count: int,
    most: float,
    rounds: int = 7,
) -> None:
    """Run a statement of many rows on both servers in turns, and print the times."""
    times = [(work(ours, count), work(theirs, count)) for _ in range(rounds)]
    print_ratio(report, [one for one, _ in times], [other for _, other in times], what, count, most)


def compare_statements(report: Report, ours: Connection, theirs: Connection, rows: int, lookups: int) -> None:
    """Compare statements that are not prepared, that write, or that read tables without an index."""
    for how, most in ((UNPREPARED, float("inf")), (SIMPLE, MOST_TEXTS)):
        compare(report, ours, theirs, LOOKUP, f"{how}", lookups, most, how)
    for text, what, most in (
        (INSERT, "inserts of one row", MOST_INSERTS),
        (UPDATE, "updates of one", MOST_UPDATES),
        (DELETE, "deletions of one", MOST_UPDATES),
        (MERGE, "merges of one", MOST_MERGES),
        (SCAN, f"selects of {SCANNED:,} rows", MOST_SCANS),
    ):
        compare(report, ours, theirs, text, what, lookups // 10, most)
    batches: list[tuple[Work, str, int, float]] = [
        *((insert_values, "rows of VALUES", count, MOST_BATCHES) for count in BATCHES),
        (insert_many, "rows of executemany", BATCHES[0], MOST_BATCHES),
        (insert_selected, "rows of INSERT … SELECT", rows, MOST_COPIES),
        (Numbered(KEYED), "rows of INSERT … SELECT, with a key", rows, MOST_COPIES),
        (Numbered(MAKE), "rows of CREATE TABLE AS", rows, MOST_COPIES),
        (copy_in, "rows of COPY FROM", rows, MOST_COPY_FROM),
        (Numbered(UPDATE_MANY), "rows of UPDATE", rows // CHANGED, MOST_CHANGES),
        (Numbered(DELETE_MANY), "rows of DELETE", rows // CHANGED, MOST_CHANGES),
    ]
    for work, what, count, most in batches:
        compare_batches(report, ours, theirs, work, what, count, most)


def print_ratio(
    report: Report, of_ours: Sequence[float], of_theirs: Sequence[float], what: str, count: int, most: float
) -> None:
    """Print the times of both servers in seconds, and their ratio beside its limit."""
    ratio = statistics.median(of_ours) / statistics.median(of_theirs)
    values: dict[str, Value] = {
        "p50 µs": statistics.median(of_ours) * 1e6,
        "p99 µs": percentile(of_ours) * 1e6,
        "its p50": statistics.median(of_theirs) * 1e6,
        "its p99": percentile(of_theirs) * 1e6,
        "ratio": ratio,
        "most": most if most < float("inf") else None,
    }
    miss = f"{ratio:.1f} times as long as PostgreSQL, not {most:g}" if ratio > most else None
    report.row(count, what, values, miss=miss)


def crowd(report: Report, open_client: Callable[[], Connection], text: str, what: str, count: int, idle: int) -> None:
    """Run a statement for many clients at once, while others are idle, and print the times."""
    with ExitStack() as stack:
        clients = [stack.enter_context(open_client()) for _ in range(BUSY + idle)]
        taken: list[list[float]] = [[] for _ in range(BUSY)]

        def work(index: int) -> None:
            taken[index] = ask(clients[index], text, range(index, index + count // BUSY))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(BUSY)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
    times = [time for of_one in taken for time in of_one]
    values: dict[str, Value] = {"p50 µs": statistics.median(times) * 1e6, "p99 µs": percentile(times) * 1e6}
    report.row(len(times), f"{what}: {BUSY} at once, {len(times) / seconds:,.0f}/s", values)


def connect(port: int) -> Connection:
    """Return a connection in autocommit mode."""
    return psycopg.connect(f"host=127.0.0.1 port={port} user=flow dbname=flow", autocommit=True)


def percentile(times: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(times)[len(times) * 99 // 100]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the table, a multiple of 20")
    parser.add_argument("--lookups", type=int, default=3_000, help="how many are looked up")
    parser.add_argument("--folder", type=Path, help="folder for the data of both servers, such as /dev/shm")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    arguments = parser.parse_args()
    report = Report(as_json=arguments.json)
    columns = [Column(name, ",.0f") for name in ("p50 µs", "p99 µs", "its p50", "its p99")] + [
        Column("ratio", width=7),
        Column("most", "g", width=6),
    ]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, ExitStack() as stack:
        port = stack.enter_context(serving(Path(folder)))
        postgres = stack.enter_context(Postgres(Path(folder) / "postgres"))
        ours, theirs = stack.enter_context(connect(port)), stack.enter_context(postgres.connect())
        for connection in (ours, theirs):
            fill(connection, arguments.rows)
            fill_others(connection)
        settle(ours)
        report.begin("sql", columns, about=f"Statements over a table of {arguments.rows:,} rows, beside PostgreSQL's")
        processors = sorted(os.sched_getaffinity(0))
        first, last = processors[0], processors[-1]
        with placed({first}, {first}, theirs):
            compare(report, ours, theirs, LOOKUP, "look-ups, on one processor", arguments.lookups, MOST)
        with placed({first}, {last}, theirs):
            compare(report, ours, theirs, LOOKUP, "look-ups by an index", arguments.lookups, MOST)
            compare_statements(report, ours, theirs, arguments.rows, arguments.lookups)
        crowd(report, lambda: connect(port), LOOKUP, "look-ups", arguments.lookups, IDLE)
        crowd(report, lambda: connect(port), INSERT, "inserts", arguments.lookups, 0)
        crowd(report, postgres.connect, INSERT, "its inserts", arguments.lookups, 0)
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
