"""Executors: execute plans. The in-process executor is the oracle for Spark (law L1), and runs catalog tests."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Protocol

from derive.errors import TaskError
from derive.materialize.stages import AnyPlan, run_locally
from derive.shard.progress import Message, Progress, listening
from derive.shard.session import interrupt
from derive.time.extent import Limits, Load

_EVERY_SECONDS = 0.05


class Executor(Protocol):
    """Executes transactions up to, but not including, their commit."""

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Prepare the next transaction of a task.

        Args:
            load: the task's pending work.
            limits: limits for cutting the work.

        Returns:
            Limits of the place that will execute the work; none is above the given limit.
        """

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Execute a plan; return the messages of its workers, including errors.

        Raises:
            LostError: workers were lost and could not be replaced.
        """

    def cancel(self) -> None:
        """Make transactions in other threads fail."""

    def close(self) -> None:
        """Release all resources."""


class InProcessExecutor:
    """Executes plans in this process, one shard after the other, with documents in memory."""

    _attempts = itertools.count()
    _is_cancelled = False
    _plans: tuple[AnyPlan, ...] = ()  # running plans
    _turn = threading.Lock()

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Return `limits` unchanged."""
        return limits

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Execute a plan."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            if self._is_cancelled:
                raise TaskError(f"the transaction of '{plan.spec.name}' was cancelled")
            done += more
            progress(done)

        with listening(plan, count):
            with self._turn:
                self._plans = (*self._plans, plan)
            try:
                return list(run_locally(plan, self._attempts))
            finally:
                with self._turn:
                    self._plans = tuple(other for other in self._plans if other is not plan)

    def cancel(self) -> None:
        """Make running SQL or document batches fail; the executor cannot be used afterwards."""
        self._is_cancelled = True
        threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        """Interrupt running plans repeatedly, because an interrupt between two statements has no effect."""
        while plans := self._plans:
            for plan in plans:
                interrupt(plan)
            time.sleep(_EVERY_SECONDS)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""
