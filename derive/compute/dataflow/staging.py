"""Staging: another process computes the first rows of some dataflows in its own database.

Then the instance adopts the rows.

The process reads the inputs, and computes the rows of all operators at one time, one dataflow after the other. A
process with very many rows has a low priority. Every process ends with its parent.

A low priority is not enough, because background work also empties the caches of a shared processor. So the process
pauses for as long as it has run, whenever it had to wait for a processor. Linux reports this waiting time; on other
systems, and with free processors, the process never pauses.

An adoption copies rows in batches. Each batch is a transaction of some milliseconds, and other dataflows advance
between two batches. If other threads wait for processors, a pause as long as the batch follows. A table of a prompt
task that is not large is copied at once, which takes a fraction of the time, because SQLite then copies entries of
tables and indexes as they are. The tables are registered after the last batch. Tables of an incomplete adoption belong
to no operator, and are removed.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from derive.compute.operators.operator import narrowed
from derive.compute.plans.plan import Plan, Source, inputs_of
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
_IDLE_SECONDS = 20.0
"""Seconds for which a process waits for its next task."""
_MOST_TRIES = 3
"""Maximum number of starts of a process that is killed, for example for lack of memory."""


@dataclass(frozen=True, slots=True)
class FirstDataflow:
    """A dataflow of a new group.

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
        dataflows: dataflows to compute, in this order; none to store only snapshots of inputs.
        is_limited: whether a dataflow fails with a `SlowViewError` if an operator takes too long.
        is_prompt: whether the work has the priority of this process.
    """

    folder: Path
    time: int
    inputs: Mapping[GlobalId, Opener]
    dataflows: tuple[FirstDataflow, ...]
    is_limited: bool = False
    is_prompt: bool = False


class Staged(Protocol):
    """A running task."""

    @property
    def rows(self) -> int:
        """Return the number of rows read from inputs so far."""

    @property
    def running(self) -> int:
        """Return the clock at which the running operator has begun; 0 if none runs."""

    def outcome(self) -> Mapping[GlobalId, FlowError] | None:
        """Return the errors of dataflows; None until the task is done. Raise a FlowError if the whole task fails."""

    def stop(self) -> None:
        """Stop the task if it runs."""


Stage: TypeAlias = Callable[[Order], Staged]
"""Starts a task."""


class Staging:
    """A process that executes a task.

    A process waits for later tasks, because its start takes longer than the first rows of most views.

    Args:
        order: the task.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._tries = 0
        self._is_done = False
        self._begin()

    def _begin(self) -> None:
        self._tries += 1
        self._worker = _taken() if self._order.is_prompt else _Worker()
        self._worker.begin(self._order)

    @property
    def rows(self) -> int:
        """Return the number of rows read from inputs so far."""
        return int(self._worker.progress[0])

    @property
    def running(self) -> int:
        """Return the clock at which the running operator has begun; 0 if none runs."""
        return int(self._worker.progress[1])

    def outcome(self) -> Mapping[GlobalId, FlowError] | None:
        """Return the errors of dataflows; None until the process has done its work.

        Raises:
            FlowError: the task cannot be done.
        """
        worker, answer = self._worker, None
        with suppress(EOFError, OSError):  # the process has ended
            answer = worker.answers.recv() if worker.answers.poll() else None
        if answer is None:
            if not worker.process.is_alive():
                self._try_again()
            return None
        self._is_done = True
        if self._order.is_prompt:
            _IDLE.append(worker)
        else:
            worker.end()
        failure, failures = answer
        if failure is not None:
            raise FlowError.from_json(failure)
        return {identifier: FlowError.from_json(failure) for identifier, failure in failures.items()}

    def _try_again(self) -> None:
        """Execute the task in another process."""
        code = self._worker.process.exitcode
        self._worker.end()
        if self._tries >= _MOST_TRIES:
            raise SqlError("XX000", f"the process that computes the first rows of a view ended with exit code {code}")
        for path in self._order.folder.iterdir():
            path.unlink()
        self._begin()

    def stop(self) -> None:
        """Kill the process, unless the task is done: the process may execute another task by now."""
        if not self._is_done:
            self._worker.end()


class _Worker:
    """A process that executes one task after the other, and its ends of pipes.

    Attributes:
        process: the process.
        progress: number of rows read, and the clock at which the running operator has begun.
        answers: for each task, its error or None, and the errors of its dataflows by identifier.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.progress = context.RawArray(c_longlong, 2)
        orders, self._orders = context.Pipe(duplex=False)
        self.answers, answers = context.Pipe(duplex=False)
        arguments = (orders, answers, self.progress)
        self.process = context.Process(target=_carry_out_all, args=arguments, name="flowctl-hydration", daemon=True)
        self.process.start()
        orders.close()
        answers.close()

    def begin(self, order: Order) -> None:
        """Send a task to the process."""
        self.progress[:] = [0, 0]
        with suppress(OSError):  # the process has ended, as its owner will notice
            self._orders.send(order)

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self._orders.close()
        self.answers.close()


_Json: TypeAlias = dict[str, Any]
_IDLE: list[_Worker] = []
"""Processes that wait for a task; each ends after some seconds."""


def _taken() -> _Worker:
    """Return an idle process, or a new one."""
    while _IDLE:
        worker = _IDLE.pop()
        if worker.process.is_alive():
            return worker
        worker.end()
    return _Worker()


def _carry_out_all(orders: Connection, answers: Connection, progress: Any) -> None:
    """Execute tasks, in a process of its own, until there is none for some seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while orders.poll(_IDLE_SECONDS):
        answers.send(_carry_out(orders.recv(), progress))


def _carry_out(order: Order, progress: Any) -> tuple[_Json | None, Mapping[GlobalId, _Json]]:
    """Execute a task; return its error, and the errors of its dataflows."""
    pause = _never_pause
    if not order.is_prompt:
        os.nice(_NICE)
        pause = Throttle(_WORK_SECONDS).pause

    def count(more: int) -> None:
        progress[0] += more
        pause()

    def note(running: int) -> None:
        progress[1] = running

    try:
        failures = carry_out(order, count, pause, note)
    except Exception as exc:
        return as_failure(exc).to_json(), {}
    return None, {identifier: failure.to_json() for identifier, failure in failures.items()}


def _never_pause() -> None:
    """Do not pause."""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def carry_out(
    order: Order,
    count: Callable[[int], None] = lambda more: None,
    pause: Callable[[], None] = _never_pause,
    note: Callable[[int], None] = lambda running: None,
) -> dict[GlobalId, FlowError]:
    """Execute a task; return the errors of its dataflows.

    Args:
        order: the task.
        count: called with numbers of read rows.
        pause: called often; may sleep.
        note: called with the clock at which an operator begins, and with 0 when it ends.
    """
    inputs = _Inputs(order, count)
    try:
        with translated():
            if order.dataflows:
                return _work_out(order, inputs, pause, note)
            for identifier in order.inputs:
                for _ in inputs.opened(identifier).snapshot(order.time):
                    pass
    finally:
        inputs.close()
    return {}


def _work_out(
    order: Order, inputs: _Inputs, pause: Callable[[], None], note: Callable[[int], None]
) -> dict[GlobalId, FlowError]:
    def paused() -> bool:
        pause()
        return False

    connection = open_staging(order.folder)
    connection.set_progress_handler(paused, _STEPS)
    watch = Watch(connection, seconds=MOST_STAGED_SECONDS if order.is_limited else None, on_begin=note)
    groups: dict[int, DataflowGroup] = {}
    failures: dict[GlobalId, FlowError] = {}
    for first in order.dataflows:
        known = groups.get(first.group)
        others = [group for number, group in groups.items() if number != first.group]
        try:
            read = inputs.of(sources_of([first.plan]), connection)
            with connection:
                group = known or DataflowGroup(connection, first.group, first.sources, order.time + 1, watch)
                if known is None:
                    group.record()
                group.begin(first.identifier, first.relation, first.plan, read, first.operator, first.indexes, others)
            groups[first.group] = group
        except Exception as exc:  # other dataflows begin
            failures[first.identifier] = _TOO_SLOW if watch.take() is not None else as_failure(exc)
    connection.close()
    return failures


_TOO_SLOW = SlowViewError("the hydration of the view takes too long beside other views")


def sources_of(plans: Iterable[Plan]) -> dict[GlobalId, tuple[int, ...] | None]:
    """Return the sources of plans, each with the columns that are read; None for all columns."""
    read: dict[GlobalId, tuple[int, ...] | None] = {}
    for plan in plans:
        if isinstance(plan, Source):
            read[plan.id] = plan.columns
        for identifier, columns in sources_of(inputs_of(plan)).items():
            known = read.get(identifier, ())
            read[identifier] = None if known is None or columns is None else (*known, *columns)
    return read


class _Inputs:
    """The inputs of a task. Each is opened once; the rows of a prompt task are read once into a table.

    Args:
        order: the task.
        count: called with numbers of read rows.
    """

    def __init__(self, order: Order, count: Callable[[int], None]) -> None:
        self._order, self._count = order, count
        self._columns = sources_of(first.plan for first in order.dataflows)
        self._opened: dict[GlobalId, Input] = {}
        self._stored: dict[GlobalId, _Stored] = {}

    def of(self, identifiers: Iterable[GlobalId], connection: apsw.Connection) -> dict[GlobalId, Input]:
        """Return open inputs, whose rows may be in a temporary table of the connection."""
        known = [identifier for identifier in identifiers if identifier in self._order.inputs]
        if not self._order.is_prompt:
            return {identifier: _Counted(self.opened(identifier), self._count) for identifier in known}
        for identifier in known:
            if identifier not in self._stored:
                source = _Counted(self.opened(identifier), self._count)
                with connection:
                    self._stored[identifier] = _Stored(source, connection, identifier, self._columns[identifier])
        return {identifier: self._stored[identifier] for identifier in known}

    def opened(self, identifier: GlobalId) -> Input:
        """Return an open input."""
        if identifier not in self._opened:
            self._opened[identifier] = self._order.inputs[identifier]()
        return self._opened[identifier]

    def close(self) -> None:
        """Close all inputs."""
        for source in self._opened.values():
            source.close()


class _Counted:
    """An input whose rows are counted; only its owner closes it."""

    has_more = False

    def __init__(self, source: Input, count: Callable[[int], None]) -> None:
        self._source, self._count = source, count
        self.types, self.since, self.poll = source.types, source.since, source.poll

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows of the input."""
        for rows in self._source.snapshot(as_of):
            self._count(len(rows))
            yield rows

    def close(self) -> None:
        """Do nothing: the owner closes the input."""


class _Stored(_Counted):
    """An input whose rows are in a temporary table.

    Args:
        source: the input.
        connection: connection to the database.
        identifier: identifier of the input.
        columns: indexes of the needed columns; None for all.
    """

    def __init__(
        self, source: _Counted, connection: apsw.Connection, identifier: GlobalId, columns: Sequence[int] | None
    ) -> None:
        super().__init__(source, lambda more: None)
        self._table = f"temp.i{identifier}"
        self._rows = 0
        chosen = sorted(set(range(len(source.types)) if columns is None else columns))
        names = ", ".join([*(f"c{index}" for index in chosen), "w"])
        connection.execute(f"CREATE TEMP TABLE i{identifier}({names})")
        fill = f"INSERT INTO {self._table} VALUES ({', '.join(['?'] * len(chosen) + ['1'])})"
        for rows in source.snapshot(source.since):
            connection.executemany(fill, narrowed(rows, None if len(chosen) == len(source.types) else chosen))
            self._rows += len(rows)

    def stored(self) -> tuple[str, int]:
        """Return the table, and its number of rows."""
        return self._table, self._rows


def as_failure(exc: Exception) -> FlowError:
    """Return an exception as a FlowError; exceptions of other types are wrapped."""
    if isinstance(exc, FlowError):
        return exc
    ours = sqlite_error(exc) if isinstance(exc, apsw.Error) else None
    return ours or SqlError("XX000", f"{type(exc).__name__}: {exc}")


_BATCH_SECONDS = 0.003
"""Approximate duration of a batch, in seconds."""
_FEWEST_ROWS, _MOST_ROWS = 200, 20_000
_MOST_AT_ONCE = 100_000
"""Maximum number of rows of a table that is copied at once."""
_TABLE = re.compile(r"[aghmq](\d+)(_\d+)?")
"""Names of operators' tables, with the operator's number."""
_NAMED = ("operators", "errors", "errors_history", "cohorts", "dataflows")


class Adoption:
    """A copy of tables from one database into another, in batches.

    Args:
        connection: writing connection of the target database.
        order: the task that has filled the source database.
    """

    def __init__(self, connection: apsw.Connection, order: Order) -> None:
        self._connection = connection
        self._rows = 1_000
        self._last: Any = None
        self._pause = _never_pause if order.is_prompt else Throttle(_BATCH_SECONDS).pause
        self._most_at_once = _MOST_AT_ONCE if order.is_prompt else 0
        self._columns: tuple[Sequence[str], Sequence[str]] | None = None
        self.loaded = 0
        self._staged = f"staged{order.folder.name}"
        connection.execute(f"ATTACH ? AS {self._staged}", (str(order.folder / NAME),))
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
        of_operators = (
            f"SELECT name, sql FROM {self._staged}.sqlite_schema WHERE type = ? AND sql IS NOT NULL AND tbl_name GLOB"
        )
        rows: Any = self._connection.execute(f"{of_operators} '[aghmq][0-9]*'", (kind,)).fetchall()
        return list(rows)

    def load(self) -> bool:
        """Copy a batch; return whether there are more."""
        if not self._tables:
            return False
        self._pause()
        begin = time.monotonic()
        with self._connection:
            if self._last is None and self._is_small(self._tables[0]):
                self._connection.execute(self._whole(self._tables[0]))
                self.loaded += self._connection.changes()
                self._tables.popleft()
                return True
            count = self._copy(self._tables[0])
        self.loaded += count
        if count < self._rows:
            self._tables.popleft()
            self._last = self._columns = None
        elif time.monotonic() - begin > _BATCH_SECONDS:
            self._rows = max(_FEWEST_ROWS, self._rows // 2)
        elif time.monotonic() - begin < _BATCH_SECONDS / 2:
            self._rows = min(_MOST_ROWS, self._rows * 2)
        return True

    def _is_small(self, table: str) -> bool:
        """Return whether a table is copied at once."""
        counted = f"SELECT count(*) FROM (SELECT 1 FROM {self._staged}.{table} LIMIT ?)"
        count = self._connection.execute(counted, (self._most_at_once + 1,)).get
        return int(count) <= self._most_at_once

    def _whole(self, table: str) -> str:
        return f"INSERT INTO main.{table} SELECT * FROM {self._staged}.{table}"

    def _copy(self, table: str) -> int:
        """Copy the next rows of a table in the order of its key; return their number."""
        execute = self._connection.execute
        if self._columns is None:
            described: Any = execute(f"PRAGMA {self._staged}.table_info({table})").fetchall()
            key = [str(row[1]) for row in described if row[5]] or ["rowid"]
            self._columns = [str(row[1]) for row in described], key
        names = ", ".join(dict.fromkeys([*self._columns[1], *self._columns[0]]))
        order = ", ".join(self._columns[1])
        after = "" if self._last is None else f"WHERE ({order}) > ({', '.join('?' * len(self._last))})"
        execute(
            f"INSERT INTO main.{table}({names}) SELECT {names} FROM {self._staged}.{table} {after}"
            f" ORDER BY {order} LIMIT ?",
            (*(self._last or ()), self._rows),
        )
        count = self._connection.changes()
        falling = ", ".join(f"{name} DESC" for name in self._columns[1])
        self._last = execute(f"SELECT {order} FROM main.{table} ORDER BY {falling} LIMIT 1").fetchone()
        return count

    def complete(self, dropped: Collection[GlobalId]) -> None:
        """Register the copied tables in one transaction; `dropped` dataflows are not registered."""
        with self._connection:
            for table in _NAMED:
                condition = f" WHERE id NOT IN ({', '.join(map(str, dropped))})" if table == "dataflows" else ""
                self._connection.execute(f"INSERT INTO main.{table} SELECT * FROM {self._staged}.{table}{condition}")
        self._connection.execute(f"DETACH {self._staged}")

    def cancel(self) -> None:
        """Remove the copied tables."""
        self._connection.execute(f"DETACH {self._staged}")
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
