"""A dataflow's first rows, worked out in a process of its own and a database of its own, while others go on.

The process reads the inputs, and works out the rows of all operators at one time. Its priority is low, and it ends with
whoever has started it.
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
from derive.compute.dataflow.cohort import Cohort
from derive.compute.dataflow.database import open_staging
from derive.compute.dataflow.input import Input, Opener
from derive.compute.dataflow.throttle import Throttle
from derive.compute.plans.plan import Plan
from derive.compute.sqlite.connection import sqlite_error, translated
from derive.errors import FlowError, SqlError

_NICE = 15
_WORK_SECONDS = 0.02
"""About how long it goes on before it rests, if others wait for processors."""
_STEPS = 50_000
"""So many steps of SQLite, which take a millisecond or so, are between two looks at whether to rest."""
_MOST_TRIES = 3
"""So often a process is begun that something ends, such as the system for want of memory."""


@dataclass(frozen=True, slots=True)
class FirstDataflow:
    """The dataflow of a new cohort.

    Attributes:
        identifier: of the dataflow.
        relation: what it has the rows of.
        plan: of these.
        sources: collections that it follows from.
        cohort: the number of its cohort.
        operator: the number of its first operator.
        indexes: columns by which its rows are looked up.
    """

    identifier: GlobalId
    relation: Relation
    plan: Plan
    sources: frozenset[GlobalId]
    cohort: int
    operator: int
    indexes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """What a process is to do.

    Attributes:
        folder: for its database, and what inputs keep; it is there.
        time: of the rows.
        inputs: what opens them, at that time.
        dataflow: to work out; None to have inputs keep what they keep, and no more.
    """

    folder: Path
    time: int
    inputs: Mapping[GlobalId, Opener]
    dataflow: FirstDataflow | None


class Staged(Protocol):
    """An order that is carried out."""

    @property
    def rows(self) -> int:
        """How many rows of inputs were read so far."""

    def is_over(self) -> bool:
        """Whether it is done; raises a FlowError if there is no doing it."""

    def stop(self) -> None:
        """End it, if it has not ended."""


Stage: TypeAlias = Callable[[Order], Staged]
"""Has an order carried out."""


class Staging:
    """A process that carries out an order.

    Args:
        order: to carry out.
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
        """How many rows of inputs it has read so far."""
        return int(self._rows.value)

    def is_over(self) -> bool:
        """Whether it has done its work.

        Raises:
            FlowError: there is no doing it.
        """
        if self._process.is_alive():
            return False
        code, failure = self._process.exitcode, None
        with suppress(EOFError):  # it had nothing to say
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
        """End it, if it has not ended."""
        self._process.kill()
        self._process.join()
        self._answer.close()


def _carry_out(order: Order, rows: Any, answer: Connection) -> None:
    """Carry an order out, in a process for it alone."""
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
    """Carry an order out.

    Args:
        order: to carry out.
        count: is told of rows that were read.
        pause: is called again and again, and may take its time.
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
        cohort = Cohort(connection, first.cohort, first.sources, time + 1)
        cohort.record()
        cohort.begin(first.identifier, first.relation, first.plan, inputs, first.operator, first.indexes)
    connection.close()


class _Counting:
    """An input whose rows are counted as they are read, and closed by nobody but its owner."""

    has_more = False

    def __init__(self, source: Input, count: Callable[[int], None]) -> None:
        self._source = source
        self._count = count
        self.types, self.since, self.poll, self.close = source.types, source.since, source.poll, source.close

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The same rows."""
        for rows in self._source.snapshot(as_of):
            self._count(len(rows))
            yield rows


def as_failure(exc: Exception) -> FlowError:
    """What an instance tells of whatever has failed."""
    if isinstance(exc, FlowError):
        return exc
    ours = sqlite_error(exc) if isinstance(exc, apsw.Error) else None
    return ours or SqlError("XX000", f"{type(exc).__name__}: {exc}")
