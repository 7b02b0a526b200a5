"""Jobs on several threads, with results in the order of the jobs, that Ctrl-C stops.

An executor of `concurrent.futures` waits at the end of the process for all of its jobs, even for a job that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stops:
    """Functions that stop jobs: a running job adds one, and removes it at its end."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._functions: set[Callable[[], None]] = set()
        self._are_called = False

    def add(self, function: Callable[[], None]) -> None:
        """Add a function, and call it if the jobs were stopped meanwhile."""
        with self._turn:
            self._functions.add(function)
            is_late = self._are_called
        if is_late:
            function()

    def discard(self, function: Callable[[], None]) -> None:
        """Remove a function."""
        with self._turn:
            self._functions.discard(function)

    def call(self) -> None:
        """Call all functions, and later each function that a job adds."""
        with self._turn:
            self._are_called, functions = True, list(self._functions)
        for function in functions:
            function()


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
        self._stops = Stops()
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
            self._stops.call()
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
