"""Jobs on several threads, with results in the order of the jobs, that Ctrl-C stops.

An executor of `concurrent.futures` waits at the end of the process for all of its jobs, even for a job that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Stops: TypeAlias = set[Callable[[], None]]
"""Functions that stop jobs: a running job adds one, and removes it at its end."""

_PATIENCE_SECONDS = 1.0
"""Seconds to wait for the end of jobs that were stopped; the end of the process ends their threads."""


class StoppableJobs(Generic[Item, Result]):
    """Jobs that run at the same time.

    Args:
        items: an item for each job.
        run: does the job of an item, and returns its result.
        order: the indexes of the items, in the order in which their jobs begin.
    """

    def __init__(self, items: Sequence[Item], run: Callable[[Item, Stops], Result], order: Sequence[int]) -> None:
        self._items, self._run = items, run
        self._pending = list(reversed(order))
        self._changed = threading.Condition()
        self._results: dict[int, Result] = {}
        self._errors: dict[int, BaseException] = {}
        self._stops: Stops = set()
        self._is_stopped = False

    def results(self, jobs: int) -> Generator[Result, None, None]:
        """Yield the result of each job, in the order of the items; stop all jobs if the caller closes the generator.

        Args:
            jobs: number of threads.
        """
        count = min(jobs, len(self._items))
        threads = [threading.Thread(target=self._work, name="flowctl-job", daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            for index in range(len(self._items)):
                yield self._result(index)
        finally:
            with self._changed:
                self._is_stopped = True
                stops = list(self._stops)
            for stop in stops:
                stop()
            for thread in threads:
                thread.join(_PATIENCE_SECONDS)

    def _result(self, index: int) -> Result:
        with self._changed:
            self._changed.wait_for(lambda: index in self._results or index in self._errors)
            if index in self._errors:
                raise self._errors[index]
            return self._results[index]

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_stopped or not self._pending:
                    return
                index = self._pending.pop()
            try:
                result = self._run(self._items[index], self._stops)
            except BaseException as exc:
                with self._changed:
                    self._errors[index] = exc
                    self._changed.notify_all()
            else:
                with self._changed:
                    self._results[index] = result
                    self._changed.notify_all()
