"""The bench of compute instances: the effect on clients when the server restarts, and when an instance is lost.

`restart`: a server with many indexed views is killed and restarted: no view is recomputed, and all of them can be
looked up soon. `kill`: one of two replicas is killed every few seconds while clients look rows up, insert and follow
views: no statement fails, and no subscription misses or repeats a row. The exit code is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from bench.process import end, has_ended
from bench.report import Column, Report, Value
from bench.sql import Connection, connect, percentile
from derive.compute.dataflow.database import NAME
from derive.sql.maintenance.controller.remote import PROCESSES
from derive.sql.maintenance.instances import FOLDER
from derive.storage.task_log import recent_entries

MOST_ANSWER_SECONDS = 2.0
"""Maximum seconds from killing and restarting a server until every view is looked up."""
MOST_KILLED_RATIO = 5.0
"""Maximum ratio of the 99th percentile of lookups while replicas are killed to that without kills."""

PATIENCE_SECONDS = 3_600.0
_TABLES, _BUCKETS, _LOOKED_UP = 10, 100, 10_000
_LOOKUP_CLIENTS, _SUBSCRIBERS = 3, 2
_KILL_SECONDS = 5.0
_SETTLING_SECONDS = 15.0
"""Seconds after which the uppers of views are durable."""


@dataclass(frozen=True, slots=True)
class Served:
    """A started server.

    Attributes:
        process: the server's process.
        port: the port on which it listens.
        start_seconds: seconds from the start of the process until its address was printed.
    """

    process: subprocess.Popen[str]
    port: int
    start_seconds: float

    def replicas(self) -> list[int]:
        """Return the process ids of the server's replicas."""
        replicas: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended during the reading
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid and b"compute" in (folder / "cmdline").read_bytes().split(b"\0"):
                    replicas.append(int(folder.name))
        return replicas

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the server and its replicas."""
        replicas = self.replicas()
        end(self.process, number)
        until(lambda: all(map(has_ended, replicas)), "the end of replicas")


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    """Run `flowctl sql serve` for the length of the block, unless the block ends it."""
    source = folder / "flow.yaml"
    source.write_text("collections: {}\n")
    # As installed: Python caches compiled modules between starts.
    program = ["env", "-u", "PYTHONDONTWRITEBYTECODE", sys.executable, "-m", "derive.cli.main", "sql", "serve"]
    begun = time.perf_counter()
    command = [*program, "--listen", "127.0.0.1:0", "--source", str(source), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        port = int(process.stdout.readline().strip().rpartition(":")[2])
        served = Served(process, port, time.perf_counter() - begun)
        try:
            yield served
        finally:
            if process.poll() is None:
                served.end()


def until(holds: Callable[[], bool], what: str) -> float:
    """Wait until a condition holds; return the seconds that it took."""
    begun = time.perf_counter()
    while not holds():
        if time.perf_counter() - begun > PATIENCE_SECONDS:
            raise SystemExit(f"{what}: this is not so after {PATIENCE_SECONDS:,.0f} s")
        time.sleep(0.05)
    return time.perf_counter() - begun


def welcomes(folder: Path) -> list[dict[str, Any]]:
    """Return the log entries in which instances reported their dataflows on connecting."""
    return [entry for entry in recent_entries(folder / ".flow", FOLDER) if "rebuilt" in entry]


# Many views


def prepare(connection: Connection, rows: int, views: int) -> None:
    """Create tables, and indexed views over them."""
    for table in range(_TABLES):
        connection.execute(f"CREATE TABLE large{table} (part bigint, bucket bigint, amount double precision)")
        with connection.cursor() as cursor, cursor.copy(f"COPY large{table} FROM STDIN") as copy:
            for number in range(rows // _TABLES):
                copy.write_row((number % 10, number // 10 % _BUCKETS, number / 8))
    for view in range(views):
        connection.execute(
            f"CREATE VIEW view{view} AS SELECT bucket, count(*) AS number, sum(amount) AS amount"
            f" FROM large{view % _TABLES} WHERE part = {view // _TABLES % 10} GROUP BY bucket"
        )
        connection.execute(f"CREATE INDEX ON view{view} (bucket)")


def expected(rows: int) -> int:
    """Return the number of table rows in the first bucket of a view."""
    return len([number for number in range(0, rows // _TABLES, 10) if number // 10 % _BUCKETS == 0])


def look_at(connection: Connection, view: int, rows: int) -> None:
    """Look up a row of a view and check it."""
    if (row := connection.execute(f"SELECT number FROM view{view} WHERE bucket = 0").fetchone()) != (expected(rows),):
        raise SystemExit(f"view{view} has {row}, not {expected(rows)}")


def until_maintained(connection: Connection, views: int) -> float:
    """Wait until all views are maintained and up to date; return the seconds."""
    present = time.time() * 1e6

    def is_maintained() -> bool:
        states = connection.execute("SHOW MAINTENANCE").fetchall()
        return len(states) == views and all(upper and int(upper) > present for _, upper, *_ in states)

    return until(is_maintained, "all views are maintained")


def until_everywhere(folder: Path, views: int) -> None:
    """Wait until every instance has all views."""
    places = sorted((folder / ".flow" / PROCESSES).glob("*")) or [folder / ".flow" / FOLDER]
    for place in places:
        until(lambda place=place: has_dataflows(place, views), f"{place.name} has all views")  # type: ignore[misc]


def has_dataflows(place: Path, count: int) -> bool:
    """Return whether an instance has begun this many dataflows."""
    try:
        with closing(apsw.Connection(str(place / NAME), flags=apsw.SQLITE_OPEN_READONLY)) as database:
            return bool(database.execute("SELECT count(*) FROM dataflows").get == count)
    except apsw.Error:  # the database is being created
        return False


def restart(report: Report, rows: int, views: int, options: Sequence[str]) -> None:
    """Kill a server with many views, restart it, and look all of them up."""
    name = "in its process" if not options else f"{options[1]} replicas"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with serving(folder, *options) as served, connect(served.port) as connection:
            begun = time.perf_counter()
            prepare(connection, rows, views)
            until_maintained(connection, views)
            until_everywhere(folder, views)
            time.sleep(_SETTLING_SECONDS)
            first_seconds = time.perf_counter() - begun
            before = len(welcomes(folder))
            killed = time.perf_counter()
            served.end(signal.SIGKILL)
        with serving(folder, *options) as served, connect(served.port) as connection:
            look_at(connection, 0, rows)
            first_answer = time.perf_counter() - killed
            for view in range(views):
                look_at(connection, view, rows)
            seconds = time.perf_counter() - killed
            count = max(1, int(options[1]) if options else 1)
            until(lambda: len(welcomes(folder)) - before >= count, "instances are there")
            until_maintained(connection, views)
            maintained = time.perf_counter() - killed
        entries = welcomes(folder)[before:]
        kept, rebuilt = sum(entry["kept"] for entry in entries), sum(entry["rebuilt"] for entry in entries)
    values: dict[str, Value] = {
        "built s": first_seconds,
        "start s": served.start_seconds,
        "first s": first_answer,
        "all s": seconds,
        "current s": maintained,
        "kept": float(kept),
        "rebuilt": float(rebuilt),
    }
    misses = [f"{rebuilt} views are computed again"] if rebuilt or kept < count * views else []
    if seconds > MOST_ANSWER_SECONDS:
        misses.append(f"answers take longer than {MOST_ANSWER_SECONDS:g} s")
    report.row(views, f"views, {name}", values, miss=", ".join(misses) or None)


# Load


@dataclass(slots=True)
class Load:
    """Measurements of clients.

    Attributes:
        lookups: seconds of each lookup.
        inserts: seconds of each insert.
        inserted: inserted numbers, each once.
        followed: for each subscription, how often it has reported each number.
        failures: errors of statements.
    """

    lookups: list[float] = field(default_factory=list)
    inserts: list[float] = field(default_factory=list)
    inserted: list[int] = field(default_factory=list)
    followed: list[Counter[int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def make_load(connection: Connection) -> None:
    """Create the tables and views that clients use, and wait until they are maintained."""
    connection.execute("CREATE TABLE looked_up (id bigint, name text)")
    connection.execute("CREATE TABLE written (id bigint)")
    with connection.cursor() as cursor, cursor.copy("COPY looked_up FROM STDIN") as copy:
        for number in range(_LOOKED_UP):
            copy.write_row((number, f"name of {number}"))
    connection.execute("CREATE INDEX ON looked_up (id)")
    connection.execute("CREATE VIEW doubled AS SELECT id, id * 2 AS twice FROM written")
    connection.execute("CREATE INDEX ON doubled (id)")
    until_maintained(connection, 2)


def _look_up(load: Load, connection: Connection, is_over: threading.Event) -> None:
    """Look up one row after the other."""
    number = 0
    while not is_over.wait(0.005):
        number = (number + 7_919) % _LOOKED_UP
        start = time.perf_counter()
        row = connection.execute("SELECT name FROM looked_up WHERE id = %s", (number,), prepare=True).fetchone()
        load.lookups.append(time.perf_counter() - start)
        assert row == (f"name of {number}",), row


def _insert(load: Load, connection: Connection, is_over: threading.Event, first: int) -> None:
    """Insert one number after the other."""
    number = first
    while not is_over.wait(0.02):
        start = time.perf_counter()
        connection.execute("INSERT INTO written VALUES (%s)", (number,))
        load.inserts.append(time.perf_counter() - start)
        load.inserted.append(number)
        number += 1


def _follow(load: Load, connection: Connection, begun: threading.Barrier, is_followed: threading.Event) -> None:
    """Follow a view until all inserted numbers are reported, or no rows arrive for long."""
    reported: Counter[int] = Counter()
    load.followed.append(reported)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT id FROM doubled) WITH (SNAPSHOT = false)")
        begun.wait()
        patience = 0
        while patience < 20 and not (is_followed.is_set() and len(reported) >= len(load.inserted)):
            rows = cursor.execute("FETCH ALL c WITH (timeout = '0.5s')").fetchall()
            reported.update({row[2]: row[1] for row in rows})
            patience = patience + 1 if is_followed.is_set() and not rows else 0


@contextmanager
def loaded(port: int, first: int) -> Iterator[Load]:
    """Run clients for the length of the block; numbers from `first` on are inserted."""
    load = Load()
    is_over, is_followed = threading.Event(), threading.Event()
    begun = threading.Barrier(_LOOKUP_CLIENTS + _SUBSCRIBERS + 2)

    def look_up(connection: Connection) -> None:
        _look_up(load, connection, is_over)

    def insert(connection: Connection) -> None:
        _insert(load, connection, is_over, first)

    def follow(connection: Connection) -> None:
        _follow(load, connection, begun, is_followed)

    def work(job: Callable[[Connection], None]) -> None:
        try:
            with connect(port) as connection:
                if job is not follow:
                    begun.wait()
                job(connection)
        except Exception as exc:
            load.failures.append(f"{job.__name__}: {exc!r}")
            begun.abort()

    clients = [threading.Thread(target=work, args=(job,)) for job in (*(look_up,) * _LOOKUP_CLIENTS, insert)]
    followers = [threading.Thread(target=work, args=(follow,)) for _ in range(_SUBSCRIBERS)]
    for thread in (*clients, *followers):
        thread.start()
    begun.wait()
    try:
        yield load
    finally:
        is_over.set()
        for thread in clients:
            thread.join()
        is_followed.set()
        for thread in followers:
            thread.join()


def faults_of(load: Load) -> list[str]:
    """Return violations: failed statements, and rows that subscriptions have missed or repeated."""
    faults = [f"{len(load.failures)} statements failed, such as {load.failures[0]}"] if load.failures else []
    for reported in load.followed:
        missed = len([number for number in load.inserted if number not in reported])
        repeated = len([number for number, times in reported.items() if times != 1])
        if missed or repeated:
            faults.append(f"a subscription misses {missed} and repeats {repeated}")
    return faults


def row(report: Report, what: str, load: Load, faults: list[str], usual: Load, times: int, most: float) -> None:
    """Print the measurements of clients, beside those without kills."""
    ratio = percentile(load.lookups) / percentile(usual.lookups)
    values: dict[str, Value] = {
        "p50 ms": statistics.median(load.lookups) * 1e3,
        "p99 ms": percentile(load.lookups) * 1e3,
        "most ms": max(load.lookups) * 1e3,
        "insert p99": percentile(load.inserts) * 1e3,
        "p50 ratio": statistics.median(load.lookups) / statistics.median(usual.lookups),
        "p99 ratio": ratio,
        "times": float(times),
    }
    if ratio > most:
        faults = [*faults, f"99 of 100 look-ups take {ratio:.1f} times as long as usual, not {most:g}"]
    report.row(len(load.lookups), what, values, miss=", ".join(faults) or None)


def kill(report: Report, seconds: float) -> None:
    """Kill one of two replicas over and over."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        served = stack.enter_context(serving(folder, "--replicas", "2"))
        connection = stack.enter_context(connect(served.port))
        make_load(connection)
        until(lambda: len(served.replicas()) == 2, "two replicas")
        time.sleep(3)
        with loaded(served.port, 0) as quiet:
            time.sleep(min(seconds, 20.0))
        row(report, "look-ups, undisturbed", quiet, faults_of(quiet), quiet, 0, MOST_KILLED_RATIO)
        killed = 0
        with loaded(served.port, len(quiet.inserted)) as load:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                last = welcomes(folder)[-1:]
                os.kill(min(served.replicas()), signal.SIGKILL)  # the oldest one
                killed += 1
                time.sleep(_KILL_SECONDS)
                until(lambda last=last: welcomes(folder)[-1:] != last, "a replica is there again")  # type: ignore[misc]
        row(report, "look-ups, replicas killed", load, faults_of(load), quiet, killed, MOST_KILLED_RATIO)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of all tables below views")
    parser.add_argument("--views", type=int, default=100, help="indexed views of them")
    parser.add_argument("--seconds", type=float, default=120.0, help="for how long replicas are killed")
    parser.add_argument("--part", choices=("restart", "kill"), help="do this one only")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    arguments = parser.parse_args()
    report = Report(as_json=arguments.json)
    if arguments.part in {None, "restart"}:
        seconds = ("built s", "start s", "first s", "all s", "current s")
        counts = [Column(name, ",.0f", 9) for name in ("kept", "rebuilt")]
        report.begin("restart", [*map(Column, seconds), *counts], about="A server is killed and started again")
        for options in ((), ("--replicas", "2")):
            restart(report, arguments.rows, arguments.views, options)
    names = ("p50 ms", "p99 ms", "most ms", "insert p99", "p50 ratio", "p99 ratio")
    columns = [*map(Column, names), Column("times", ",.0f", 7)]
    if arguments.part in {None, "kill"}:
        report.begin("kill", columns, about="One of two replicas is killed every few seconds")
        kill(report, arguments.seconds)
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
