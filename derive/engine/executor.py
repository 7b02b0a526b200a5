"""Executors: who carries out a plan. The in-process one is the oracle for Spark (law L1) and serves catalog tests."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Protocol

from derive.errors import TaskError
from derive.materialize.stages import AnyPlan, run_here
from derive.shard.message import Message
from derive.shard.progress import Progress, listening
from derive.shard.session import interrupt
from derive.time.limits import Limits, Load

_EVERY_SECONDS = 0.05


class Executor(Protocol):
    """Runs transactions up to, but not including, their commit."""

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """Be ready for the next transaction of a task, which has something to read.

        Args:
            load: what waits for the task.
            limits: how its work may be cut.

        Returns:
            How it is to be cut where it will be carried out, which is within those limits.
        """

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Carry out a plan; returns what its workers said, errors included.

        Raises:
            LostError: workers were lost and could not be replaced.
        """

    def cancel(self) -> None:
        """Make the transactions fail that are at work in other threads."""

    def close(self) -> None:
        """Release everything."""


class InProcessExecutor:
    """Runs the same shard runtime in this process, one shard after the other, with documents in memory."""

    _attempts = itertools.count()
    _is_cancelled = False
    _plans: tuple[AnyPlan, ...] = ()  # that are at work
    _turn = threading.Lock()

    def prepare(self, load: Load, limits: Limits) -> Limits:
        """It is ready."""
        return limits

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        """Carry out a plan."""
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
                return list(run_here(plan, self._attempts))
            finally:
                with self._turn:
                    self._plans = tuple(other for other in self._plans if other is not plan)

    def cancel(self) -> None:
        """Let what is at work fail with the SQL or the batch of documents that it is at; the executor runs no more."""
        self._is_cancelled = True
        threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        """Interrupt what is at work; again and again, as it may have been between two statements."""
        while plans := self._plans:
            for plan in plans:
                interrupt(plan)
            time.sleep(_EVERY_SECONDS)

    def close(self) -> None:
        """Nothing is held."""
