"""Executors: who carries out a plan. The in-process one is the oracle for Spark (law L1) and serves catalog tests."""

from __future__ import annotations

import itertools
from typing import Protocol

from derive.shard.message import Message
from derive.shard.plan import Plan
from derive.shard.progress import Progress
from derive.shard.worker import run_alone


class Executor(Protocol):
    """Runs transactions up to, but not including, their commit."""

    def start(self) -> None:
        """Be ready to execute; nothing happens if it is."""

    def execute(self, plan: Plan, progress: Progress) -> list[Message]:
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

    def start(self) -> None:
        """It always is."""

    def execute(self, plan: Plan, progress: Progress) -> list[Message]:
        """Carry out a plan."""
        messages = [
            message for number in range(plan.tasks) for message in run_alone(plan, number, next(self._attempts))
        ]
        progress(sum(message.documents_in for message in messages))
        return messages

    def cancel(self) -> None:
        """Whatever is at work has come to its end soon."""

    def close(self) -> None:
        """Nothing is held."""
