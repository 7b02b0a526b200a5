"""Pauses between attempts, and operations that become due again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from derive.backoff import Backoff, Retries


def test_backoff_doubles_pauses_up_to_its_limit() -> None:
    backoff = Backoff(1.0, 60.0)

    assert [backoff.pause(failures) for failures in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.pause(10**9) == 60


@given(failures=st.integers(1, 2000), first=st.floats(0.001, 10), jitter=st.floats(0, 1))
def test_jitter_shortens_a_pause_by_at_most_its_share(failures: int, first: float, jitter: float) -> None:
    whole = Backoff(first, 60.0).pause(failures)

    assert whole * (1 - jitter) * 0.999 <= Backoff(first, 60.0, jitter).pause(failures) <= whole


def test_retries_wait_longer_after_each_failure_until_a_success() -> None:
    now = 0.0
    retries: Retries[str] = Retries(Backoff(1.0, 60.0), lambda: now)
    pauses = []
    for _ in range(8):
        retries.fail("task")
        before = now
        while not retries.is_due("task"):
            now += 0.5
        pauses.append(now - before)
    retries.succeed("task")
    retries.fail("task")
    now += 1.0

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert retries.is_due("task")


def test_operation_without_a_recorded_failure_is_not_due() -> None:
    """Another thread may look between a failure and its record."""
    retries = Retries[str](Backoff(1.0, 4.0))

    assert not retries.is_due("a")


def test_retries_return_a_due_key_once_for_each_failure() -> None:
    seconds = 0.0
    retries: Retries[int] = Retries(Backoff(0.5, 30.0), lambda: seconds)
    retries.fail(1)
    assert retries.take_due() == []
    retries.hasten(1)
    assert retries.take_due() == [1]
    assert retries.take_due() == []
    assert not retries.is_waiting(1)
    retries.fail(1)
    seconds = 0.9  # the second pause is 1.0 s
    assert retries.take_due() == []
    seconds = 1.0
    assert retries.take_due() == [1]
