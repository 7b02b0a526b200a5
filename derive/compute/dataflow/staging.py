"""Staging: a dataflow's first rows, computed in a process and a database of their own, while others advance.

The process reads the inputs, and computes the rows of all operators at one time. It has a low priority, and ends with
its parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ctypes import c_longlong
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import apsw

from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Row
from derive.compute.dataflow.database import open_staging
from derive.compute.dataflow.dataflow_group import DataflowGroup
from derive.compute.dataflow.input import Input, Opener
from derive.compute.dataflow.throttle import Throttle
from derive.compute.plans.plan import Plan
from derive.compute.sqlite.connection import sqlite_error, translated
from derive.errors import FlowError, SqlError

_NICE = 15
_WORK_SECONDS = 0.02
"""Approximate seconds of work before a pause, if others wait for processors."""
_STEPS = 50_000
"""Number of SQLite steps between two checks for a pause, about a millisecond."""
_MOST_TRIES = 3
"""Maximum number of starts of a process that dies, for example because memory is exhausted."""


@dataclass(frozen=True, slots=True)
class FirstDataflow:
    """The dataflow of a new group.

    Attributes:
        identifier: identifier of the dataflow.
        relation: its relation.
        plan: its plan.
        sources: collections that it derives from.
        group: number of its group.
        operator: number of its first operator.
        indexes: columns by which its rows are looked up.
    """

    identifier: GlobalId
    relation: Relation
    plan: Plan
    sources: frozenset[GlobalId]
    group: int
    operator: int
    indexes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """The task of a process.

    Attributes:
        folder: existing folder for its database, and for stored snapshots.
        time: time of the rows.
        inputs: functions that open the inputs at that time.
        dataflow: dataflow to compute; None to only store snapshots of inputs.
    """

    folder: Path
    time: int
    inputs: Mapping[GlobalId, Opener]
    dataflow: FirstDataflow | None


class Staged(Protocol):
    """A running task."""

    @property
    def rows(self) -> int:
        """Return the number of rows read from inputs so far."""

    def is_over(self) -> bool:
        """Return whether it is done; raise a FlowError if it cannot be done."""

    def stop(self) -> None:
        """Stop it, if it runs."""


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
        self._rows = context.RawValue(c_longlong, 0)
        self._answer, answer = context.Pipe(duplex=False)
        what = (self._order, self._rows, answer)
        self._process = context.Process(target=_carry_out, args=what, name="flowctl-hydration", daemon=True)
        self._process.start()
        answer.close()

    @property
    def rows(self) -> int:
        """Return the number of rows read from inputs so far."""
        return int(self._rows.value)

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
            raise SqlError("XX000", f"the process that works out the first rows of a view ended with exit code {code}")
        for path in self._order.folder.iterdir():
            path.unlink()
        self._begin()
        return False

    def stop(self) -> None:
        """Kill the process, if it runs."""
        self._process.kill()
        self._process.join()
        self._answer.close()


def _carry_out(order: Order, rows: Any, answer: Connection) -> None:
    """Execute a task, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICE)

    throttle = Throttle(_WORK_SECONDS)

    def count(more: int) -> None:
        rows.value += more
        throttle.pause()

    try:
        carry_out(order, count, throttle.pause)
    except Exception as exc:
        answer.send(as_failure(exc).to_json())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def carry_out(
    order: Order, count: Callable[[int], None] = lambda more: None, pause: Callable[[], None] = lambda: None
) -> None:
    """Execute a task.

    Args:
        order: the task.
        count: called with numbers of read rows.
        pause: called often; may sleep.
    """
    inputs = {identifier: _Counting(opener(), count) for identifier, opener in order.inputs.items()}
    try:
        with translated():
            if order.dataflow is None:
                for source in inputs.values():
                    for _ in source.snapshot(order.time):
                        pass
            else:
                _work_out(order.dataflow, order.folder, order.time, inputs, pause)
    finally:
        for source in inputs.values():
            source.close()


def _work_out(
    first: FirstDataflow, folder: Path, time: int, inputs: Mapping[GlobalId, Input], pause: Callable[[], None]
) -> None:
    def go_on() -> bool:
        pause()
        return False

    connection = open_staging(folder)
    connection.set_progress_handler(go_on, _STEPS)
    with connection:
        group = DataflowGroup(connection, first.group, first.sources, time + 1)
        group.record()
        group.begin(first.identifier, first.relation, first.plan, inputs, first.operator, first.indexes)
    connection.close()


class _Counting:
    """An input that counts its read rows, and that only its owner closes."""

    has_more = False

    def __init__(self, source: Input, count: Callable[[int], None]) -> None:
        self._source = source
        self._count = count
        self.types, self.since, self.poll, self.close = source.types, source.since, source.poll, source.close

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the same rows."""
        for rows in self._source.snapshot(as_of):
            self._count(len(rows))
            yield rows


def as_failure(exc: Exception) -> FlowError:
    """Return any exception as a FlowError."""
    if isinstance(exc, FlowError):
        return exc
    ours = sqlite_error(exc) if isinstance(exc, apsw.Error) else None
    return ours or SqlError("XX000", f"{type(exc).__name__}: {exc}")
