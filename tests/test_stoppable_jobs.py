"""Jobs on several threads: results in order, errors, and the end of jobs that a caller no longer wants."""

from __future__ import annotations

import threading

import pytest

from derive.stoppable_jobs import StoppableJobs, Stops


def test_results_come_in_the_order_of_items_from_jobs_in_another_order() -> None:
    begun: list[int] = []

    def run(item: int, stops: Stops) -> int:
        begun.append(item)
        return 10 * item

    assert list(StoppableJobs([0, 1, 2, 3], run, [3, 1, 0, 2]).results(1)) == [0, 10, 20, 30]
    assert begun == [3, 1, 0, 2]
    assert list(StoppableJobs([0, 1, 2, 3], run, [3, 1, 0, 2]).results(3)) == [0, 10, 20, 30]


def test_error_of_a_job_is_raised_in_its_place() -> None:
    def run(item: int, stops: Stops) -> int:
        return 6 // item

    results = StoppableJobs([1, 0, 2], run, [0, 1, 2]).results(2)
    assert next(results) == 6
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_closed_results_stop_running_jobs_and_begin_no_more() -> None:
    """A job that waits without end ends when its function to stop is called."""
    begun: list[int] = []
    is_waiting, is_stopped = threading.Event(), threading.Event()

    def run(item: int, stops: Stops) -> int:
        begun.append(item)
        if item == 1:
            stops.add(is_stopped.set)
            is_waiting.set()
            is_stopped.wait()
            stops.discard(is_stopped.set)
        return item

    results = StoppableJobs([0, 1, 2], run, [0, 1, 2]).results(1)
    assert next(results) == 0
    is_waiting.wait()
    results.close()
    assert (is_stopped.is_set(), begun) == (True, [0, 1])


def test_job_that_begins_while_jobs_are_stopped_is_stopped() -> None:
    stops, called = Stops(), list[str]()
    stops.add(lambda: called.append("early"))
    stops.call()
    stops.add(lambda: called.append("late"))
    assert called == ["early", "late"]
