"""The watch over the running operator: interrupts statements that take too long or are no longer needed.

A dataflow that takes too long beside other dataflows is *slow*. Its owner then maintains it in an instance of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import apsw

from derive.algebra.relation import GlobalId

_STEPS = 20_000
"""Number of SQLite steps between two checks, below a millisecond unless the steps call Python functions."""
MOST_SECONDS = 0.5
"""Processor seconds that an operator may always take in a tick, while other dataflows wait."""
MOST_STAGED_SECONDS = 5.0
"""Processor seconds that an operator may always take in a process of its own, while other hydrations wait."""
SECONDS_PER_FIRST_ROW = 50e-6
"""Additional processor seconds for each row of its inputs in a hydration."""
SECONDS_PER_CHANGE = 200e-6
"""Additional processor seconds for each changed row of its inputs in a tick."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """An interrupted operator.

    Attributes:
        is_slow: whether the operator took too long; otherwise its dataflow is no longer needed.
        dataflows: dataflows that derive from the operator.
    """

    is_slow: bool
    dataflows: Collection[GlobalId]


class Watch:
    """Watches the operators that run on a connection.

    One thread begins and ends operators. Other threads may call `stop`, `cancel` and read `running`.

    Args:
        connection: the writing connection of a database.
        seconds: processor seconds that an operator may take, besides the seconds for its rows; None for no limit.
        on_begin: called with the time at which an operator begins, and with 0 when it ends.

    Attributes:
        running: clock at which the running operator has begun; 0 if none runs.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        seconds: float | None = None,
        on_begin: Callable[[int], None] | None = None,
    ) -> None:
        self._seconds = seconds
        self.running = 0
        self._connection = connection
        self._on_begin = on_begin
        self._is_stopped = False
        self._unneeded: set[GlobalId] = set()
        self._dataflows: Callable[[], Collection[GlobalId]] = tuple
        self._deadline = 0.0
        self._interruption: Interruption | None = None
        connection.set_progress_handler(self._is_over, _STEPS, id=Watch)

    @property
    def is_limited(self) -> bool:
        """Return whether operators that take too long are interrupted."""
        return self._seconds is not None

    def begin(self, dataflows: Callable[[], Collection[GlobalId]], seconds: float) -> None:
        """Note that an operator begins.

        Args:
            dataflows: returns the dataflows that derive from the operator.
            seconds: processor seconds for the rows of its inputs.
        """
        self._dataflows = dataflows
        if self._seconds is not None:
            self._deadline = time.thread_time() + self._seconds + seconds
        self.running = time.time_ns() // 1000
        if self._on_begin is not None:
            self._on_begin(self.running)

    def end(self) -> None:
        """Note that the operator has ended."""
        self.running = 0
        if self._on_begin is not None:
            self._on_begin(0)

    def release(self) -> None:
        """Stop to watch, so that the connection can be closed."""
        self._connection.set_progress_handler(None, id=Watch)

    def stop(self) -> None:
        """Interrupt every statement from now on."""
        self._is_stopped = True

    def cancel(self, identifier: GlobalId) -> None:
        """Interrupt the running operator if the dataflow derives from it."""
        self._unneeded.add(identifier)

    def forget(self, identifier: GlobalId) -> None:
        """Note that a cancelled dataflow has been dropped."""
        self._unneeded.discard(identifier)

    def take(self) -> Interruption | None:
        """Return the interruption that a failed statement is due to, once; None for another failure."""
        interruption, self._interruption = self._interruption, None
        self.end()
        return interruption

    def _is_over(self) -> bool:
        if self._is_stopped:
            self._interruption = Interruption(is_slow=False, dataflows=())
            return True
        if not self.running:
            return False
        is_slow = self._seconds is not None and time.thread_time() > self._deadline
        if is_slow or (self._unneeded and not self._unneeded.isdisjoint(self._dataflows())):
            self._interruption = Interruption(is_slow, tuple(self._dataflows()))
            self.running = 0  # statements of the rollback are not interrupted
            return True
        return False
