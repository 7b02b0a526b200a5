"""Staging: another process computes the first rows of a dataflow in its own database.

Then the instance adopts the rows.

The process reads the inputs, and computes the rows of all operators at one time. The process has a low priority, and
ends with its parent.

A low priority is not enough, because background work also empties the caches of a shared processor. So the process
pauses for as long as it has run, whenever it had to wait for a processor. Linux reports this waiting time; on other
systems, and with free processors, the process never pauses.

An adoption copies rows in batches. Each batch is a transaction of some milliseconds, and other dataflows advance
between two batches. If other threads wait for processors, a pause as long as the batch follows. The tables are
registered after the last batch. Tables of an incomplete adoption belong to no operator, and are removed.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from ctypes import c_longlong
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import apsw

from derive.algebra.expression import Expression
from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Row
from derive.compute.dataflow.database import NAME, open_staging
from derive.compute.dataflow.dataflow_group import DataflowGroup
from derive.compute.dataflow.input import Input, Opener
from derive.compute.dataflow.watch import MOST_STAGED_SECONDS, Watch
from derive.compute.plans.plan import Plan
from derive.compute.sqlite import sqlite_error, translated
from derive.errors import FlowError, SlowViewError, SqlError

_MOST_WAITING = 0.05
"""Share of the running time spent waiting for a processor above which the work pauses."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Throttle:
    """Pauses the work of one thread from time to time.

    Args:
        seconds: approximate duration of a run, and of a pause.
        waited: returns the seconds for which the thread has waited for a processor so far.
        clock: returns seconds.
        sleep: sleeps for the given seconds.
    """

    def __init__(
        self,
        seconds: float,
        waited: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds, self._waited = seconds, waited or waited_seconds
        self._clock, self._sleep = clock, sleep
        self._begin()

    def pause(self) -> None:
        """Pause if a pause is due. Called every few milliseconds."""
        worked = self._clock() - self._begun
        if worked < self._seconds:
            return
        if self._waited() - self._waited_before > _MOST_WAITING * worked:
            self._sleep(min(worked, 2 * self._seconds))
        self._begin()

    def _begin(self) -> None:
        self._begun, self._waited_before = self._clock(), self._waited()


def waited_seconds() -> float:
    """Return the seconds for which this thread has waited for a processor; 0 if the system does not report them."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


_NICE = 15
_WORK_SECONDS = 0.02
"""Approximate seconds of work before a pause, if other threads wait for processors."""
_STEPS = 50_000
"""Number of SQLite steps between two checks for a pause, about a millisecond."""
_MOST_TRIES = 3
"""Maximum number of starts of a process that is killed, for example for lack of memory."""


@dataclass(frozen=True, slots=True)
class FirstDataflow:
    """The dataflow of a new group.

    Attributes:
        identifier: identifier of the dataflow.
        relation: its relation.
        plan: its plan.
        sources: collections from which the dataflow derives.
        group: number of its group.
        operator: number of its first operator.
        indexes: expressions by which its rows are looked up.
    """

    identifier: GlobalId
    relation: Relation
    plan: Plan
    sources: frozenset[GlobalId]
    group: int
    operator: int
    indexes: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """The work of a staging process.

    Attributes:
        folder: existing folder for its database, and for stored snapshots.
        time: time of the rows.
        inputs: functions that open the inputs at that time.
        dataflow: dataflow to compute; None to store only snapshots of inputs.
        is_limited: whether the work ends with a `SlowViewError` if an operator takes too long.
    """

    folder: Path
    time: int
    inputs: Mapping[GlobalId, Opener]
    dataflow: FirstDataflow | None
    is_limited: bool = False


class Staged(Protocol):
    """A running task."""

    @property
    def rows(self) -> int:
        """Return the number of rows read from inputs so far."""

    @property
    def running(self) -> int:
        """Return the clock at which the running operator has begun; 0 if none runs."""

    def is_over(self) -> bool:
        """Return whether the task is done. Raise a FlowError if the task has failed."""

    def stop(self) -> None:
        """Stop the task if it runs."""


Stage: TypeAlias = Callable[[Order], Staged]
"""Starts a task."""


class Staging:
    """A process that executes a task.

    Args:
        order: the task.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._tries = 0
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._tries += 1
        self._progress = context.RawArray(c_longlong, 2)
        self._answer, answer = context.Pipe(duplex=False)
        what = (self._order, self._progress, answer)
        self._process = context.Process(target=_carry_out, args=what, name="flowctl-hydration", daemon=True)
        self._process.start()
        answer.close()

    @property
    def rows(self) -> int:
        """Return the number of rows read from inputs so far."""
        return int(self._progress[0])

    @property
    def running(self) -> int:
        """Return the clock at which the running operator has begun; 0 if none runs."""
        return int(self._progress[1])

    def is_over(self) -> bool:
        """Return whether the process has done its work.

        Raises:
            FlowError: the task cannot be done.
        """
        if self._process.is_alive():
            return False
        code, failure = self._process.exitcode, None
        with suppress(EOFError):  # the process sent no error
            failure = FlowError.from_json(self._answer.recv())
        self.stop()
        if failure is not None:
            raise failure
        if code == 0:
            return True
        if self._tries >= _MOST_TRIES:
            raise SqlError("XX000", f"the process that computes the first rows of a view ended with exit code {code}")
        for path in self._order.folder.iterdir():
            path.unlink()
        self._begin()
        return False

    def stop(self) -> None:
        """Kill the process, if it runs."""
        self._process.kill()
        self._process.join()
        self._answer.close()


def _carry_out(order: Order, progress: Any, answer: Connection) -> None:
    """Execute a task, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICE)

    throttle = Throttle(_WORK_SECONDS)

    def count(more: int) -> None:
        progress[0] += more
        throttle.pause()

    def note(running: int) -> None:
        progress[1] = running

    try:
        carry_out(order, count, throttle.pause, note)
    except Exception as exc:
        answer.send(as_failure(exc).to_json())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def carry_out(
    order: Order,
    count: Callable[[int], None] = lambda more: None,
    pause: Callable[[], None] = lambda: None,
    note: Callable[[int], None] = lambda running: None,
) -> None:
    """Execute a task.

    Args:
        order: the task.
        count: called with numbers of read rows.
        pause: called often; may sleep.
        note: called with the clock at which an operator begins, and with 0 when it ends.
    """
    inputs = {identifier: _Counting(opener(), count) for identifier, opener in order.inputs.items()}
    try:
        with translated():
            if order.dataflow is None:
                for source in inputs.values():
                    for _ in source.snapshot(order.time):
                        pass
            else:
                _work_out(order, order.dataflow, inputs, pause, note)
    finally:
        for source in inputs.values():
            source.close()


def _work_out(
    order: Order,
    first: FirstDataflow,
    inputs: Mapping[GlobalId, Input],
    pause: Callable[[], None],
    note: Callable[[int], None],
) -> None:
    def go_on() -> bool:
        pause()
        return False

    connection = open_staging(order.folder)
    connection.set_progress_handler(go_on, _STEPS)
    watch = Watch(connection, seconds=MOST_STAGED_SECONDS if order.is_limited else None, on_begin=note)
    try:
        with connection:
            group = DataflowGroup(connection, first.group, first.sources, order.time + 1, watch)
            group.record()
            group.begin(first.identifier, first.relation, first.plan, inputs, first.operator, first.indexes)
    except apsw.Error:
        if watch.take() is None:
            raise
        raise SlowViewError("the hydration of the view takes too long beside other views") from None
    connection.close()


class _Counting:
    """An input that counts the read rows; only its owner closes it."""

    has_more = False

    def __init__(self, source: Input, count: Callable[[int], None]) -> None:
        self._source = source
        self._count = count
        self.types, self.since, self.poll, self.close = source.types, source.since, source.poll, source.close

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows of the input, and count them."""
        for rows in self._source.snapshot(as_of):
            self._count(len(rows))
            yield rows


def as_failure(exc: Exception) -> FlowError:
    """Return an exception as a FlowError; exceptions of other types are wrapped."""
    if isinstance(exc, FlowError):
        return exc
    ours = sqlite_error(exc) if isinstance(exc, apsw.Error) else None
    return ours or SqlError("XX000", f"{type(exc).__name__}: {exc}")


_BATCH_SECONDS = 0.003
"""Approximate duration of a batch, in seconds."""
_FEWEST_ROWS, _MOST_ROWS = 200, 20_000
_TABLE = re.compile(r"[aghmq](\d+)(_\d+)?")
"""Names of operators' tables, with the operator's number."""
_NAMED = ("operators", "errors", "errors_history", "cohorts", "dataflows")


class Adoption:
    """A copy of tables from one database into another, in batches.

    Args:
        connection: writing connection of the target database.
        folder: folder of the source database.
    """

    def __init__(self, connection: apsw.Connection, folder: Path) -> None:
        self._connection = connection
        self._rows = 1_000
        self._last: Any = None
        self._throttle = Throttle(_BATCH_SECONDS)
        self.loaded = 0
        connection.execute("ATTACH ? AS staged", (str(folder / NAME),))
        self._tables: deque[str] = deque()
        with connection:
            for name, text in self._schema("table"):
                if _TABLE.fullmatch(name):
                    connection.execute(text)
                    self._tables.append(name)
            for _, text in self._schema("index"):
                connection.execute(text)
        self._made = tuple(self._tables)

    def _schema(self, kind: str) -> list[tuple[str, str]]:
        of_operators = "SELECT name, sql FROM staged.sqlite_schema WHERE type = ? AND sql IS NOT NULL AND tbl_name GLOB"
        rows: Any = self._connection.execute(f"{of_operators} '[aghmq][0-9]*'", (kind,)).fetchall()
        return list(rows)

    def load(self) -> bool:
        """Copy a batch; return whether there are more."""
        if not self._tables:
            return False
        self._throttle.pause()
        begin = time.monotonic()
        with self._connection:
            count = self._copy(self._tables[0])
        self.loaded += count
        if count < self._rows:
            self._tables.popleft()
            self._last = None
        elif time.monotonic() - begin > _BATCH_SECONDS:
            self._rows = max(_FEWEST_ROWS, self._rows // 2)
        elif time.monotonic() - begin < _BATCH_SECONDS / 2:
            self._rows = min(_MOST_ROWS, self._rows * 2)
        return True

    def _copy(self, table: str) -> int:
        """Copy the next rows of a table in the order of its key; return their number."""
        execute = self._connection.execute
        columns = [str(row[1]) for row in execute(f"PRAGMA staged.table_info({table})")]
        key = [str(row[1]) for row in execute(f"PRAGMA staged.table_info({table})") if row[5]] or ["rowid"]
        names = ", ".join(dict.fromkeys([*key, *columns]))
        order = ", ".join(key)
        after = "" if self._last is None else f"WHERE ({order}) > ({', '.join('?' * len(key))})"
        execute(
            f"INSERT INTO main.{table}({names}) SELECT {names} FROM staged.{table} {after} ORDER BY {order} LIMIT ?",
            (*(self._last or ()), self._rows),
        )
        count = self._connection.changes()
        self._last = execute(
            f"SELECT {order} FROM main.{table} ORDER BY {', '.join(f'{name} DESC' for name in key)} LIMIT 1"
        ).fetchone()
        return count

    def complete(self) -> None:
        """Register the copied tables in one transaction."""
        with self._connection:
            for table in _NAMED:
                self._connection.execute(f"INSERT INTO main.{table} SELECT * FROM staged.{table}")
        self._connection.execute("DETACH staged")

    def cancel(self) -> None:
        """Remove the copied tables."""
        self._connection.execute("DETACH staged")
        with self._connection:
            drop_tables(self._connection, self._made)


def drop_tables(connection: apsw.Connection, tables: Collection[str]) -> None:
    """Drop tables, if they exist."""
    for table in tables:
        connection.execute(f"DROP TABLE IF EXISTS main.{table}")


def drop_unnamed(connection: apsw.Connection) -> None:
    """Drop the tables that belong to no operator: they are left by incomplete adoptions."""
    numbers = {row[0] for row in connection.execute("SELECT number FROM operators")}
    rows: Any = connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall()
    tables = [(name, match) for (name,) in rows if (match := _TABLE.fullmatch(name))]
    with connection:
        drop_tables(connection, [name for name, match in tables if int(match[1]) not in numbers])
