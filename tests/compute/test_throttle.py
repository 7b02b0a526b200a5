"""Work rests for as long as it has gone on, but only where it had to wait for a processor."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS

from derive.compute.dataflow.staging import Throttle, waited_seconds


class Machine:
    """A clock, and what a thread has waited for a processor."""

    def __init__(self) -> None:
        self.now = self.waited = self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def throttle(self, seconds: float) -> Throttle:
        return Throttle(seconds, lambda: self.waited, lambda: self.now, self.sleep)

    def work(self, throttle: Throttle, seconds: float, waited: float) -> None:
        self.now += seconds
        self.waited += waited
        throttle.pause()


def test_throttle_does_not_pause_with_free_processors() -> None:
    machine = Machine()
    throttle = machine.throttle(0.02)
    for _ in range(1_000):
        machine.work(throttle, 0.001, 0.0)
    assert machine.slept == 0.0


def test_throttle_pauses_as_long_as_it_worked_if_processors_are_busy() -> None:
    machine = Machine()
    throttle = machine.throttle(0.02)
    machine.work(throttle, 0.015, 0.004)
    assert machine.slept == 0.0  # it has only just begun
    machine.work(throttle, 0.015, 0.0)
    assert machine.slept == pytest.approx(0.03)
    machine.work(throttle, 0.025, 0.0)
    assert machine.slept == pytest.approx(0.03)  # nobody waits any more


def test_throttle_pauses_briefly_after_a_long_step() -> None:
    machine = Machine()
    throttle = machine.throttle(0.02)
    machine.work(throttle, 5.0, 1.0)
    assert machine.slept == pytest.approx(0.04)


@given(st.lists(st.tuples(st.floats(0.0001, 0.05), st.floats(0, 0.01))))
def test_throttle_pauses_at_most_half_of_the_time(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    throttle = machine.throttle(0.02)
    for seconds, waited in steps:
        machine.work(throttle, seconds, waited)
    assert machine.slept <= sum(seconds for seconds, _ in steps) + 1e-9


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells")
def test_linux_reports_the_waiting_time_of_a_thread() -> None:
    before, is_over = waited_seconds(), threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    others = [threading.Thread(target=lambda: [None for _ in iter(is_over.is_set, True)]) for _ in range(2)]
    for other in others:
        other.start()
    try:
        while waited_seconds() == before:  # threads that are woken wait for a processor, if only for microseconds
            time.sleep(0.001)
            assert time.monotonic() < deadline
    finally:
        is_over.set()
        for other in others:
            other.join()
